//! One deadline queue for everything that R does by itself, and what is done when R finds that it was stopped.

use super::{Ledger, Side};
use crate::ids::{Incarnation, RequestKey, RoomId};
use crate::pause::Pause;
use crate::reason::{Blame, Reason};
use crate::request::Stage;
use crate::room::{Clock, LeaseDue, Opening};
use crate::time::Moment;
use crate::vouch::Sign;

/// What a deadline belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// Queue deadline, absolute deadline, next try.
    Request(RequestKey),
    /// R's own timers, the lease's trailing renewal, the wait for blame.
    Room(RoomId),
    /// Freshness of Load, the answer to Who.
    Member(Incarnation),
    /// The answer to a grant whose room has ended.
    LateGrant(RoomId),
    /// The oldest tombstone.
    Tombstones,
}

impl Ledger {
    /// Fires what is due. A timer may arm another one that is due at once; the count only guards against a mistake that
    /// would make one arm itself for ever: the rest then waits for the next step, which is due at once.
    pub(super) fn fire_due(&mut self) {
        self.arm_dirty();
        let mut left = self.deadlines.len() * 4 + 64;
        while let Some(timer) = self.deadlines.take_due(self.now) {
            self.dirty.insert(timer);
            self.fire(timer);
            self.arm_dirty();
            left -= 1;
            if left == 0 {
                return;
            }
        }
    }

    /// Sets the deadline of everything that this step touched.
    pub(super) fn arm_dirty(&mut self) {
        while let Some(timer) = self.dirty.pop_first() {
            let due = self.due(timer);
            self.deadlines.set(timer, due);
        }
    }

    fn due(&self, timer: Timer) -> Option<Moment> {
        match timer {
            Timer::Request(key) => self.requests.get(&key).map(|request| request.next_deadline()),
            Timer::Room(id) => self.rooms.get(&id).and_then(|room| room.next_deadline(&self.settings)),
            Timer::Member(node) => self
                .members
                .get(&node)
                .and_then(|member| member.next_deadline(&self.settings)),
            Timer::LateGrant(id) => self.late_grants.get(&id).copied(),
            Timer::Tombstones => self.tombstones.next_expiry(),
        }
    }

    fn fire(&mut self, timer: Timer) {
        match timer {
            Timer::Request(key) => self.fire_request(key),
            Timer::Room(id) => self.fire_room(id),
            Timer::Member(node) => self.fire_member(node),
            Timer::LateGrant(id) => {
                self.late_grants.remove(&id);
            }
            Timer::Tombstones => self.tombstones.expire(self.now),
        }
    }

    fn fire_request(&mut self, key: RequestKey) {
        let now = self.now;
        let Some(request) = self.request_mut(key) else { return };
        if request.deadline <= now {
            self.end_request(key, Reason::RequestTimeout, Blame::Nobody);
        } else if request.queue.due().is_some_and(|due| due <= now) {
            self.end_request(key, Reason::QueueTimeout, Blame::Nobody);
        } else if request.stage == Stage::Waiting && request.not_before.is_some_and(|due| due <= now) {
            request.not_before = None;
            self.make_ready(key);
        }
    }

    /// Does what is due for a room: blame, its lease, R's own timers.
    pub(super) fn fire_room(&mut self, id: RoomId) {
        let now = self.now;
        let Some(room) = self.room_mut(id) else { return };
        if let Some(end) = &room.end {
            if end.blame_due <= now {
                self.finish_room(id);
            }
            return;
        }
        self.fire_lease(id);
        let Some(room) = self.live_mut(id) else { return };
        let Some((due, clock)) = room.clocks.first() else {
            return;
        };
        if due <= now && !self.engine_excuses(id, clock) {
            self.clock_ran_out(id, clock);
        }
    }

    /// Does what the lease's own timer wants.
    pub(super) fn fire_lease(&mut self, id: RoomId) {
        let (now, period) = (self.now, self.settings.lease_ttl.scale(1, 3));
        let Some(room) = self.live_mut(id) else { return };
        match room.lease.due(now, period) {
            LeaseDue::Nothing => {}
            LeaseDue::Grant => {
                let spec = room.spec.clone();
                self.push(super::Effect::Grant { spec });
            }
            LeaseDue::Renew => self.push(super::Effect::Renew { room: id }),
            LeaseDue::NotFound => self.lease_ended(id, Sign::NotFound),
        }
    }

    fn clock_ran_out(&mut self, id: RoomId, clock: Clock) {
        let Some(room) = self.rooms.get(&id) else { return };
        let reason = clock.reason(room.phase);
        let named = match clock {
            Clock::Connect(side) => Some(side),
            Clock::Handshake | Clock::Chunk | Clock::Ack | Clock::Token | Clock::Absolute => None,
        };
        self.fail(id, reason, named, None);
    }

    /// A part that waits for its engine counts the engine's chunks and steps: while the engine finishes some, the room
    /// owes nothing yet, and only the absolute deadline counts. Not where D has tokens that did not come.
    fn engine_excuses(&mut self, id: RoomId, clock: Clock) -> bool {
        let (now, ttl) = (self.now, self.settings.router_ttl());
        let Some(room) = self.rooms.get(&id) else { return false };
        let side = match clock {
            Clock::Chunk => Side::Prefill,
            Clock::Token if room.counters.tokens_made <= room.taken => Side::Decode,
            Clock::Token | Clock::Connect(_) | Clock::Handshake | Clock::Ack | Clock::Absolute => return false,
        };
        let Some(member) = self.members.get(&room.part(side).node) else {
            return false;
        };
        let due = member.engine_moved + ttl;
        if due <= now {
            return false;
        }
        let Some(room) = self.live_mut(id) else { return false };
        match side {
            Side::Prefill => room.clocks.chunk = Some(due),
            Side::Decode => room.clocks.token = Some(due),
        }
        true
    }

    /// R was stopped: from now until the grace is over only messages are applied, and the rooms of this time accuse nobody.
    pub(super) fn look_at_pause(&mut self, pause: Pause) {
        match pause {
            Pause::Running => {}
            Pause::Paused { fresh, .. } => {
                self.held = true;
                if fresh {
                    for room in self.rooms.values_mut() {
                        room.lived_through_stop = true;
                    }
                    self.prove_members();
                }
            }
            Pause::Resumed { .. } => {}
        }
    }

    /// The grace is over: ends what is overdue or cut off as `SelfPaused`, and opens what waited for it.
    pub(super) fn resume(&mut self) {
        self.held = false;
        self.recovers_until = Some(self.now + self.settings.connect_timeout.scale(2, 1));
        self.pump = true;
        let (now, who) = (self.now, self.settings.who_timeout);
        for (incarnation, member) in &mut self.members {
            member.heard_at = now;
            if member.who_due.is_some_and(|due| due <= now) {
                member.who_due = Some(now + who);
            }
            self.dirty.insert(Timer::Member(*incarnation));
        }
        let rooms: Vec<RoomId> = self
            .rooms
            .iter()
            .filter(|(_, room)| room.is_live())
            .map(|(id, _)| *id)
            .collect();
        for id in rooms {
            self.resume_room(id);
        }
    }

    fn resume_room(&mut self, id: RoomId) {
        let now = self.now;
        let Some(room) = self.live_mut(id) else { return };
        let cut = Side::BOTH
            .into_iter()
            .any(|side| room.part(side).cut && room.counts(side));
        let overdue = room.clocks.first().is_some_and(|(due, _)| due <= now);
        if cut || overdue {
            self.fail(id, Reason::SelfPaused, None, None);
        } else if let Opening::Admitted { addr, token } = &room.opening {
            let (addr, token) = (addr.clone(), *token);
            self.open_prefill(id, addr, token);
        }
    }
}
