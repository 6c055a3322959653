//! The fault kit: what a test does to a running cluster, by the names that `innkeeper ps` shows.
//!
//! ```text
//! kill · stop · cont · replace            a process
//! link(a, b).cut() · .black_hole() · .black_hole_toward(b) · .drip(n) · .heal()
//! etcd().stop() · .cont() · .restart_empty() · compact() · revoke(room)
//! order(node, fault)                      inside a node: messages, engine, sessions, writes (`--test-faults=on`)
//! Options::fault("no-pings")              a detection layer is switched off from the start
//! ```

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::client::{Answer, Client};
use crate::cluster::Cluster;
use crate::netns::Link;
use crate::process::signal;
use crate::questions::Room;
use crate::wait::until;

/// A process that was stopped or started has to be seen so by others; the rest is for a starved machine.
const SOON: Duration = Duration::from_secs(20);

impl Cluster {
    /// The process id of a node.
    pub async fn pid(&self, name: &str) -> u32 {
        let node = self.node(name).await;
        let pid = node["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.unwrap_or_else(|| panic!("no process id: {node}"))
    }

    /// The name of the node with this incarnation.
    pub async fn name_of(&self, incarnation: &str) -> String {
        self.node_of(incarnation).await["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// SIGKILL.
    pub async fn kill(&self, name: &str) {
        signal(self.pid(name).await, Signal::KILL);
    }

    /// SIGSTOP; what continues it, also when the router is gone.
    pub async fn stop(&self, name: &str) -> Stopped {
        let pid = self.pid(name).await;
        signal(pid, Signal::STOP);
        Stopped { pid: Some(pid) }
    }

    /// Kills a node of a cluster that is apart, and starts another one at the same addresses.
    pub fn replace(&mut self, name: &str) {
        let process = self.processes.iter_mut().find(|process| process.name() == name);
        process
            .unwrap_or_else(|| panic!("no process `{name}`: is this cluster apart?"))
            .replace();
    }

    /// The link between two nodes of a cluster that is apart.
    #[must_use]
    pub fn link(&self, one: &str, other: &str) -> Link<'_> {
        let net = self.net.as_ref();
        net.unwrap_or_else(|| panic!("this cluster is not apart: it has no links"))
            .link(one, other)
    }

    /// Asks a node for faults, with commas between them; it must have been started with `--test-faults`.
    pub async fn order(&self, name: &str, faults: &str) {
        let node = self.node(name).await;
        let client = Client::new(format!("http://{}", node["http"].as_str().unwrap_or_default()));
        let answer = client.post_text("/innkeeper/test/faults", faults).await;
        match answer {
            Ok(answer) if answer.status == 200 => {}
            other => panic!("{name} does not take `{faults}`: {other:?}"),
        }
    }

    /// Revokes a room's lease by hand: the id of the room is that of its lease.
    pub async fn revoke(&self, room: &Room) {
        let revoked = self.etcdctl(&["lease", "revoke", &room.room]).await;
        revoked.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Compacts etcd up to its newest revision; that revision.
    pub async fn compact(&self) -> i64 {
        let status = self.etcdctl(&["endpoint", "status", "--write-out=json"]).await;
        let status = status.unwrap_or_else(|error| panic!("{error}"));
        let status: Value = serde_json::from_str(&status).unwrap_or_else(|error| panic!("{status}: {error}"));
        let revision = status[0]["Status"]["header"]["revision"].as_i64();
        let revision = revision.unwrap_or_else(|| panic!("no revision: {status}"));
        let done = self.etcdctl(&["compact", &revision.to_string(), "--physical"]).await;
        done.unwrap_or_else(|error| panic!("{error}"));
        revision
    }

    /// Sends a completion whose answer is awaited later.
    #[must_use]
    pub fn submit(&self, body: &Value) -> JoinHandle<Answer> {
        let (client, body) = (self.client.clone(), body.clone());
        tokio::spawn(async move { client.post("/v1/completions", &body).await })
    }

    /// How the router's rooms ended that were not done: reason, blame and number of each.
    pub async fn failures(&self) -> Vec<(String, String, u64)> {
        let metrics = self.router_metrics().await;
        let mut all = metrics.ended();
        all.retain(|(reason, _, _)| reason != "done");
        all
    }

    /// Waits until the room's verdict is counted, and says how it ended: `(reason, blame)`. It must be the only one that
    /// failed since `before`, which [`Cluster::failures`] gave.
    pub async fn verdict(&self, before: &[(String, String, u64)], limit: Duration) -> (String, String) {
        until(limit, "one room fails", || async {
            let now = self.failures().await;
            let fresh: Vec<_> = now
                .iter()
                .filter_map(|(reason, blame, count)| {
                    let old = before.iter().find(|old| (&old.0, &old.1) == (reason, blame));
                    let more = count - old.map_or(0, |old| old.2);
                    (more > 0).then(|| (reason.clone(), blame.clone(), more))
                })
                .collect();
            match fresh.as_slice() {
                [(reason, blame, 1)] => Ok((reason.clone(), blame.clone())),
                [] => Err(now),
                more => panic!("more than one room failed: {more:?}"),
            }
        })
        .await
    }

    /// Waits until the router has all its workers again and they serve.
    pub async fn wait_whole(&self) {
        let expected = (self.options.prefill + self.options.decode + 1) as usize;
        until(SOON, "all nodes serve", || async {
            let nodes = self.try_ps().await?;
            let serving = nodes.iter().filter(|node| node["state"] == "serving").count();
            if (serving, nodes.len()) == (expected, expected) {
                Ok(())
            } else {
                Err(format!("{nodes:?}"))
            }
        })
        .await;
    }
}

/// A stopped process. Dropping it continues it.
#[derive(Debug)]
pub struct Stopped {
    pid: Option<u32>,
}

impl Stopped {
    /// SIGCONT.
    pub fn cont(mut self) {
        if let Some(pid) = self.pid.take() {
            signal(pid, Signal::CONT);
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(pid) = self.pid.take() {
            // After a failed test it may be gone.
            crate::process::try_signal(pid, Signal::CONT);
        }
    }
}
