//! What the flight recorder kept:
//!
//! ```text
//! /innkeeper/v1/ended?limit=200   the rooms that ended last, newest first: the rows of `rooms ls --ended --json`
//! /innkeeper/v1/record/{room}     this node's record of a room, live or over; 404 if there is none
//! ```

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use innkeeper_room::RoomId;
use serde::Deserialize;
use serde_json::json;

use crate::recorder::Recorder;

/// Rows of the list unless a limit is named, and at most.
const ROWS: usize = 200;
const MOST_ROWS: usize = 5000;

#[derive(Deserialize)]
struct Limit {
    limit: Option<usize>,
}

/// The routes.
pub fn recorded(recorder: Recorder) -> Router {
    Router::new()
        .route("/innkeeper/v1/ended", get(ended))
        .route("/innkeeper/v1/record/{room}", get(record))
        .with_state(recorder)
}

/// A refusal in the shape of the API's errors.
pub fn refusal(status: StatusCode, code: &str, message: &str) -> Response {
    let kind = match status {
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::FORBIDDEN => "permission_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "server_error",
    };
    let error = json!({ "message": message, "type": kind, "param": null, "code": code });
    (status, Json(json!({ "error": error }))).into_response()
}

/// The room that a path names.
///
/// # Errors
/// What is wrong with it, as an answer.
#[expect(clippy::result_large_err, reason = "an answer is what it is")]
pub fn room_of(text: &str) -> Result<RoomId, Response> {
    text.parse().map_err(|error: innkeeper_room::ids::IdError| {
        refusal(StatusCode::BAD_REQUEST, "invalid_value", &error.to_string())
    })
}

async fn ended(State(recorder): State<Recorder>, Query(limit): Query<Limit>) -> Response {
    let limit = limit.limit.unwrap_or(ROWS).min(MOST_ROWS);
    Json(recorder.ended(limit)).into_response()
}

async fn record(State(recorder): State<Recorder>, Path(room): Path<String>) -> Response {
    let room = match room_of(&room) {
        Ok(room) => room,
        Err(refused) => return refused,
    };
    match recorder.record(room) {
        Some(record) => Json(record).into_response(),
        None => {
            let message = format!("this node has no record of a room {room}: it never knew it, or that was long ago");
            refusal(StatusCode::NOT_FOUND, "unknown_room", &message)
        }
    }
}
