//! The router: the front door that speaks the OpenAI API, and the owner of rooms behind it.

mod evict;
mod explain;
pub mod front;
mod grpc_service;
mod host;
mod metering;
mod nodes;
mod spans;
mod view;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub use front::fuzz;
pub use host::{start, start_reloading};
