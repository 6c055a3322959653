//! Engines that other people run: what it takes to drive an unmodified vLLM or SGLang process, which moves the KV itself.
//!
//! ```text
//! evidence  has the engine moved? step evidence, and canaries where there is none
//! lease     was the KV read inside the lease under which prefill's engine kept it?
//! fence     whose process must end so that pages come back, and how often that may be
//! pull      how long a read may take, by what the first one took
//! look      what both engines show of themselves
//! ticket    where decode's engine finds the KV
//! vllm      requests, answers and the client of vLLM (NIXL, pull)
//! sglang    the same of SGLang (bootstrap rooms)
//! answer    reading what either of them says
//! sse       server-sent events
//! exposition  Prometheus' text format
//! engine    an engine of others behind the worker's engine port
//! driver    one engine, driven: its watcher, and the legs of a room with what is promised about them
//! hook      ending an engine's process and starting another
//! http      one connection per request: closing it is the abort that always arrives
//! standin   (feature `testing`) both HTTP surfaces over pages that have content, with bugs as switches
//! ```
//!
//! The first four of these are state machines without clock or I/O, as the ledgers are: whoever drives them says what time it is.

mod answer;
pub mod driver;
pub mod engine;
pub mod evidence;
pub mod exposition;
mod failure;
pub mod fence;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
pub mod hook;
pub mod http;
mod ids;
pub mod lease;
mod leg;
pub mod look;
pub mod pull;
pub mod sglang;
pub mod sse;
#[cfg(feature = "testing")]
pub mod standin;
mod stream;
pub mod ticket;
mod times;
pub mod vllm;

pub use failure::{Failure, RemoteError};
pub use ids::{request_id, rid};
pub use leg::{Finish, Leg, Piece, Prompt};
pub use times::Times;
