//! Who may ask: API keys as `Authorization: Bearer KEY`.
//!
//! ```text
//! /v1/… /abort_request innkeeper.inference.v1.Inference   an API key, if there are any
//! GET /innkeeper/v1/…                                     if there are API keys: the admin key; without one, an API key
//! POST /innkeeper/v1/rooms/{id}/evict                     the admin key, always
//! /health /ready /metrics /openapi.json /ui, and the health and reflection services of gRPC   nothing
//! ```
//!
//! Who shows no key that counts is refused before anything of the body is looked at, and never by the name of a key.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use futures::StreamExt;
use innkeeper_node::config::Secret;
use innkeeper_node::security::Keys;

use super::error::ApiError;
use super::grpc::refuse;
use super::state::FrontState;

/// Of a body that nobody will look at so much is read, so that its client hears why: a connection that is closed while its
/// client still writes is reset, and the reset eats the answer.
const THROWN_AWAY: usize = 1 << 20;
/// And for so long.
const THROWN_WITHIN: Duration = Duration::from_secs(1);

/// Whose key a request showed.
#[derive(Clone, Debug)]
pub(super) struct Tenant(pub(super) Arc<str>);

/// Why a request is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoKey {
    /// It shows none.
    Missing,
    /// It shows one that does not count.
    Wrong,
}

impl NoKey {
    /// The bounded label of metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Wrong => "wrong",
        }
    }
}

/// Lets in who shows an API key, if there are any.
pub(super) async fn client(State(state): State<Arc<FrontState>>, mut request: Request, next: Next) -> Response {
    let Some(keys) = &state.keys else {
        return next.run(request).await;
    };
    match tenant(keys, request.headers()) {
        Ok(tenant) => {
            request.extensions_mut().insert(tenant);
            next.run(request).await
        }
        Err(why) => {
            state.metrics.unauthenticated(why);
            turn_away(why, request).await
        }
    }
}

/// Who may look at rooms and nodes.
#[derive(Clone)]
struct Lookers {
    keys: Arc<Keys>,
    admin: Option<Secret>,
    metrics: Arc<dyn super::Metrics>,
}

/// What people look at, for those who may: see the module.
pub fn looks(routes: Router, state: &FrontState, admin: Option<Secret>) -> Router {
    let Some(keys) = state.keys.clone() else {
        return routes;
    };
    let lookers = Lookers {
        keys,
        admin,
        metrics: Arc::clone(&state.metrics),
    };
    routes.route_layer(middleware::from_fn_with_state(lookers, looker))
}

async fn looker(State(lookers): State<Lookers>, request: Request, next: Next) -> Response {
    let may = match (&lookers.admin, bearer(request.headers())) {
        (_, None) => Err(NoKey::Missing),
        (Some(admin), Some(key)) if admin.is(key) => Ok(()),
        (None, Some(key)) if lookers.keys.find(key).is_some() => Ok(()),
        (_, Some(_)) => Err(NoKey::Wrong),
    };
    match may {
        Ok(()) => next.run(request).await,
        Err(why) => {
            lookers.metrics.unauthenticated(why);
            turn_away(why, request).await
        }
    }
}

fn tenant(keys: &Keys, headers: &HeaderMap) -> Result<Tenant, NoKey> {
    let key = bearer(headers).ok_or(NoKey::Missing)?;
    keys.find(key).map(Tenant).ok_or(NoKey::Wrong)
}

/// The key that a request shows. Two headers are none: which of them would count?
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(one), None) = (all.next(), all.next()) else {
        return None;
    };
    let (scheme, key) = one.to_str().ok()?.split_once(' ')?;
    // The scheme's case is free, the key's is not; clients of OpenAI write one space.
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

async fn turn_away(why: NoKey, request: Request) -> Response {
    let (head, body) = request.into_parts();
    // However it ends, the answer is the same.
    let _ = tokio::time::timeout(THROWN_WITHIN, throw_away(body)).await;
    refuse(ApiError::NoKey(why), &head.headers)
}

async fn throw_away(body: Body) {
    let (mut pieces, mut came) = (body.into_data_stream(), 0);
    while let Some(Ok(piece)) = pieces.next().await {
        came += piece.len();
        if came > THROWN_AWAY {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn shown(values: &[&'static str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
        }
        bearer(&headers).map(str::to_owned)
    }

    #[test]
    fn a_key_is_shown_as_a_bearer_token_and_in_no_other_way() {
        assert_eq!(shown(&["Bearer ik-1"]).as_deref(), Some("ik-1"));
        assert_eq!(shown(&["bearer ik-1"]).as_deref(), Some("ik-1"));
        // The space is part of the key, and so it is a wrong one.
        assert_eq!(shown(&["Bearer  ik-1"]).as_deref(), Some(" ik-1"));
        for none in [
            &[][..],
            &["ik-1"],
            &["Basic ik-1"],
            &["Bearer "],
            &["Bearer"],
            &["Bearer a", "Bearer b"],
        ] {
            assert_eq!(shown(none), None, "{none:?}");
        }
    }
}
