//! Nothing to build: the build-dependency only makes cargo unpack a protoc for etcd-client (see .cargo/protoc).
fn main() {}
