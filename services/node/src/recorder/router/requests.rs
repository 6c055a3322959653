//! Requests whose rooms are recorded: what becomes of them is what their clients get.

use std::collections::HashMap;

use innkeeper_leases::Member;
use innkeeper_room::ledger::router::Outcome;
use innkeeper_room::lru::Lru;
use innkeeper_room::pause::PauseDetector;
use innkeeper_room::{Incarnation, Moment, RequestKey, RoomId, RoomSpec, Settings};

use super::client_got;
use super::hand::Hand;
use crate::recorder::record::{Client, Entry, Record, What};
use crate::recorder::unix_ms;

/// Nodes whose names are remembered, those that are gone included.
const KNOWN: usize = 1024;

/// A node that was seen in the lease store.
#[derive(Clone, Debug)]
pub(in crate::recorder) struct Known {
    pub(super) member: Member,
    /// When it last reported itself.
    pub(super) heard: Option<Moment>,
}

impl Known {
    pub(super) fn of(member: &Member) -> Self {
        Self {
            member: member.clone(),
            heard: None,
        }
    }
}

/// A router's requests.
pub(in crate::recorder) struct Requests {
    requests: HashMap<RequestKey, Request>,
    /// Those with a room that ended in the step in hand.
    over: Vec<RequestKey>,
    pub(super) known: Lru<Incarnation, Known>,
    pub(super) hand: Hand,
    pub(in crate::recorder) pause: PauseDetector,
}

#[derive(Default)]
struct Request {
    rid: String,
    traceparent: String,
    /// Its last room.
    room: Option<RoomId>,
    /// That room has not ended.
    lives: bool,
    /// That room ended, and what the client gets is not known.
    ended: Option<Record>,
    answer: Option<Outcome>,
}

impl Requests {
    pub(in crate::recorder) fn new(settings: &Settings) -> Self {
        Self {
            requests: HashMap::new(),
            over: vec![],
            known: Lru::new(KNOWN),
            hand: Hand::default(),
            pause: PauseDetector::for_settings(settings),
        }
    }

    /// A request, a client's or the router's own; the first word counts.
    pub(super) fn arrived(&mut self, key: RequestKey, rid: &str, traceparent: &str) {
        self.requests.entry(key).or_insert_with(|| Request {
            rid: rid.to_owned(),
            traceparent: traceparent.to_owned(),
            ..Request::default()
        });
    }

    /// Its last room.
    pub(super) fn room_of(&self, key: RequestKey) -> Option<RoomId> {
        self.requests.get(&key)?.room
    }

    /// A room begins: the request's id and trace.
    pub(super) fn begins(&mut self, spec: &RoomSpec) -> (String, String) {
        let Some(request) = self.requests.get_mut(&spec.request) else {
            return Default::default();
        };
        request.room = Some(spec.room);
        request.lives = true;
        (request.rid.clone(), request.traceparent.clone())
    }

    /// The room that ended before this one now has what its client got.
    pub(super) fn next_attempt(&mut self, spec: &RoomSpec) -> Option<Record> {
        let name = |node: Incarnation| self.known.get(&node).map(|known| known.member.name.clone());
        let client = Client::NextAttempt {
            room: spec.room,
            attempt: spec.attempt.0,
            prefill: spec.prefill,
            prefill_name: name(spec.prefill),
            decode: spec.decode,
            decode_name: name(spec.decode),
        };
        let mut record = self.requests.get_mut(&spec.request)?.ended.take()?;
        add(
            &mut record,
            What::NextAttempt,
            format!("room {}, attempt {}", spec.room, spec.attempt.0),
        );
        record.client = client;
        Some(record)
    }

    /// A room is over.
    pub(super) fn room_ended(&mut self, key: RequestKey, record: Record) {
        let request = self.requests.entry(key).or_default();
        request.lives = false;
        request.ended = Some(record);
        self.over.push(key);
    }

    /// The request is answered: the record of its last room, if that is over.
    pub(super) fn answered(&mut self, key: RequestKey, outcome: &Outcome) -> Option<Record> {
        let request = self.requests.get_mut(&key)?;
        if request.lives {
            request.answer = Some(*outcome);
            return None;
        }
        let ended = request.ended.take();
        self.requests.remove(&key);
        ended.map(|record| answered(record, outcome))
    }

    pub(super) const fn anything_over(&self) -> bool {
        !self.over.is_empty()
    }

    /// The step in which rooms ended is over: their records, with what is known by now.
    pub(in crate::recorder) fn settle(&mut self) -> Vec<Record> {
        let mut records = vec![];
        for key in std::mem::take(&mut self.over) {
            let Some(request) = self.requests.get_mut(&key) else {
                continue;
            };
            let Some(record) = &mut request.ended else { continue };
            if let Some(outcome) = request.answer {
                records.extend(request.ended.take().map(|record| answered(record, &outcome)));
                self.requests.remove(&key);
            } else {
                record.client = Client::Waits;
                records.push(record.clone());
            }
        }
        records
    }

    /// The record of a room that is over, while what its client gets is not known.
    pub(in crate::recorder) fn closing(&self, room: RoomId) -> Option<Record> {
        let mut ended = self.requests.values().filter_map(|request| request.ended.as_ref());
        ended.find(|record| record.room == room).cloned()
    }

    #[cfg(test)]
    pub(in crate::recorder) fn len(&self) -> usize {
        self.requests.len() + self.over.len()
    }
}

fn answered(mut record: Record, outcome: &Outcome) -> Record {
    record.client = client_got(outcome, record.tokens.count > 0);
    let detail = match outcome {
        Outcome::Done => "done".to_owned(),
        Outcome::Failed { reason, .. } => reason.code().to_owned(),
    };
    add(&mut record, What::Answered, detail);
    record
}

/// A record that is over gets at most a few of these.
fn add(record: &mut Record, what: What, detail: String) {
    let last = record.entries.last().map_or(0, |entry| entry.at_ms);
    let at_ms = unix_ms().max(last);
    record.entries.push(Entry {
        at_ms,
        since_ms: at_ms.saturating_sub(record.began_unix_ms),
        what,
        detail,
    });
}
