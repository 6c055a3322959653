use std::collections::BTreeSet;

use crate::evidence::{Evidence, Owes};
use crate::ids::RoomId;
use crate::invariant::{Invariant, Violation};
use crate::ledger::decode::part_d::{Link, PartD};
use crate::ledger::decode::peers::Peers;
use crate::ledger::decode::{Config, Effect, Event};
use crate::ledger::worker::{Ending, Key, Orders, Table, TimerKind};
use crate::ledger::{Gauges, RoomRow};
use crate::message::{FromWorker, Refusal, ToWorker};
use crate::reason::{PartEnd, Reason, Verdict};
use crate::spec::RoomSpec;
use crate::time::Moment;

/// All of a decode worker's parts. Deterministic: no clock, no randomness, no I/O.
#[derive(Clone, Debug, Hash)]
pub struct Ledger {
    pub(super) table: Table<PartD>,
    /// Rooms with a live session that wait for pages, in the order of their first hellos. Nobody overtakes.
    pub(super) page_queue: BTreeSet<(u64, RoomId)>,
    /// The next place in it.
    pub(super) next_place: u64,
    pub(super) peers: Peers,
}

impl Ledger {
    /// An empty ledger. The executor must hand in an event at least every report period: a gap is taken for a stop.
    #[must_use]
    pub fn new(config: Config, now: Moment) -> Self {
        Self {
            table: Table::new(config, now),
            page_queue: BTreeSet::new(),
            next_place: 0,
            peers: Peers::default(),
        }
    }

    /// The only entry: what happened → what is to be done.
    pub fn step(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        let now = self.table.advance(now);
        let mut out = Vec::new();
        if self.table.observe(now) {
            for room in self.table.overdue_or_cut(now) {
                let how = Ending::Waited(Owes::Nobody, now);
                self.end(room, PartEnd::Failed(Reason::SelfPaused), how, now, &mut out);
            }
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
        if self.peers.rooms() as usize != self.table.live.len() {
            let what = format!("{} rooms by peer, {} live", self.peers.rooms(), self.table.live.len());
            found.push(Violation::new(Invariant::I7, what));
        }
        for (room, part) in &self.table.live {
            let foreign = part.base.sessions.iter().any(|epoch| *epoch != part.base.epoch);
            if part.link == Link::Ready && foreign {
                found.push(Violation::new(Invariant::I6, format!("{room} has two writers")));
            }
            let queued = part
                .place
                .is_some_and(|place| self.page_queue.contains(&(place, *room)));
            if matches!(part.link, Link::Waiting { .. }) != queued {
                found.push(Violation::new(
                    Invariant::I2,
                    format!("{room} in {:?}, queued: {queued}", part.link),
                ));
            }
        }
        found
    }

    fn apply(&mut self, event: Event, now: Moment, out: &mut Vec<Effect>) {
        match event {
            Event::Open { spec, token } => self.open(spec, token, now, out),
            Event::FromRouter { room, message } => self.router_says(room, message, now, out),
            Event::StreamEnded { room } => {
                if let Some(end) = self.table.stream_ended(room) {
                    self.end(room, end, Ending::Waited(Owes::Router, now), now, out);
                }
            }
            Event::Hello {
                room,
                epoch,
                token,
                prefill,
                decode,
                session,
            } => {
                let hello = super::hello::Hello {
                    room,
                    epoch,
                    token,
                    prefill,
                    decode,
                    session,
                };
                self.hello(hello, now, out);
            }
            Event::Started { room, epoch } => self.started(room, epoch, now),
            Event::Verified { room, epoch, bytes } => self.verified(room, epoch, bytes, now),
            Event::PeerProgress { room, epoch, progress } => self.peer_progress(room, epoch, progress, now),
            Event::Complete { room, epoch } => self.complete(room, epoch, now, out),
            Event::Ticket {
                room,
                epoch,
                read_within,
            } => self.ticket(room, epoch, read_within, now, out),
            Event::Pulled { room } => self.pulled(room, now, out),
            Event::Corrupt { room, epoch } => self.corrupt(room, epoch, now, out),
            Event::PeerFailed {
                room,
                epoch,
                reason,
                evidence,
            } => {
                self.peer_failed(room, epoch, reason, evidence, now, out);
            }
            Event::Broken { room, epoch } => self.broken(room, epoch, now, out),
            Event::Quiesced { room, epoch } => self.quiesced(room, epoch, now, out),
            Event::Made { room, tokens } => self.made(room, tokens, now, out),
            Event::EngineFinished { room } => self.engine_finished(room, now, out),
            Event::EngineEnded { room, reason } => self.engine_gave_up(room, reason, now, out),
            Event::EngineFailed { room } => self.engine_gave_up(room, Reason::EngineFailed, now, out),
            // Nobody asked it to stop while the part lives: a bug here, and the room must not wait for it.
            Event::EngineStopped { room } => self.engine_gave_up(room, Reason::InternalError, now, out),
            Event::Engine(view) => self.table.engine.observe(view, now),
            Event::EngineRestarted => self.engine_restarted(now, out),
            Event::DoorGone { room } => self.table.ask(room, now, out),
            Event::MemberGone { incarnation } => {
                self.table.ask_member(incarnation, now, out);
                self.peers.gone(incarnation);
            }
            Event::ActorDied { room } => {
                self.end(
                    room,
                    PartEnd::Failed(Reason::InternalError),
                    Ending::Waited(Owes::Decode, now),
                    now,
                    out,
                );
            }
            Event::Drain => self.table.gate.draining = true,
            Event::DrainOver => self.end_all(Reason::Draining, now, out),
            Event::Tick => {}
        }
    }

    fn open(&mut self, spec: RoomSpec, token: u64, now: Moment, out: &mut Vec<Effect>) {
        let (room, peer) = (spec.room, spec.prefill);
        let reserved = spec.prompt_tokens.saturating_add(spec.max_tokens);
        let refusal = self.table.refusal(&spec, spec.decode, reserved);
        let has_share = refusal.is_some() || self.peers.asks(peer, &self.table.config.settings, now);
        if let Some(refusal) = refusal.or((!has_share).then_some(Refusal::PeerShare)) {
            out.push(Effect::tell(room, FromWorker::Refused(refusal)));
            return;
        }
        self.peers.opened(peer, now);
        self.table.begin(spec, token, now, |base| PartD::new(base, token), out);
    }

    fn router_says(&mut self, room: RoomId, message: ToWorker, now: Moment, out: &mut Vec<Effect>) {
        if !self.table.live.contains_key(&room) {
            self.table.answer_absent(room, message, out);
            return;
        }
        match message {
            ToWorker::Abort(reason) => self.end(room, PartEnd::Failed(reason), Ending::Now, now, out),
            // R says that to P; here it is D itself that commits.
            ToWorker::Committed => self.table.fenced += 1,
            ToWorker::Taken(position) => self.taken(room, position, now, out),
            ToWorker::Live => self.table.vouched(room),
            ToWorker::Verdict(Verdict::Done) => self.end(room, PartEnd::Done, Ending::Now, now, out),
            ToWorker::Verdict(Verdict::Failed(reason)) => {
                self.end(room, PartEnd::Failed(reason), Ending::Now, now, out);
            }
            ToWorker::Unknown => self.end(room, PartEnd::Failed(Reason::UnknownRoom), Ending::Now, now, out),
        }
    }

    /// Ends a part, and takes it out of this ledger's queues.
    pub(super) fn end(&mut self, room: RoomId, end: PartEnd, how: Ending, now: Moment, out: &mut Vec<Effect>) {
        if let Some(part) = self.table.end(room, end, how, now, out) {
            self.peers.ended(part.base.spec.prefill);
            self.leave_page_queue(room, part.place);
        }
    }

    fn end_all(&mut self, reason: Reason, now: Moment, out: &mut Vec<Effect>) {
        let rooms: Vec<RoomId> = self.table.live.keys().copied().collect();
        for room in rooms {
            self.end(room, PartEnd::Failed(reason), Ending::Now, now, out);
        }
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
            let how = Ending::Waited(Owes::Decode, self.table.engine.moved_at());
            self.end(room, PartEnd::Failed(self.table.stalled()), how, now, out);
        }
    }

    fn due(&mut self, room: RoomId, now: Moment, out: &mut Vec<Effect>) {
        let Some(timer) = self.table.first_timer(room, now) else {
            return;
        };
        match timer.kind {
            TimerKind::Report => self.table.report(room, now, out),
            TimerKind::LastWord => self.kill_last_word(room, out),
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
