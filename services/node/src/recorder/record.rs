//! What is kept of one node's part of a room: how it is written to disk, shown over HTTP, and explained from.

use innkeeper_room::{Blame, Counters, Evidence, Incarnation, Phase, Role, RoomId};
use serde::{Deserialize, Serialize};

pub use super::what::{Cause, Client, What};

/// One node's record of a room. Times named `…_ms` are milliseconds since the part began, but for those that say `unix`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The room.
    pub room: RoomId,
    /// The router's number of the request, as 16 hexadecimal digits.
    pub request: String,
    /// The client's id of the request (`x-request-id`).
    pub rid: String,
    /// Which try at the request.
    pub attempt: u8,
    /// What the node is.
    pub role: Role,
    /// Its name for people.
    pub name: String,
    /// Its life.
    pub incarnation: Incarnation,
    /// Revision of its deployment.
    pub revision: String,
    /// The room's owner.
    pub router: Incarnation,
    /// Its prefill worker.
    pub prefill: Incarnation,
    /// That worker's name, where it is known.
    pub prefill_name: Option<String>,
    /// Its decode worker.
    pub decode: Incarnation,
    /// That worker's name, where it is known.
    pub decode_name: Option<String>,
    /// It is a request of the router's own.
    pub canary: bool,
    /// The request's trace, if it is sampled.
    pub trace_id: Option<String>,
    /// Unix time at which the part began.
    #[serde(rename = "began_ms")]
    pub began_unix_ms: u64,
    /// Unix time at which it ended; `None` while it lives.
    #[serde(rename = "ended_ms")]
    pub ended_unix_ms: Option<u64>,
    /// The progress TTL that it ran under.
    pub ttl_ms: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens that could be produced.
    pub max_tokens: u32,
    /// Bytes of the prompt's KV, where the layout is known.
    pub bytes_expected: Option<u64>,
    /// Pages that the part holds at most; 0 on a router.
    pub pages: u32,
    /// Its phases, one after the other.
    pub phases: Vec<PhaseSpan>,
    /// What happened: the first and the last of it.
    pub entries: Vec<Entry>,
    /// Entries between them that found no place.
    pub dropped: u32,
    /// What had moved, as far as this node was told.
    pub counters: Counters,
    /// When anything moved last.
    pub progress_ms: u64,
    /// When D last verified bytes that it had not verified before.
    #[serde(default)]
    pub verified_ms: Option<u64>,
    /// Tokens that passed here, in how many messages, and when the last of them did.
    pub tokens: Tokens,
    /// The room's lease, as its router knows it.
    pub lease: Option<LeaseNote>,
    /// How often the data connection broke, and how it last did.
    pub broke: Option<BrokeNote>,
    /// P's tries to send KV; more than one: it was restarted.
    pub epochs: u32,
    /// Why the control stream to P or D broke, in the words of the network.
    pub stream_broke: Option<StreamNote>,
    /// The router was itself stopped meanwhile, for so long.
    pub stopped_ms: Option<u64>,
    /// What this node saw at its part's end; of a router's record: what the workers told it.
    pub evidence: Seen,
    /// How the part ended, on a worker: `done`, `handed_over`, or a reason's code.
    pub end: Option<String>,
    /// The other worker said so.
    pub relayed: bool,
    /// How the room ended, as far as this node knows: `done` or a reason's code. The router decides it.
    pub verdict: Option<String>,
    /// What the router's verdict followed from.
    pub cause: Option<Cause>,
    /// Who is to be looked at.
    pub blame: Option<Blame>,
    /// A worker refused the room: it never existed in full.
    pub refused: bool,
    /// What the client got.
    pub client: Client,
}

/// A phase, in milliseconds since the part began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseSpan {
    /// Which.
    pub phase: Phase,
    /// When it began.
    pub from_ms: u64,
    /// When it ended; `None` while it lasts.
    pub to_ms: Option<u64>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Unix time.
    pub at_ms: u64,
    /// Since the part began.
    pub since_ms: u64,
    /// What.
    pub what: What,
    /// Details for people; may be empty.
    pub detail: String,
}

/// Tokens that passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tokens {
    /// How many.
    pub count: u64,
    /// In how many messages.
    pub messages: u64,
    /// When the first one passed.
    pub first_ms: Option<u64>,
    /// When the last one passed.
    pub last_ms: Option<u64>,
    /// On D: how many of them its router has taken.
    pub taken: u64,
}

/// A room's lease.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LeaseNote {
    /// When the store confirmed it.
    pub granted_ms: Option<u64>,
    /// Renewals that the store confirmed.
    pub renewals: u32,
    /// When the last of them was confirmed.
    pub renewed_ms: Option<u64>,
    /// What progress it was renewed for.
    pub why: String,
    /// The store does not have it any more, or never had: the room runs unleased.
    pub lost: bool,
}

/// How a data connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokeNote {
    /// How often.
    pub times: u32,
    /// When it last did.
    pub at_ms: u64,
    /// In which epoch.
    pub epoch: u32,
    /// Bytes were not acknowledged by the peer's kernel.
    pub unacked: bool,
    /// It was refused.
    pub refused: bool,
}

/// Why a control stream broke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamNote {
    /// To which worker.
    pub side: Role,
    /// When.
    pub at_ms: u64,
    /// In the words of the network.
    pub why: String,
    /// The worker's last report of itself had come so long before.
    #[serde(default)]
    pub silent_ms: Option<u64>,
}

/// What was seen of the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Seen {
    /// By P.
    pub prefill: Option<Evidence>,
    /// By D.
    pub decode: Option<Evidence>,
}

/// How an ended record is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It went as it should: in memory only.
    Good,
    /// The client wanted the end, or no worker took the room: a smaller share of the places.
    Minor,
    /// Anything else.
    Bad,
}

impl Record {
    /// How it is kept.
    #[must_use]
    pub fn kind(&self) -> Kind {
        let how = self.verdict.as_deref().or(self.end.as_deref());
        match how {
            Some("done" | "handed_over") => Kind::Good,
            Some("aborted") => Kind::Minor,
            _ if self.refused || self.canary => Kind::Minor,
            _ => Kind::Bad,
        }
    }

    /// The phase that it was in last.
    #[must_use]
    pub fn last_phase(&self) -> Phase {
        let live = self.phases.iter().rev().find(|span| !span.phase.is_terminal());
        live.map_or(Phase::Queued, |span| span.phase)
    }

    /// Milliseconds from its beginning to its end, or to `now` (unix).
    #[must_use]
    pub fn lasted(&self, now: u64) -> u64 {
        self.ended_unix_ms.unwrap_or(now).saturating_sub(self.began_unix_ms)
    }

    /// Memory that it takes, roughly, in bytes.
    #[must_use]
    pub fn weight(&self) -> usize {
        let texts: usize = self.entries.iter().map(|entry| entry.detail.len()).sum();
        let names = self.rid.len() + self.name.len() + self.revision.len();
        size_of::<Self>()
            + names
            + texts
            + self.entries.capacity() * size_of::<Entry>()
            + self.phases.capacity() * size_of::<PhaseSpan>()
    }
}
