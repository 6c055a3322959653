//! Nodes beside those of `innkeeper up`: another router, or a worker that is to be asked to go.

use std::time::Duration;

use rustix::process::Signal;

use crate::client::Client;
use crate::cluster::{Cluster, free_port};
use crate::process::{Launch, Process, signal};
use crate::wait::until;

/// A process that is started and registers, on a starved machine.
const SOON: Duration = Duration::from_secs(30);

impl Cluster {
    /// Starts one more router of this cluster, which keeps its state in etcd, and waits until it is ready; a client of it.
    pub async fn join_router(&mut self, name: &str) -> Client {
        let listen = format!("127.0.0.1:{}", free_port());
        let endpoint = self.etcd().endpoint();
        let own = [
            "node".to_owned(),
            "router".to_owned(),
            "--with-parent".to_owned(),
            format!("--name={name}"),
            format!("--http={listen}"),
            format!("--etcd={endpoint}"),
            format!("--engine={}", self.options.engine),
            "--drain-timeout-ms=5000".to_owned(),
            format!("--canary-period-ms={}", self.options.canary_ms),
        ];
        let launch = Launch {
            name: name.to_owned(),
            launcher: vec![],
            args: own.into_iter().chain(self.options.flags.iter().cloned()).collect(),
            env: self.options.env.clone(),
        };
        let process = Process::start(&launch, self.dir());
        self.processes.push(process);
        let client = Client::new(format!("http://{listen}"));
        let workers = (self.options.prefill + self.options.decode) as usize;
        until(SOON, &format!("{name} has its workers"), || async {
            let nodes = client
                .get("/innkeeper/v1/nodes")
                .await
                .map_err(|error| error.to_string())?;
            let nodes = nodes.body.as_array().cloned().unwrap_or_default();
            let serving = nodes
                .iter()
                .filter(|node| node["role"] != "router" && node["state"] == "serving");
            if serving.count() == workers {
                Ok(())
            } else {
                Err(format!("{nodes:?}"))
            }
        })
        .await;
        client
    }

    /// Signals a node that was started beside `up`.
    pub fn signal_joined(&self, name: &str, what: Signal) {
        let process = self.processes.iter().find(|process| process.name() == name);
        let process = process.unwrap_or_else(|| panic!("no process `{name}` was started"));
        signal(process.pid(), what);
    }

    /// Waits until a node that was started beside `up` has ended, and forgets it: whether it ended by itself, with success.
    pub fn ended_joined(&mut self, name: &str, limit: Duration) -> bool {
        let at = self.processes.iter().position(|process| process.name() == name);
        let at = at.unwrap_or_else(|| panic!("no process `{name}` was started"));
        let status = self.processes[at].wait(limit);
        drop(self.processes.remove(at));
        status.is_some_and(|status| status.success())
    }
}
