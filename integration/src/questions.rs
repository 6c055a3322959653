//! What a running cluster is asked: its commands, its endpoints, its etcd.

use std::process::Output;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::client::{Answer, Client};
use crate::cluster::Cluster;
use crate::metrics::Metrics;
use crate::process::command;
use crate::wait::until;

/// A client command asks every node for at most a second; the rest is for a starved machine.
const COMMAND_WITHIN: Duration = Duration::from_secs(10);

/// One row of `rooms ls --json`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Room {
    /// Its id, in hexadecimal digits.
    pub room: String,
    /// The router's number of the request.
    pub request: Value,
    /// Which try it is.
    pub attempt: u32,
    /// Its phase.
    pub phase: String,
    /// The epoch of its transfer.
    pub epoch: u32,
    /// Since it was opened.
    pub age_ms: u64,
    /// Since its phase began.
    pub phase_age_ms: u64,
    /// To its nearest bound.
    pub deadline_ms: u64,
    /// How long that wait may be as a whole.
    pub budget_ms: u64,
    /// The prefill worker's incarnation.
    pub prefill: String,
    /// The decode worker's.
    pub decode: String,
    /// The router's.
    pub owner: String,
    /// Who owes the next step.
    pub owes: Value,
    /// Whether its lease is confirmed.
    pub leased: bool,
}

impl Cluster {
    /// A client command against this cluster.
    pub async fn run(&self, args: &[&str]) -> Output {
        let mut command = tokio::process::Command::from(command(args));
        let access = &self.options.access;
        let output = command
            .env("INNKEEPER_ROUTER", self.client.base())
            .envs(access.key.as_ref().map(|key| ("INNKEEPER_API_KEY", key)))
            .envs(access.ca.as_ref().map(|ca| ("INNKEEPER_CA", ca)))
            .kill_on_drop(true)
            .output();
        match tokio::time::timeout(COMMAND_WITHIN, output).await {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => panic!("innkeeper {args:?} cannot be run: {error}"),
            Err(_) => panic!("innkeeper {args:?} did not end within {} s", COMMAND_WITHIN.as_secs()),
        }
    }

    async fn json(&self, args: &[&str]) -> Result<Vec<Value>, String> {
        let output = self.run(args).await;
        if !output.status.success() {
            return Err(format!(
                "innkeeper {args:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("innkeeper {args:?}: {error}"))
    }

    /// `innkeeper ps --json`.
    ///
    /// # Errors
    /// What the command says.
    pub async fn try_ps(&self) -> Result<Vec<Value>, String> {
        self.json(&["ps", "--json"]).await
    }

    /// The same; panics if it fails.
    pub async fn ps(&self) -> Vec<Value> {
        self.try_ps().await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// `innkeeper rooms ls --json`.
    ///
    /// # Errors
    /// What the command says.
    pub async fn try_rooms(&self) -> Result<Vec<Room>, String> {
        self.json(&["rooms", "ls", "--json"]).await.map(read_rooms)
    }

    /// The router's own rooms, without the cost of a command: for looking often.
    ///
    /// # Errors
    /// The router did not answer.
    pub async fn router_rooms(&self) -> Result<Vec<Room>, String> {
        let answer = self
            .client
            .get("/innkeeper/v1/rooms")
            .await
            .map_err(|error| error.to_string())?;
        match answer.body {
            Value::Array(rows) if answer.status == 200 => Ok(read_rooms(rows)),
            other => Err(format!("{}: {other}", answer.status)),
        }
    }

    /// A node's answer, by its address.
    ///
    /// # Errors
    /// It did not answer within two seconds.
    pub async fn ask(&self, http: &str, path: &str) -> Result<Answer, String> {
        // A router with TLS says so in its address.
        let client = match http.contains("://") {
            true => self.client.at(http),
            false => Client::new(format!("http://{http}")),
        };
        match tokio::time::timeout(Duration::from_secs(2), client.get(path)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer within 2 s".to_owned()),
        }
    }

    /// A node's metrics, by its address.
    ///
    /// # Errors
    /// It did not answer.
    pub async fn metrics(&self, http: &str) -> Result<Metrics, String> {
        let answer = self.ask(http, "/metrics").await?;
        match answer.body {
            Value::String(text) if answer.status == 200 => Ok(Metrics::parse(&text)),
            other => Err(format!("{}: {other}", answer.status)),
        }
    }

    /// The router's own metrics, without the cost of a command: for looking often.
    pub async fn router_metrics(&self) -> Metrics {
        let http = self.client.base().trim_start_matches("http://").to_owned();
        let metrics = self.metrics(&http).await;
        metrics.unwrap_or_else(|error| panic!("router: {error}"))
    }

    /// The metrics of the node with this name.
    pub async fn metrics_of(&self, name: &str) -> Metrics {
        let node = self.node(name).await;
        let metrics = self.metrics(node["http"].as_str().unwrap_or_default()).await;
        metrics.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The row of the node with this name.
    pub async fn node(&self, name: &str) -> Value {
        let nodes = self.ps().await;
        let found = nodes.iter().find(|node| node["name"] == name);
        found
            .unwrap_or_else(|| panic!("no node `{name}` in {nodes:#?}"))
            .clone()
    }

    /// The row of the node with this incarnation.
    pub async fn node_of(&self, incarnation: &str) -> Value {
        let nodes = self.ps().await;
        let found = nodes.iter().find(|node| node["incarnation"] == incarnation);
        found
            .unwrap_or_else(|| panic!("no node {incarnation} in {nodes:#?}"))
            .clone()
    }

    /// Waits until a room is in this phase (and attempt), and returns it.
    pub async fn wait_phase(&self, phase: &str, limit: Duration) -> Room {
        until(limit, &format!("a room is {phase}"), || async {
            let rooms = self.router_rooms().await?;
            rooms
                .iter()
                .find(|room| room.phase == phase)
                .cloned()
                .ok_or(format!("{rooms:#?}"))
        })
        .await
    }

    /// `etcdctl` against this cluster's etcd: what it prints.
    ///
    /// # Errors
    /// What it says on stderr.
    pub async fn etcdctl(&self, args: &[&str]) -> Result<String, String> {
        let etcd = self.etcd.as_ref().ok_or("this cluster runs without etcd")?;
        let mut command = tokio::process::Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &etcd.endpoint(), "--command-timeout", "5s"]);
        let output = command.args(args).kill_on_drop(true).output().await;
        let output = output.map_err(|error| format!("cannot run etcdctl ({error}): apt-get install etcd-client"))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// All of Innkeeper's keys.
    ///
    /// # Errors
    /// As [`Self::etcdctl`].
    pub async fn keys(&self) -> Result<Vec<String>, String> {
        let text = self.etcdctl(&["get", "/innkeeper", "--prefix", "--keys-only"]).await?;
        Ok(text
            .lines()
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect())
    }
}

fn read_rooms(rows: Vec<Value>) -> Vec<Room> {
    rows.into_iter()
        .map(|row| serde_json::from_value(row.clone()).unwrap_or_else(|error| panic!("a room's row: {error}: {row}")))
        .collect()
}
