//! `GET /innkeeper/v1/nodes`: the cluster as this router sees it. What `innkeeper ps` prints.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use innkeeper_actors::router::RouterNode;
use innkeeper_leases::Member;
use innkeeper_node::metrics::LEDGER_DEADLINE;
use innkeeper_node::view::NodeView;
use innkeeper_room::ledger::router::MemberView;
use serde_json::{Value, json};

#[derive(Clone)]
struct Nodes {
    node: Arc<RouterNode>,
    view: Arc<dyn NodeView>,
}

/// The route.
pub fn routes(node: Arc<RouterNode>, view: Arc<dyn NodeView>) -> Router {
    Router::new()
        .route("/innkeeper/v1/nodes", get(list))
        .with_state(Nodes { node, view })
}

async fn list(State(nodes): State<Nodes>) -> Response {
    let Some(mut members) = nodes.node.members(LEDGER_DEADLINE).await else {
        let body = json!({ "error": { "code": "internal_error", "message": "the router's ledger does not answer" } });
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    };
    members.sort_by_key(|(view, _)| (view.info.role, view.info.incarnation));
    let own = nodes.view.node();
    let mut others = nodes.node.routers(LEDGER_DEADLINE).await.unwrap_or_default();
    others.retain(|router| router.incarnation != own.incarnation);
    others.sort_by_key(|router| router.incarnation);
    let mut rows = vec![json!(own)];
    rows.extend(others.iter().map(other_router));
    rows.extend(
        members
            .iter()
            .filter_map(|(view, member)| Some(row(view, member.as_ref()?))),
    );
    Json(rows).into_response()
}

/// Another router, as its record in the lease store has it: routers do not talk to each other.
fn other_router(member: &Member) -> Value {
    json!({
        "role": member.role,
        "name": member.name,
        "pid": member.pid,
        "incarnation": member.incarnation,
        "state": member.state,
        "http": member.http,
        "control": member.control,
        "data": member.data,
        "revision": member.revision,
    })
}

fn row(view: &MemberView, member: &Member) -> Value {
    json!({
        "role": member.role,
        "name": member.name,
        "pid": member.pid,
        "incarnation": member.incarnation,
        "state": state(view),
        "http": member.http,
        "control": member.control,
        "data": member.data,
        "revision": member.revision,
        "pages": member.pages,
        "rooms": view.load.map(|load| load.rooms),
        "free_pages": view.load.map(|load| load.free_pages),
        "engine_owes_ms": view.load.map(|load| load.engine_owes),
        "breaker": view.breaker.label(),
        "avoided_peers": view.avoided_peers,
    })
}

/// One word for people: what matters most comes first.
fn state(view: &MemberView) -> &'static str {
    if view.lost {
        "lost"
    } else if !view.link_up {
        "unreachable"
    } else if !view.info.serving {
        "draining"
    } else if view.load.is_some_and(|load| !load.serving) {
        "not_serving"
    } else {
        "serving"
    }
}
