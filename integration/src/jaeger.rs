//! A real Jaeger for tests, and a trace as its query API tells it.

mod api;
mod server;
mod tree;

pub use server::Jaeger;
pub use tree::{Span, Trace};
