//! `POST /innkeeper/v1/rooms/{id}/evict`: an operator ends a room, as a revocation of its lease does. Only with the key.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use innkeeper_actors::router::RouterNode;
use innkeeper_node::config::Secret;
use innkeeper_node::http::{refusal, room_of};
use innkeeper_node::metrics::LEDGER_DEADLINE;
use serde_json::json;

#[derive(Clone)]
struct Evicts {
    node: Arc<RouterNode>,
    key: Option<Secret>,
}

/// The route. Without a key nobody may.
pub(crate) fn routes(node: Arc<RouterNode>, key: Option<Secret>) -> Router {
    Router::new()
        .route("/innkeeper/v1/rooms/{room}/evict", post(evict))
        .with_state(Evicts { node, key })
}

async fn evict(State(evicts): State<Evicts>, Path(room): Path<String>, headers: HeaderMap) -> Response {
    if let Err(refused) = allowed(evicts.key.as_ref(), &headers) {
        return refused;
    }
    let room = match room_of(&room) {
        Ok(room) => room,
        Err(refused) => return refused,
    };
    match evicts.node.evict(room, LEDGER_DEADLINE).await {
        Some(true) => {
            tracing::info!(%room, "an operator evicted the room");
            Json(json!({ "room": room, "status": "evicted" })).into_response()
        }
        Some(false) => {
            let message =
                format!("this router has no live room {room}: it never existed, it has ended, or it is another's");
            refusal(StatusCode::NOT_FOUND, "unknown_room", &message)
        }
        None => refusal(
            StatusCode::SERVICE_UNAVAILABLE,
            "internal_error",
            "the router's ledger does not answer",
        ),
    }
}

/// Whether the caller knows the key.
#[expect(clippy::result_large_err, reason = "an answer is what it is")]
fn allowed(key: Option<&Secret>, headers: &HeaderMap) -> Result<(), Response> {
    let Some(key) = key else {
        return Err(refusal(
            StatusCode::FORBIDDEN,
            "no_admin_key",
            "nobody may evict rooms here: start the router with INNKEEPER_ADMIN_KEY, and give the same to the client",
        ));
    };
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    match given.and_then(|value| value.strip_prefix("Bearer ")) {
        Some(guess) if key.is(guess) => Ok(()),
        Some(_) => Err(refusal(
            StatusCode::FORBIDDEN,
            "wrong_admin_key",
            "the key is not that of this router",
        )),
        None => Err(refusal(
            StatusCode::FORBIDDEN,
            "missing_admin_key",
            "evicting a room needs the router's key: name it with --admin-key or INNKEEPER_ADMIN_KEY",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(key: Option<&str>, given: Option<&str>) -> Option<u16> {
        let key: Option<Secret> = key.map(|key| key.parse().unwrap());
        let mut headers = HeaderMap::new();
        if let Some(given) = given {
            headers.insert(header::AUTHORIZATION, given.parse().unwrap());
        }
        allowed(key.as_ref(), &headers)
            .err()
            .map(|refused| refused.status().as_u16())
    }

    #[test]
    fn only_the_key_opens() {
        assert_eq!(status(Some("room-key"), Some("Bearer room-key")), None);
        for wrong in [
            "Bearer room-kez",
            "Bearer room-ke",
            "Bearer room-key2",
            "Bearer ",
            "room-key",
        ] {
            assert_eq!(status(Some("room-key"), Some(wrong)), Some(403), "{wrong}");
        }
        assert_eq!(status(Some("room-key"), None), Some(403));
        assert_eq!(status(None, Some("Bearer ")), Some(403), "without a key nobody may");
    }
}
