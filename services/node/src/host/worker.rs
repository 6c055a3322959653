//! Starting a worker: listeners, tree, gRPC, HTTP and health, the same for prefill and decode.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use innkeeper_actors::hooks::Hooks;
use innkeeper_actors::ports::Answer;
use innkeeper_actors::worker::craft::Craft;
use innkeeper_actors::worker::node::{WorkerNode, WorkerParts};
use innkeeper_engine::{About, Engine, Seen, Tickets};
use innkeeper_proto::v1::worker_server::WorkerServer;
use innkeeper_room::Role;
use innkeeper_room::ledger::{EngineKind, Gauges, RoomRow};
use innkeeper_transfer::Stats;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::hooks::WorkerHooks;
use super::spans::PartSpans;
use super::{CONTROL_CONNECTIONS, Ground, Running, StartError, listen, load_log, member};
use crate::clock::Clock;
use crate::config::NodeConfig;
use crate::grpc::{self, Health};
use crate::http;
use crate::metrics::{LEDGER_DEADLINE, NodeMetrics};
use crate::net::Connections;
use crate::recorder::{Me, Recorder};
use crate::security::Security;
use crate::tasks::Tasks;
use crate::telemetry::Tracer;
use crate::view::{EngineCounts, NodeSelf, NodeState, NodeView, PageSize};
use crate::worker_service::WorkerService;

/// What differs between the two workers when they are started.
pub trait WorkerKind: Send {
    /// How the ledger's orders are executed.
    type Craft: Craft;

    /// The role.
    const ROLE: Role;

    /// Opens the data plane, before the tree runs: its address goes into the member record. Empty if it has none.
    fn open_data(&mut self, config: &NodeConfig) -> impl Future<Output = Result<String, StartError>> + Send;

    /// The craft and the ledger.
    fn build(&mut self, wiring: &WorkerWiring, data: &str) -> (Arc<Self::Craft>, <Self::Craft as Craft>::Ledger);

    /// The tree runs: visitors of the data plane may come in.
    fn opened(&mut self, node: &Arc<WorkerNode<Self::Craft>>);

    /// What the data plane counts.
    fn stats(&self) -> Arc<Stats>;

    /// Ends the data plane.
    fn shutdown(&self);
}

/// What a worker is built from.
pub struct WorkerWiring {
    /// Its configuration and life.
    pub ground: Ground,
    /// Its engine.
    pub engine: Arc<dyn Engine>,
    /// The model as clients name it.
    pub model: String,
    /// Where its tasks live.
    pub tasks: Tasks,
}

impl WorkerWiring {
    /// Whose process the engine is.
    #[must_use]
    pub fn engine_kind(&self) -> EngineKind {
        match self.engine.tickets() {
            Some(_) => EngineKind::Remote,
            None => EngineKind::Own,
        }
    }
}

/// Starts a worker, whose doors are locked with `security`; so is its data plane, which it brings along.
///
/// # Errors
/// [`StartError`] says what could not be had.
pub async fn start_worker<K: WorkerKind + Sync + 'static>(
    mut kind: K,
    security: Security,
    wiring: WorkerWiring,
) -> Result<Running, StartError> {
    let config = wiring.ground.config.clone();
    let (http, http_addr) = listen("http", config.http, config.run.security.http_connections as usize).await?;
    let http = http.with_patience(config.run.security.head_timeout);
    let (control, control_addr) = listen("control", config.control, CONTROL_CONNECTIONS).await?;
    // A node that connects gives up after this: who takes longer is none, and holds a place that nodes need.
    let control = control
        .with_tls(security.control.clone())
        .with_patience(config.settings.connect_timeout.duration());
    security.warn_of_open_doors(&config, http_addr, control_addr);
    let data = kind.open_data(&config).await?;
    let me = NodeSelf {
        role: K::ROLE,
        name: config.name.clone(),
        pid: std::process::id(),
        incarnation: wiring.ground.incarnation,
        state: NodeState::Starting,
        http: config.advertise(http_addr),
        control: config.advertise(control_addr),
        data: data.clone(),
        revision: config.run.revision.clone(),
    };
    let (craft, ledger) = kind.build(&wiring, &data);
    let tracer = Tracer::start(&config.telemetry, K::ROLE, &config.name, me.incarnation)?;
    let spans = tracer
        .clone()
        .map(|tracer| PartSpans::new(tracer, K::ROLE, wiring.engine.layout().clone()));
    let recorder = Recorder::start(&config, own(&me, &*wiring.engine), &wiring.tasks).await;
    let hooks = Arc::new(WorkerHooks::new(config.name.clone(), spans, recorder.clone()));
    let parts = WorkerParts {
        engine: Arc::clone(&wiring.engine),
        store: Arc::clone(&wiring.ground.store),
        member: member(&me, &config, &wiring.model, Some(&*wiring.engine)),
        clock: Arc::new(Clock::boot()),
        settings: Arc::new(config.settings.clone()),
        tasks: wiring.tasks.clone(),
        hooks: Arc::clone(&hooks) as Arc<dyn Hooks>,
    };
    let node = WorkerNode::start(craft, ledger, parts).await?;
    kind.opened(&node);
    let view = Arc::new(View {
        me: me.clone(),
        node: Arc::clone(&node),
        engine: Arc::clone(&wiring.engine),
        stats: kind.stats(),
        counted: [http.connections().clone(), control.connections().clone()],
        stopping: CancellationToken::new(),
    });
    let metrics = Arc::new(NodeMetrics::new(K::ROLE, Arc::clone(&view) as Arc<dyn NodeView>));
    if let Some(tracer) = &tracer {
        metrics.show_spans(tracer.counts());
    }
    metrics.show_recorder(recorder.counts());
    hooks.fill(Arc::clone(&metrics));

    let stop = CancellationToken::new();
    security
        .follow(&wiring.tasks, &metrics)
        .map_err(|_| StartError::Stopping)?;
    let seen = Arc::clone(&view) as Arc<dyn NodeView>;
    let endpoints = http::endpoints(Arc::clone(&seen), metrics).merge(http::looks(seen, recorder.clone()));
    let endpoints = endpoints.merge(wiring.ground.faults.routes());
    let grace = config.settings.grace.duration();
    let (health, health_service) = grpc::health::<WorkerServer<WorkerService<WorkerNode<K::Craft>>>>().await;
    let service = WorkerService::new(Arc::clone(&node), config.settings.clone(), wiring.tasks.clone()).into_server();
    let routes = Routes::new(service).add_service(health_service);
    let servers = Servers {
        http,
        control,
        endpoints,
        routes,
        stop: stop.clone(),
        grace,
    };
    servers.spawn(&wiring.tasks, &config)?;
    let watch = watch_health(health, Arc::clone(&view), config.settings.report_period.duration());
    wiring.tasks.spawn("health", watch).map_err(|_| StartError::Stopping)?;
    let log = load_log::run(Arc::clone(&view) as Arc<dyn NodeView>, config.name.clone());
    wiring.tasks.spawn("load_log", log).map_err(|_| StartError::Stopping)?;

    let exit = node.exit();
    let recorded = recorder.clone();
    let drain = Box::new(move |limit: Duration| {
        let ending = async move {
            view.stopping.cancel();
            let clean = node.drain(limit).await;
            kind.shutdown();
            stop.cancel();
            node.stop();
            recorded.flush(grace).await;
            wiring.engine.shutdown(grace);
            let left = wiring.tasks.shutdown(grace + grace).await;
            clean && left == 0
        };
        Box::pin(ending) as std::pin::Pin<Box<dyn Future<Output = bool> + Send>>
    });
    let me = NodeSelf {
        state: NodeState::Serving,
        ..me
    };
    Ok(Running::new(me, exit, drain, tracer, recorder))
}

/// Whose recorder it is.
fn own(me: &NodeSelf, engine: &dyn Engine) -> Me {
    Me {
        role: me.role,
        name: me.name.clone(),
        incarnation: me.incarnation,
        layout: Some(engine.layout().clone()),
    }
}

struct Servers {
    http: crate::net::CountingListener,
    control: crate::net::CountingListener,
    endpoints: axum::Router,
    routes: Routes,
    stop: CancellationToken,
    grace: Duration,
}

impl Servers {
    fn spawn(self, tasks: &Tasks, config: &NodeConfig) -> Result<(), StartError> {
        let Self {
            http,
            control,
            endpoints,
            routes,
            stop,
            grace,
        } = self;
        let settings = config.settings.clone();
        let grpc_stop = stop.clone();
        let grpc = async move {
            if let Err(error) = grpc::serve(control, &settings, routes, grpc_stop, grace).await {
                tracing::error!(%error, "the control plane ended");
            }
        };
        let pages = async move {
            http::serve(http, endpoints, stop, grace).await;
        };
        tasks.spawn("control_server", grpc).map_err(|_| StartError::Stopping)?;
        tasks.spawn("http_server", pages).map_err(|_| StartError::Stopping)
    }
}

struct View<C: Craft> {
    me: NodeSelf,
    node: Arc<WorkerNode<C>>,
    engine: Arc<dyn Engine>,
    stats: Arc<Stats>,
    counted: [Connections; 2],
    stopping: CancellationToken,
}

impl<C: Craft> NodeView for View<C> {
    fn node(&self) -> NodeSelf {
        let state = if self.node.exit().borrow().is_some() {
            NodeState::Failed
        } else if self.stopping.is_cancelled() {
            NodeState::Draining
        } else {
            NodeState::Serving
        };
        NodeSelf {
            state,
            ..self.me.clone()
        }
    }

    fn rooms(&self) -> Answer<'_, Option<Vec<RoomRow>>> {
        Box::pin(self.node.rows(LEDGER_DEADLINE))
    }

    fn gauges(&self) -> Answer<'_, Option<Gauges>> {
        Box::pin(async { self.node.gauges(LEDGER_DEADLINE).await.map(|(gauges, _)| gauges) })
    }

    fn ready(&self) -> bool {
        *self.node.serving().borrow()
    }

    fn tasks(&self) -> Vec<(&'static str, u64)> {
        self.node.tasks().counts()
    }

    fn connections(&self) -> Vec<(&'static str, u64)> {
        let data = [
            ("data_in", &self.stats.connections_in),
            ("data_out", &self.stats.connections_out),
        ];
        let counted = self.counted.iter().map(Connections::count);
        counted
            .chain(data.map(|(kind, count)| (kind, Stats::get(count))))
            .collect()
    }

    fn refused_connections(&self) -> Vec<(&'static str, u64)> {
        let data = ("data_in", Stats::get(&self.stats.refused_connections));
        self.counted.iter().map(Connections::refused).chain([data]).collect()
    }

    fn zombies(&self) -> u64 {
        u64::from(self.node.zombies())
    }

    fn engine(&self) -> Option<EngineCounts> {
        let status = self.engine.status();
        Some(EngineCounts {
            steps: status.progress,
            prompt_tokens: status.prompt_tokens,
            output_tokens: status.output_tokens,
        })
    }

    fn next_door(&self) -> Option<Seen> {
        self.engine.tickets().map(Tickets::seen)
    }

    fn about(&self) -> Option<About> {
        self.engine.tickets().map(Tickets::about)
    }

    fn page(&self) -> Option<PageSize> {
        let layout = self.engine.layout();
        Some(PageSize {
            tokens: layout.page_tokens,
            bytes: layout.bytes(layout.page_tokens),
        })
    }
}

/// Keeps the health service true: alive while the ledger answers, ready while it takes rooms.
async fn watch_health<C: Craft>(health: Health, view: Arc<View<C>>, period: Duration) {
    loop {
        let answers = view.node.gauges(LEDGER_DEADLINE).await.is_some();
        let state = view.node().state;
        health.set_alive(answers && state.is_alive()).await;
        health
            .set_ready(answers && state == NodeState::Serving && view.ready())
            .await;
        // A change is seen within a report period, as by routers.
        tokio::time::sleep(period).await;
    }
}
