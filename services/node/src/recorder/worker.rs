//! A worker's part, from what it and its router say to each other.

use innkeeper_actors::hooks::Broke;
use innkeeper_actors::ports::OpenRoom;
use innkeeper_room::{
    Epoch, FromWorker, Moment, PartEnd, PartState, Phase, Reason, Role, RoomId, RoomSpec, ToWorker, Verdict,
};
use opentelemetry::trace::SpanContext;

use super::record::{BrokeNote, Client, Record, Seen, Tokens, What};
use super::timeline::{RID, Timeline, shorten};
use super::{Me, Recorder, Table, unix_ms};
use crate::telemetry::parse;

impl Recorder {
    /// A worker's part begins.
    pub fn opened(&self, open: &OpenRoom) {
        let now = self.now();
        let mut table = self.table();
        let mut record = fresh(
            &self.0.me,
            &table,
            &open.spec,
            &open.work.request_id,
            &open.work.traceparent,
        );
        if let Some(layout) = &self.0.me.layout {
            let tokens = match self.0.me.role {
                Role::Prefill => open.spec.prompt_tokens,
                Role::Decode | Role::Router => open.spec.prompt_tokens.saturating_add(open.spec.max_tokens),
            };
            record.pages = layout.pages(tokens);
            record.bytes_expected = Some(layout.bytes(open.spec.prompt_tokens));
        }
        self.begin(&mut table, record, now);
    }

    /// A worker's part says something.
    pub fn says(&self, room: RoomId, message: &FromWorker) {
        let now = self.now();
        let mut table = self.table();
        let Some(timeline) = table.live.get_mut(&room) else {
            return;
        };
        match message {
            FromWorker::Tokens { count, .. } => timeline.tokens(*count, now),
            FromWorker::State(state) => moved(timeline, *state, now),
            FromWorker::Ended { .. } => {
                let ended = table.live.remove(&room);
                drop(table);
                if let Some(timeline) = ended {
                    self.put(over(self.0.me.role, timeline, message, now));
                }
            }
            FromWorker::Started { epoch, reused: 0 } => timeline.add(What::Started, format!("epoch {}", epoch.0), now),
            FromWorker::Started { epoch, reused } => {
                let what = format!("epoch {}, {reused} tokens reused", epoch.0);
                timeline.add(What::Started, what, now);
            }
            FromWorker::Committed => timeline.add(What::Committed, String::new(), now),
            FromWorker::Ask => timeline.add(What::AskedRouter, String::new(), now),
            FromWorker::Admitted { .. } => timeline.add(What::Admitted, String::new(), now),
            FromWorker::Refused(_) | FromWorker::Evidence(_) | FromWorker::AlreadyEnded(_) | FromWorker::Unknown => {}
        }
    }

    /// A router says something to a worker's part.
    pub fn hears(&self, room: RoomId, message: &ToWorker) {
        let mut table = self.table();
        let Some(timeline) = table.live.get_mut(&room) else {
            return;
        };
        if let ToWorker::Taken(taken) = message {
            timeline.record.tokens.taken = timeline.record.tokens.taken.max(u64::from(*taken));
            return;
        }
        let now = self.now();
        match message {
            ToWorker::Abort(reason) => {
                timeline.record.verdict = Some(reason.code().to_owned());
                timeline.add(What::Abort, reason.code().to_owned(), now);
            }
            ToWorker::Verdict(verdict) => {
                timeline.record.verdict = Some(verdict.code().to_owned());
                timeline.add(What::Verdict, verdict.code().to_owned(), now);
            }
            ToWorker::Committed => timeline.add(What::Committed, "the router says so".to_owned(), now),
            ToWorker::Live => timeline.add(What::Vouched, String::new(), now),
            ToWorker::Unknown => timeline.add(What::UnknownToRouter, String::new(), now),
            ToWorker::Taken(_) => {}
        }
    }

    /// A part's data connection broke.
    pub fn broke(&self, room: RoomId, broke: &Broke) {
        let now = self.now();
        if let Some(timeline) = self.table().live.get_mut(&room) {
            connection_broke(timeline, broke, now);
        }
    }
}

fn connection_broke(timeline: &mut Timeline, broke: &Broke, now: Moment) {
    let times = timeline.record.broke.map_or(0, |before| before.times) + 1;
    timeline.record.broke = Some(BrokeNote {
        times,
        at_ms: timeline.since(now),
        epoch: broke.epoch.0,
        unacked: broke.unacked,
        refused: broke.refused,
    });
    let how = match (broke.refused, broke.unacked) {
        (true, _) => "refused",
        (false, true) => "bytes sent were not acknowledged by the peer's kernel",
        (false, false) => "reset or closed",
    };
    timeline.add(What::ConnectionBroke, format!("epoch {}: {how}", broke.epoch.0), now);
}

/// Where the part stands.
fn moved(timeline: &mut Timeline, state: PartState, now: Moment) {
    restarted(timeline, state.epoch, now);
    timeline.raise(state.counters, now);
    timeline.phase(state.phase, now);
}

pub(super) fn restarted(timeline: &mut Timeline, epoch: Epoch, now: Moment) {
    if epoch.0 > timeline.record.epochs {
        let again = timeline.record.epochs > 0;
        timeline.record.epochs = epoch.0;
        if again {
            timeline.add(What::Restart, format!("epoch {}", epoch.0), now);
        }
    }
}

fn over(role: Role, mut timeline: Timeline, message: &FromWorker, now: Moment) -> Record {
    if let FromWorker::Ended { end, evidence, relayed } = message {
        timeline.raise(evidence.counters, now);
        let seen = &mut timeline.record.evidence;
        match role {
            Role::Prefill => seen.prefill = Some(*evidence),
            Role::Decode | Role::Router => seen.decode = Some(*evidence),
        }
        timeline.record.end = Some(end.code().to_owned());
        timeline.record.relayed = *relayed;
        let detail = match end {
            PartEnd::Failed(reason) if *relayed => format!("{}: the other worker said so", reason.code()),
            PartEnd::HandedOver | PartEnd::Done | PartEnd::Failed(_) => end.code().to_owned(),
        };
        timeline.add(What::PartEnded, detail, now);
        let phase = match end {
            PartEnd::HandedOver | PartEnd::Done => Phase::Done,
            PartEnd::Failed(_) => Phase::Failed,
        };
        timeline.phase(phase, now);
    }
    timeline.end(now);
    timeline.into_record()
}

/// A record that begins.
pub(super) fn fresh(me: &Me, table: &Table, spec: &RoomSpec, rid: &str, traceparent: &str) -> Record {
    let mut rid = rid.to_owned();
    shorten(&mut rid, RID);
    let own = |role: Role| (me.role == role).then(|| me.name.clone());
    let trace = parse(traceparent).filter(SpanContext::is_sampled);
    Record {
        room: spec.room,
        request: format!("{:016x}", spec.request.0),
        canary: rid.starts_with(CANARY),
        rid,
        attempt: spec.attempt.0,
        role: me.role,
        name: me.name.clone(),
        incarnation: me.incarnation,
        revision: table.revision.clone(),
        router: spec.router,
        prefill: spec.prefill,
        prefill_name: own(Role::Prefill),
        decode: spec.decode,
        decode_name: own(Role::Decode),
        trace_id: trace.map(|trace| trace.trace_id().to_string()),
        began_unix_ms: unix_ms(),
        ended_unix_ms: None,
        ttl_ms: table.settings.progress_ttl.0,
        prompt_tokens: spec.prompt_tokens,
        max_tokens: spec.max_tokens,
        bytes_expected: None,
        pages: 0,
        phases: vec![],
        entries: vec![],
        dropped: 0,
        counters: innkeeper_room::Counters::default(),
        progress_ms: 0,
        verified_ms: None,
        tokens: Tokens::default(),
        lease: None,
        broke: None,
        epochs: 0,
        stream_broke: None,
        stopped_ms: None,
        evidence: Seen::default(),
        end: None,
        relayed: false,
        verdict: None,
        cause: None,
        blame: None,
        refused: false,
        client: Client::Unknown,
    }
}

/// How the ids of a router's own requests begin.
const CANARY: &str = "innkeeper-canary-";

/// A verdict's code.
pub(super) const fn code(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Done => "done",
        Verdict::Failed(reason) => Reason::code(reason),
    }
}
