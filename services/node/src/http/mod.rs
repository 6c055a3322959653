//! A node's HTTP endpoints. All answer within a second, whatever the ledger does:
//!
//! ```text
//! /metrics              Prometheus
//! /health               200 while the node is as it should be and its ledger answers, else 503; who it is, as JSON
//! /ready                200 while new work may be sent here, else 503
//! /innkeeper/v1/node    who it is: one row of `ps --json`
//! /innkeeper/v1/rooms   its rooms: the rows of `rooms ls --json`; 503 if the ledger does not answer
//! ```

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::map_request;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::grpc::finish_within;
use crate::metrics::{self, LEDGER_DEADLINE, NodeMetrics};
use crate::net::{CountingListener, Peer};
use crate::view::{NodeState, NodeView};

#[derive(Clone)]
struct Node {
    view: Arc<dyn NodeView>,
    metrics: Arc<NodeMetrics>,
}

/// The endpoints of a node, to which its own are added (`Router::merge`).
pub fn endpoints(view: Arc<dyn NodeView>, metrics: Arc<NodeMetrics>) -> Router {
    Router::new()
        .route("/metrics", get(scrape))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/innkeeper/v1/node", get(node))
        .route("/innkeeper/v1/rooms", get(rooms))
        .with_state(Node { view, metrics })
}

/// Serves `router` until `stop`; then no connection is accepted, and what runs may finish within `limit`, after which
/// all connections are broken.
///
/// # Errors
/// If serving fails as a whole.
pub async fn serve(
    listener: CountingListener,
    router: Router,
    stop: CancellationToken,
    limit: Duration,
) -> io::Result<()> {
    let connections = listener.connections().clone();
    let service = router
        .layer(map_request(known_peer))
        .into_make_service_with_connect_info::<Peer>();
    let serving = axum::serve(listener, service).with_graceful_shutdown(stop.clone().cancelled_owned());
    finish_within(serving.into_future(), stop, limit, &connections)
        .await
        .unwrap_or(Ok(()))
}

/// Handlers ask for the address itself, whatever the listener is.
async fn known_peer(mut request: Request) -> Request {
    if let Some(ConnectInfo(Peer(addr))) = request.extensions().get::<ConnectInfo<Peer>>().copied() {
        request.extensions_mut().insert(ConnectInfo(addr));
    }
    request
}

async fn scrape(State(node): State<Node>) -> Response {
    match node.metrics.scrape().await {
        Ok(page) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn health(State(node): State<Node>) -> Response {
    let answers = tokio::time::timeout(LEDGER_DEADLINE, node.view.gauges())
        .await
        .unwrap_or(None)
        .is_some();
    let own = node.view.node();
    let status = if answers && own.state.is_alive() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = json!({
        "role": own.role,
        "name": own.name,
        "incarnation": own.incarnation,
        "state": own.state,
        "ledger_answers": answers,
    });
    (status, Json(body)).into_response()
}

async fn ready(State(node): State<Node>) -> Response {
    let own = node.view.node();
    let ready = own.state == NodeState::Serving && node.view.ready();
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(json!({ "ready": ready, "state": own.state }))).into_response()
}

async fn node(State(node): State<Node>) -> Response {
    Json(node.view.node()).into_response()
}

async fn rooms(State(node): State<Node>) -> Response {
    match tokio::time::timeout(LEDGER_DEADLINE, node.view.rooms()).await {
        Ok(Some(rooms)) => Json(rooms).into_response(),
        Ok(None) | Err(_) => {
            let body = json!({ "error": { "code": "internal_error", "message": "the node's ledger does not answer" } });
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}
