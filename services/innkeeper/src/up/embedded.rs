//! The whole cluster in one process, with the embedded lease store.

use std::sync::Arc;

use anyhow::Context;
use innkeeper_leases::{MemoryConfig, MemoryStore, Store};
use innkeeper_node::config::{EngineConfig, NodeConfig};
use innkeeper_node::host::{Ground, Running, WorkerWiring};
use innkeeper_node::model::Model;
use innkeeper_node::random;
use innkeeper_node::signals::Signals;
use innkeeper_node::tasks::Tasks;
use innkeeper_node::telemetry;
use innkeeper_room::{Role, Settings};

use super::{Plan, READY_WITHIN, ready_line};
use crate::client::http;
use crate::loading;

pub(super) fn run(plan: Plan) -> anyhow::Result<()> {
    let model = loading::load(&plan.engine, true)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(live(plan, model));
    // Threads that are still busy end with the process.
    runtime.shutdown_background();
    done
}

async fn live(plan: Plan, model: Arc<Model>) -> anyhow::Result<()> {
    let router = plan.nodes.last().context("a cluster has a router")?;
    let limit = router.run.drain;
    telemetry::init_log(&router.telemetry)?;
    let own = Tasks::new();
    let signals = Signals::listen(&own)?;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryConfig::default()));
    let mut running = vec![];
    for config in &plan.nodes {
        running.push(
            start(config.clone(), plan.nth(config), &model, &store)
                .await
                .with_context(|| config.name.clone())?,
        );
    }
    let addr = running.last().map(|router| router.me.http.clone()).unwrap_or_default();
    let ready = async {
        http::wait_ready(&plan.reach(&addr), plan.prefill, plan.decode, READY_WITHIN).await?;
        ready_line(&plan, &addr, model.name(), "this process");
        std::future::pending::<anyhow::Result<()>>().await
    };
    let outcome = tokio::select! {
        failed = ready => failed,
        () = signals.drain.cancelled() => Ok(()),
        why = any_exit(&mut running) => Err(anyhow::anyhow!("{why}; the cluster ends")),
    };
    tokio::select! {
        () = drain_all(running, limit) => {}
        () = signals.force.cancelled() => {}
    }
    outcome
}

/// A small cluster in this process, for measuring.
pub(crate) struct BenchCluster {
    /// The router's address.
    pub(crate) addr: String,
    running: Vec<Running>,
}

/// Starts one prefill worker, one decode worker and a router.
///
/// # Errors
/// A node could not be started, or the cluster did not become ready.
pub(crate) async fn bench_cluster(
    model: &Arc<Model>,
    settings: &Settings,
    engine: &EngineConfig,
) -> anyhow::Result<BenchCluster> {
    let plan = Plan::smallest(settings.clone(), engine.clone())?;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryConfig::default()));
    let mut running = vec![];
    for config in &plan.nodes {
        running.push(start(config.clone(), plan.nth(config), model, &store).await?);
    }
    let addr = running.last().map(|router| router.me.http.clone()).unwrap_or_default();
    http::wait_ready(&plan.reach(&addr), plan.prefill, plan.decode, READY_WITHIN).await?;
    Ok(BenchCluster { addr, running })
}

impl BenchCluster {
    /// Ends it.
    pub(crate) async fn end(self) {
        drain_all(self.running, std::time::Duration::from_secs(5)).await;
    }
}

/// `nth`: which of the workers it is, those of prefill first.
async fn start(config: NodeConfig, nth: usize, model: &Arc<Model>, store: &Arc<dyn Store>) -> anyhow::Result<Running> {
    let role = config.role;
    let ground = Ground::new(config, random::incarnation()?, Arc::clone(store));
    let tasks = Tasks::new();
    if role == Role::Router {
        return Ok(innkeeper_router::start(ground, Arc::clone(model), tasks).await?);
    }
    let engine = model
        .engine(nth, &ground.config.settings, &ground.faults)
        .context("the model was loaded without its weights")?;
    let wiring = WorkerWiring {
        ground,
        engine,
        model: model.name().to_owned(),
        tasks,
    };
    Ok(match role {
        Role::Prefill => innkeeper_prefill_worker::start(wiring).await?,
        Role::Decode | Role::Router => innkeeper_decode_worker::start(wiring).await?,
    })
}

async fn any_exit(running: &mut [Running]) -> String {
    let exits = running.iter_mut().map(|node| {
        Box::pin(async move {
            let why = node.must_exit().await;
            format!("{} had to end itself: {why}", node.me.name)
        })
    });
    futures::future::select_all(exits).await.0
}

/// The router first, so that no request is cut off by its workers.
async fn drain_all(mut running: Vec<Running>, limit: std::time::Duration) {
    if let Some(router) = running.pop() {
        router.drain(limit).await;
    }
    futures::future::join_all(running.into_iter().map(|node| node.drain(limit))).await;
}
