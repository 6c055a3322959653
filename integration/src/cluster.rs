use std::net::TcpListener;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use innkeeper_leases::testing::EtcdServer;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::client::Client;
use crate::netns::Net;
use crate::options::{Options, Store};
use crate::process::{Launch, Process, signal};
use crate::wait::until;

/// From the start to the ready line: loading a model on a starved machine is slow.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// Ports below the range from which the system gives outgoing connections theirs: a router that is started again finds
/// its own free.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 12_000;

/// A running cluster. Dropping it ends it; if the test failed, what it printed is shown.
#[derive(Debug)]
pub struct Cluster {
    /// How it was started.
    pub options: Options,
    /// A client of its router.
    pub client: Client,
    /// `innkeeper up`; or each node, if they are apart.
    pub(crate) processes: Vec<Process>,
    pub(crate) etcd: Option<EtcdServer>,
    /// Last, so that it outlives those that live in it.
    pub(crate) net: Option<Net>,
    dir: TempDir,
}

impl Cluster {
    /// Starts a cluster and waits until it is ready; if its etcd is to come later, until its router answers.
    pub async fn start(options: Options) -> Self {
        let etcd = match options.store {
            Store::Embedded => None,
            Store::Etcd => Some(EtcdServer::start()),
            Store::EtcdLater => Some(EtcdServer::down()),
        };
        let listen = format!("127.0.0.1:{}", free_port());
        let launch = Launch {
            name: "up".to_owned(),
            launcher: vec![],
            args: arguments(&options, &listen, etcd.as_ref()),
            env: options.env.clone(),
        };
        let mut cluster = Self::launch(options, &[launch], &listen, etcd, None);
        cluster.wait_started().await;
        cluster
    }

    pub(crate) fn launch(
        options: Options,
        launches: &[Launch],
        listen: &str,
        etcd: Option<EtcdServer>,
        net: Option<Net>,
    ) -> Self {
        let dir = TempDir::new().unwrap_or_else(|error| panic!("no directory for logs: {error}"));
        let processes = launches.iter().map(|launch| Process::start(launch, dir.path()));
        let scheme = options.access.ca.as_ref().map_or("http", |_| "https");
        Self {
            client: Client::with(format!("{scheme}://{listen}"), &options.access),
            options,
            processes: processes.collect(),
            etcd,
            net,
            dir,
        }
    }

    pub(crate) async fn wait_started(&mut self) {
        if self.options.store == Store::EtcdLater {
            let client = self.client.clone();
            until(READY_WITHIN, "the router answers", || client.get("/health")).await;
        } else {
            self.wait_ready().await;
        }
    }

    async fn wait_ready(&mut self) {
        let (client, processes) = (self.client.clone(), &mut self.processes);
        let (prefill, decode) = (self.options.prefill as usize, self.options.decode as usize);
        until(READY_WITHIN, "the cluster is ready", || {
            for process in &mut *processes {
                let ended = process.ended();
                assert!(
                    ended.is_none(),
                    "{} ended before it was ready: {ended:?}",
                    process.name()
                );
            }
            let up = processes.iter().find(|process| process.name() == "up");
            let said = up.is_none_or(|up| {
                up.stdout()
                    .lines()
                    .any(|line| line.starts_with("innkeeper is ready: http"))
            });
            let client = client.clone();
            async move {
                if !said {
                    return Err("no line says so".to_owned());
                }
                let nodes = client
                    .get("/innkeeper/v1/nodes")
                    .await
                    .map_err(|error| error.to_string())?;
                let serving = |role| count(&nodes.body, role);
                if (serving("prefill"), serving("decode")) == (prefill, decode) {
                    Ok(())
                } else {
                    Err(nodes.body.to_string())
                }
            }
        })
        .await;
    }

    /// The model's name.
    #[must_use]
    pub fn model(&self) -> &'static str {
        match self.options.engine {
            "mock" => "mock",
            "vllm" => "pair",
            _ => "SmolLM2-135M-Instruct",
        }
    }

    /// The etcd of this cluster; panics if it has none.
    pub fn etcd(&mut self) -> &mut EtcdServer {
        self.etcd
            .as_mut()
            .unwrap_or_else(|| panic!("this cluster runs without etcd"))
    }

    /// The processes that were started, and those that they started.
    #[must_use]
    pub fn all_pids(&self) -> Vec<u32> {
        let each = self
            .processes
            .iter()
            .map(|process| [vec![process.pid()], process.children()].concat());
        each.collect::<Vec<_>>().concat()
    }

    /// Where its logs are, and what its nodes record.
    #[must_use]
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// What `innkeeper up` printed.
    #[must_use]
    pub fn logs(&self) -> String {
        self.processes.iter().map(Process::logs).collect::<Vec<_>>().concat()
    }

    /// All that one process printed on stderr: a node that is apart, or `up` with all its nodes.
    #[must_use]
    pub fn log(&self, name: &str) -> String {
        let process = self.processes.iter().find(|process| process.name() == name);
        process
            .unwrap_or_else(|| panic!("there is no process `{name}`"))
            .stderr()
    }

    /// The one line on stdout.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.processes.iter().map(Process::stdout).collect::<Vec<_>>().concat()
    }

    /// Ctrl-C, and the status that it ends with.
    pub fn interrupt(&mut self) -> Option<ExitStatus> {
        let first = self.processes.first_mut()?;
        signal(first.pid(), Signal::INT);
        first.wait(Duration::from_secs(15))
    }

    /// Ends the cluster, and etcd after it. The status of its first process.
    pub fn end(&mut self) -> Option<ExitStatus> {
        let all = self.processes.iter_mut();
        // All at once: nodes that are apart drain side by side.
        let ends = all.map(|process| (process.ask_to_end(), process)).collect::<Vec<_>>();
        let mut statuses = ends.into_iter().map(|(children, process)| process.end(children));
        let first = statuses.next();
        statuses.for_each(drop);
        first.flatten()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            eprintln!("{}(logs were in {})", self.logs(), self.dir.path().display());
        }
    }
}

fn arguments(options: &Options, listen: &str, etcd: Option<&EtcdServer>) -> Vec<String> {
    let own = [
        "up".to_owned(),
        format!("--listen={listen}"),
        format!("--engine={}", options.engine),
        format!("--prefill={}", options.prefill),
        format!("--decode={}", options.decode),
        // Its end is waited for after each test.
        "--drain-timeout-ms=2000".to_owned(),
        format!("--canary-period-ms={}", options.canary_ms),
    ];
    let etcd = etcd.map(|etcd| format!("--etcd={}", etcd.endpoint()));
    own.into_iter()
        .chain(etcd)
        .chain(options.flags.iter().cloned())
        .collect()
}

/// Nodes of a role that serve.
fn count(nodes: &Value, role: &str) -> usize {
    let nodes = nodes.as_array().map(Vec::as_slice).unwrap_or_default();
    nodes
        .iter()
        .filter(|node| node["role"] == role && node["state"] == "serving")
        .count()
}

/// A port that nobody else of this process, and most likely nobody else here, takes.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test programs of one machine begin at different places.
    let own = u16::try_from(std::process::id() % 150).unwrap_or(0) * 80;
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST_PORT + (own + next) % PORTS;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
        assert!(
            next < PORTS,
            "no free port on 127.0.0.1 from {FIRST_PORT} to {}",
            FIRST_PORT + PORTS
        );
    }
}
