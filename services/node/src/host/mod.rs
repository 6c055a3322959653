//! A running node as its process sees it: started, asked, drained. The three services make one each; a process may hold
//! several.

mod hooks;
mod load_log;
mod spans;
mod worker;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use innkeeper_actors::worker::node::StartError as TreeError;
use innkeeper_engine::Engine;
use innkeeper_leases::{Member, MemberState, Store};
use innkeeper_room::{Incarnation, Layout, Role};
use innkeeper_transfer::ListenError;
use tokio::sync::watch;

pub use worker::{WorkerKind, WorkerWiring, start_worker};

use crate::config::NodeConfig;
use crate::faults::Faults;
use crate::net::{Connections, CountingListener};
use crate::random::RandomError;
use crate::recorder::Recorder;
use crate::security::SecurityError;
use crate::telemetry::{TelemetryError, Tracer};
use crate::view::NodeSelf;

/// Most connections to a control address at once: more are closed at once, and counted.
pub const CONTROL_CONNECTIONS: usize = 4096;

/// A running node.
pub struct Running {
    /// Who it is and where it listens.
    pub me: NodeSelf,
    exit: watch::Receiver<Option<String>>,
    drain: Drain,
    tracer: Option<Tracer>,
    recorder: Recorder,
}

/// How long the last spans of a node that ends may take to be exported.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// Drains and ends a node: the limit in, whether everything ended by itself out.
pub type Drain = Box<dyn FnOnce(Duration) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send>;

/// A node could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be bound.
    #[error("cannot listen on {addr} for {what}: {source}; choose another address or port")]
    Listen {
        /// What for.
        what: &'static str,
        /// Where.
        addr: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The data plane's address cannot be bound.
    #[error(transparent)]
    Data(#[from] ListenError),
    /// No actor could be started.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// Spans cannot be exported as configured.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// No ids could be made.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// Tenants' limits cannot be read.
    #[error("tenants' limits: {0}")]
    Limits(String),
    /// No HTTP client could be made.
    #[error("no HTTP client can be made ({0}); this program is broken, or the system is out of resources")]
    Client(String),
    /// Keys or certificates cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// What was built into the program is broken.
    #[error("the contract of the gRPC API cannot be read ({0}); build the program anew")]
    Contract(String),
    /// No signals can be listened for.
    #[error("no handler of SIGHUP can be installed ({0}); the system is out of resources")]
    Signals(#[source] std::io::Error),
    /// The node is asked to stop already.
    #[error("the node was asked to stop before it had started")]
    Stopping,
}

impl Running {
    /// A node that was started.
    #[must_use]
    pub const fn new(
        me: NodeSelf,
        exit: watch::Receiver<Option<String>>,
        drain: Drain,
        tracer: Option<Tracer>,
        recorder: Recorder,
    ) -> Self {
        Self {
            me,
            exit,
            drain,
            tracer,
            recorder,
        }
    }

    /// Waits until the node must end its process, and says why. Never returns for a healthy node.
    pub async fn must_exit(&mut self) -> String {
        match self.exit.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "the node's tree is gone".to_owned(),
        }
    }

    /// Stops admitting, finishes what there is within `limit`, and ends. Whether everything ended by itself.
    pub async fn drain(self, limit: Duration) -> bool {
        let clean = (self.drain)(limit).await;
        if let Some(tracer) = self.tracer {
            tracer.flush(LAST_SPANS).await;
        }
        clean
    }

    /// Exports what spans there are and writes what rooms have ended, within `limit`: the process ends without a drain.
    pub async fn last_words(&self, limit: Duration) {
        let spans = async {
            if let Some(tracer) = &self.tracer {
                tracer.flush(limit).await;
            }
        };
        tokio::join!(spans, self.recorder.flush(limit));
    }
}

/// What every node is started from.
pub struct Ground {
    /// Its configuration.
    pub config: NodeConfig,
    /// Its life.
    pub incarnation: Incarnation,
    /// The lease store.
    pub store: Arc<dyn Store>,
    /// What tests have it do wrong.
    pub faults: Arc<Faults>,
}

impl Ground {
    /// A node's ground, with the faults that its configuration asks for.
    #[must_use]
    pub fn new(mut config: NodeConfig, incarnation: Incarnation, store: Arc<dyn Store>) -> Self {
        let faults = Faults::of(&config);
        config.settings = faults.settings(config.settings);
        Self {
            config,
            incarnation,
            store: faults.store(store),
            faults,
        }
    }
}

/// Binds an address whose connections are counted, and at most so many.
///
/// # Errors
/// [`StartError::Listen`] names the address.
pub async fn listen(
    what: &'static str,
    addr: SocketAddr,
    most: usize,
) -> Result<(CountingListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { what, addr, source };
    let listener = CountingListener::bind(addr, Connections::new(what, most))
        .await
        .map_err(failed)?;
    let bound = listener.addr().map_err(failed)?;
    Ok((listener, bound))
}

/// A node's record. `engine` is `None` for a router.
#[must_use]
pub fn member(me: &NodeSelf, config: &NodeConfig, model: &str, engine: Option<&dyn Engine>) -> Member {
    let no_layout = Layout {
        model: model.to_owned(),
        page_tokens: 1,
        groups: 1,
        group_token_bytes: 1,
    };
    let limits = engine.map(Engine::limits);
    Member {
        incarnation: me.incarnation,
        role: me.role,
        name: me.name.clone(),
        pid: me.pid,
        http: me.http.clone(),
        control: me.control.clone(),
        data: me.data.clone(),
        model: model.to_owned(),
        layout: engine.map_or(no_layout, |engine| engine.layout().clone()),
        revision: config.run.revision.clone(),
        pages: limits.map_or(0, |limits| limits.total_pages),
        context: limits.map_or(0, |limits| limits.context),
        permits: match me.role {
            Role::Router => config.settings.max_requests,
            Role::Prefill | Role::Decode => config.settings.permits,
        },
        state: MemberState::Serving,
    }
}
