//! What a node's HTTP and metrics endpoints need to know of the node.

#[cfg(test)]
pub(crate) mod fake;

use innkeeper_actors::ports::Answer;
use innkeeper_engine::{About, Seen};
use innkeeper_room::ledger::{Gauges, RoomRow};
use innkeeper_room::{Incarnation, Role};
use serde::{Deserialize, Serialize};

/// What a node says of itself: one row of `ps --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSelf {
    /// What it is.
    pub role: Role,
    /// Its name for people.
    pub name: String,
    /// Its OS process.
    pub pid: u32,
    /// Its life.
    pub incarnation: Incarnation,
    /// What it is doing.
    pub state: NodeState,
    /// `host:port` of `/metrics` and `/health`.
    pub http: String,
    /// `host:port` of its gRPC control plane; empty if it has none.
    pub control: String,
    /// `host:port` of its data plane; empty if it has none.
    pub data: String,
    /// Deployment revision; only equal ones pair.
    pub revision: String,
}

/// What a node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It is not ready yet.
    Starting,
    /// It takes new rooms or requests.
    Serving,
    /// It finishes what it has.
    Draining,
    /// It is fenced, or its ledger is gone: it ends itself.
    Failed,
}

impl NodeState {
    /// Whether the process is as it should be.
    #[must_use]
    pub const fn is_alive(self) -> bool {
        !matches!(self, Self::Failed)
    }
}

/// What an engine has done since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct EngineCounts {
    /// Chunks and steps.
    pub steps: u64,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Tokens produced.
    pub output_tokens: u64,
}

/// How large a KV page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize {
    /// In tokens.
    pub tokens: u32,
    /// In bytes.
    pub bytes: u64,
}

/// A node as its HTTP endpoints see it. Answers come from the ledger itself; a caller gives each a deadline.
pub trait NodeView: Send + Sync + 'static {
    /// What it says of itself. Never waits.
    fn node(&self) -> NodeSelf;

    /// Live parts (R: rooms that it owns). `None`: the ledger did not answer.
    fn rooms(&self) -> Answer<'_, Option<Vec<RoomRow>>>;

    /// The ledger's counts. `None`: it did not answer, so the node is not healthy.
    fn gauges(&self) -> Answer<'_, Option<Gauges>>;

    /// Whether new work may be sent here, beyond `state = serving`: e.g. a router wants a worker of each role.
    fn ready(&self) -> bool {
        true
    }

    /// Live tasks by kind.
    fn tasks(&self) -> Vec<(&'static str, u64)>;

    /// Open connections by kind.
    fn connections(&self) -> Vec<(&'static str, u64)>;

    /// Connections that found no place, or came to no TLS handshake, by kind, since the start.
    fn refused_connections(&self) -> Vec<(&'static str, u64)> {
        vec![]
    }

    /// Actors that did not stop when killed.
    fn zombies(&self) -> u64 {
        0
    }

    /// What the engine has done; `None` without one.
    fn engine(&self) -> Option<EngineCounts> {
        None
    }

    /// What an engine next door shows of itself; `None` if the engine is part of the process.
    fn next_door(&self) -> Option<Seen> {
        None
    }

    /// What an engine next door is; `None` if the engine is part of the process.
    fn about(&self) -> Option<About> {
        None
    }

    /// How large its KV pages are; `None` without any.
    fn page(&self) -> Option<PageSize> {
        None
    }
}
