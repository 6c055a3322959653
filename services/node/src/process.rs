//! What a node's own process does: logs, lease store, node, signals, drain, exit status.

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use innkeeper_leases::{MemoryConfig, MemoryStore};
use innkeeper_room::Role;

use crate::config::{EngineArgs, NodeArgs, NodeConfig, check_faults, exit_with};
use crate::host::{Ground, Running, StartError, WorkerWiring};
use crate::model::Model;
use crate::signals::Signals;
use crate::tasks::Tasks;
use crate::telemetry;
use crate::{random, store};

/// How long the last spans and records of a process that ends itself may take to be exported and written: they say why.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// What still blocks a thread after the drain is ended with the process, this much later.
const LAST_THREADS: Duration = Duration::from_millis(250);
/// The exit status of a node that had to end itself: it is to be started again.
const MUST_RESTART: u8 = 70;

/// Runs one worker until it is asked to stop or has to end itself.
pub fn worker<F, Fut>(node: &NodeArgs, engine: &EngineArgs, role: Role, start: F) -> ExitCode
where
    F: FnOnce(WorkerWiring) -> Fut,
    Fut: Future<Output = Result<Running, StartError>>,
{
    let (mut config, engine) = match (node.resolve(role), engine.resolve()) {
        (Ok(config), Ok(engine)) => (config, engine),
        (Err(error), _) | (_, Err(error)) => exit_with(&error),
    };
    if let Err(error) = check_faults(&config.run.faults, &engine).and_then(|()| engine.check_workers(1)) {
        exit_with(&error);
    }
    engine.fit(&mut config.settings);
    run(config, |ground, tasks| async move {
        let loading = tokio::task::spawn_blocking(move || Model::load(&engine, true, &|_| {}));
        let model = loading.await??;
        let engine = model
            .engine(0, &ground.config.settings, &ground.faults)
            .ok_or_else(|| anyhow::anyhow!("the model was loaded without its weights"))?;
        let wiring = WorkerWiring {
            ground,
            engine,
            model: model.name().to_owned(),
            tasks,
        };
        Ok(start(wiring).await?)
    })
}

/// Runs one node until it is asked to stop or has to end itself.
pub fn run<F, Fut>(config: NodeConfig, start: F) -> ExitCode
where
    F: FnOnce(Ground, Tasks) -> Fut,
    Fut: Future<Output = anyhow::Result<Running>>,
{
    let role = config.role;
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the {role} cannot start its threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let status = runtime.block_on(live(config, start)).unwrap_or_else(|error| {
        eprintln!("error: the {role} cannot run: {error:#}");
        ExitCode::FAILURE
    });
    runtime.shutdown_timeout(LAST_THREADS);
    status
}

async fn live<F, Fut>(config: NodeConfig, start: F) -> anyhow::Result<ExitCode>
where
    F: FnOnce(Ground, Tasks) -> Fut,
    Fut: Future<Output = anyhow::Result<Running>>,
{
    let incarnation = random::incarnation()?;
    telemetry::init_log(&config.telemetry)?;
    // The process's own tasks (signals) outlive the node's, which its drain ends.
    let own = Tasks::new();
    let signals = Signals::listen(&own)?;
    let store = store::open(&config.store, || Arc::new(MemoryStore::new(MemoryConfig::default())))?;
    let limit = config.run.drain;
    let ground = Ground::new(config, incarnation, store);
    let mut running = tokio::select! {
        started = start(ground, Tasks::new()) => started?,
        () = signals.drain.cancelled() => return Ok(ExitCode::SUCCESS),
    };
    tracing::info!(
        role = %running.me.role, name = running.me.name, %incarnation,
        http = running.me.http, control = running.me.control, data = running.me.data, "ready"
    );
    let why = tokio::select! {
        why = running.must_exit() => Some(why),
        () = signals.drain.cancelled() => None,
    };
    if let Some(why) = why {
        tracing::error!(why, "this process ends itself so that it is started again");
        running.last_words(LAST_WORDS).await;
        // No thread is joined: one of them may be what is stuck.
        std::process::exit(i32::from(MUST_RESTART));
    }
    tokio::select! {
        clean = running.drain(limit) => tracing::info!(clean, "drained"),
        () = signals.force.cancelled() => tracing::warn!("stopped before the drain was over"),
    }
    Ok(ExitCode::SUCCESS)
}
