//! Starting a router: listeners, tree, front door, gRPC and health.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use innkeeper_actors::router::{RouterNode, RouterParts};
use innkeeper_node::clock::Clock;
use innkeeper_node::config::{LimitsConfig, NodeConfig};
use innkeeper_node::grpc::{self, Health};
use innkeeper_node::host::{CONTROL_CONNECTIONS, Ground, Running, StartError, listen, member};
use innkeeper_node::http;
use innkeeper_node::links::TonicLinks;
use innkeeper_node::metrics::{LEDGER_DEADLINE, NodeMetrics};
use innkeeper_node::model::Model;
use innkeeper_node::net::CountingListener;
use innkeeper_node::random;
use innkeeper_node::recorder::{Me, Recorder};
use innkeeper_node::reload::{self, Apply, Reload};
use innkeeper_node::security::{Keys, Security};
use innkeeper_node::tasks::Tasks;
use innkeeper_node::telemetry::Tracer;
use innkeeper_node::view::{NodeSelf, NodeState, NodeView};
use innkeeper_proto::v1::router_server::RouterServer;
use innkeeper_room::Role;
use innkeeper_room::ledger::router::{Config, Ledger, Policies};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::evict;
use crate::explain::Explains;
use crate::front::{self, FrontState, Limits, RateLimits};
use crate::grpc_service::RouterService;
use crate::metering::Metering;
use crate::nodes;
use crate::spans::RequestSpans;
use crate::view::RouterView;

/// A comment keeps idle proxies from closing a stream that makes progress.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Starts a router in front of a model.
///
/// # Errors
/// [`StartError`] says what could not be had.
pub async fn start(ground: Ground, model: Arc<Model>, tasks: Tasks) -> Result<Running, StartError> {
    start_reloading(ground, model, tasks, None).await
}

/// Starts a router in front of a model, whose policies follow the process's configuration.
///
/// # Errors
/// As [`start`].
pub async fn start_reloading(
    ground: Ground,
    model: Arc<Model>,
    tasks: Tasks,
    reload: Option<Reload<Policies>>,
) -> Result<Running, StartError> {
    let Ground {
        config,
        incarnation,
        store,
        faults,
    } = ground;
    let (limits, limits_file) = config.run.limits.open().map_err(StartError::Limits)?;
    let security = Security::open(&config.run.security, Role::Router)?;
    let (http, http_addr) = listen("http", config.http, config.run.security.http_connections as usize).await?;
    let http = http
        .with_tls(security.http.clone())
        .with_patience(config.run.security.head_timeout);
    let (control, control_addr) = listen("control", config.control, CONTROL_CONNECTIONS).await?;
    // A node that connects gives up after this: who takes longer is none, and holds a place that nodes need.
    let control = control
        .with_tls(security.control.clone())
        .with_patience(config.settings.connect_timeout.duration());
    security.warn_of_open_doors(&config, http_addr, control_addr);
    let me = NodeSelf {
        role: Role::Router,
        name: config.name.clone(),
        pid: std::process::id(),
        incarnation,
        state: NodeState::Starting,
        http: match security.http {
            Some(_) => format!("https://{}", config.advertise(http_addr)),
            None => config.advertise(http_addr),
        },
        control: config.advertise(control_addr),
        data: String::new(),
        revision: config.run.revision.clone(),
    };
    let links = TonicLinks::new(incarnation, config.settings.clone(), tasks.clone());
    let links = Arc::new(links.with_faults(Arc::clone(&faults)).with_tls(security.links.clone()));
    let counted = vec![
        http.connections().clone(),
        control.connections().clone(),
        links.connections().clone(),
    ];
    let tracer = Tracer::start(&config.telemetry, Role::Router, &config.name, incarnation)?;
    let own = Me {
        role: Role::Router,
        name: config.name.clone(),
        incarnation,
        layout: None,
    };
    let recorder = Recorder::start(&config, own, &tasks).await;
    let metering = Arc::new(Metering::new(tracer.clone().map(RequestSpans::new), recorder.clone()));
    let seed = [random::bits()?, random::bits()?];
    let clock = Clock::boot();
    let parts = RouterParts {
        ledger: Ledger::new(
            Config {
                settings: config.settings.clone(),
                incarnation,
                seed,
            },
            clock.now(),
        )
        .with_policies(config.run.policies),
        links,
        store,
        member: member(&me, &config, model.name(), None),
        clock: Arc::new(clock),
        settings: Arc::new(config.settings.clone()),
        tasks: tasks.clone(),
        hooks: Arc::clone(&metering) as _,
        first_request: random::bits()? >> 1,
    };
    let node = RouterNode::start(parts).await?;
    if let Some(reload) = reload {
        follow(reload, &config, &node, &tasks)?;
    }
    let stopping = CancellationToken::new();
    let view = Arc::new(RouterView::new(
        me.clone(),
        Arc::clone(&node),
        counted,
        stopping.clone(),
    ));
    let metrics = Arc::new(NodeMetrics::new(Role::Router, Arc::clone(&view) as Arc<dyn NodeView>));
    if let Some(tracer) = &tracer {
        metrics.show_spans(tracer.counts());
    }
    metrics.show_recorder(recorder.counts());
    metering.fill(Arc::clone(&metrics));
    security.follow(&tasks, &metrics).map_err(|_| StartError::Stopping)?;

    let stop = CancellationToken::new();
    let rates = Arc::new(RateLimits::new(limits, config.run.limits.max_tenants));
    if let Some(file) = limits_file {
        let apply = new_limits(config.run.limits.clone(), Arc::clone(&rates));
        let following = reload::follow(file, apply, Arc::clone(&metrics));
        tasks.spawn("limits", following).map_err(|_| StartError::Stopping)?;
    }
    let state = front_state(&node, &model, &config, (&view, metering), (rates, security.keys));
    let (health, health_service) = grpc::health::<RouterServer<RouterService>>().await;
    let health = health.also(front::grpc::SERVICE);
    let public = front::grpc::routes(state.clone()).map_err(|error| StartError::Contract(error.to_string()))?;
    let explains =
        Explains::new(Arc::clone(&node), recorder.clone()).map_err(|error| StartError::Client(error.to_string()))?;
    let seen = Arc::clone(&view) as Arc<dyn NodeView>;
    let looks = http::looks(Arc::clone(&seen), recorder.clone())
        .merge(explains.routes())
        .merge(nodes::routes(Arc::clone(&node), Arc::clone(&seen)));
    let pages = http::endpoints(seen, metrics)
        .merge(front::looks(looks, &state, config.run.admin_key.clone()))
        .merge(evict::routes(Arc::clone(&node), config.run.admin_key.clone()))
        .merge(faults.routes())
        .merge(public)
        .merge(front::grpc::route(health_service.clone()))
        .merge(front::routes(state))
        .merge(front::ui::routes(config.telemetry.jaeger.as_deref()));
    let grace = config.settings.grace.duration();
    let service = RouterService::new(Arc::clone(&node));
    let routes = Routes::new(RouterServer::new(service)).add_service(health_service);
    spawn_servers(&tasks, &config, (http, pages), (control, routes), &stop, grace)?;
    let watch = watch_health(health, Arc::clone(&view), config.settings.report_period.duration());
    tasks.spawn("health", watch).map_err(|_| StartError::Stopping)?;

    let exit = node.exit();
    let recorded = recorder.clone();
    let drain = Box::new(move |limit: Duration| {
        let ending = async move {
            stopping.cancel();
            let clean = node.drain(limit).await;
            stop.cancel();
            recorded.flush(grace).await;
            // Answers that were given are still on their way to clients.
            let left = tasks.shutdown(grace + grace).await;
            node.stop();
            clean && left == 0
        };
        Box::pin(ending) as Pin<Box<dyn Future<Output = bool> + Send>>
    });
    let me = NodeSelf {
        state: NodeState::Serving,
        ..me
    };
    Ok(Running::new(me, exit, drain, tracer, recorder))
}

/// Changes the policies as the configuration does.
fn follow(
    reload: Reload<Policies>,
    config: &NodeConfig,
    node: &Arc<RouterNode>,
    tasks: &Tasks,
) -> Result<(), StartError> {
    let node = Arc::clone(node);
    let apply = move |policies: &Policies| {
        tracing::info!(prefill = %policies.prefill, decode = %policies.decode, "workers are chosen by other policies from now on");
        node.set_policies(*policies);
    };
    let following = reload.watch(config.run.policies, apply).map_err(StartError::Signals)?;
    tasks.spawn("reload", following).map_err(|_| StartError::Stopping)
}

fn front_state(
    node: &Arc<RouterNode>,
    model: &Model,
    config: &NodeConfig,
    (view, metering): (&Arc<RouterView>, Arc<Metering>),
    (rates, keys): (Arc<RateLimits>, Option<Arc<Keys>>),
) -> FrontState {
    let tokenizer = model.tokenizer();
    let view = Arc::clone(view);
    FrontState {
        port: Arc::clone(node) as _,
        limits: Limits::new(
            model.context(),
            tokenizer.vocabulary(),
            config.settings.default_max_tokens,
        ),
        tokenizer,
        model: front::Model {
            id: model.name().to_owned(),
            aliases: vec![],
            created: 0,
        },
        settings: config.settings.clone(),
        block_tokens: model.page_tokens(),
        on_failure: config.run.on_failure,
        rates,
        keys,
        keep_alive: KEEP_ALIVE,
        ready: Arc::new(move || view.ready()),
        metrics: metering,
    }
}

fn spawn_servers(
    tasks: &Tasks,
    config: &NodeConfig,
    (http, pages): (CountingListener, axum::Router),
    (control, routes): (CountingListener, Routes),
    stop: &CancellationToken,
    grace: Duration,
) -> Result<(), StartError> {
    let settings = config.settings.clone();
    let (grpc_stop, http_stop) = (stop.clone(), stop.clone());
    let grpc = async move {
        if let Err(error) = grpc::serve(control, &settings, routes, grpc_stop, grace).await {
            tracing::error!(%error, "the control plane ended");
        }
    };
    let pages = async move { http::serve(http, pages, http_stop, grace).await };
    tasks
        .spawn_watching("control_server", grpc)
        .map_err(|_| StartError::Stopping)?;
    tasks
        .spawn_watching("http_server", pages)
        .map_err(|_| StartError::Stopping)
}

/// Takes over what the file of tenants' limits says now.
fn new_limits(config: LimitsConfig, rates: Arc<RateLimits>) -> Apply {
    Arc::new(move |contents| {
        let limits = config.read(contents)?;
        tracing::info!(tenants = limits.named(), "tenants' limits were read again");
        rates.set(limits);
        Ok(())
    })
}

/// Keeps the health service true: alive while the ledger answers, ready while it takes requests and has workers.
async fn watch_health(health: Health, view: Arc<RouterView>, period: Duration) {
    loop {
        let answers = tokio::time::timeout(LEDGER_DEADLINE, view.gauges())
            .await
            .ok()
            .flatten()
            .is_some();
        let state = view.node().state;
        health.set_alive(answers && state.is_alive()).await;
        health
            .set_ready(answers && state == NodeState::Serving && view.ready())
            .await;
        // A change is seen within a report period.
        tokio::time::sleep(period).await;
    }
}
