//! A router's rooms, from what its ledger is told and orders.

mod hand;
mod requests;
mod told;

use innkeeper_actors::ports::NewRequest;
use innkeeper_leases::Member;
use innkeeper_room::ledger::router::{Effect, Event, Outcome, RoomEnd, Side};
use innkeeper_room::pause::Pause;
use innkeeper_room::{FromWorker, Incarnation, Moment, Phase, RequestKey, Role, RoomId, RoomSpec, Verdict};

use super::record::{Client, Record, StreamNote, What};
use super::timeline::Timeline;
use super::worker::{code, fresh};
use super::{Recorder, Table};
use hand::Hand;
pub(super) use requests::{Known, Requests};
use told::{heard, told_worker};

impl Recorder {
    /// A client's request comes to the ledger.
    pub fn arrived(&self, request: RequestKey, what: &NewRequest) {
        let mut table = self.table();
        table.requests.arrived(request, &what.rid, &what.work.traceparent);
    }

    /// A member of the cluster appeared or changed.
    pub fn member(&self, member: &Member) {
        self.table()
            .requests
            .known
            .insert(member.incarnation, Known::of(member));
    }

    /// The members that were seen lately, also those that are gone: for whoever cannot ask the ledger.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let table = self.table();
        let nodes = &table.requests.known;
        nodes.iter().map(|(_, known)| known.member.clone()).collect()
    }

    /// Why a room's stream to a worker broke; the ledger is told of the break next.
    pub fn stream_broke(&self, room: RoomId, side: Side, why: &str) {
        let now = self.now();
        let mut table = self.table();
        let Table { live, requests, .. } = &mut *table;
        if let Some(timeline) = live.get_mut(&room) {
            note(timeline, requests, (side, why), now);
        }
    }

    /// Why the node stream to a worker broke; the ledger is told of that next, and ends its rooms.
    pub fn node_broke(&self, node: Incarnation, why: &str) {
        let now = self.now();
        let mut table = self.table();
        let Table { live, requests, .. } = &mut *table;
        for timeline in live.values_mut() {
            if let Some(side) = side_of(&timeline.record, node) {
                note(timeline, requests, (side, why), now);
            }
        }
    }

    /// The ledger is told this.
    pub fn told(&self, event: &Event) {
        let now = self.now();
        let mut table = self.table();
        if table.requests.anything_over() {
            drop(table);
            self.settle();
            table = self.table();
        }
        table.requests.hand = Hand::of(event);
        if let Pause::Paused { since, fresh: true, .. } = table.requests.pause.observe(now) {
            stopped(&mut table, since, now);
        }
        match event {
            // Most of all events: what of them passes is counted when it does.
            Event::FromWorker {
                message: FromWorker::Tokens { .. },
                ..
            }
            | Event::Tick => {}
            Event::Load { incarnation, .. } => {
                if let Some(known) = table.requests.known.get_mut(incarnation) {
                    known.heard = Some(now);
                }
            }
            Event::Arrive(arrival) => table.requests.arrived(arrival.request, &arrival.rid, ""),
            Event::NodeDown { incarnation } => node_down(&mut table, *incarnation, now),
            Event::ClientGone { request } => client(&mut table, *request, "the client closed its connection", now),
            Event::ClientStalled { request } => client(&mut table, *request, "the client took no data", now),
            _ => {
                if let Some(timeline) = event.room().and_then(|room| table.live.get_mut(&room)) {
                    heard(timeline, event, now);
                }
            }
        }
    }

    /// The ledger orders this; it is executed next.
    pub fn ordered(&self, effect: &Effect) {
        let now = self.now();
        let mut table = self.table();
        match effect {
            Effect::Pass { room, count, .. } => {
                if let Some(timeline) = table.live.get_mut(room) {
                    timeline.tokens(*count, now);
                }
            }
            Effect::Begin { spec, .. } => {
                let before = table.requests.next_attempt(spec);
                self.room_begins(&mut table, spec, now);
                drop(table);
                before.into_iter().for_each(|record| self.put(record));
            }
            Effect::Ended(end) => room_ended(&mut table, end, now),
            Effect::Answer { request, outcome } => {
                let over = table.requests.answered(*request, outcome);
                drop(table);
                over.into_iter().for_each(|record| self.put(record));
            }
            Effect::Open { spec, side, .. } => with(&mut table, spec.room, |timeline| {
                timeline.add(What::Asked, name(&timeline.record, *side), now);
            }),
            Effect::Tell { room, side, message } => told_worker(&mut table, *room, *side, message, now),
            Effect::AskEvidence { room, side, .. } => {
                decided(&mut table, *room, now);
                with(&mut table, *room, |timeline| {
                    timeline.add(What::EvidenceAsked, name(&timeline.record, *side), now);
                });
            }
            Effect::Revoke { room } => {
                decided(&mut table, *room, now);
                with(&mut table, *room, |timeline| {
                    timeline.add(What::LeaseRevoked, String::new(), now);
                });
            }
            Effect::Renew { room } => with(&mut table, *room, |timeline| {
                let why = progress(&timeline.record);
                timeline.record.lease.get_or_insert_default().why = why;
            }),
            _ => {}
        }
    }

    /// A room is in this phase after what the ledger was told.
    pub fn room_phase(&self, room: RoomId, phase: Phase) {
        let now = self.now();
        if let Some(timeline) = self.table().live.get_mut(&room) {
            timeline.phase(phase, now);
        }
    }

    fn room_begins(&self, table: &mut Table, spec: &RoomSpec, now: Moment) {
        let (rid, traceparent) = table.requests.begins(spec);
        let mut record = fresh(&self.0.me, table, spec, &rid, &traceparent);
        let known = |node: Incarnation| table.requests.known.get(&node);
        record.prefill_name = known(spec.prefill).map(|known| known.member.name.clone());
        record.decode_name = known(spec.decode).map(|known| known.member.name.clone());
        record.bytes_expected = known(spec.prefill).map(|known| known.member.layout.bytes(spec.prompt_tokens));
        self.begin(table, record, now);
    }
}

fn with(table: &mut Table, room: RoomId, change: impl FnOnce(&mut Timeline)) {
    if let Some(timeline) = table.live.get_mut(&room) {
        change(timeline);
    }
}

/// The router was itself stopped: all its rooms lived through that.
fn stopped(table: &mut Table, since: Moment, now: Moment) {
    let stopped = now.since(since).0;
    for timeline in table.live.values_mut() {
        timeline.record.stopped_ms = Some(timeline.record.stopped_ms.unwrap_or(0) + stopped);
        timeline.add(What::Stopped, format!("for {stopped} ms"), now);
    }
}

fn node_down(table: &mut Table, node: Incarnation, now: Moment) {
    for timeline in table.live.values_mut() {
        let Some(side) = side_of(&timeline.record, node) else {
            continue;
        };
        let why = timeline
            .record
            .stream_broke
            .as_ref()
            .map_or("", |note| note.why.as_str());
        let detail = format!("{}: {why}", name(&timeline.record, side));
        timeline.add(What::NodeDown, detail, now);
    }
}

/// The first word on a worker counts: what breaks after it breaks for the same reason.
fn note(timeline: &mut Timeline, requests: &Requests, (side, why): (Side, &str), now: Moment) {
    let known = timeline.record.stream_broke.as_ref();
    if known.is_some_and(|note| note.side == role(side)) {
        return;
    }
    let node = match side {
        Side::Prefill => timeline.record.prefill,
        Side::Decode => timeline.record.decode,
    };
    let heard = requests.known.get(&node).and_then(|known| known.heard);
    timeline.record.stream_broke = Some(StreamNote {
        silent_ms: heard.map(|heard| now.since(heard).0),
        side: role(side),
        at_ms: timeline.since(now),
        why: why.chars().take(200).collect(),
    });
}

fn side_of(record: &Record, node: Incarnation) -> Option<Side> {
    match node {
        node if node == record.prefill => Some(Side::Prefill),
        node if node == record.decode => Some(Side::Decode),
        _ => None,
    }
}

fn client(table: &mut Table, request: RequestKey, what: &str, now: Moment) {
    let room = table.requests.room_of(request);
    if let Some(timeline) = room.and_then(|room| table.live.get_mut(&room))
        && timeline.record.cause.is_none()
    {
        timeline.add(What::Client, what.to_owned(), now);
    }
}

/// The first order that only a verdict brings: it is over now, and because of what is in hand.
fn decided(table: &mut Table, room: RoomId, now: Moment) {
    let hand = table.requests.hand;
    with(table, room, |timeline| {
        if timeline.record.cause.is_none() {
            timeline.record.cause = Some(hand.cause(&timeline.record));
            timeline.record.ended_unix_ms = Some(timeline.record.began_unix_ms + timeline.since(now));
        }
    });
}

fn room_ended(table: &mut Table, end: &RoomEnd, now: Moment) {
    decided(table, end.room, now);
    let Some(mut timeline) = table.live.remove(&end.room) else {
        return;
    };
    let decided_at = timeline.record.ended_unix_ms;
    let verdict = code(end.verdict);
    let detail = match (end.blame.label(), end.verdict) {
        (_, Verdict::Done) => verdict.to_owned(),
        (blame, Verdict::Failed(_)) => format!("{verdict}: blame {blame}"),
    };
    timeline.add(What::Verdict, detail, now);
    let phase = match end.verdict {
        Verdict::Done => Phase::Done,
        Verdict::Failed(_) => Phase::Failed,
    };
    let progress = timeline.record.progress_ms;
    timeline.phase(phase, now);
    timeline.record.progress_ms = progress;
    timeline.end(now);
    let mut record = timeline.into_record();
    record.ended_unix_ms = decided_at;
    record.verdict = Some(verdict.to_owned());
    record.blame = Some(end.blame);
    record.evidence.prefill = end.prefill;
    record.evidence.decode = end.decode;
    table.requests.room_ended(end.request, record);
}

/// What a renewal of the lease says moved.
fn progress(record: &Record) -> String {
    let counters = &record.counters;
    match record.last_phase() {
        Phase::Decoding => format!("{} tokens had passed", record.tokens.count),
        Phase::WaitingForInput | Phase::Transferring if counters.bytes_sealed > 0 => format!(
            "{} of {} sealed bytes were verified",
            counters.bytes_verified, counters.bytes_sealed
        ),
        phase => format!("it had come to {}", phase.name()),
    }
}

/// A worker of the room, for people.
fn name(record: &Record, side: Side) -> String {
    let (name, node) = match side {
        Side::Prefill => (&record.prefill_name, record.prefill),
        Side::Decode => (&record.decode_name, record.decode),
    };
    name.clone().unwrap_or_else(|| node.to_string())
}

const fn role(side: Side) -> Role {
    match side {
        Side::Prefill => Role::Prefill,
        Side::Decode => Role::Decode,
    }
}

/// What an answer is to the client.
fn client_got(outcome: &Outcome, tokens: bool) -> Client {
    match outcome {
        Outcome::Done => Client::Done,
        Outcome::Failed { reason, .. } => Client::Failed {
            code: reason.code().to_owned(),
            status: reason.http_status(),
            after_tokens: tokens,
        },
    }
}
