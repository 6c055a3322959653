use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cache::BlockHash;
use crate::evidence::{Evidence, Owes};
use crate::ids::{Epoch, Incarnation};
use crate::ledger::Queues;
use crate::ledger::worker::{Env, Timer, TimerKind, Timers};
use crate::message::{Counters, PartState};
use crate::phase::Phase;
use crate::reason::{PartEnd, Reason};
use crate::spec::RoomSpec;
use crate::time::Moment;

/// What every part has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Base {
    pub(crate) spec: RoomSpec,
    pub(crate) opened: Moment,
    /// The order of the Opens: queues are first in, first out by it.
    pub(crate) seq: u64,
    pub(crate) phase: Phase,
    pub(crate) phase_since: Moment,
    /// P's current try to send, 0 before the first hello.
    pub(crate) epoch: Epoch,
    pub(crate) counters: Counters,
    /// Pages that are its own.
    pub(crate) pages: u32,
    /// The names of its prompt's whole pages; none at D, and where nothing is kept.
    pub(crate) blocks: Arc<[BlockHash]>,
    /// Of these, so many from the first on are not its own: it reads them in the prefix cache.
    pub(crate) reused: u32,
    /// The engine has sealed all of its pages.
    pub(crate) sealed: bool,
    /// Epochs whose reader or sender holds a permit.
    pub(crate) sessions: BTreeSet<Epoch>,
    /// The engine holds a permit.
    pub(crate) engine: bool,
    /// Since when an Ask waits for its answer.
    pub(crate) asked: Option<Moment>,
    /// R vouched for the room: it ignores doors and members from then on.
    pub(crate) unleased: bool,
    /// It lived through a stop of this node.
    pub(crate) was_stopped: bool,
    /// Its stream ended while the node was finding out that it had been stopped.
    pub(crate) cut: bool,
    /// The data connection is broken at this moment.
    pub(crate) link_broken: bool,
    /// The last sample had bytes that the peer's kernel did not acknowledge.
    pub(crate) unacked: bool,
    told: PartState,
    told_at: Moment,
}

impl Base {
    pub(crate) fn new(spec: RoomSpec, seq: u64, now: Moment) -> Self {
        Self {
            spec,
            opened: now,
            seq,
            phase: Phase::Queued,
            phase_since: now,
            epoch: Epoch::default(),
            counters: Counters::default(),
            pages: 0,
            blocks: Arc::default(),
            reused: 0,
            sealed: false,
            sessions: BTreeSet::new(),
            engine: false,
            asked: None,
            unleased: false,
            was_stopped: false,
            cut: false,
            link_broken: false,
            unacked: false,
            told: PartState::default(),
            told_at: now,
        }
    }

    /// The pages of the prefix cache that it reads.
    pub(crate) fn shared(&self) -> &[BlockHash] {
        self.blocks.get(..self.reused as usize).unwrap_or_default()
    }

    pub(crate) fn enter(&mut self, phase: Phase, now: Moment) {
        if self.phase != phase {
            self.phase = phase;
            self.phase_since = now;
        }
    }

    pub(crate) const fn state(&self) -> PartState {
        PartState {
            phase: self.phase,
            epoch: self.epoch,
            counters: self.counters,
        }
    }

    /// A change of phase or epoch, which is reported at once; counters wait for the report period.
    pub(crate) fn moved_on(&self) -> bool {
        self.told.phase != self.phase || self.told.epoch != self.epoch
    }

    pub(crate) fn take_state(&mut self, now: Moment) -> PartState {
        self.told = self.state();
        self.told_at = now;
        self.told
    }

    /// Whether this node's peers in the room include that member.
    pub(crate) fn is_with(&self, member: Incarnation) -> bool {
        [self.spec.router, self.spec.prefill, self.spec.decode].contains(&member)
    }

    /// The timers that do not depend on the phase.
    pub(crate) fn timers(&self, env: &Env<'_>, timers: &mut Timers) {
        if let Some(asked) = self.asked {
            timers.end(asked, env.settings.ask_timeout, Reason::LeaseLost, Owes::Router);
        }
        if self.told != self.state() {
            let at = self.told_at + env.settings.report_period;
            timers.arm(Timer {
                at,
                since: self.told_at,
                kind: TimerKind::Report,
            });
        }
    }

    /// The backstop through Queued and Bootstrapping: R's queue deadline is the real one; 2 TTL later R is not heard.
    pub(crate) fn backstop(&self, env: &Env<'_>, timers: &mut Timers) {
        let after = self.spec.queue_left + env.settings.two_ttl();
        timers.end(self.opened, after, Reason::QueueTimeout, Owes::Nobody);
    }

    pub(crate) fn evidence(&self, env: &Env<'_>, owes: Owes, since: Moment) -> Evidence {
        Evidence {
            waited_for: owes,
            waited: env.now.since(since),
            counters: self.counters,
            unacked: self.unacked,
            data_link_broken: self.link_broken,
            engine_owes: env.engine.owes(env.now),
            was_stopped: self.was_stopped,
        }
    }
}

/// What is said on the data connection when a part ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LastWord {
    /// Fail, with reason and evidence.
    Fail(Epoch),
    /// Nothing: end it quietly.
    Finish(Epoch),
    /// Nothing: it had its last word.
    Spoken(Epoch),
    /// There is no connection.
    Nothing,
}

/// One node's part of a room.
pub(crate) trait Part {
    fn base(&self) -> &Base;
    fn base_mut(&mut self) -> &mut Base;

    /// Which of a worker's queues it is counted in.
    fn queue<'a>(&self, queues: &'a mut Queues) -> &'a mut u32;

    /// All armed timers. At least one of them ends the part, in every state.
    fn timers(&self, env: &Env<'_>) -> Timers;

    /// The absolute deadline of the phase.
    fn absolute(&self, env: &Env<'_>) -> Moment;

    /// Whether the part waits for this node's engine: for its turn, a chunk, a step, or pages that only steps give back.
    fn waits_for_engine(&self) -> bool;

    /// Until when the engines may read KV from each other for it, if they do: nobody can stop them before.
    fn reads_until(&self) -> Option<Moment>;

    /// What is said on the data connection at the end. `peer_said`: the peer's own last word ended the part.
    fn last_word(&self, end: PartEnd, peer_said: bool) -> LastWord;

    /// Whether D's commit is known here.
    fn committed(&self) -> bool;

    /// The room's secret for hellos; 0 at P.
    fn token(&self) -> u64;

    /// Who owes the next step, and since when it is waited for.
    fn debt(&self, env: &Env<'_>) -> (Owes, Moment) {
        let bound = self.timers(env).bound();
        match bound.map(|timer| (timer.kind, timer.since)) {
            Some((TimerKind::End { owes, .. }, since)) => (owes, since),
            Some((TimerKind::Report | TimerKind::LastWord, since)) => (Owes::Nobody, since),
            None => (Owes::Nobody, self.base().phase_since),
        }
    }
}
