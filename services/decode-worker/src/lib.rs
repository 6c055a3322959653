//! The decode worker: receives KV from prefill workers and produces tokens.

use std::sync::Arc;

use innkeeper_actors::decode::{Decode, Doorbell, Doorman, own_side};
use innkeeper_actors::worker::node::WorkerNode;
use innkeeper_node::clock::Clock;
use innkeeper_node::config::NodeConfig;
use innkeeper_node::host::{Running, StartError, WorkerKind, WorkerWiring, start_worker};
use innkeeper_node::random;
use innkeeper_node::security::Security;
use innkeeper_room::Role;
use innkeeper_room::ledger::decode::{Config, Ledger};
use innkeeper_transfer::{Acceptor, Backend, Config as TransferConfig, Listener, Stats, TcpBackend};

/// Starts a decode worker.
///
/// # Errors
/// [`StartError`] says what could not be had.
pub async fn start(wiring: WorkerWiring) -> Result<Running, StartError> {
    // Rooms get secrets from the OS; that it gives none must be seen now, and not by the first room.
    random::bits()?;
    let security = Security::open(&wiring.ground.config.run.security, Role::Decode)?;
    let backend = TcpBackend::new(TransferConfig {
        sabotage: wiring.ground.faults.sabotage(),
        ..TransferConfig::from(&wiring.ground.config.settings)
    })
    .with_tls(security.data.clone());
    let kind = DecodeKind {
        backend: Arc::new(backend),
        doorman: Doorman::new(wiring.ground.incarnation),
        listener: None,
        bell: None,
    };
    start_worker(kind, security, wiring).await
}

struct DecodeKind {
    backend: Arc<dyn Backend>,
    doorman: Arc<Doorman>,
    listener: Option<Box<dyn Listener>>,
    /// Rung once the tree runs.
    bell: Option<Doorbell>,
}

impl WorkerKind for DecodeKind {
    type Craft = Decode;

    const ROLE: Role = Role::Decode;

    async fn open_data(&mut self, config: &NodeConfig) -> Result<String, StartError> {
        let acceptor = Arc::clone(&self.doorman) as Arc<dyn Acceptor>;
        let listener = self.backend.listen(&config.data.to_string(), acceptor).await?;
        let addr = config.advertise(listener.local_addr());
        self.listener = Some(listener);
        Ok(addr)
    }

    fn build(&mut self, wiring: &WorkerWiring, data: &str) -> (Arc<Decode>, Ledger) {
        let craft = Decode::new(
            Arc::clone(&wiring.engine),
            data.to_owned(),
            Box::new(secret),
            wiring.tasks.clone(),
        );
        self.bell = self.listener.as_ref().map(|listener| Doorbell {
            backend: Arc::clone(&self.backend),
            listens: own_side(listener.local_addr()),
            own: wiring.ground.incarnation,
            ttl: wiring.ground.config.settings.progress_ttl,
            answers: craft.answers(),
        });
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

    fn opened(&mut self, node: &Arc<WorkerNode<Decode>>) {
        self.doorman.lead_to(node.greeter());
        let rung = self.bell.take().map(|bell| node.tasks().spawn("doorbell", bell.ring()));
        if let Some(Err(closed)) = rung {
            tracing::debug!(%closed, "the worker stops already");
        }
    }

    fn stats(&self) -> Arc<Stats> {
        self.backend.stats()
    }

    fn shutdown(&self) {
        if let Some(listener) = &self.listener {
            listener.shutdown();
        }
    }
}

/// A room's secret. The OS gave random numbers at the start, and does not stop: 0 is never seen.
fn secret() -> u64 {
    random::bits().unwrap_or(0)
}
