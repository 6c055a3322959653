//! From what nodes recorded of a room to an explanation: which party owed the next step, since when, on what evidence, what
//! was done about it, and what the client got. Pure.
//!
//! ```text
//! words     reasons, parties, phases and events in plain words
//! evidence  who owed, and what shows it
//! headline  what happened, in one sentence
//! did       what Innkeeper did, and what the client got
//! shape     what an explanation is
//! story     everything, in the order of time
//! text      an explanation as a terminal shows it
//! ```
//! Times of different nodes are put side by side as their clocks have them: for people, and nothing follows from it.

mod did;
mod evidence;
mod headline;
mod shape;
mod story;
#[cfg(test)]
mod tests;
mod text;
mod words;

use innkeeper_room::ledger::RoomRow;
use innkeeper_room::{Blame, Incarnation, Reason, Role, RoomId};

use super::record::{Client, Record};
pub use shape::{Explanation, Happened, Line, Part, Span};
pub use text::print;

/// All that is known of a room.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The room.
    pub room: RoomId,
    /// What nodes recorded, in any order.
    pub records: &'a [Record],
    /// Nodes that should know something and say nothing.
    pub missing: &'a [Missing],
    /// The room's row at its router, while it lives.
    pub row: Option<&'a RoomRow>,
    /// Unix time, in milliseconds.
    pub now_ms: u64,
}

/// A node that should know something of the room and does not say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What it is.
    pub role: Role,
    /// Its name, where it is known.
    pub name: Option<String>,
    /// Its life.
    pub incarnation: Incarnation,
    /// Why it says nothing.
    pub why: String,
}

/// The records by role, and the names of their nodes.
pub(super) struct Facts<'a> {
    pub(super) case: Case<'a>,
    pub(super) router: Option<&'a Record>,
    pub(super) prefill: Option<&'a Record>,
    pub(super) decode: Option<&'a Record>,
    /// Any of them; the router's rather.
    pub(super) any: &'a Record,
}

/// Explains a room. `None` if nobody recorded anything of it.
#[must_use]
pub fn explain(case: Case<'_>) -> Option<Explanation> {
    Facts::of(case).map(|facts| facts.explain())
}

/// What happened, in one sentence, as far as a router's own record has it.
#[must_use]
pub fn headline(record: &Record) -> String {
    let facts = Facts::of(Case {
        room: record.room,
        records: std::slice::from_ref(record),
        missing: &[],
        row: None,
        now_ms: record.ended_unix_ms.unwrap_or(record.began_unix_ms),
    });
    facts.map_or_else(String::new, |facts| facts.headline(&facts.debt()))
}

impl<'a> Facts<'a> {
    fn of(case: Case<'a>) -> Option<Self> {
        let of = |role: Role| case.records.iter().find(|record| record.role == role);
        let (router, prefill, decode) = (of(Role::Router), of(Role::Prefill), of(Role::Decode));
        Some(Self {
            case,
            router,
            prefill,
            decode,
            any: router.or(prefill).or(decode)?,
        })
    }
}

impl Facts<'_> {
    fn explain(&self) -> Explanation {
        let debt = self.debt();
        let blame = self.router.and_then(|record| record.blame);
        let next_room = match self.router.map(|record| &record.client) {
            Some(Client::NextAttempt { room, .. }) => Some(*room),
            _ => None,
        };
        let label = if self.is_live() {
            None
        } else {
            blame.map(|blame| blame.label().to_owned())
        };
        Explanation {
            room: self.case.room,
            rid: self.any.rid.clone(),
            attempt: self.any.attempt,
            live: self.is_live(),
            verdict: self.verdict(),
            blame: label,
            blame_node: blame.and_then(|blame| blame.node()),
            blame_name: blame.and_then(|blame| blame.node()).and_then(|node| self.name_of(node)),
            headline: self.headline(&debt),
            owed: self.party(debt.who),
            owed_role: debt.who.name().to_owned(),
            owes_what: debt.what.to_owned(),
            since_ms: debt.since_ms,
            evidence: self.evidence(&debt),
            did: self.did(),
            client: self.client(),
            next_room,
            trace_id: self.case.records.iter().find_map(|record| record.trace_id.clone()),
            began_ms: Some(self.any.began_unix_ms),
            ended_ms: if self.is_live() { None } else { self.ended() },
            parts: self.parts(),
            story: self.story(),
        }
    }

    /// It has not ended, as far as its router says, or without the router as far as all workers say.
    pub(super) fn is_live(&self) -> bool {
        match self.router {
            Some(record) => record.ended_unix_ms.is_none(),
            None => self.case.records.iter().all(|record| record.ended_unix_ms.is_none()),
        }
    }

    /// When it ended.
    pub(super) fn ended(&self) -> Option<u64> {
        let router = self.router.and_then(|record| record.ended_unix_ms);
        router.or_else(|| self.workers().filter_map(|record| record.ended_unix_ms).min())
    }

    /// The router's word; without it, that of the first part that failed.
    pub(super) fn verdict(&self) -> Option<String> {
        if let Some(record) = self.router {
            return record.verdict.clone();
        }
        let ended = || self.workers().filter(|record| record.ended_unix_ms.is_some());
        let failed = ended()
            .filter(|record| !matches!(record.end.as_deref(), Some("done" | "handed_over")))
            .min_by_key(|record| record.ended_unix_ms);
        let decode = self.decode.filter(|record| record.ended_unix_ms.is_some());
        failed.or(decode).or_else(|| ended().next())?.end.clone()
    }

    /// The reason for which it failed.
    pub(super) fn reason(&self) -> Option<Reason> {
        Reason::from_code(self.verdict()?.as_str())
    }

    pub(super) fn workers(&self) -> impl Iterator<Item = &Record> {
        [self.prefill, self.decode].into_iter().flatten()
    }

    /// The name of a node of the room.
    pub(super) fn name_of(&self, node: Incarnation) -> Option<String> {
        let own = self.case.records.iter().find(|record| record.incarnation == node);
        let missing = || self.case.missing.iter().find(|missing| missing.incarnation == node);
        let told = || {
            let names = self.case.records.iter().flat_map(|record| {
                [
                    (record.prefill, record.prefill_name.clone()),
                    (record.decode, record.decode_name.clone()),
                ]
            });
            names.filter(|(of, _)| *of == node).find_map(|(_, name)| name)
        };
        own.map(|record| record.name.clone())
            .or_else(|| missing().and_then(|missing| missing.name.clone()))
            .or_else(told)
    }

    /// A node of the room for people: what it is, and its name or life.
    pub(super) fn node(&self, role: Role) -> String {
        let node = match role {
            Role::Router => self.any.router,
            Role::Prefill => self.any.prefill,
            Role::Decode => self.any.decode,
        };
        let name = self.name_of(node).unwrap_or_else(|| node.to_string());
        format!("{} {name}", words::kind(role))
    }

    /// Who is to be looked at, for people.
    pub(super) fn blamed(&self, blame: Blame) -> String {
        match blame {
            Blame::Nobody => "nobody is to blame".to_owned(),
            Blame::Client => "its client is the one to look at".to_owned(),
            Blame::Router(_) => format!("look at {}", self.node(Role::Router)),
            Blame::Prefill(_) => format!("look at {}", self.node(Role::Prefill)),
            Blame::Decode(_) => format!("look at {}", self.node(Role::Decode)),
            Blame::Link { .. } => format!(
                "look at the network between {} and {}",
                self.node(Role::Prefill),
                self.node(Role::Decode)
            ),
        }
    }
}
