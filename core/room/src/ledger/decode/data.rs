//! What the data connection says about a room of D. What names another epoch is fenced and counted.

use crate::evidence::{Evidence, Owes};
use crate::ids::{Epoch, RoomId};
use crate::ledger::decode::part_d::{Link, PartD};
use crate::ledger::decode::{Effect, Ledger};
use crate::ledger::worker::{Ending, Orders};
use crate::message::FromWorker;
use crate::planted;
use crate::reason::{PartEnd, Reason};
use crate::time::{Millis, Moment};

impl Ledger {
    /// The part, if this is its epoch and its session may write; else the message is fenced.
    fn writing(&mut self, room: RoomId, epoch: Epoch) -> Option<&mut PartD> {
        let writing = self.table.live.get(&room).is_some_and(|part| {
            (part.base.epoch == epoch || planted::stale_epoch_counts())
                && part.link == Link::Ready
                && part.committed.is_none()
        });
        if !writing {
            self.table.fenced += 1;
            return None;
        }
        self.table.edit(room)
    }

    /// The part, if this is the epoch of its connection, answered or not; after the commit no word of P counts.
    fn connected(&mut self, room: RoomId, epoch: Epoch) -> Option<&mut PartD> {
        let connected = self
            .table
            .live
            .get(&room)
            .is_some_and(|part| part.base.epoch == epoch && part.session.is_some() && part.committed.is_none());
        if !connected {
            self.table.fenced += 1;
            return None;
        }
        self.table.edit(room)
    }

    pub(super) fn started(&mut self, room: RoomId, epoch: Epoch, now: Moment) {
        if let Some(part) = self.writing(room, epoch) {
            part.start(now);
        }
    }

    /// Bytes can only follow Started, on a stream that keeps its order: they say it as well.
    pub(super) fn verified(&mut self, room: RoomId, epoch: Epoch, bytes: u64, now: Moment) {
        if let Some(part) = self.writing(room, epoch) {
            part.start(now);
            part.verified(bytes, now);
        }
    }

    pub(super) fn peer_progress(&mut self, room: RoomId, epoch: Epoch, progress: u64, now: Moment) {
        if let Some(part) = self.writing(room, epoch) {
            part.peer_moved(progress, now);
        }
    }

    /// D alone commits, and it is sticky.
    pub(super) fn complete(&mut self, room: RoomId, epoch: Epoch, now: Moment, out: &mut Vec<Effect>) {
        let Some(part) = self.writing(room, epoch) else { return };
        if part.pulling.is_some() {
            // Its engine reads, and commits when it has.
            self.table.fenced += 1;
            return;
        }
        part.commit(now);
        self.table.engine_permits += 1;
        out.push(Effect::SayCommitted { room, epoch });
        out.push(Effect::tell(room, FromWorker::Committed));
        out.push(Effect::Decode { room });
    }

    /// The engine is to read the KV itself, once: a ticket that is said again on a new connection is the same one.
    pub(super) fn ticket(
        &mut self,
        room: RoomId,
        epoch: Epoch,
        read_within: Millis,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let Some(part) = self.writing(room, epoch) else { return };
        if part.pulling.is_none() {
            part.pull(read_within, now);
            self.table.engine_permits += 1;
            out.push(Effect::Pull { room });
        }
    }

    /// The engine has read it: that is the commit. The connection to P may be broken by now.
    pub(super) fn pulled(&mut self, room: RoomId, now: Moment, out: &mut Vec<Effect>) {
        let pulls = |part: &PartD| part.pulling.is_some() && part.committed.is_none() && part.base.engine;
        if !self.table.live.get(&room).is_some_and(pulls) {
            self.table.fenced += 1;
            return;
        }
        if let Some(part) = self.table.edit(room) {
            part.commit(now);
            let epoch = part.base.epoch;
            out.push(Effect::SayCommitted { room, epoch });
            out.push(Effect::tell(room, FromWorker::Committed));
        }
    }

    pub(super) fn corrupt(&mut self, room: RoomId, epoch: Epoch, now: Moment, out: &mut Vec<Effect>) {
        if let Some(part) = self.writing(room, epoch) {
            let how = Ending::Waited(Owes::Prefill, part.moved_at);
            self.end(room, PartEnd::Failed(Reason::KvCorrupt), how, now, out);
        }
    }

    pub(super) fn peer_failed(
        &mut self,
        room: RoomId,
        epoch: Epoch,
        reason: Reason,
        evidence: Evidence,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        if self.connected(room, epoch).is_some() {
            self.end(room, PartEnd::Failed(reason), Ending::Relayed(evidence), now, out);
        }
    }

    /// Only the session ended: pages and timers stay, and the next hello is waited for under them. So it needs no judging
    /// after a stop of this node either.
    pub(super) fn broken(&mut self, room: RoomId, epoch: Epoch, now: Moment, out: &mut Vec<Effect>) {
        let after_commit = self.table.live.get(&room).is_some_and(|part| part.committed.is_some());
        if after_commit {
            // The end of a connection that had its last word.
            return;
        }
        let Some(part) = self.connected(room, epoch) else {
            return;
        };
        part.session = None;
        part.link = Link::Down;
        part.base.link_broken = true;
        part.refresh_phase(now);
        if part.base.sessions.contains(&epoch) {
            out.push(Effect::KillSession { room, epoch });
        }
        let place = part.place;
        self.leave_page_queue(room, place);
    }

    /// A permit is back: a hello that waited for it can be answered.
    pub(super) fn quiesced(&mut self, room: RoomId, epoch: Epoch, now: Moment, out: &mut Vec<Effect>) {
        self.table.session_back(room, epoch, out);
        let answerable = self
            .table
            .live
            .get(&room)
            .is_some_and(|part| matches!(part.link, Link::Quiescing(_)) && part.base.sessions.is_empty());
        if answerable {
            self.answer(room, now, out);
        }
    }
}
