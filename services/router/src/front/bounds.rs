//! How much a request may be before anybody looks at what it says.

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt;

use super::error::ApiError;
use super::grpc::refuse;

/// Most headers. The HTTP library takes 100, and says no more than a status beyond that.
const MOST_HEADERS: usize = 64;
/// Bytes of their names and values together.
const HEADER_BYTES: usize = 32 << 10;
/// Bytes of the path and the query.
const PATH_BYTES: usize = 8 << 10;
/// Bytes of a body that is too large that are read and thrown away, so that its client hears why: a connection that is
/// closed while its client still writes is reset, and the reset eats the answer.
const THROWN_AWAY: usize = 64 << 20;

/// Refuses requests whose head is too large.
pub(super) async fn keep(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let bytes: usize = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    if headers.len() > MOST_HEADERS || bytes > HEADER_BYTES {
        let too_large = ApiError::HeadersTooLarge {
            fields: MOST_HEADERS,
            bytes: HEADER_BYTES,
        };
        return refuse(too_large, headers);
    }
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    if path > PATH_BYTES {
        return refuse(ApiError::PathTooLong { limit: PATH_BYTES }, headers);
    }
    next.run(request).await
}

/// The whole body; never more than `limit` bytes of it are held.
pub(super) async fn body(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let mut pieces = body.into_data_stream();
    let (mut whole, mut came) = (Vec::new(), 0_usize);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| ApiError::Invalid {
            param: None,
            code: "invalid_body",
            message: format!("the body could not be read: {error}"),
        })?;
        came = came.saturating_add(piece.len());
        if came <= limit {
            whole.extend_from_slice(&piece);
        } else {
            whole = Vec::new();
        }
        if came > limit.saturating_add(THROWN_AWAY) {
            break;
        }
    }
    if came > limit {
        return Err(ApiError::BodyTooLarge { limit });
    }
    Ok(whole.into())
}
