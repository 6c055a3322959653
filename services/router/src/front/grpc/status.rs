//! Refusals and failures as gRPC says them.

use std::collections::HashMap;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::front::error::ApiError;

/// `google.rpc.ErrorInfo.domain`.
const DOMAIN: &str = "innkeeper";

/// The status of a call that is refused or failed: its code follows from the HTTP status, and its details say the rest.
pub(crate) fn status(error: &ApiError) -> Status {
    let message = error.to_string();
    let mut details = ErrorDetails::new();
    details.set_error_info(error.code(), DOMAIN, metadata(error));
    if let Some(param) = error.param() {
        details.add_bad_request_violation(param, message.clone());
    }
    if let Some(seconds) = error.retry_after() {
        details.set_retry_info(Some(Duration::from_secs(seconds)));
    }
    Status::with_error_details(code(error), message, details)
}

/// The error as the client of a request with these headers reads it: as a gRPC status, or as JSON.
pub(crate) fn refuse(error: ApiError, headers: &HeaderMap) -> Response {
    if is_grpc(headers) {
        status(&error).into_http()
    } else {
        error.into_response()
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/grpc"))
}

fn code(error: &ApiError) -> Code {
    if let ApiError::UnknownPath { .. } = error {
        return Code::Unimplemented;
    }
    match error.status().as_u16() {
        401 => Code::Unauthenticated,
        404 => Code::NotFound,
        408 | 504 => Code::DeadlineExceeded,
        429 => Code::ResourceExhausted,
        499 => Code::Cancelled,
        502 | 503 => Code::Unavailable,
        400..=498 => Code::InvalidArgument,
        _ => Code::Internal,
    }
}

fn metadata(error: &ApiError) -> HashMap<String, String> {
    let mut metadata = HashMap::new();
    let mut say = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            metadata.insert(name.to_owned(), value);
        }
    };
    say("param", error.param());
    if let ApiError::Room(failure) = error {
        say("room", failure.room.map(|room| room.to_string()));
        say("attempts", Some(failure.attempts.0.to_string()));
        say("blame", Some(failure.blame.label().to_owned()));
        say("node", failure.blame.node().map(|node| node.to_string()));
    }
    metadata
}
