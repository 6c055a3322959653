//! What every process of Innkeeper shares: configuration, the wire, endpoints, telemetry, and the ownership of tasks.

pub mod clock;
pub mod config;
pub mod convert;
pub mod drain;
pub mod faults;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
pub mod grpc;
pub mod host;
pub mod http;
pub mod links;
pub mod metrics;
pub mod model;
pub mod net;
pub mod process;
pub mod random;
pub mod recorder;
pub mod reload;
pub mod security;
pub mod signals;
pub mod store;
pub mod telemetry;
pub mod view;
pub mod worker_service;

pub use innkeeper_actors::tasks;
