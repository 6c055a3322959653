use axum::body::Body;
use axum::http::{Request, StatusCode};
use innkeeper_node::security::{Keyring, Keys, key_line};
use serde_json::json;
use tower::ServiceExt;

use super::harness::*;
use crate::front::routes;

const KEY: &str = "ik-0123456789abcdef0123";

async fn abort(router: &std::sync::Arc<FakeRouter>, key: Option<&str>) -> Got {
    let line = key_line("tenant-a", KEY).unwrap();
    let state = crate::front::FrontState {
        keys: Some(std::sync::Arc::new(Keys::new(Keyring::parse(&[&line]).unwrap()))),
        ..state(router)
    };
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
