use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cache::BlockHash;
use crate::evidence::{Evidence, Owes};
use crate::ids::{Epoch, RoomId};
use crate::invariant::{Invariant, Violation};
use crate::ledger::prefill::part_p::{PartP, Stage};
use crate::ledger::prefill::rate::RateMeter;
use crate::ledger::prefill::{Config, Effect, Event};
use crate::ledger::worker::{Base, Ending, Key, Orders, Table, TimerKind};
use crate::ledger::{EngineView, Gauges, RoomRow};
use crate::message::{FromWorker, ToWorker};
use crate::planted;
use crate::reason::{PartEnd, Reason, Verdict};
use crate::spec::RoomSpec;
use crate::time::Moment;

/// All of a prefill worker's parts. Deterministic: no clock, no randomness, no I/O.
#[derive(Clone, Debug, Hash)]
pub struct Ledger {
    pub(super) table: Table<PartP>,
    /// Rooms that wait for a place in the hello window, in the order of their Opens.
    pub(super) hello_queue: BTreeSet<(u64, RoomId)>,
    /// Rooms that have one: a mute D holds up nobody but these.
    pub(super) window: BTreeSet<RoomId>,
    /// Rooms whose D is ready and which wait for the engine's turn and pages here, in the order of their Opens.
    pub(super) turn_queue: BTreeSet<(u64, RoomId)>,
    pub(super) rate: RateMeter,
}

impl Ledger {
    /// An empty ledger. The executor must hand in an event at least every report period: a gap is taken for a stop.
    #[must_use]
    pub fn new(config: Config, now: Moment) -> Self {
        Self {
            table: Table::new(config, now),
            hello_queue: BTreeSet::new(),
            window: BTreeSet::new(),
            turn_queue: BTreeSet::new(),
            rate: RateMeter::default(),
        }
    }

    /// The only entry: what happened → what is to be done.
    pub fn step(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        let now = self.table.advance(now);
        let mut out = Vec::new();
        if self.table.observe(now) {
            self.judge_after_stop(now, &mut out);
        }
        self.apply(event, now, &mut out);
        if !self.table.in_grace() {
            self.fire(now, &mut out);
        }
        self.admit(now, &mut out);
        self.table.settle(now, &mut out);
        #[cfg(debug_assertions)]
        {
            let violations = self.violations();
            debug_assert!(violations.is_empty(), "{violations:?}");
        }
        out
    }

    /// When a [`Event::Tick`] is needed at the latest, if nothing else happens; `None`: there is nothing to wait for.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.table.next_deadline()
    }

    /// One row per live part.
    #[must_use]
    pub fn rows(&self, now: Moment) -> Vec<RoomRow> {
        self.table.rows(now)
    }

    /// The row of one live part.
    #[must_use]
    pub fn row(&self, room: RoomId, now: Moment) -> Option<RoomRow> {
        self.table.row(room, now)
    }

    /// The node's counts.
    #[must_use]
    pub fn gauges(&self, now: Moment) -> Gauges {
        self.table.gauges(now)
    }

    /// What this node sees of a live room, or saw at the end of one that ended not long ago.
    #[must_use]
    pub fn evidence(&self, room: RoomId, now: Moment) -> Option<Evidence> {
        self.table.evidence(room, now)
    }

    /// Whether a drain is over: no room is left and nobody touches a page.
    #[must_use]
    pub fn drained(&self) -> bool {
        self.table.drained()
    }

    /// The invariants that do not hold: none.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = self.table.violations();
        for (room, part) in &self.table.live {
            let key = (part.base.seq, *room);
            let queued = match part.stage {
                Stage::Window => self.hello_queue.contains(&key),
                Stage::Hello => self.window.contains(room),
                Stage::Turn => self.turn_queue.contains(&key),
                Stage::PagesAtDecode | Stage::Computing | Stage::Sending { .. } => true,
            };
            if !queued {
                found.push(Violation::new(
                    Invariant::I2,
                    format!("{room} in {:?} is in no queue", part.stage),
                ));
            }
        }
        let queued = self.hello_queue.len() + self.window.len() + self.turn_queue.len();
        if queued > self.table.live.len() {
            found.push(Violation::new(
                Invariant::I1,
                format!("{queued} rooms are queued, some of them ended"),
            ));
        }
        found
    }

    fn apply(&mut self, event: Event, now: Moment, out: &mut Vec<Effect>) {
        match event {
            Event::Open { spec, blocks, .. } => self.open(spec, blocks, now, out),
            Event::FromRouter { room, message } => self.router_says(room, message, now, out),
            Event::StreamEnded { room } => {
                if let Some(end) = self.table.stream_ended(room) {
                    self.end(room, end, Ending::Waited(Owes::Router, now), now, out);
                }
            }
            Event::Reply { room, epoch, reply } => self.reply(room, epoch, reply, now, out),
            Event::Committed { room, epoch } => self.peer_committed(room, epoch, now, out),
            Event::PeerFailed {
                room,
                epoch,
                reason,
                evidence,
            } => {
                self.peer_failed(room, epoch, reason, evidence, now, out);
            }
            Event::Broken {
                room,
                epoch,
                unacked,
                refused,
            } => self.broken(room, epoch, unacked, refused, now, out),
            Event::Quiesced { room, epoch } => self.table.session_back(room, epoch, out),
            Event::Sample {
                room,
                counters,
                unacked,
            } => self.sample(room, counters, unacked, now),
            Event::Sealed { room, bytes } => self.sealed(room, bytes, now, out),
            Event::Kept { room, read_within } => self.kept(room, read_within, now, out),
            Event::EngineEnded { room, reason } => self.engine_gave_up(room, reason, now, out),
            Event::EngineFailed { room } => self.engine_gave_up(room, Reason::EngineFailed, now, out),
            // Nobody asked it to stop while the part lives: a bug here, and the room must not wait for it.
            Event::EngineStopped { room } => self.engine_gave_up(room, Reason::InternalError, now, out),
            Event::Engine(view) => self.engine(view, now),
            Event::EngineRestarted => self.engine_restarted(now, out),
            Event::DoorGone { room } => self.table.ask(room, now, out),
            Event::MemberGone { incarnation } => self.table.ask_member(incarnation, now, out),
            Event::ActorDied { room } => {
                self.end(
                    room,
                    PartEnd::Failed(Reason::InternalError),
                    Ending::Waited(Owes::Prefill, now),
                    now,
                    out,
                );
            }
            Event::Drain => self.table.gate.draining = true,
            Event::DrainOver => self.end_all(Reason::Draining, now, out),
            Event::Tick => {}
        }
    }

    fn open(&mut self, spec: RoomSpec, blocks: Arc<[BlockHash]>, now: Moment, out: &mut Vec<Effect>) {
        let room = spec.room;
        if let Some(refusal) = self.table.refusal(&spec, spec.prefill, spec.prompt_tokens) {
            out.push(Effect::tell(room, FromWorker::Refused(refusal)));
            return;
        }
        // A page that is not whole has no name.
        let whole = spec.prompt_tokens / self.table.config.page_tokens.max(1);
        let kept = self.table.cache.is_on() && blocks.len() <= whole as usize;
        let make = |mut base: Base| {
            if kept {
                base.blocks = blocks;
            }
            PartP::new(base)
        };
        self.table.begin(spec, 0, now, make, out);
        self.queue_hello(room);
    }

    fn router_says(&mut self, room: RoomId, message: ToWorker, now: Moment, out: &mut Vec<Effect>) {
        if !self.table.live.contains_key(&room) {
            self.table.answer_absent(room, message, out);
            return;
        }
        match message {
            ToWorker::Abort(_) if planted::poll_ignores_abort() && self.has_started(room) => {}
            ToWorker::Abort(reason) => self.end(room, PartEnd::Failed(reason), Ending::Now, now, out),
            ToWorker::Committed => self.end(room, PartEnd::HandedOver, Ending::Now, now, out),
            // Only D gives tokens.
            ToWorker::Taken(_) => self.table.fenced += 1,
            ToWorker::Live => self.table.vouched(room),
            ToWorker::Verdict(Verdict::Done) => self.end(room, PartEnd::HandedOver, Ending::Now, now, out),
            ToWorker::Verdict(Verdict::Failed(reason)) => {
                self.end(room, PartEnd::Failed(reason), Ending::Now, now, out);
            }
            ToWorker::Unknown => self.end(room, PartEnd::Failed(Reason::UnknownRoom), Ending::Now, now, out),
        }
    }

    fn has_started(&self, room: RoomId) -> bool {
        self.table.live.get(&room).is_some_and(PartP::is_started)
    }

    /// Ends a part, and takes it out of this ledger's queues.
    pub(super) fn end(&mut self, room: RoomId, end: PartEnd, how: Ending, now: Moment, out: &mut Vec<Effect>) {
        if let (PartEnd::HandedOver, Some(part)) = (end, self.table.edit(room)) {
            // D has committed: its engine has read all that it wanted.
            part.base.sessions.remove(&Epoch::TICKET);
        }
        if let Some(part) = self.table.end(room, end, how, now, out) {
            self.window.remove(&room);
            self.hello_queue.remove(&(part.base.seq, room));
            self.turn_queue.remove(&(part.base.seq, room));
        }
    }

    fn end_all(&mut self, reason: Reason, now: Moment, out: &mut Vec<Effect>) {
        let rooms: Vec<RoomId> = self.table.live.keys().copied().collect();
        for room in rooms {
            self.end(room, PartEnd::Failed(reason), Ending::Now, now, out);
        }
    }

    fn engine(&mut self, view: EngineView, now: Moment) {
        self.table.engine.observe(view, now);
        let reusing = |part: &PartP| part.base.reused > 0 && matches!(part.stage, Stage::Computing);
        let reusing = self.table.live.values().any(reusing);
        self.rate.look(self.table.engine_permits > 0, reusing, now);
    }

    // === time ===

    /// After a stop: what is overdue or cut off ends as SelfPaused, and connections that broke meanwhile are tried again.
    fn judge_after_stop(&mut self, now: Moment, out: &mut Vec<Effect>) {
        self.rate.restart();
        for room in self.table.overdue_or_cut(now) {
            self.end(
                room,
                PartEnd::Failed(Reason::SelfPaused),
                Ending::Waited(Owes::Nobody, now),
                now,
                out,
            );
        }
        self.judge_held_breaks(now, out);
    }

    fn fire(&mut self, now: Moment, out: &mut Vec<Effect>) {
        while let Some(key) = self.table.deadlines.take_due(now) {
            match key {
                Key::Engine => self.wedge(now, out),
                Key::Fence => self.end_all(Reason::Draining, now, out),
                Key::Closing(room) => self.table.escalate(room, now, out),
                Key::Room(room) => self.due(room, now, out),
            }
        }
    }

    /// The engine owes and finished nothing for a progress TTL: whoever waits for it fails, and it is to blame.
    fn wedge(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if !self.table.engine.wedge(now) {
            return;
        }
        for room in self.table.waiting_for_engine() {
            let how = Ending::Waited(Owes::Prefill, self.table.engine.moved_at());
            self.end(room, PartEnd::Failed(self.table.stalled()), how, now, out);
        }
    }

    fn due(&mut self, room: RoomId, now: Moment, out: &mut Vec<Effect>) {
        let Some(timer) = self.table.first_timer(room, now) else {
            return;
        };
        match timer.kind {
            TimerKind::Report | TimerKind::LastWord => self.table.report(room, now, out),
            TimerKind::End { reason, owes } => {
                self.end(
                    room,
                    PartEnd::Failed(reason),
                    Ending::Waited(owes, timer.since),
                    now,
                    out,
                );
            }
        }
    }
}
