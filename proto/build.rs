//! Compiles the protocol buffers. The compiler is found as `.cargo/protoc` says; nothing is fetched.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tonic_prost_build::configure()
        .bytes(".")
        .compile_protos(&["proto/innkeeper.proto"], &["proto"])?;
    // A contract of its own, so that reflection shows clients what is theirs and nothing else.
    let described = PathBuf::from(std::env::var("OUT_DIR")?).join("inference.bin");
    tonic_prost_build::configure()
        .file_descriptor_set_path(described)
        .compile_protos(&["proto/inference.proto"], &["proto"])?;
    Ok(())
}
