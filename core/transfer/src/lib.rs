//! Moving KV pages from prefill to decode. [`port`] is what the rest of Innkeeper sees; [`tcp`] and [`mem`] are the
//! backends; both run the same session code over a stream of [`frame`]s.
//!
//! A session is one task. Everything it may touch (the source, the sink) lives inside that task's future, so that ending
//! the task, for whatever reason, releases it; a guard that outlives the future then says `Quiesced`.

pub mod bench;
pub mod config;
pub mod coverage;
pub mod fault;
pub mod frame;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzz;
pub mod mem;
pub mod port;
pub mod sabotage;
pub mod stats;
pub mod tcp;
pub mod tls;

mod accept;
mod bucket;
mod link;
mod outbox;
mod recv;
mod send;
mod session;

pub use config::Config;
pub use coverage::{Coverage, CoverageError};
pub use mem::MemBackend;
pub use port::*;
pub use sabotage::Sabotage;
pub use stats::Stats;
pub use tcp::TcpBackend;
pub use tls::Tls;
