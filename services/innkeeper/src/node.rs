//! One node as a process of its own, from the same program.

use std::io::Read;
use std::process::ExitCode;

use clap::Subcommand;
use innkeeper_node::config::{EngineArgs, NodeArgs, check_faults, exit_with, parse_from};
use innkeeper_node::model::Model;
use innkeeper_node::process;
use innkeeper_node::reload::Reload;
use innkeeper_room::Role;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// A router.
    Router(Box<Args>),
    /// A prefill worker.
    Prefill(Box<Args>),
    /// A decode worker.
    Decode(Box<Args>),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Drain when standard input ends: whoever started this process is gone.
    #[arg(long)]
    with_parent: bool,
}

pub(crate) fn run(command: Command) -> ExitCode {
    let (Command::Router(args) | Command::Prefill(args) | Command::Decode(args)) = &command;
    if args.with_parent {
        watch_parent();
    }
    match &command {
        Command::Prefill(args) => {
            process::worker(&args.node, &args.engine, Role::Prefill, innkeeper_prefill_worker::start)
        }
        Command::Decode(args) => {
            process::worker(&args.node, &args.engine, Role::Decode, innkeeper_decode_worker::start)
        }
        Command::Router(args) => router(args),
    }
}

fn router(args: &Args) -> ExitCode {
    let (config, engine) = match (args.node.resolve(Role::Router), args.engine.resolve()) {
        (Ok(config), Ok(engine)) => (config, engine),
        (Err(error), _) | (_, Err(error)) => exit_with(&error),
    };
    if let Err(error) = check_faults(&config.run.faults, &engine) {
        exit_with(&error);
    }
    let policies = config.run.policies;
    let reload = Reload::new(args.node.run.config.clone(), move || {
        let args: crate::Args = parse_from(std::env::args_os())?;
        let policies = match args.command {
            crate::Command::Node(Command::Router(args)) => args.node.run.resolve()?.policies,
            _ => policies,
        };
        Ok(policies)
    });
    process::run(config, |ground, tasks| async move {
        let loading = tokio::task::spawn_blocking(move || Model::load(&engine, false, &|_| {}));
        Ok(innkeeper_router::start_reloading(ground, loading.await??, tasks, Some(reload)).await?)
    })
}

/// The parent holds the other end of standard input and writes nothing. Its end, however it came, asks this process to
/// drain, as a SIGTERM does. The thread lives as long as the process.
fn watch_parent() {
    std::thread::spawn(|| {
        let mut nothing = [0_u8; 64];
        while matches!(std::io::stdin().read(&mut nothing), Ok(1..)) {}
        if let Err(error) = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM) {
            eprintln!("error: the parent is gone, and this process cannot ask itself to stop: {error}");
            std::process::exit(1);
        }
    });
}
