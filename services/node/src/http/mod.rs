//! A node's HTTP endpoints. All answer within a second, whatever the ledger does:
//!
//! ```text
//! /metrics              Prometheus; OpenMetrics for those that accept it
//! /health               200 while the node is as it should be and its ledger answers, else 503; who it is, as JSON
//! /ready                200 while new work may be sent here, else 503
//! /engine/livez         503 while the engine next door is to be ended and started anew, else 200: its liveness probe; 404 without one
//! /innkeeper/v1/node    who it is: one row of `ps --json`, and its version and time (unix, milliseconds)
//! /innkeeper/v1/rooms   its rooms: the rows of `rooms ls --json`; 503 if the ledger does not answer
//! ```
//!
//! A connection owes its first bytes, its TLS handshake, and the head of each HTTP/1 request within the listener's patience.

mod recorded;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use recorded::recorded;
pub use recorded::{refusal, room_of};

use innkeeper_engine::{About, Seen};

use crate::grpc::finish_within;
use crate::metrics::{self, Form, LEDGER_DEADLINE, NodeMetrics};
use crate::net::{CountingListener, Hasty};
use crate::recorder::{Recorder, unix_ms};
use crate::view::{NodeState, NodeView};

/// HTTP/2: between two pings, and for the answer to one.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests of one HTTP/2 connection at once; the router has limits of its own for all of them.
const STREAMS: u32 = 1024;
/// What the HTTP/2 library takes of headers; the router's own limit is lower, and says what was too much.
const HEADER_LIST_BYTES: u32 = 64 << 10;

#[derive(Clone)]
struct Node {
    view: Arc<dyn NodeView>,
    metrics: Arc<NodeMetrics>,
}

/// What machines ask of a node, and everybody may: its metrics and its health.
pub fn endpoints(view: Arc<dyn NodeView>, metrics: Arc<NodeMetrics>) -> Router {
    Router::new()
        .route("/metrics", get(scrape))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/engine/livez", get(engine_livez))
        .with_state(Node { view, metrics })
}

/// What people ask of a node: who it is, its rooms, and what its recorder kept.
pub fn looks(view: Arc<dyn NodeView>, recorder: Recorder) -> Router {
    Router::new()
        .route("/innkeeper/v1/node", get(node))
        .route("/innkeeper/v1/rooms", get(rooms))
        .with_state(view)
        .merge(recorded(recorder))
}

/// Serves `router` until `stop`; then no connection is accepted, and what runs may finish within `limit`, after which
/// all connections are broken. HTTP/1 and HTTP/2 alike: the first bytes of a connection tell.
pub async fn serve(listener: CountingListener, router: Router, stop: CancellationToken, limit: Duration) {
    let connections = listener.connections().clone();
    let serving = serve_all(listener, router, stop.clone());
    // `None`: they had to be broken.
    let _ = finish_within(serving, stop, limit, &connections).await;
}

async fn serve_all(mut listener: CountingListener, router: Router, stop: CancellationToken) {
    let patience = listener.patience();
    let builder = connections(patience);
    let graceful = GracefulShutdown::new();
    // Owned here: they end with this future at the latest.
    let mut serving = JoinSet::new();
    loop {
        let (connection, peer) = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.next() => accepted,
        };
        let from = move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo::<SocketAddr>(peer));
            request
        };
        let service = TowerToHyperService::new(router.clone().map_request(from));
        let connection = TokioIo::new(Hasty::new(connection, patience));
        let connection = builder.serve_connection(connection, service);
        let connection = graceful.watch(connection.into_owned());
        serving.spawn(async move {
            if let Err(error) = connection.await {
                // Clients leave as they like.
                tracing::debug!(%error, "an HTTP connection broke");
            }
        });
        while serving.try_join_next().is_some() {}
    }
    drop(listener);
    graceful.shutdown().await;
}

/// How connections are served. HTTP/2 carries many requests of one client at once.
fn connections(patience: Duration) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    // From the connection's first bytes, or the answer before, to the end of a request's head.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(patience);
    builder
        .http2()
        .timer(TokioTimer::new())
        // A client that is gone without a word is found, also while its request has nothing to say.
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(STREAMS)
        // The default of 20 closes the connection of a client that cancels many requests at once.
        .max_pending_accept_reset_streams(STREAMS as usize)
        .max_header_list_size(HEADER_LIST_BYTES);
    builder
}

async fn scrape(State(node): State<Node>, headers: HeaderMap) -> Response {
    let accepted = headers
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .unwrap_or_default();
    let (form, kind) = if accepted.contains("application/openmetrics-text") {
        (Form::OpenMetrics, metrics::OPENMETRICS)
    } else {
        (Form::Prometheus, metrics::CONTENT_TYPE)
    };
    match node.metrics.scrape(form).await {
        Ok(page) => ([(CONTENT_TYPE, kind)], page).into_response(),
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

/// What the platform asks that restarts the engine: whether it is to.
async fn engine_livez(State(node): State<Node>) -> Response {
    let (status, ending) = match node.view.next_door() {
        None => return StatusCode::NOT_FOUND.into_response(),
        Some(seen) if seen.ending => (StatusCode::SERVICE_UNAVAILABLE, true),
        Some(_) => (StatusCode::OK, false),
    };
    (status, Json(json!({ "restart_engine": ending }))).into_response()
}

async fn node(State(view): State<Arc<dyn NodeView>>) -> Response {
    let mut own = json!(view.node());
    // What an operator compares between nodes: the program, and the clock.
    own["version"] = json!(env!("CARGO_PKG_VERSION"));
    own["time_ms"] = json!(unix_ms());
    if let (Some(about), Some(seen)) = (view.about(), view.next_door()) {
        own["engine"] = engine(&about, &seen);
    }
    Json(own).into_response()
}

fn engine(about: &About, seen: &Seen) -> serde_json::Value {
    json!({
        "engine": about.engine, "url": about.url, "model": about.model, "pages": about.pages, "used_pages": seen.used_pages,
        "lease_ms": about.lease.0, "restart": about.restart, "transport": about.transport, "partial": about.partial,
        "kept": seen.kept, "reads": seen.reads, "external_tokens": seen.external_tokens, "unproven": seen.unproven,
        "step_age_ms": seen.step_age.0, "given_up": seen.given_up,
    })
}

async fn rooms(State(view): State<Arc<dyn NodeView>>) -> Response {
    match tokio::time::timeout(LEDGER_DEADLINE, view.rooms()).await {
        Ok(Some(rooms)) => Json(rooms).into_response(),
        Ok(None) | Err(_) => {
            let body = json!({ "error": { "code": "internal_error", "message": "the node's ledger does not answer" } });
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}
