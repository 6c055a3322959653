//! The end of a room: one verdict, told to everybody who is left, then blame, then what follows for the request.

use super::{Effect, Ledger, Outcome, RoomEnd, Side, Timer};
use crate::blame::{self, Context};
use crate::evidence::Evidence;
use crate::ids::RoomId;
use crate::message::ToWorker;
use crate::reason::{Blame, PartEnd, Reason, Verdict};
use crate::request::Stage;
use crate::room::{Room, RoomVerdict};

impl Ledger {
    /// A room has failed. `named`: the node that a broken connection or its own word names; `accuser`: who said so.
    pub(super) fn fail(&mut self, id: RoomId, reason: Reason, named: Option<Side>, accuser: Option<Side>) {
        let Some(room) = self.rooms.get(&id).filter(|room| room.is_live()) else {
            return;
        };
        let missed_router = matches!(reason, Reason::RouterLost | Reason::LeaseLost | Reason::RouterStalled);
        let (reason, named) = match accuser {
            // R was stopped: that is why they missed it.
            Some(_) if missed_router && room.lived_through_stop => (Reason::SelfPaused, None),
            // R is here: what broke is that node's control link.
            Some(side) if reason == Reason::RouterLost => (side.lost(), Some(side)),
            // R answers and takes tokens at once: they, or its answer, were held up on the way to that node.
            Some(side) if missed_router => (reason, Some(side)),
            // It broke while R stood still: what had been said before was read first, and may take longer than the grace.
            None if named.is_some_and(|side| reason == side.lost()) && room.lived_through_stop && self.recovers() => {
                (Reason::SelfPaused, None)
            }
            Some(_) | None => (reason, named),
        };
        let context = Context {
            reason,
            phase: room.phase,
            owed: room.owes(),
            named,
            accuser,
            lived_through_stop: room.lived_through_stop,
            router: self.me,
            prefill: room.spec.prefill,
            decode: room.spec.decode,
            limit: self.settings.progress_ttl,
        };
        self.end_room(id, Verdict::Failed(reason), Some(context));
    }

    /// The room has what was asked of it.
    pub(super) fn done(&mut self, id: RoomId) {
        self.end_room(id, Verdict::Done, None);
    }

    fn end_room(&mut self, id: RoomId, verdict: Verdict, context: Option<Context>) {
        let blame_due = self.now + self.settings.blame_wait;
        let Some(room) = self.live_mut(id) else { return };
        room.end = Some(RoomVerdict {
            verdict,
            context,
            blame_due,
        });
        let key = room.spec.request;
        // The gate shuts before anything else can happen.
        if let Some(request) = self.request_mut(key)
            && request.stage == Stage::Running(id)
        {
            request.stage = Stage::Judging(id);
        }
        self.stop_queue(key);
        self.tell_end(id, verdict);
        self.give_back_lease(id);
        self.unbook_both(id);
        if verdict == Verdict::Done {
            self.answer(key, Outcome::Done);
        }
        match context {
            Some(context) if !context.is_settled() => self.ask_evidence(id),
            Some(_) | None => self.finish_room(id),
        }
    }

    /// The queue clock stands still while blame is awaited: nobody waits for a place.
    fn stop_queue(&mut self, key: crate::ids::RequestKey) {
        let now = self.now;
        if let Some(request) = self.request_mut(key)
            && matches!(request.stage, Stage::Judging(_))
        {
            request.queue.stop(now);
        }
    }

    /// Tells every worker whose part may still live, and ends the streams.
    fn tell_end(&mut self, id: RoomId, verdict: Verdict) {
        let message = match verdict {
            Verdict::Done => ToWorker::Verdict(Verdict::Done),
            Verdict::Failed(reason) => ToWorker::Abort(reason),
        };
        for side in Side::BOTH {
            let Some(room) = self.rooms.get_mut(&id) else { return };
            let part = room.part_mut(side);
            if !std::mem::replace(&mut part.stream, false) {
                continue;
            }
            if part.ended.is_none() {
                self.push(Effect::Tell {
                    room: id,
                    side,
                    message,
                });
            }
            self.push(Effect::CloseStream { room: id, side });
        }
    }

    fn unbook_both(&mut self, id: RoomId) {
        let Some(room) = self.rooms.get(&id) else { return };
        let nodes = [room.spec.prefill, room.spec.decode];
        for node in nodes {
            self.unbook(node, id);
        }
    }

    /// Asks both workers what they saw, unless they said so, cannot be reached, or never had a part.
    fn ask_evidence(&mut self, id: RoomId) {
        for side in Side::BOTH {
            let Some(room) = self.rooms.get_mut(&id) else { return };
            let committed = room.committed;
            let part = room.part_mut(side);
            if part.evidence.is_some() || !part.opened {
                part.heard = true;
                continue;
            }
            let node = part.node;
            let reachable = self.members.get(&node).is_some_and(|member| member.link);
            // After the commit P's part is over: what it says is welcome, but nobody waits for it.
            part.heard = !reachable || (committed && side == Side::Prefill);
            if reachable {
                self.push(Effect::AskEvidence { room: id, side, node });
            }
        }
        self.finish_if_heard(id);
    }

    /// Blame needs nothing more once both workers have said what they can.
    pub(super) fn finish_if_heard(&mut self, id: RoomId) {
        if self
            .rooms
            .get(&id)
            .is_some_and(|room| !room.is_live() && room.prefill.heard && room.decode.heard)
        {
            self.finish_room(id);
        }
    }

    /// Assigns blame and forgets the room but for its verdict; the request goes on.
    pub(super) fn finish_room(&mut self, id: RoomId) {
        let Some(room) = self.rooms.get(&id) else { return };
        let Some(end) = room.end else { return };
        let blame = end.context.map_or(Blame::Nobody, |context| self.blame(room, context));
        let key = room.spec.request;
        let ended = RoomEnd {
            room: id,
            request: key,
            attempt: room.spec.attempt,
            verdict: end.verdict,
            blame,
            prefill: room.prefill.evidence,
            decode: room.decode.evidence,
        };
        self.judge_parties(id, end.verdict, blame);
        self.push(Effect::Ended(Box::new(ended)));
        self.push(Effect::End { room: id });
        if let Verdict::Failed(reason) = end.verdict
            && self
                .requests
                .get(&key)
                .is_some_and(|request| request.stage == Stage::Judging(id))
        {
            self.after_failure(key, id, reason, blame);
        }
        self.rooms.remove(&id);
        self.dirty.insert(Timer::Room(id));
        self.remembered.insert(id, end.verdict);
    }

    fn blame(&self, room: &Room, context: Context) -> Blame {
        let named = context.named.or_else(|| self.broken_link(room));
        // A part that never was, or P's after its commit, owes no word.
        let excused = Evidence::default();
        let p_excused = !room.prefill.opened || room.committed;
        let prefill = room.prefill.evidence.or_else(|| p_excused.then_some(excused));
        blame::assign(
            prefill.as_ref(),
            room.decode.evidence.as_ref(),
            &Context { named, ..context },
        )
    }

    /// Rule (1): the one node whose control connection is broken by the time of blame.
    fn broken_link(&self, room: &Room) -> Option<Side> {
        let broken = |side: Side| {
            let part = room.part(side);
            let counts = side == Side::Decode || !room.committed;
            counts && part.opened && self.members.get(&part.node).is_none_or(|member| !member.link)
        };
        match (broken(Side::Prefill), broken(Side::Decode)) {
            (true, false) => Some(Side::Prefill),
            (false, true) => Some(Side::Decode),
            (true, true) | (false, false) => None,
        }
    }

    /// A worker says something about a room that has its verdict: what it saw counts for blame, the rest is answered.
    pub(super) fn hear_evidence(&mut self, id: RoomId, side: Side, evidence: Option<Evidence>) {
        if let Some(room) = self.room_mut(id) {
            let part = room.part_mut(side);
            part.evidence = part.evidence.or(Some(evidence.unwrap_or_default()));
            part.heard = true;
        }
        self.finish_if_heard(id);
    }

    /// The verdict of a room that is over, if R remembers it.
    pub(super) fn verdict_of(&self, id: RoomId) -> Option<Verdict> {
        match self.rooms.get(&id) {
            Some(room) => room.end.map(|end| end.verdict),
            None => self.remembered.get(&id).copied(),
        }
    }

    /// The part's own end: recorded once, its stream has nothing more to carry.
    pub(super) fn record_end(&mut self, id: RoomId, side: Side, end: PartEnd) {
        let Some(room) = self.room_mut(id) else { return };
        let part = room.part_mut(side);
        if part.ended.is_none() {
            part.ended = Some(end);
        }
        let node = part.node;
        let close = std::mem::replace(&mut part.stream, false);
        if close {
            self.push(Effect::CloseStream { room: id, side });
        }
        self.unbook(node, id);
    }
}
