//! The prefill worker's own process.

use innkeeper_node::config::{EngineArgs, NodeArgs, parse_or_exit};
use innkeeper_node::process;
use innkeeper_room::Role;

/// A prefill worker of Innkeeper.
#[derive(Debug, clap::Parser)]
#[command(name = "innkeeper-prefill-worker", version)]
struct Args {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

fn main() -> std::process::ExitCode {
    let args: Args = parse_or_exit();
    process::worker(&args.node, &args.engine, Role::Prefill, innkeeper_prefill_worker::start)
}
