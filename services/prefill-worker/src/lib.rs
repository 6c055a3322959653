//! The prefill worker: computes prompts and pushes their KV to decode workers.

use std::sync::Arc;

use innkeeper_actors::prefill::Prefill;
use innkeeper_actors::worker::node::WorkerNode;
use innkeeper_node::clock::Clock;
use innkeeper_node::config::NodeConfig;
use innkeeper_node::host::{Running, StartError, WorkerKind, WorkerWiring, start_worker};
use innkeeper_node::security::Security;
use innkeeper_room::Role;
use innkeeper_room::ledger::prefill::{Config, Ledger};
use innkeeper_transfer::{Backend, Config as TransferConfig, Stats, TcpBackend};

/// Starts a prefill worker.
///
/// # Errors
/// [`StartError`] says what could not be had.
pub async fn start(wiring: WorkerWiring) -> Result<Running, StartError> {
    let security = Security::open(&wiring.ground.config.run.security, Role::Prefill)?;
    let backend = TcpBackend::new(TransferConfig {
        sabotage: wiring.ground.faults.sabotage(),
        ..TransferConfig::from(&wiring.ground.config.settings)
    })
    .with_tls(security.data.clone());
    start_worker(
        PrefillKind {
            backend: Arc::new(backend),
        },
        security,
        wiring,
    )
    .await
}

struct PrefillKind {
    backend: Arc<dyn Backend>,
}

impl WorkerKind for PrefillKind {
    type Craft = Prefill;

    const ROLE: Role = Role::Prefill;

    async fn open_data(&mut self, _config: &NodeConfig) -> Result<String, StartError> {
        // It calls, and is never called.
        Ok(String::new())
    }

    fn build(&mut self, wiring: &WorkerWiring, _data: &str) -> (Arc<Prefill>, Ledger) {
        let craft = Prefill::new(
            Arc::clone(&wiring.engine),
            Arc::clone(&self.backend),
            &wiring.ground.config.settings,
            wiring.tasks.clone(),
        );
        let limits = wiring.engine.limits();
        let config = Config {
            settings: wiring.ground.config.settings.clone(),
            incarnation: wiring.ground.incarnation,
            total_pages: limits.total_pages,
            page_tokens: wiring.engine.layout().page_tokens,
            context: limits.context,
            engine: wiring.engine_kind(),
        };
        (Arc::new(craft), Ledger::new(config, Clock::boot().now()))
    }

    fn opened(&mut self, _node: &Arc<WorkerNode<Prefill>>) {}

    fn stats(&self) -> Arc<Stats> {
        self.backend.stats()
    }

    fn shutdown(&self) {}
}
