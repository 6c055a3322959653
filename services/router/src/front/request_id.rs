//! The client's `x-request-id`: the id under which it aborts, on every answer, whatever it says.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use super::error::ApiError;
use super::grpc::refuse;

pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id: it is kept with every tombstone and sent with every room.
const LONGEST: usize = 256;

/// The id of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) Arc<str>);

/// Gives every request an id and puts it on the answer.
pub(crate) async fn attach(mut request: Request, next: Next) -> Response {
    let (id, wrong) = match from_headers(request.headers()) {
        Ok(id) => (id.unwrap_or_else(random_hex), None),
        Err(error) => (random_hex(), Some(error)),
    };
    let value = HeaderValue::from_str(&id).ok();
    request.extensions_mut().insert(RequestId(id.into()));
    let mut response = match wrong {
        Some(error) => refuse(error, request.headers()),
        None => next.run(request).await,
    };
    if let Some(value) = value {
        response.headers_mut().insert(X_REQUEST_ID, value);
    }
    response
}

/// The client's own id. An unusable one is refused, not replaced: the client could not abort by it.
pub(super) fn from_headers(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(X_REQUEST_ID).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let text = value
        .to_str()
        .ok()
        .filter(|text| text.len() <= LONGEST && text.bytes().all(|byte| byte.is_ascii_graphic()));
    text.map(|text| Some(text.to_owned())).ok_or_else(|| {
        let message = format!("`x-request-id` must be 1 to {LONGEST} printable ASCII characters without spaces");
        ApiError::invalid(X_REQUEST_ID.as_str(), "invalid_value", message)
    })
}

/// 128 random bits.
fn random_hex() -> String {
    format!("{:016x}{:016x}", random_u64(), random_u64())
}

/// 64 random bits from the OS.
pub(crate) fn random_u64() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        // No randomness from the OS: the hasher's keys and the clock make ids that differ, which is all that is needed.
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(std::time::Instant::now())
    })
}

/// A valid W3C `traceparent`, or nothing.
pub(crate) fn traceparent(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    let parts: Vec<&str> = text.split('-').collect();
    let [version, trace, span, flags, rest @ ..] = parts.as_slice() else {
        return None;
    };
    let hex = |part: &str, len: usize| {
        part.len() == len && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let well_formed = hex(version, 2) && hex(trace, 32) && hex(span, 16) && hex(flags, 2);
    let meant = *version != "ff" && trace.bytes().any(|byte| byte != b'0') && span.bytes().any(|byte| byte != b'0');
    // Only later versions may have more to say; what they add is not ours to pass on.
    let complete = rest.is_empty() || *version != "00";
    (well_formed && meant && complete).then(|| format!("00-{trace}-{span}-{flags}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(text: &'static str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", HeaderValue::from_static(text));
        traceparent(&headers)
    }

    #[test]
    fn only_valid_trace_contexts_are_passed_on() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(trace(good).as_deref(), Some(good));
        assert_eq!(
            trace("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what").as_deref(),
            Some(good)
        );
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what",
        ] {
            assert_eq!(trace(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_unusable_id_is_refused_and_made_ones_differ() {
        let mut headers = HeaderMap::new();
        assert_eq!(from_headers(&headers), Ok(None));
        headers.insert(X_REQUEST_ID, HeaderValue::from_static("a b"));
        assert!(from_headers(&headers).is_err());
        headers.insert(X_REQUEST_ID, HeaderValue::from_static("a-b"));
        assert_eq!(from_headers(&headers), Ok(Some("a-b".to_owned())));
        assert_ne!(random_hex(), random_hex());
    }
}
