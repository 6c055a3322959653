//! Compiles the protocol buffers. The compiler is found as `.cargo/protoc` says; nothing is fetched.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tonic_prost_build::configure()
        .bytes(".")
        .compile_protos(&["proto/innkeeper.proto"], &["proto"])?;
    Ok(())
}
