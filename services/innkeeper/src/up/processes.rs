//! The whole cluster as processes, with its state in etcd. One that died is started again, with backoff.

use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use innkeeper_actors::budget::RestartBudget;
use innkeeper_node::clock::Clock;
use innkeeper_node::config::{EngineConfig, NodeConfig};
use innkeeper_node::signals::Signals;
use innkeeper_node::tasks::Tasks;
use innkeeper_room::Millis;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use super::{Plan, READY_WITHIN, ready_line};
use crate::client::http;
use crate::loading;

/// A node that dies more often than this does not come up by being started again; the pauses between grow to 2 s.
const RESTARTS: usize = 20;
/// Within this time.
const RESTART_WINDOW: Millis = Millis::from_secs(60);
/// Beyond its drain a process gets this long to end before it is killed.
const BEYOND_DRAIN: Duration = Duration::from_secs(5);

pub(super) fn run(plan: Plan) -> anyhow::Result<()> {
    // Fetched once, here, with its progress; the processes find it in the cache.
    let model = loading::load(&plan.engine, false)?.name().to_owned();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(live(plan, model));
    runtime.shutdown_background();
    done
}

async fn live(plan: Plan, model: String) -> anyhow::Result<()> {
    let own = Tasks::new();
    let signals = Signals::listen(&own)?;
    let stop = CancellationToken::new();
    let keepers = plan
        .nodes
        .iter()
        .map(|node| keep(node, plan.engine_of(node), stop.clone(), signals.force.clone()));
    let keepers = futures::future::try_join_all(keepers);
    tokio::pin!(keepers);
    let addr = plan.addr();
    let ready = async {
        http::wait_ready(&plan.reach(&addr), plan.prefill, plan.decode, READY_WITHIN).await?;
        ready_line(&plan, &addr, &model, "etcd");
        std::future::pending::<anyhow::Result<()>>().await
    };
    let outcome = tokio::select! {
        failed = ready => failed,
        () = signals.drain.cancelled() => Ok(()),
        failed = &mut keepers => return failed.map(drop),
    };
    stop.cancel();
    // Each keeper has its own limit.
    keepers.await?;
    outcome
}

/// Keeps one node's process alive until `stop`, then lets it drain.
async fn keep(
    node: &NodeConfig,
    engine: EngineConfig,
    stop: CancellationToken,
    force: CancellationToken,
) -> anyhow::Result<()> {
    let mut budget = RestartBudget::new(RESTARTS, RESTART_WINDOW);
    loop {
        let mut child = spawn(node, &engine).with_context(|| format!("starting {}", node.name))?;
        // Held for as long as the child lives: waiting for a child closes what it still has of it, and its end is a
        // request to drain.
        let _parent_lives = child.stdin.take();
        let status = tokio::select! {
            status = child.wait() => status?,
            () = stop.cancelled() => return end(child, node, &force).await,
        };
        if !budget.take(Clock::boot().now()) {
            anyhow::bail!(
                "{} died {RESTARTS} times within a minute (last with {status}); see its log above",
                node.name
            );
        }
        eprintln!("{} died ({status}) and is started again", node.name);
        tokio::select! {
            () = tokio::time::sleep(budget.backoff().duration()) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

fn spawn(node: &NodeConfig, engine: &EngineConfig) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["node", node.role.name(), "--with-parent"])
        .args(node.to_args())
        .args(engine.to_args())
        .envs(node.store.to_env())
        .envs(node.telemetry.to_env())
        .envs(node.run.to_env())
        // Its end tells the child that this process is gone.
        .stdin(Stdio::piped())
        // A Ctrl-C is for this process alone, which then lets the nodes drain in order.
        .process_group(0)
        .kill_on_drop(true);
    Ok(command.spawn()?)
}

/// Asks a process to drain, and kills it if it does not end.
async fn end(mut child: Child, node: &NodeConfig, force: &CancellationToken) -> anyhow::Result<()> {
    if let Some(pid) = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(rustix::process::Pid::from_raw)
    {
        // It may have ended by itself just now. A stopped process hears nothing until it is continued.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::CONT);
    }
    tokio::select! {
        status = child.wait() => {
            status?;
        }
        () = tokio::time::sleep(node.run.drain + BEYOND_DRAIN) => child.kill().await?,
        () = force.cancelled() => child.kill().await?,
    }
    Ok(())
}
