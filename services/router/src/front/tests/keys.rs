use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use innkeeper_node::security::{Keyring, Keys, key_line};
use serde_json::json;
use tower::ServiceExt;

use super::harness::*;
use crate::front::{FrontState, routes};

const KEY: &str = "ik-0123456789abcdef0123";

/// Of a front door that asks for this key, under this name.
fn asking(router: &Arc<FakeRouter>, name: &str) -> FrontState {
    let line = key_line(name, KEY).unwrap();
    FrontState {
        keys: Some(Arc::new(Keys::new(Keyring::parse(&[&line]).unwrap()))),
        ..state(router)
    }
}

async fn abort(router: &Arc<FakeRouter>, key: Option<&str>) -> Got {
    let state = asking(router, "tenant-a");
    let mut request: Request<Body> = post("/abort_request", json!({ "rid": "rid-1" }));
    if let Some(key) = key {
        let bearer = format!("Bearer {key}").parse().unwrap();
        request.headers_mut().insert("authorization", bearer);
    }
    read(routes(state).oneshot(request).await.unwrap()).await
}

#[tokio::test]
async fn a_key_gives_its_requests_a_name_and_is_never_said() {
    let router = healthy();
    for wrong in [None, Some("ik-0123456789abcdef0124")] {
        let got = abort(&router, wrong).await;
        assert_eq!(got.status, StatusCode::UNAUTHORIZED);
        assert_eq!(got.json()["error"]["code"], "invalid_api_key");
        assert!(got.headers["www-authenticate"].to_str().unwrap().starts_with("Bearer "));
        assert!(!got.body.contains("0123456789abcdef"), "{}", got.body);
    }
    assert!(lock(&router.aborts).is_empty(), "nobody else reaches the ledger");
    assert_eq!(abort(&router, Some(KEY)).await.status, StatusCode::OK);
    assert_eq!(*lock(&router.aborts), [("rid-1".to_owned(), "tenant-a".to_owned())]);
}

/// The tenant of a chat that comes from this address, or from nowhere, with this key, or with none.
async fn tenant(state: FrontState, router: &FakeRouter, from: Option<&str>, key: Option<&str>) -> u128 {
    let mut request: Request<Body> = post("/v1/chat/completions", chat(json!({ "n": 2 })));
    if let Some(from) = from {
        let from: SocketAddr = format!("{from}:1234").parse().unwrap();
        request.extensions_mut().insert(ConnectInfo(from));
    }
    if let Some(key) = key {
        let bearer = format!("Bearer {key}").parse().unwrap();
        request.headers_mut().insert("authorization", bearer);
    }
    let got = read(routes(state).oneshot(request).await.unwrap()).await;
    assert_eq!(got.status, StatusCode::OK, "{}", got.body);
    let mut submitted = lock(&router.submitted);
    let tenants: Vec<u128> = submitted.drain(..).map(|request| request.work.tenant).collect();
    assert_eq!(tenants.len(), 2);
    assert_eq!(tenants[0], tenants[1], "all choices are of one tenant");
    tenants[0]
}

#[tokio::test]
async fn a_tenant_is_a_key_or_an_address_and_never_both() {
    let router = healthy();
    let (here, there) = (Some("10.0.0.1"), Some("10.0.0.2"));
    let address = tenant(state(&router), &router, here, None).await;
    assert_ne!(address, 0);
    assert_eq!(tenant(state(&router), &router, here, None).await, address);
    assert_ne!(tenant(state(&router), &router, there, None).await, address);
    let unchecked = tenant(state(&router), &router, here, Some(KEY)).await;
    assert_eq!(unchecked, address, "a key that nobody checks says nothing");
    // The key counts, wherever it is shown; also one that is named like an address.
    let key = tenant(asking(&router, "10.0.0.1"), &router, here, Some(KEY)).await;
    assert_eq!(
        tenant(asking(&router, "10.0.0.1"), &router, there, Some(KEY)).await,
        key
    );
    assert_ne!(tenant(asking(&router, "other"), &router, here, Some(KEY)).await, key);
    assert!(key != 0 && key != address);
    assert_eq!(tenant(state(&router), &router, None, None).await, 0, "nobody's");
}
