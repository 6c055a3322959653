//! The decode worker's own process.

use innkeeper_node::config::{EngineArgs, NodeArgs, parse_or_exit};
use innkeeper_node::process;
use innkeeper_room::Role;

/// A decode worker of Innkeeper.
#[derive(Debug, clap::Parser)]
#[command(name = "innkeeper-decode-worker", version)]
struct Args {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

fn main() -> std::process::ExitCode {
    let args: Args = parse_or_exit();
    process::worker(&args.node, &args.engine, Role::Decode, innkeeper_decode_worker::start)
}
