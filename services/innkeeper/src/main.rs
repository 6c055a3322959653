//! `innkeeper`: the whole cluster on one machine, and the operator's tools.

mod bench;
mod client;
mod generate;
mod key;
mod loading;
mod node;
mod up;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use innkeeper_node::config::parse_or_exit;

/// Disaggregated LLM serving in which no request can get stuck.
#[derive(Debug, Parser)]
#[command(name = "innkeeper", version, propagate_version = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a whole cluster on this machine: a router, prefill workers and decode workers.
    Up(Box<up::Args>),
    /// Ask for one answer, through a running cluster or in this process alone.
    Generate(Box<generate::Args>),
    /// List the nodes of a running cluster.
    Ps(client::ps::Args),
    /// Send one completion, and look whether any node holds a stuck room; the exit status says it.
    Check(client::check::Args),
    /// Look at rooms.
    #[command(subcommand)]
    Rooms(client::rooms::Command),
    /// Watch a running cluster on a terminal: nodes, rooms, and what became of those that are over.
    Top(client::top::Args),
    /// Look at a running cluster from outside, and say what to fix. Exit status 1: something fails.
    Doctor(Box<client::doctor::Args>),
    /// Make the API keys that a router asks its clients for.
    #[command(subcommand)]
    Key(key::Command),
    /// Measure: data plane, engine, router and the whole path, as ratios in one run.
    Bench(Box<bench::Args>),
    /// Run one node, as `up --etcd` starts it.
    #[command(subcommand, hide = true)]
    Node(node::Command),
}

fn main() -> ExitCode {
    let args: Args = parse_or_exit();
    let done = match args.command {
        Command::Up(args) => return up::run(&args),
        Command::Node(command) => return node::run(command),
        Command::Key(command) => return key::run(&command),
        Command::Doctor(args) => return client::doctor::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Ps(args) => client::run(client::ps::run(&args)),
        Command::Check(args) => client::run(client::check::run(&args)),
        Command::Rooms(command) => client::run(client::rooms::run(&command)),
        Command::Top(args) => client::run(client::top::run(&args)),
        Command::Bench(args) => bench::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
