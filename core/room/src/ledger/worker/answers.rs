//! Questions to R and answers to it. A message about a room that does not live here is an answer, and never state.

use crate::ids::{Epoch, Incarnation, RoomId};
use crate::ledger::worker::{Orders, Part, Table};
use crate::message::{Counters, FromWorker, PartState, ToWorker};
use crate::phase::Phase;
use crate::planted;
use crate::reason::{PartEnd, Reason};
use crate::time::Moment;

impl<P: Part> Table<P> {
    /// The room's door or a member of it is gone: R is asked, once, unless it vouched for the room already.
    pub(crate) fn ask<E: Orders>(&mut self, room: RoomId, now: Moment, out: &mut Vec<E>) {
        let Some(part) = self.edit(room) else {
            self.fenced += 1;
            return;
        };
        let base = part.base_mut();
        if !base.unleased && base.asked.is_none() {
            base.asked = Some(now);
            out.push(E::tell(room, FromWorker::Ask));
        }
    }

    /// Asks for every room with that member; this node's own key is its lease keeper's business.
    pub(crate) fn ask_member<E: Orders>(&mut self, member: Incarnation, now: Moment, out: &mut Vec<E>) {
        if member == self.config.incarnation {
            return;
        }
        let with: Vec<RoomId> = self
            .live
            .iter()
            .filter(|(_, part)| part.base().is_with(member))
            .map(|(room, _)| *room)
            .collect();
        for room in with {
            self.ask(room, now, out);
        }
    }

    /// R vouched for the room.
    pub(crate) fn vouched(&mut self, room: RoomId) {
        if let Some(part) = self.edit(room) {
            part.base_mut().asked = None;
            part.base_mut().unleased = true;
        }
    }

    /// Answers a message about a room that does not live here. R's own answers are not answered: that would never end.
    pub(crate) fn answer_absent<E: Orders>(&mut self, room: RoomId, message: ToWorker, out: &mut Vec<E>) {
        self.fenced += 1;
        if planted::update_after_clear_is_noop() {
            return;
        }
        match message {
            ToWorker::Abort(_) | ToWorker::Committed | ToWorker::Taken(_) | ToWorker::Live => {
                let answer = self
                    .ended
                    .get(&room)
                    .map_or(unknown(), |gone| FromWorker::AlreadyEnded(gone.end));
                out.push(E::tell(room, answer));
            }
            ToWorker::Verdict(_) | ToWorker::Unknown => {}
        }
    }

    /// The end of a room's stream without an abort: the owner is gone. During the grace after a stop it is only noted.
    /// Returns how the part ends now, if it does.
    pub(crate) fn stream_ended(&mut self, room: RoomId) -> Option<PartEnd> {
        let in_grace = self.in_grace();
        let part = self.edit(room)?;
        if in_grace {
            part.base_mut().cut = true;
            return None;
        }
        Some(PartEnd::Failed(Reason::RouterLost))
    }
}

fn unknown() -> FromWorker {
    if planted::unknown_room_waits() {
        return FromWorker::State(PartState {
            phase: Phase::WaitingForInput,
            epoch: Epoch(0),
            counters: Counters {
                tokens_computed: 0,
                bytes_sealed: 0,
                bytes_sent: 0,
                bytes_verified: 0,
                tokens_made: 0,
            },
        });
    }
    FromWorker::Unknown
}
