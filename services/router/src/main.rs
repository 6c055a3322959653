//! The router's own process.

use innkeeper_node::config::{EngineArgs, NodeArgs, check_faults, exit_with, parse_from, parse_or_exit};
use innkeeper_node::model::Model;
use innkeeper_node::process;
use innkeeper_node::reload::Reload;
use innkeeper_room::Role;

/// The router of Innkeeper: the OpenAI API in front of prefill and decode workers.
#[derive(Debug, clap::Parser)]
#[command(name = "innkeeper-router", version)]
struct Args {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

fn main() -> std::process::ExitCode {
    let args: Args = parse_or_exit();
    let (config, engine) = match (args.node.resolve(Role::Router), args.engine.resolve()) {
        (Ok(config), Ok(engine)) => (config, engine),
        (Err(error), _) | (_, Err(error)) => exit_with(&error),
    };
    if let Err(error) = check_faults(&config.run.faults, &engine) {
        exit_with(&error);
    }
    let reload = Reload::new(args.node.run.config.clone(), move || {
        let args: Args = parse_from(std::env::args_os())?;
        Ok(args.node.run.resolve()?.policies)
    });
    process::run(config, |ground, tasks| async move {
        let loading = tokio::task::spawn_blocking(move || Model::load(&engine, false, &|_| {}));
        Ok(innkeeper_router::start_reloading(ground, loading.await??, tasks, Some(reload)).await?)
    })
}
