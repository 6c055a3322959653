//! The front door: the OpenAI API over HTTP.
//!
//! ```text
//! state      what it is built from: the router's port, the tokenizer, limits, settings, metrics
//! api        what clients write and read: requests checked field by field, answers as serde types
//! plan       a checked request → prompts as token ids and what each choice asks of the router
//! session    the rooms behind one HTTP request: tokens in, pieces of text and ends out
//! feed       a session's way to a client that reads as it can
//! answer     tokens → text (characters and stop strings never cut wrongly), and text → JSON or server-sent events
//! handlers   one function per route
//! grpc       the same over gRPC
//! openapi    the HTTP API as a document
//! ui         the page for people at /ui
//! limits     what a tenant may ask for in a minute
//! auth       who may ask: API keys
//! bounds     how large a request's head and body may be
//! request_id the client's `x-request-id`, on every answer
//! error      every refusal and failure, in OpenAI's shape
//! ```
//!
//! What holds for every request:
//! - The status is held back until the first token: a failure before it is a real status, one after it is an error event
//!   followed by `[DONE]`.
//! - Whoever drops the answer (the client left) drops the rooms' streams with it, and that is the abort.
//! - Tokens are taken from the router at once; they wait for a slow client in memory, bounded by the tokens asked for.
//! - The end token counts as a produced token in `usage` and is part of `token_ids`, but is neither shown nor listed in
//!   `logprobs`. Tokens of a stop string count as well; those that begin at or after the cut are not listed.
//! - A field is honoured, harmless, or refused by its name; none is ignored.

mod answer;
mod api;
mod auth;
mod bounds;
mod error;
mod feed;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
pub mod grpc;
mod handlers;
mod limits;
mod openapi;
mod plan;
mod request_id;
mod session;
mod state;
mod stream;
pub mod ui;

#[cfg(test)]
mod tests;

pub use auth::{NoKey, looks};
pub use error::{ApiError, RoomFailure};
pub use handlers::{ready_routes, routes};
pub use limits::{RateLimited, RateLimits, Which};
pub use state::{FrontState, Limits, Metrics, Model, NoMetrics, RequestEnd, Route, ServerSpan};
