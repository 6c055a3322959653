//! Names, addresses and how a process runs: what every node has.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use innkeeper_room::ledger::router::{Policies, Policy};
use innkeeper_room::{Role, Settings};

use super::{
    ConfigError, LimitsArgs, LimitsConfig, OnFailureRoutes, RecorderArgs, RecorderConfig, Secret, SecurityArgs,
    SecurityConfig, SettingsArgs, StoreArgs, StoreConfig, TelemetryArgs, TelemetryConfig, Wish, flag, wrong,
};

/// Everything a router or a worker takes, apart from its engine.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct NodeArgs {
    /// Who it is and where it listens.
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// How it runs.
    #[command(flatten)]
    pub run: RunArgs,
    /// The lease store.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Logs and spans.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
    /// The protocol's bounds.
    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// Who a node is and where it listens.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Node")]
pub struct IdentityArgs {
    /// The node's name for people; the same over restarts. [default: ROLE-HOSTNAME]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Where it listens for HTTP (/metrics, /health; a router's API), as address:port; port 0 takes a free one.
    /// [default: 127.0.0.1:8080 for a router, else 127.0.0.1:0]
    #[arg(long, value_name = "ADDR:PORT")]
    pub http: Option<SocketAddr>,
    /// Where it listens for gRPC control, as address:port. [default: 127.0.0.1:0]
    #[arg(long, value_name = "ADDR:PORT")]
    pub control: Option<SocketAddr>,
    /// Where a decode worker listens for KV, as address:port. [default: 127.0.0.1:0]
    #[arg(long, value_name = "ADDR:PORT")]
    pub data: Option<SocketAddr>,
    /// The host under which other nodes reach it; needed if it listens at all addresses (0.0.0.0 or [::]). [default: the
    /// address it listens at]
    #[arg(long, value_name = "HOST")]
    pub advertise_host: Option<String>,
}

/// How a process runs.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Process")]
pub struct RunArgs {
    /// A TOML file with settings: keys are the flags' names without dashes. Flags and INNKEEPER_* variables go before it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Revision of the deployment; only equal ones form pairs. [default: the version of the program]
    #[arg(long, value_name = "TEXT")]
    pub revision: Option<String>,
    /// How long a node that was asked to stop finishes what it has, in milliseconds. [default: 30000]
    #[arg(long, value_name = "MS")]
    pub drain_timeout_ms: Option<u64>,
    /// What a router does when a room is lost after the first token: `migrate` carries the answer on elsewhere, `fail` ends it
    /// with the error; for one route as chat=fail or completions=fail. [default: migrate]
    #[arg(long, value_name = "POLICY")]
    pub on_failure: Option<OnFailureRoutes>,
    /// How a router chooses prefill workers: least_loaded, round_robin, random, power_of_two, prefix_hash or cache_aware. Read
    /// anew from the file when that changes, and on SIGHUP. [default: least_loaded]
    #[arg(long, value_name = "POLICY")]
    pub prefill_policy: Option<Policy>,
    /// How a router chooses decode workers, by the same names. [default: least_loaded]
    #[arg(long, value_name = "POLICY")]
    pub decode_policy: Option<Policy>,
    /// The key with which operators evict rooms at a router; without one nobody can. Better given as INNKEEPER_ADMIN_KEY, which
    /// no process list shows. [default: none]
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    pub admin_key: Option<Secret>,
    /// Tenants' limits.
    #[command(flatten)]
    pub limits: LimitsArgs,
    /// API keys, certificates, limits of connections.
    #[command(flatten)]
    pub security: SecurityArgs,
    /// The flight recorder.
    #[command(flatten)]
    pub recorder: RecorderArgs,
    /// Faults that a test wants, with commas between them; only with the mock engine. [default: none]
    #[arg(long, value_name = "FAULTS", value_delimiter = ',', hide = true)]
    pub test_faults: Vec<Wish>,
}

/// A node's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// What it is.
    pub role: Role,
    /// Its name for people.
    pub name: String,
    /// Where it listens for HTTP.
    pub http: SocketAddr,
    /// Where it listens for gRPC control.
    pub control: SocketAddr,
    /// Where it listens for KV, if it does.
    pub data: SocketAddr,
    /// The host under which other nodes reach it, if that is not the address it listens at.
    pub advertise_host: Option<String>,
    /// How it runs.
    pub run: RunConfig,
    /// The lease store.
    pub store: StoreConfig,
    /// Logs and spans.
    pub telemetry: TelemetryConfig,
    /// The protocol's bounds.
    pub settings: Settings,
}

/// How a process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunConfig {
    /// Revision of the deployment.
    pub revision: String,
    /// How long a drain may take.
    pub drain: Duration,
    /// What becomes of a stream whose room is lost.
    pub on_failure: OnFailureRoutes,
    /// How a router chooses workers.
    pub policies: Policies,
    /// The key with which operators evict rooms; never printed, and not among the arguments.
    pub admin_key: Option<Secret>,
    /// What each tenant may ask of a router.
    pub limits: LimitsConfig,
    /// API keys, certificates, limits of connections.
    pub security: SecurityConfig,
    /// The flight recorder.
    pub recorder: RecorderConfig,
    /// Faults that a test wants; none in production.
    pub faults: Vec<Wish>,
}

impl NodeArgs {
    /// The configuration of a node of this role.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting and what would be right.
    pub fn resolve(&self, role: Role) -> Result<NodeConfig, ConfigError> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let http = match role {
            Role::Router => SocketAddr::from(([127, 0, 0, 1], 8080)),
            Role::Prefill | Role::Decode => any,
        };
        let identity = &self.identity;
        let config = NodeConfig {
            role,
            name: identity
                .name
                .clone()
                .unwrap_or_else(|| format!("{role}-{}", hostname())),
            http: identity.http.unwrap_or(http),
            control: identity.control.unwrap_or(any),
            data: identity.data.unwrap_or(any),
            advertise_host: identity.advertise_host.clone(),
            run: self.run.resolve()?,
            store: self.store.resolve()?,
            telemetry: self.telemetry.resolve()?,
            settings: self.settings.resolve()?,
        };
        config.check()?;
        Ok(config)
    }
}

impl NodeConfig {
    /// What other nodes are told of a bound address: `host:port`.
    #[must_use]
    pub fn advertise(&self, bound: SocketAddr) -> String {
        match &self.advertise_host {
            Some(host) if host.contains(':') && !host.starts_with('[') => format!("[{host}]:{}", bound.port()),
            Some(host) => format!("{host}:{}", bound.port()),
            None => bound.to_string(),
        }
    }

    /// The arguments that give exactly this configuration, for a process that is started with it. The store's password
    /// the headers of spans and the key of operators are not among them: see [`StoreConfig::to_env`],
    /// [`TelemetryConfig::to_env`] and [`RunConfig::to_env`].
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec![
            flag("name", &self.name),
            flag("http", self.http),
            flag("control", self.control),
            flag("data", self.data),
        ];
        args.extend(self.advertise_host.iter().map(|host| flag("advertise-host", host)));
        args.extend(self.run.to_args());
        args.extend(self.store.to_args());
        args.extend(self.telemetry.to_args());
        args.extend(SettingsArgs::to_args(&self.settings));
        args
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.name.is_empty() || self.name.len() > 253 || self.name.chars().any(char::is_control) {
            return Err(wrong("name", &self.name, "1 to 253 printable characters"));
        }
        if let Some(host) = &self.advertise_host {
            if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == '/') {
                return Err(wrong(
                    "advertise-host",
                    host,
                    "a host name or an address, without scheme and port",
                ));
            }
            return Ok(());
        }
        let unspecified = [("http", self.http), ("control", self.control), ("data", self.data)];
        match unspecified.iter().find(|(_, addr)| addr.ip().is_unspecified()) {
            Some((name, addr)) => Err(ConfigError::Missing {
                name: "advertise-host",
                why: format!("with --{name} = {addr} other nodes cannot tell where to find this one; name its host"),
            }),
            None => Ok(()),
        }
    }
}

impl RunArgs {
    /// How the process runs.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting and what would be right.
    pub fn resolve(&self) -> Result<RunConfig, ConfigError> {
        Ok(RunConfig {
            revision: self
                .revision
                .clone()
                .unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned()),
            drain: Duration::from_millis(self.drain_timeout_ms.unwrap_or(30_000)),
            on_failure: self.on_failure.unwrap_or_default(),
            policies: Policies {
                prefill: self.prefill_policy.unwrap_or_default(),
                decode: self.decode_policy.unwrap_or_default(),
            },
            // An empty variable is none.
            admin_key: self.admin_key.clone().filter(|key| !key.reveal().is_empty()),
            limits: self.limits.resolve(),
            security: self.security.resolve()?,
            recorder: self.recorder.resolve(),
            faults: self.test_faults.clone(),
        })
    }
}

impl RunConfig {
    /// The variables that give the key of operators and the lines of API keys: arguments show in process lists.
    #[must_use]
    pub fn to_env(&self) -> Vec<(&'static str, String)> {
        let key = self.admin_key.iter().map(|key| key.reveal().to_owned());
        let key = key.map(|key| ("INNKEEPER_ADMIN_KEY", key));
        key.chain(self.security.to_env()).collect()
    }

    /// The arguments that give this, apart from keys.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec![
            flag("revision", &self.revision),
            flag("drain-timeout-ms", self.drain.as_millis()),
            flag("on-failure", self.on_failure),
            flag("prefill-policy", self.policies.prefill),
            flag("decode-policy", self.policies.decode),
        ];
        args.extend(self.limits.to_args());
        args.extend(self.security.to_args());
        args.extend(self.recorder.to_args());
        args.extend(self.faults.iter().map(|wish| flag("test-faults", wish)));
        args
    }
}

fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name.to_owned()
    }
}
