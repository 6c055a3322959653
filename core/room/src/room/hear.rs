//! What a worker's report changes in R's view of a room, and which of R's timers it arms.

use super::Room;
use crate::ids::Epoch;
use crate::ledger::EngineKind;
use crate::ledger::router::Side;
use crate::message::{Counters, PartState};
use crate::phase::Phase;
use crate::planted;
use crate::settings::Settings;
use crate::time::Moment;

/// What a report was worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heard {
    /// Something moved.
    Progress,
    /// Nothing that counts.
    Nothing,
    /// It belongs to an epoch that is over, or to nobody: nothing changed.
    Fenced,
}

/// What a Tokens message is at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokensHeard {
    /// These pass: `count` from index `skip` of the message on.
    Pass {
        /// Tokens of the message that had passed already.
        skip: u32,
        /// How many pass.
        count: u32,
    },
    /// All of them had passed already.
    Duplicate,
    /// Some are missing before them: D broke the protocol.
    Gap,
}

impl Room {
    /// A worker reported where its part stands.
    pub fn hear_state(&mut self, side: Side, state: PartState, now: Moment, settings: &Settings) -> Heard {
        let known = self.part(side).epoch;
        if state.epoch < known {
            return Heard::Fenced;
        }
        self.part_mut(side).epoch = state.epoch;
        if planted::restart_is_progress() && state.epoch > known {
            self.clocks.chunk = self.clocks.chunk.map(|_| now + settings.router_ttl());
            self.clocks.ack = self.clocks.ack.map(|_| now + settings.router_ttl());
        }
        let before = self.counters;
        let mut moved = self.counters.raise(state.counters);
        moved |= match side {
            Side::Prefill => self.follow_prefill(state.phase, state.epoch > known, now, settings),
            Side::Decode => self.follow_decode(state.phase, now, settings),
        };
        self.arm_debts(before, now, settings);
        if moved { Heard::Progress } else { Heard::Nothing }
    }

    /// P said that it has its turn and its pages.
    pub fn hear_started(&mut self, epoch: Epoch, now: Moment, settings: &Settings) -> Heard {
        if epoch < self.prefill.epoch {
            return Heard::Fenced;
        }
        self.prefill.epoch = epoch;
        if self.started || self.committed {
            return Heard::Nothing;
        }
        self.enter(Phase::WaitingForInput, now, settings);
        Heard::Progress
    }

    /// R learned that D has committed; whether that is news.
    pub fn hear_commit(&mut self, now: Moment, settings: &Settings) -> bool {
        if self.committed {
            return false;
        }
        self.enter(Phase::Decoding, now, settings);
        true
    }

    /// D says tokens: only those at exactly the next position pass.
    pub fn hear_tokens(&mut self, position: u32, count: u32, now: Moment, settings: &Settings) -> TokensHeard {
        if position > self.taken {
            return TokensHeard::Gap;
        }
        let skip = self.taken - position;
        let fresh = count
            .saturating_sub(skip)
            .min(self.spec.max_tokens.saturating_sub(self.taken));
        if fresh == 0 {
            return TokensHeard::Duplicate;
        }
        self.taken += fresh;
        self.clocks.token = Some(now + settings.router_ttl());
        TokensHeard::Pass { skip, count: fresh }
    }

    /// Follows P's phase until the commit. After Started P's pages are its own: it never queues again.
    fn follow_prefill(&mut self, phase: Phase, hello: bool, now: Moment, settings: &Settings) -> bool {
        if self.committed {
            return false;
        }
        match phase {
            Phase::Queued if self.started => false,
            Phase::Bootstrapping if hello && self.phase == Phase::Bootstrapping => {
                self.clocks.handshake = Some(now + settings.handshake_ttl + settings.router_slack);
                true
            }
            Phase::Queued | Phase::Bootstrapping | Phase::WaitingForInput | Phase::Transferring => {
                let news = self.phase != phase;
                if news {
                    self.enter(phase, now, settings);
                }
                news
            }
            // P knows of the commit: its end is HandedOver, and that is what follows.
            Phase::Decoding | Phase::Done => self.hear_commit(now, settings),
            // Its Ended says why.
            Phase::Failed => false,
        }
    }

    /// D's phase counts from its commit on.
    fn follow_decode(&mut self, phase: Phase, now: Moment, settings: &Settings) -> bool {
        match phase {
            Phase::Decoding => self.hear_commit(now, settings),
            Phase::Queued
            | Phase::Bootstrapping
            | Phase::WaitingForInput
            | Phase::Transferring
            | Phase::Done
            | Phase::Failed => false,
        }
    }

    /// Enters a phase and arms what bounds it. What Started armed stays armed through a later hello.
    fn enter(&mut self, phase: Phase, now: Moment, settings: &Settings) {
        self.phase = phase;
        self.phase_since = now;
        self.clocks.handshake = None;
        match phase {
            Phase::Queued => {}
            Phase::Bootstrapping if planted::no_handshake_deadline() => {}
            Phase::Bootstrapping => {
                self.clocks.handshake = Some(now + settings.handshake_ttl + settings.router_slack);
            }
            Phase::WaitingForInput => self.start(now, settings),
            Phase::Transferring => {
                self.start(now, settings);
                self.seal(now, settings);
            }
            Phase::Decoding | Phase::Done | Phase::Failed => {
                self.committed = true;
                self.started = true;
                self.sealed = true;
                self.clocks.chunk = None;
                self.clocks.ack = None;
                self.clocks.token = Some(now + settings.router_ttl());
                let budget = settings.decode_budget(self.spec.max_tokens);
                self.clocks.absolute = Some(now + budget + settings.router_slack);
            }
        }
    }

    fn start(&mut self, now: Moment, settings: &Settings) {
        if !self.started {
            self.started = true;
            self.clocks.chunk = Some(now + settings.router_ttl());
            let budget = settings.prefill_budget(self.spec.prompt_tokens);
            self.clocks.absolute = Some(now + budget + settings.router_slack);
        }
    }

    fn seal(&mut self, now: Moment, settings: &Settings) {
        if !self.sealed {
            self.sealed = true;
            self.clocks.chunk = None;
            let armed = self.shows() && !planted::no_transfer_deadline();
            self.clocks.ack = armed.then(|| now + settings.router_ttl());
            let outstanding = self.counters.bytes_sealed.saturating_sub(self.counters.bytes_verified);
            let budget = match self.engine {
                EngineKind::Own => settings.transfer_budget(outstanding),
                EngineKind::Remote => settings.read_budget(self.spec.prompt_tokens),
            };
            self.clocks.absolute = Some(now + budget + settings.router_slack);
        }
    }

    /// An engine of others has made a step, for whichever of its rooms; whether this one waits for it. Its next is due then.
    pub fn hear_step(&mut self, side: Side, due: Moment) -> bool {
        let waits = self.started && !self.committed && !self.shows();
        if waits && side == Side::Prefill && self.clocks.chunk.is_some() {
            self.clocks.chunk = Some(due);
        }
        waits
    }

    /// Whether what the engines do for the room can be seen to move. Those of others show nothing of a prompt, or of a read, before
    /// its end: steps of an engine count for all that wait for it, and while it reads only the phase as a whole is bounded here.
    fn shows(&self) -> bool {
        self.engine == EngineKind::Own
    }

    /// The chunk and the ack timer are each armed exactly while their debt exists; what moved arms them anew.
    fn arm_debts(&mut self, before: Counters, now: Moment, settings: &Settings) {
        if !self.started || self.committed || !self.shows() {
            return;
        }
        let counters = self.counters;
        let computed = counters.bytes_sealed > before.bytes_sealed || counters.tokens_computed > before.tokens_computed;
        if !self.sealed && computed {
            self.clocks.chunk = Some(now + settings.router_ttl());
        }
        let owed = self.sealed || counters.bytes_sealed > counters.bytes_verified;
        let verified = counters.bytes_verified > before.bytes_verified;
        self.clocks.ack = match (owed, self.clocks.ack) {
            (false, _) => None,
            (true, _) if planted::no_transfer_deadline() => None,
            (true, Some(due)) if !verified => Some(due),
            (true, _) => Some(now + settings.router_ttl()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Attempt, Incarnation, RequestKey, RoomId};
    use crate::spec::RoomSpec;
    use crate::time::Millis;

    const NOW: Moment = Moment(1_000_000);

    fn room(engine: EngineKind, settings: &Settings) -> Room {
        let spec = RoomSpec {
            room: RoomId::from_random(1),
            request: RequestKey(1),
            attempt: Attempt(1),
            router: Incarnation::new(1),
            prefill: Incarnation::new(2),
            decode: Incarnation::new(3),
            prompt_tokens: 3000,
            max_tokens: 10,
            queue_left: Millis(1000),
        };
        Room {
            engine,
            ..Room::new(spec, 0, NOW, settings)
        }
    }

    fn state(phase: Phase) -> PartState {
        PartState {
            phase,
            epoch: Epoch(1),
            counters: Counters::default(),
        }
    }

    /// Nothing of theirs moves before its end, so only the phase as a whole is bounded; and it always is.
    #[test]
    fn engines_of_others_owe_no_progress_that_they_cannot_show() {
        let settings = Settings::default();
        for engine in [EngineKind::Own, EngineKind::Remote] {
            let mut room = room(engine, &settings);
            let shows = engine == EngineKind::Own;
            room.hear_started(Epoch(1), NOW, &settings);
            assert_eq!(room.clocks.chunk, Some(NOW + settings.router_ttl()));
            let due = NOW + Millis(9_000);
            assert_eq!(room.hear_step(Side::Decode, due), !shows);
            assert_eq!(
                room.clocks.chunk,
                Some(NOW + settings.router_ttl()),
                "it is P that computes"
            );
            assert_eq!(room.hear_step(Side::Prefill, due), !shows);
            assert_eq!(
                room.clocks.chunk == Some(due),
                !shows,
                "ours show what they do for each room"
            );
            let computing = settings.prefill_budget(3000) + settings.router_slack;
            assert_eq!(room.clocks.absolute, Some(NOW + computing));
            let later = NOW + Millis(10_000);
            room.hear_state(Side::Prefill, state(Phase::Transferring), later, &settings);
            assert_eq!((room.clocks.chunk, room.clocks.ack.is_some()), (None, shows));
            room.hear_state(Side::Decode, state(Phase::WaitingForInput), later, &settings);
            assert_eq!(room.clocks.ack.is_some(), shows);
            let reading = match engine {
                EngineKind::Own => settings.transfer_budget(0),
                EngineKind::Remote => settings.read_budget(3000),
            };
            assert_eq!(room.clocks.absolute, Some(later + reading + settings.router_slack));
            room.hear_commit(later, &settings);
            assert!(room.clocks.token.is_some(), "tokens are seen, whoever makes them");
            assert!(!room.hear_step(Side::Decode, later), "and they alone count then");
        }
    }

    /// R's is the last to fire: the workers know more.
    #[test]
    fn a_read_may_last_longer_for_r_than_for_the_workers() {
        let settings = Settings::default();
        let slowest = Millis::at_rate(3000, Settings::READ_FLOOR) + settings.two_ttl();
        assert!(settings.read_budget(3000) > slowest + settings.report_period.scale(2, 1));
    }
}
