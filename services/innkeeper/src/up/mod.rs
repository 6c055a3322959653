//! `innkeeper up`: the whole cluster on one machine. Without etcd all nodes live in this process, with real gRPC and real
//! TCP between them; with etcd each is a process of its own, and one that died is started again.

pub(crate) mod embedded;
mod processes;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use innkeeper_node::config::{
    ConfigError, EngineArgs, EngineConfig, NodeConfig, RecorderArgs, RunArgs, Secret, SecurityConfig, SettingsArgs,
    StoreArgs, TelemetryArgs, check_faults, exit_with,
};
use innkeeper_node::security::{KeyError, key_line, new_key};
use innkeeper_room::{Role, Settings};

use crate::client::RouterArgs;
use crate::client::http::base;

/// Most workers of one role on one machine.
const MOST_WORKERS: u32 = 64;
/// How long a cluster may take from its start to its first usable pair. Loading a model on a starved machine is slow.
const READY_WITHIN: Duration = Duration::from_secs(300);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Prefill workers.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_WORKERS)))]
    prefill: u32,
    /// Decode workers.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_WORKERS)))]
    decode: u32,
    /// Where the router listens for HTTP, as address:port.
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR:PORT")]
    listen: SocketAddr,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// What is to run.
struct Plan {
    nodes: Vec<NodeConfig>,
    engine: EngineConfig,
    listen: SocketAddr,
    prefill: u32,
    decode: u32,
    /// With which this process looks at its own cluster, if clients must show a key.
    key: Option<Secret>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let plan = args.plan().unwrap_or_else(|error| exit_with(&error));
    let done = if args.store.etcd.is_empty() {
        embedded::run(plan)
    } else {
        processes::run(plan)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Plan {
    /// Where the router will listen, before it does.
    fn addr(&self) -> String {
        match self.security() {
            Some(security) if security.tls.is_some() => format!("https://{}", self.listen),
            Some(_) | None => self.listen.to_string(),
        }
    }

    /// Which of the workers a node is, those of prefill first: whose engine is in that place of the list.
    fn nth(&self, node: &NodeConfig) -> usize {
        let before = self.nodes.iter().take_while(|other| other.name != node.name);
        let before = before.filter(|other| other.role == node.role).count();
        match node.role {
            Role::Prefill | Role::Router => before,
            Role::Decode => self.prefill as usize + before,
        }
    }

    /// What a node's process is told of its engine. A router knows of all.
    fn engine_of(&self, node: &NodeConfig) -> EngineConfig {
        match node.role {
            Role::Router => self.engine.clone(),
            Role::Prefill | Role::Decode => self.engine.of_worker(self.nth(node)),
        }
    }

    /// How this process reaches the router.
    fn reach(&self, addr: &str) -> RouterArgs {
        let tls = self.security().and_then(|security| security.tls.as_ref());
        RouterArgs {
            api_key: self.key.clone(),
            admin_key: self.nodes.last().and_then(|router| router.run.admin_key.clone()),
            pinned: tls.map(|files| files.certificate.clone()),
            ..RouterArgs::at(addr)
        }
    }

    fn security(&self) -> Option<&SecurityConfig> {
        self.nodes.last().map(|router| &router.run.security)
    }

    /// One worker of each role, on free ports, for measuring.
    fn smallest(settings: Settings, engine: EngineConfig) -> Result<Self, ConfigError> {
        let quiet = TelemetryArgs {
            log: Some("warn".to_owned()),
            ..TelemetryArgs::default()
        };
        let args = Args {
            prefill: 1,
            decode: 1,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            engine: EngineArgs::default(),
            run: RunArgs {
                recorder: RecorderArgs::nowhere(),
                ..RunArgs::default()
            },
            store: StoreArgs::default(),
            telemetry: quiet,
            settings: SettingsArgs::default(),
        };
        let mut plan = args.plan()?;
        plan.engine = engine;
        for node in &mut plan.nodes {
            node.settings = settings.clone();
        }
        Ok(plan)
    }
}

impl Args {
    fn plan(&self) -> Result<Plan, ConfigError> {
        let mut settings = self.settings.resolve()?;
        let (engine, mut run) = (self.engine.resolve()?, self.run.resolve()?);
        engine.check_workers(self.prefill + self.decode)?;
        engine.check_no_command()?;
        engine.fit(&mut settings);
        let key = own_key(&mut run.security)?;
        check_faults(&run.faults, &engine)?;
        let store = self.store.resolve()?;
        let telemetry = self.telemetry.resolve()?;
        let node = |role: Role, name: String, http: SocketAddr| NodeConfig {
            role,
            name,
            http,
            control: any_port(self.listen),
            data: any_port(self.listen),
            advertise_host: None,
            run: run.clone(),
            store: store.clone(),
            telemetry: telemetry.clone(),
            settings: settings.clone(),
        };
        let workers = |role: Role, count: u32| {
            (0..count)
                .map(move |number| (role, format!("{role}-{number}")))
                .collect::<Vec<_>>()
        };
        let mut nodes: Vec<_> = [workers(Role::Decode, self.decode), workers(Role::Prefill, self.prefill)]
            .concat()
            .into_iter()
            .map(|(role, name)| node(role, name, any_port(self.listen)))
            .collect();
        nodes.push(node(Role::Router, "router".to_owned(), self.listen));
        Ok(Plan {
            nodes,
            engine,
            listen: self.listen,
            prefill: self.prefill,
            decode: self.decode,
            key,
        })
    }
}

/// Where clients must show a key, this process has one too, for as long as it lives.
fn own_key(security: &mut SecurityConfig) -> Result<Option<Secret>, ConfigError> {
    if !security.wants_keys() {
        return Ok(None);
    }
    let made = || {
        let key = new_key()?;
        Ok((key_line("innkeeper-up", &key)?, key))
    };
    let (line, key) = made().map_err(|error: KeyError| ConfigError::Missing {
        name: "api-keys",
        why: error.to_string(),
    })?;
    security.api_keys.push(line);
    Ok(key.parse().ok())
}

/// Workers talk on loopback, whatever the router's own address is.
fn any_port(listen: SocketAddr) -> SocketAddr {
    if listen.is_ipv6() {
        SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 0))
    } else {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }
}

/// The one line that says that requests may come.
fn ready_line(plan: &Plan, addr: &str, model: &str, leases: &str) {
    println!(
        "innkeeper is ready: {} (model {model}, {} prefill, {} decode, leases in {leases})",
        base(addr),
        plan.prefill,
        plan.decode
    );
}
