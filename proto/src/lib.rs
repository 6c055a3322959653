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

/// The public API over gRPC: `innkeeper.inference.v1`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "generated code"
)]
pub mod inference {
    tonic::include_proto!("innkeeper.inference.v1");

    /// An encoded `FileDescriptorSet` of it, for reflection.
    pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("inference");
}
