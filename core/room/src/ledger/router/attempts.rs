//! Attempts: a room begins, its two workers admit or refuse it, and what follows when it failed.

use super::admission::retry_after_spent;
use super::placement::Placement;
use super::{Effect, Ledger, OnFailure, Outcome, Side, Timer};
use crate::ids::{Incarnation, RequestKey, RoomId};
use crate::ledger::EngineKind;
use crate::message::Refusal;
use crate::planted;
use crate::reason::{Blame, Reason};
use crate::request::Stage;
use crate::room::{Opening, Room};
use crate::spec::RoomSpec;

impl Ledger {
    /// Begins a room for a waiting request: D is asked first; the room's lease is asked for beside it, when it has lived for a moment.
    pub(super) fn begin(&mut self, key: RequestKey, prefill: Incarnation, decode: Incarnation) {
        let id = self.fresh_room();
        let (now, router) = (self.now, self.me);
        let Some(request) = self.requests.get(&key) else { return };
        let chosen = self.chosen(request, prefill, decode);
        self.chooser.sent(&request.arrival.blocks, prefill, decode);
        self.breakers.begin(prefill, decode, id, now);
        let Some(request) = self.request_mut(key) else { return };
        let spec = RoomSpec {
            room: id,
            request: key,
            attempt: request.attempt(),
            router,
            prefill,
            decode,
            prompt_tokens: request.prompt(),
            max_tokens: request.remaining(),
            queue_left: request.queue.left(now),
        };
        let passed = request.passed;
        request.stage = Stage::Running(id);
        request.not_before = None;
        request.queue.run(now);
        if !std::mem::replace(&mut request.admitted, true) && request.arrival.pair.is_none() {
            self.bucket.gain();
        }
        self.picks += 1;
        for node in [prefill, decode] {
            if let Some(member) = self.members.get_mut(&node) {
                member.rooms.insert(id);
                member.book(&spec);
                member.picked = self.picks;
            }
        }
        self.asked(decode, id);
        let mut room = Room::new(spec.clone(), passed, now, &self.settings);
        room.engine = self
            .members
            .get(&prefill)
            .map_or(EngineKind::Own, |member| member.info.engine);
        room.decode.stream = true;
        room.decode.opened = true;
        self.rooms.insert(id, room);
        self.dirty.insert(Timer::Room(id));
        self.push(Effect::Begin {
            spec: spec.clone(),
            passed,
            chosen,
        });
        self.fire_lease(id);
        self.push(Effect::Open {
            spec,
            side: Side::Decode,
            decode_addr: String::new(),
            token: 0,
            passed,
        });
    }

    /// An id that no room has or had lately. The generator repeats none within any run that could end; the check costs nothing.
    fn fresh_room(&mut self) -> RoomId {
        loop {
            let id = self.ids.next_room();
            let taken = self.rooms.contains_key(&id)
                || self.remembered.get(&id).is_some()
                || self.late_grants.contains_key(&id);
            if !taken {
                return id;
            }
        }
    }

    pub(super) fn admitted(&mut self, id: RoomId, side: Side, addr: String, token: u64) {
        let held = self.held;
        let Some(room) = self.live_mut(id) else { return };
        match (side, &room.opening) {
            (Side::Decode, Opening::AskingDecode) => {
                let node = room.decode.node;
                room.clocks.connect = None;
                // R opens nothing until it knows what it missed; the end of its grace opens it.
                room.opening = Opening::Admitted {
                    addr: addr.clone(),
                    token,
                };
                if !held {
                    self.open_prefill(id, addr, token);
                }
                self.opened(node, id);
            }
            (Side::Prefill, Opening::AskingPrefill) => {
                let node = room.prefill.node;
                room.clocks.connect = None;
                room.opening = Opening::Open;
                self.opened(node, id);
            }
            (
                Side::Decode | Side::Prefill,
                Opening::AskingDecode | Opening::Admitted { .. } | Opening::AskingPrefill | Opening::Open,
            ) => self.fenced += 1,
        }
    }

    /// Opens at P with what D admitted.
    pub(super) fn open_prefill(&mut self, id: RoomId, decode_addr: String, token: u64) {
        let due = self.now + self.settings.connect_timeout;
        let Some(room) = self.live_mut(id) else { return };
        room.opening = Opening::AskingPrefill;
        room.clocks.connect = Some((Side::Prefill, due));
        room.prefill.stream = true;
        room.prefill.opened = true;
        let (spec, passed) = (room.spec.clone(), room.passed_before);
        self.asked(spec.prefill, id);
        self.push(Effect::Open {
            spec,
            side: Side::Prefill,
            decode_addr,
            token,
            passed,
        });
    }

    /// A worker refused the room: this costs no attempt. The request tries another pair, or goes back to admission.
    pub(super) fn refused(&mut self, id: RoomId, side: Side, refusal: Refusal) {
        let Some(room) = self.live_mut(id) else { return };
        let asked = match side {
            Side::Decode => room.opening == Opening::AskingDecode,
            Side::Prefill => room.opening == Opening::AskingPrefill,
        };
        if !asked {
            return self.fail(id, Reason::ProtocolError, Some(side), Some(side));
        }
        let (key, node) = (room.spec.request, room.part(side).node);
        // It exists nowhere there: nothing is left to say on that stream.
        room.part_mut(side).ended = Some(crate::reason::PartEnd::Failed(refusal_reason(refusal)));
        let now = self.now;
        if let Some(request) = self.request_mut(key) {
            request.stage = Stage::Waiting;
            if refusal != Refusal::NoPermit {
                request.refused.insert(node, refusal);
            }
            request.queue.run(now);
        }
        self.fail(id, refusal_reason(refusal), None, None);
        self.learn_from_refusal(node, refusal);
        self.make_ready(key);
    }

    /// A full table is the worker's matter, and over with its next report or a little later: whoever it refused is next then, and
    /// not behind those that came after it.
    fn learn_from_refusal(&mut self, node: Incarnation, refusal: Refusal) {
        match refusal {
            Refusal::NoPermit | Refusal::Draining => {
                let until = self.now + self.settings.report_period;
                if let Some(member) = self.member_mut(node) {
                    member.full_until = Some(until);
                }
            }
            Refusal::WrongIncarnation => self.replace_member(node),
            Refusal::PeerShare | Refusal::Exists | Refusal::TooLarge => {}
        }
    }

    /// A room has failed and blame is known: the next attempt, or the answer.
    pub(super) fn after_failure(&mut self, key: RequestKey, id: RoomId, reason: Reason, blame: Blame) {
        let (now, max_attempts) = (self.now, self.settings.max_attempts);
        let Some(room) = self.rooms.get(&id) else { return };
        let pair = (room.spec.prefill, room.spec.decode);
        let Some(request) = self.request_mut(key) else { return };
        request.failed(pair, reason, blame);
        let covered = !planted::retry_covers_handshake_only() || reason == Reason::HandshakeTimeout;
        let migrates = request.passed == 0 || request.arrival.on_failure == OnFailure::Migrate;
        let retry = covered
            && migrates
            && request.arrival.pair.is_none()
            && reason.may_retry()
            && request.spent < max_attempts
            && now < request.deadline;
        request.stage = Stage::Waiting;
        let possible = retry
            && self
                .requests
                .get(&key)
                .is_some_and(|request| self.may_be_placed(request));
        if !possible {
            let retry_after = super::admission::retry_after(reason);
            return self.answer(
                key,
                Outcome::Failed {
                    reason,
                    blame,
                    retry_after,
                },
            );
        }
        if reason != Reason::SelfPaused && !self.bucket.take() {
            return self.answer(
                key,
                Outcome::Failed {
                    reason,
                    blame,
                    retry_after: retry_after_spent(),
                },
            );
        }
        if let Some(request) = self.request_mut(key) {
            request.requeue(now, None);
        }
        self.make_ready(key);
    }

    /// While R knows of its own stop the links are not judged: the request waits for the end of the grace, and after it for
    /// workers to be connected again.
    fn may_be_placed(&self, request: &crate::request::Request) -> bool {
        self.held || self.recovers() || matches!(self.place(request), Placement::Pair { .. } | Placement::Wait { .. })
    }
}

const fn refusal_reason(refusal: Refusal) -> Reason {
    match refusal {
        Refusal::NoPermit | Refusal::PeerShare | Refusal::Exists => Reason::Overloaded,
        Refusal::Draining => Reason::Draining,
        Refusal::WrongIncarnation => Reason::WrongIncarnation,
        Refusal::TooLarge => Reason::TooLarge,
    }
}
