//! The wire contract: the .proto files and their generated types, nothing else. Conversion to the core's own types lives
//! in `services/node`, so that the core stays free of prost.

/// The generated types and services of `innkeeper.v1`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("innkeeper.v1");
}
