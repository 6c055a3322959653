//! Every error code under its status.

use std::collections::BTreeSet;

use innkeeper_room::Reason;
use serde_json::{Map, Value, json};

use crate::front::error::ApiError;

/// What any request may be answered.
pub(super) const OPEN: &[u16] = &[400, 405, 414, 431];
/// The same where a key may be wanted.
pub(super) const READING: &[u16] = &[400, 401, 405, 414, 431];
/// The same for one of several things.
pub(super) const READING_ONE: &[u16] = &[400, 401, 404, 405, 414, 431];
/// What an abort may be answered.
pub(super) const ABORTING: &[u16] = &[400, 401, 405, 408, 413, 414, 429, 431, 503];
/// What a request for tokens may be answered: everything.
pub(super) const GENERATING: &[u16] = &[400, 401, 404, 405, 408, 413, 414, 429, 431, 499, 500, 502, 503, 504];

/// The codes that come with a status.
pub(crate) fn codes(status: u16) -> BTreeSet<&'static str> {
    let reasons = Reason::ALL.iter().map(|reason| (reason.code(), reason.http_status()));
    let all = ApiError::CODES.iter().copied().chain(reasons);
    all.filter(|(_, of)| *of == status).map(|(code, _)| code).collect()
}

/// The good answer, and the errors with these statuses.
pub(super) fn responses(content: Value, errors: &[u16]) -> Value {
    let mut headers = json!({ "x-request-id": header("RequestId") });
    if errors == GENERATING {
        limits(&mut headers);
    }
    let good = json!({ "description": "The answer", "headers": headers, "content": content });
    let mut responses = Map::new();
    responses.insert("200".to_owned(), good);
    for status in errors {
        responses.insert(status.to_string(), error(*status));
    }
    responses.into()
}

fn error(status: u16) -> Value {
    let kind = match status {
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    let body = shape(&json!({ "const": kind }), &codes(status));
    let mut headers = json!({ "x-request-id": header("RequestId") });
    let text = match status {
        429 | 503 => {
            headers["retry-after"] = header("RetryAfter");
            if status == 429 {
                limits(&mut headers);
            }
            "Not now; come again"
        }
        401 => {
            headers["www-authenticate"] = header("Challenge");
            "No API key was shown that counts here"
        }
        499 => "Given up because of its client",
        500.. => "It failed; `error.code` says why, and the message names the room, the attempts and whom to look at",
        _ => "Refused; `error.code` says why",
    };
    json!({ "description": text, "headers": headers, "content": { "application/json": { "schema": body } } })
}

/// An error in a stream, whose status was sent long ago.
pub(super) fn any() -> Value {
    let all = GENERATING.iter().flat_map(|status| codes(*status)).collect();
    shape(&json!({ "type": "string" }), &all)
}

fn shape(kind: &Value, codes: &BTreeSet<&'static str>) -> Value {
    let fields = json!({
        "message": { "type": "string" },
        "type": kind,
        "param": { "type": ["string", "null"], "description": "The field that is wrong, as a path" },
        "code": { "enum": codes },
    });
    let error = super::object(fields, &["message", "type", "param", "code"]);
    super::object(json!({ "error": error }), &["error"])
}

/// What a tenant is told of its limits, if it has some.
fn limits(headers: &mut Value) {
    for what in ["requests", "tokens"] {
        headers[format!("x-ratelimit-limit-{what}")] = header("RateLimit");
        headers[format!("x-ratelimit-remaining-{what}")] = header("RateLimit");
        headers[format!("x-ratelimit-reset-{what}")] = header("RateLimitReset");
    }
}

fn header(name: &str) -> Value {
    json!({ "$ref": format!("#/components/headers/{name}") })
}

/// What answers carry.
pub(super) fn headers() -> Value {
    json!({
        "RequestId": {
            "description": "The id of the request", "required": true,
            "schema": { "type": "string", "pattern": "^[!-~]{1,256}$" },
        },
        "RateLimit": {
            "description": "So many a minute, or so many now; only if the tenant has such a limit",
            "schema": { "type": "integer", "minimum": 0 },
        },
        "RateLimitReset": {
            "description": "Until the whole of it is there again",
            "schema": { "type": "string", "pattern": "^([0-9]+ms|[0-9.]+s|[0-9]+m[0-9]+s)$" },
        },
        "Challenge": {
            "description": "How a key is to be shown", "required": true, "schema": { "type": "string", "pattern": "^Bearer " },
        },
        "RetryAfter": {
            "description": "Seconds", "required": true, "schema": { "type": "integer", "minimum": 1 },
        },
    })
}
