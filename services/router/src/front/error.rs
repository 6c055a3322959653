//! Every refusal and failure of the front door, in OpenAI's shape.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use innkeeper_room::ledger::router::Outcome;
use innkeeper_room::{Attempt, Blame, Millis, Reason, RoomId};
use serde::Serialize;

use super::auth::NoKey;
use super::limits::RateLimited;

/// What a client is told instead of an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// A field is wrong, unknown or not supported.
    #[error("{message}")]
    Invalid {
        /// The field, as a path: `messages[1].content`.
        param: Option<String>,
        /// What kind of wrong.
        code: &'static str,
        /// What is wrong and what would be right.
        message: String,
    },
    /// Prompt and answer do not fit the model's context.
    #[error(
        "this model's maximum context length is {context} tokens, but {} tokens were requested ({prompt} in the prompt, \
         {answer} for the answer); shorten the prompt or lower the maximum of tokens",
        u64::from(*.prompt) + u64::from(*.answer)
    )]
    ContextLength {
        /// `messages` or `prompt`.
        param: &'static str,
        /// What fits.
        context: u32,
        /// Tokens of the prompt.
        prompt: u32,
        /// Tokens asked for.
        answer: u32,
    },
    /// The model is not the one that is served.
    #[error("the model `{asked}` does not exist; this router serves `{served}`")]
    ModelNotFound {
        /// What was asked for.
        asked: String,
        /// What there is.
        served: String,
    },
    /// No API key was shown, or none that counts. The key itself is never said.
    #[error("{}", match .0 {
        NoKey::Missing => "no API key was shown; send it as the header `Authorization: Bearer KEY`",
        NoKey::Wrong => "the API key that was shown does not count here; check it for typing errors, or ask the operator for one",
    })]
    NoKey(NoKey),
    /// No such path.
    #[error("there is no `{method} {path}`; see /v1/chat/completions, /v1/completions, /v1/models and /abort_request")]
    UnknownPath {
        /// The method.
        method: String,
        /// The path.
        path: String,
    },
    /// The path exists, but not with this method.
    #[error("`{method}` is not allowed for `{path}`; the `allow` header lists what is")]
    WrongMethod {
        /// The method.
        method: String,
        /// The path.
        path: String,
    },
    /// The body is larger than the limit.
    #[error("the body is larger than {limit} bytes; send less")]
    BodyTooLarge {
        /// The limit.
        limit: usize,
    },
    /// The headers are more than the limit.
    #[error("the headers are more than {fields} or larger than {bytes} bytes together; send fewer or shorter ones")]
    HeadersTooLarge {
        /// How many there may be.
        fields: usize,
        /// Bytes of names and values together.
        bytes: usize,
    },
    /// The path and query are longer than the limit.
    #[error("the path is longer than {limit} bytes; what you want to say belongs in the body")]
    PathTooLong {
        /// The limit.
        limit: usize,
    },
    /// The body did not arrive in time.
    #[error("the body did not arrive within {} ms; send it again", .limit.0)]
    BodyTimeout {
        /// The limit.
        limit: Millis,
    },
    /// The tenant has asked for as much as it may.
    #[error("{0}")]
    RateLimited(RateLimited),
    /// The request failed in its rooms.
    #[error("{0}")]
    Room(RoomFailure),
    /// No place for another tombstone.
    #[error(
        "too many aborts wait for requests that have not arrived; close the request's connection instead, or retry later"
    )]
    AbortRefused,
    /// The ledger did not answer in time.
    #[error("the abort was not confirmed in time; repeat it, or close the request's connection")]
    AbortUnconfirmed,
}

/// A request that failed in its rooms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomFailure {
    /// Why.
    pub reason: Reason,
    /// Who is to be looked at.
    pub blame: Blame,
    /// When to come again.
    pub retry_after: Option<Millis>,
    /// The last room it was tried in.
    pub room: Option<RoomId>,
    /// How many tries it took.
    pub attempts: Attempt,
}

impl RoomFailure {
    /// The failure in an answer of the router's tree, if it is one.
    #[must_use]
    pub const fn from_outcome(outcome: Outcome, room: Option<RoomId>, attempts: Attempt) -> Option<Self> {
        match outcome {
            Outcome::Done => None,
            Outcome::Failed {
                reason,
                blame,
                retry_after,
            } => Some(Self {
                reason,
                blame,
                retry_after,
                room,
                attempts,
            }),
        }
    }

    /// The router's own part broke: it ended a request without an answer, or not in time.
    #[must_use]
    pub const fn internal() -> Self {
        let reason = Reason::InternalError;
        Self {
            reason,
            blame: Blame::Nobody,
            retry_after: None,
            room: None,
            attempts: Attempt(0),
        }
    }
}

impl std::fmt::Display for RoomFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (", self.reason.explanation())?;
        if let Some(room) = self.room {
            write!(f, "room {room}, ")?;
        }
        write!(f, "attempts: {}, blame: {}", self.attempts.0, self.blame.label())?;
        if let Some(node) = self.blame.node() {
            write!(f, " {node}")?;
        }
        f.write_str(")")
    }
}

/// `{"error": …}`, as OpenAI writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ErrorBody {
    error: ErrorObject,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ErrorObject {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<String>,
    code: &'static str,
}

impl ApiError {
    /// The codes of requests that never got as far as a room, with their statuses. Those of rooms are [`Reason::ALL`].
    pub const CODES: &[(&str, u16)] = &[
        ("invalid_json", 400),
        ("invalid_body", 400),
        ("missing_required_parameter", 400),
        ("unknown_parameter", 400),
        ("unsupported_parameter", 400),
        ("invalid_type", 400),
        ("invalid_value", 400),
        ("empty_array", 400),
        ("array_above_max_length", 400),
        ("string_above_max_length", 400),
        ("integer_below_min_value", 400),
        ("integer_above_max_value", 400),
        ("decimal_below_min_value", 400),
        ("decimal_above_max_value", 400),
        ("context_length_exceeded", 400),
        ("invalid_api_key", 401),
        ("model_not_found", 404),
        ("unknown_path", 404),
        ("method_not_allowed", 405),
        ("body_timeout", 408),
        ("body_too_large", 413),
        ("path_too_long", 414),
        ("headers_too_large", 431),
        ("rate_limit_exceeded", 429),
        ("abort_refused", 429),
        ("abort_unconfirmed", 503),
    ];

    /// A field that is wrong.
    pub(crate) fn invalid(param: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid {
            param: Some(param.into()),
            code,
            message: message.into(),
        }
    }

    /// The HTTP status, if none was sent yet.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Invalid { .. } | Self::ContextLength { .. } => StatusCode::BAD_REQUEST,
            Self::NoKey(_) => StatusCode::UNAUTHORIZED,
            Self::ModelNotFound { .. } | Self::UnknownPath { .. } => StatusCode::NOT_FOUND,
            Self::WrongMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::HeadersTooLarge { .. } => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::PathTooLong { .. } => StatusCode::URI_TOO_LONG,
            Self::BodyTimeout { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::AbortRefused | Self::RateLimited(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::AbortUnconfirmed => StatusCode::SERVICE_UNAVAILABLE,
            Self::Room(failure) => {
                StatusCode::from_u16(failure.reason.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
        }
    }

    /// `error.code`: of a failed room the typed reason.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Invalid { code, .. } => code,
            Self::ContextLength { .. } => "context_length_exceeded",
            Self::NoKey(_) => "invalid_api_key",
            Self::ModelNotFound { .. } => "model_not_found",
            Self::UnknownPath { .. } => "unknown_path",
            Self::WrongMethod { .. } => "method_not_allowed",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::HeadersTooLarge { .. } => "headers_too_large",
            Self::PathTooLong { .. } => "path_too_long",
            Self::BodyTimeout { .. } => "body_timeout",
            Self::Room(failure) => failure.reason.code(),
            Self::RateLimited(_) => "rate_limit_exceeded",
            Self::AbortRefused => "abort_refused",
            Self::AbortUnconfirmed => "abort_unconfirmed",
        }
    }

    /// Seconds after which to come again: what the router says, and at least 1 for every 429 and 503.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        let said = match self {
            Self::Room(failure) => failure.retry_after.map(|wait| wait.0.div_ceil(1000).max(1)),
            Self::RateLimited(limited) => Some(
                u64::try_from(limited.wait.as_millis().div_ceil(1000))
                    .unwrap_or(60)
                    .max(1),
            ),
            _ => None,
        };
        let overloaded = matches!(
            self.status(),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        said.or(overloaded.then_some(1))
    }

    /// `error` with the code of the metrics: typed reasons by their code, everything else is `refused`.
    pub(crate) const fn outcome(&self) -> &'static str {
        match self {
            Self::Room(failure) => failure.reason.code(),
            _ => "refused",
        }
    }

    /// `error.param`: the field that is wrong, as a path.
    #[must_use]
    pub fn param(&self) -> Option<String> {
        match self {
            Self::Invalid { param, .. } => param.clone(),
            Self::ContextLength { param, .. } => Some((*param).to_owned()),
            Self::ModelNotFound { .. } => Some("model".to_owned()),
            _ => None,
        }
    }

    /// The same about a field that has another name for this client.
    pub(crate) fn renamed(self, from: &'static str, to: &'static str) -> Self {
        let ends = |rest: &str| rest.is_empty() || rest.starts_with(['[', '.']);
        match self {
            Self::Invalid {
                param: Some(param),
                code,
                message,
            } if param.strip_prefix(from).is_some_and(ends) => Self::Invalid {
                param: Some(param.replacen(from, to, 1)),
                code,
                message: message.replacen(&format!("`{from}"), &format!("`{to}"), 1),
            },
            Self::ContextLength {
                param,
                context,
                prompt,
                answer,
            } if param == from => Self::ContextLength {
                param: to,
                context,
                prompt,
                answer,
            },
            other => other,
        }
    }

    /// The JSON of it.
    pub(crate) fn body(&self) -> ErrorBody {
        let kind = match self.status() {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        ErrorBody {
            error: ErrorObject {
                message: self.to_string(),
                kind,
                param: self.param(),
                code: self.code(),
            },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        if let Self::RateLimited(limited) = &self {
            limited.told.write(response.headers_mut());
        }
        if let Self::NoKey(_) = self {
            let challenge = HeaderValue::from_static(r#"Bearer realm="innkeeper""#);
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        if let Some(seconds) = self.retry_after() {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
