//! The list of parts that are over: what `rooms ls --ended` shows.

use innkeeper_room::{Blame, Incarnation, Role, RoomId};
use serde::Serialize;

use super::explain;
use super::record::Record;

/// One row of the list of ended rooms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ended {
    /// The room.
    pub room: RoomId,
    /// The router's number of the request, as 16 hexadecimal digits.
    pub request: String,
    /// The client's id of it.
    pub rid: String,
    /// Which try.
    pub attempt: u8,
    /// The prefill worker.
    pub prefill: Incarnation,
    /// Its name, where it is known.
    pub prefill_name: Option<String>,
    /// The decode worker.
    pub decode: Incarnation,
    /// Its name, where it is known.
    pub decode_name: Option<String>,
    /// `done` or a reason's code; of a worker: how its part ended.
    pub verdict: Option<String>,
    /// Who is to be looked at; a worker does not know.
    pub blame: Option<&'static str>,
    /// Which node that is, if it is one.
    pub blame_node: Option<Incarnation>,
    /// That node's name, where it is known.
    pub blame_name: Option<String>,
    /// A worker refused it: it never existed in full, and another room took its place.
    pub refused: bool,
    /// Its last phase.
    pub phase: &'static str,
    /// It was the router's own.
    pub canary: bool,
    /// Unix time.
    pub began_ms: u64,
    /// Unix time.
    pub ended_ms: u64,
    /// The trace, if there is one.
    pub trace_id: Option<String>,
    /// What happened, in one sentence; of a router.
    pub headline: Option<String>,
}

impl Ended {
    /// A record's row.
    pub(super) fn of(record: &Record) -> Self {
        let router = record.role == Role::Router;
        Self {
            room: record.room,
            request: record.request.clone(),
            rid: record.rid.clone(),
            attempt: record.attempt,
            prefill: record.prefill,
            prefill_name: record.prefill_name.clone(),
            decode: record.decode,
            decode_name: record.decode_name.clone(),
            verdict: if router {
                record.verdict.clone()
            } else {
                record.end.clone()
            },
            blame: record.blame.map(|blame| blame.label()),
            blame_node: record.blame.and_then(|blame| blame.node()),
            blame_name: match record.blame {
                Some(Blame::Prefill(_)) => record.prefill_name.clone(),
                Some(Blame::Decode(_)) => record.decode_name.clone(),
                Some(Blame::Router(_)) if router => Some(record.name.clone()),
                _ => None,
            },
            refused: record.refused,
            phase: record.last_phase().name(),
            canary: record.canary,
            began_ms: record.began_unix_ms,
            ended_ms: record.ended_unix_ms.unwrap_or(record.began_unix_ms),
            trace_id: record.trace_id.clone(),
            headline: router.then(|| explain::headline(record)),
        }
    }
}
