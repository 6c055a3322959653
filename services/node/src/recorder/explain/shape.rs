//! What an explanation is: its JSON is a contract.

use innkeeper_room::{Incarnation, Role, RoomId};
use serde::{Deserialize, Serialize};

/// What happened to a room. Times are unix time in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The room.
    pub room: RoomId,
    /// The client's id of the request.
    pub rid: String,
    /// Which try at the request.
    pub attempt: u8,
    /// It has not ended.
    pub live: bool,
    /// How it ended: `done` or a reason's code; without the router's word, how its parts did.
    pub verdict: Option<String>,
    /// The label of who is to be looked at; `None` if only the router could say it, and it does not.
    pub blame: Option<String>,
    /// Which node that is, if it is one.
    pub blame_node: Option<Incarnation>,
    /// Its name.
    pub blame_name: Option<String>,
    /// In one sentence.
    pub headline: String,
    /// Who owed the next step, for people.
    pub owed: String,
    /// The same as a label: `nobody`, `prefill`, `decode` or `router`.
    pub owed_role: String,
    /// Which step that was.
    pub owes_what: String,
    /// Since when it was owed.
    pub since_ms: Option<u64>,
    /// What shows it.
    pub evidence: Vec<String>,
    /// What Innkeeper did.
    pub did: Vec<String>,
    /// What the client got.
    pub client: String,
    /// The room that carried on, if one did.
    pub next_room: Option<RoomId>,
    /// The trace, if there is one.
    pub trace_id: Option<String>,
    /// When the room began.
    pub began_ms: Option<u64>,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// Each node's part.
    pub parts: Vec<Part>,
    /// What happened on all of them, in the order of time.
    pub story: Vec<Line>,
}

/// One node's part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// What the node is.
    pub role: Role,
    /// Its name; empty if it is not known.
    pub name: String,
    /// Its life.
    pub incarnation: Incarnation,
    /// Its record is there.
    pub answered: bool,
    /// Why it is not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<String>,
    /// How the part ended, on a worker.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub end: Option<String>,
    /// Its phases.
    pub phases: Vec<Span>,
    /// What happened there.
    pub entries: Vec<Happened>,
}

/// A phase of a part, in unix time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Which.
    pub phase: String,
    /// From when on.
    pub from_ms: u64,
    /// Until when; `None` while it lasts.
    pub to_ms: Option<u64>,
}

/// Something that happened on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Happened {
    /// When.
    pub at_ms: u64,
    /// What, for people.
    pub what: String,
    /// Details; may be empty.
    pub detail: String,
}

/// Something that happened, beside what happened on other nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// When.
    pub at_ms: u64,
    /// Since the room began; less than zero if the node's clock is behind.
    pub after_ms: i64,
    /// On what kind of node.
    pub role: Role,
    /// On which one.
    pub name: String,
    /// What, for people.
    pub what: String,
    /// Details; may be empty.
    pub detail: String,
}
