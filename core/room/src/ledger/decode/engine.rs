//! Tokens: made by the engine, taken by R.

use crate::evidence::Owes;
use crate::ids::RoomId;
use crate::ledger::decode::{Effect, Ledger};
use crate::ledger::worker::{Ending, Orders};
use crate::message::FromWorker;
use crate::reason::{PartEnd, Reason};
use crate::time::Moment;

impl Ledger {
    /// New tokens are told to R here, so that none is told before the commit or after the end.
    pub(super) fn made(&mut self, room: RoomId, tokens: u32, now: Moment, out: &mut Vec<Effect>) {
        let speaks = self.table.live.get(&room).is_some_and(|part| part.committed.is_some());
        let Some(part) = self.table.edit(room).filter(|_| speaks) else {
            self.table.fenced += 1;
            return;
        };
        if let Some((position, count)) = part.made(tokens, now) {
            out.push(Effect::tell(room, FromWorker::Tokens { position, count }));
        }
    }

    pub(super) fn taken(&mut self, room: RoomId, position: u32, now: Moment, out: &mut Vec<Effect>) {
        let Some(part) = self.table.edit(room) else { return };
        part.took(position, now);
        self.end_if_done(room, now, out);
    }

    pub(super) fn engine_finished(&mut self, room: RoomId, now: Moment, out: &mut Vec<Effect>) {
        if self.table.live.get(&room).is_some_and(|part| part.committed.is_none()) {
            // Without a commit there is no answer that could be whole.
            self.engine_gave_up(room, Reason::EngineError, now, out);
            return;
        }
        if !self.table.engine_back(room, out) {
            return;
        }
        if let Some(part) = self.table.edit(room) {
            part.finished = true;
        }
        self.end_if_done(room, now, out);
    }

    fn end_if_done(&mut self, room: RoomId, now: Moment, out: &mut Vec<Effect>) {
        if self.table.live.get(&room).is_some_and(super::part_d::PartD::is_done) {
            self.end(room, PartEnd::Done, Ending::Waited(Owes::Nobody, now), now, out);
        }
    }

    /// Rooms that the former engine read or decoded are over; those that wait for P, and those whose tokens are all made, go on.
    pub(super) fn engine_restarted(&mut self, now: Moment, out: &mut Vec<Effect>) {
        for room in self.table.engine_reborn(now, out) {
            let how = Ending::Waited(Owes::Decode, now);
            self.end(room, PartEnd::Failed(Reason::EngineRestarted), how, now, out);
        }
    }

    /// The engine's job is over without its last token.
    pub(super) fn engine_gave_up(&mut self, room: RoomId, reason: Reason, now: Moment, out: &mut Vec<Effect>) {
        if self.table.engine_back(room, out) {
            self.end(
                room,
                PartEnd::Failed(reason),
                Ending::Waited(Owes::Decode, now),
                now,
                out,
            );
        }
    }

    /// The connection had its last word long ago and still holds its permit.
    pub(super) fn kill_last_word(&mut self, room: RoomId, out: &mut Vec<Effect>) {
        if let Some(part) = self.table.edit(room) {
            part.word_over = true;
            out.extend(
                part.base
                    .sessions
                    .iter()
                    .map(|epoch| Effect::KillSession { room, epoch: *epoch }),
            );
        }
    }
}
