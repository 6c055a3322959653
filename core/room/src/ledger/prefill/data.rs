//! What the data connection and the engine say about a room of P. What names another epoch is fenced and counted.

use crate::evidence::{Evidence, Owes};
use crate::ids::{Epoch, RoomId};
use crate::ledger::prefill::part_p::{HeldBreak, Link, PartP, Stage};
use crate::ledger::prefill::{Effect, Ledger};
use crate::ledger::worker::Ending;
use crate::message::{Counters, HelloReply};
use crate::phase::Phase;
use crate::planted;
use crate::reason::{PartEnd, Reason};
use crate::time::{Millis, Moment};

impl Ledger {
    /// The part, if this is its epoch and its connection stands; else the message is fenced.
    fn current(&mut self, room: RoomId, epoch: Epoch) -> Option<&mut PartP> {
        let current = self.table.live.get(&room).is_some_and(|part| {
            (part.base.epoch == epoch || planted::stale_epoch_counts())
                && part.link != Link::Down
                && part.held.is_none()
        });
        if !current {
            self.table.fenced += 1;
            return None;
        }
        self.table.edit(room)
    }

    pub(super) fn reply(&mut self, room: RoomId, epoch: Epoch, reply: HelloReply, now: Moment, out: &mut Vec<Effect>) {
        if self.current(room, epoch).is_none() {
            return;
        }
        match reply {
            HelloReply::Ready => self.ready(room, epoch, now, out),
            HelloReply::Wait => self.wait(room, now),
            HelloReply::Committed => self.end(room, PartEnd::HandedOver, Ending::Now, now, out),
            HelloReply::Ended(reason) => {
                self.end(
                    room,
                    PartEnd::Failed(reason),
                    Ending::Relayed(Evidence::default()),
                    now,
                    out,
                );
            }
            // D admitted the room to R and does not know it now: it was replaced in between.
            HelloReply::Unknown => {
                let how = Ending::Waited(Owes::Decode, now);
                self.end(room, PartEnd::Failed(Reason::WrongIncarnation), how, now, out);
            }
            // It was D's last word on this connection: a higher epoch is needed.
            HelloReply::Stale => {
                self.table.fenced += 1;
                self.lost_session(room, Reason::TransferLost, now, out);
            }
        }
    }

    fn ready(&mut self, room: RoomId, epoch: Epoch, now: Moment, out: &mut Vec<Effect>) {
        let Some(part) = self.table.edit(room) else { return };
        if part.link == Link::Ready {
            self.table.fenced += 1;
            return;
        }
        part.link = Link::Ready;
        part.base.link_broken = false;
        self.window.remove(&room);
        match part.stage {
            Stage::Hello | Stage::PagesAtDecode => self.queue_turn(room, now, out),
            // D may not have heard it on the connection that broke.
            Stage::Computing | Stage::Sending { .. } => out.push(Effect::SayStarted { room, epoch }),
            // There is no connection in Window, and in Turn it is ready already.
            Stage::Window | Stage::Turn => self.table.fenced += 1,
        }
    }

    /// D has no pages yet: the handshake is over, the queue clock runs on, the place in the window goes to the next room.
    fn wait(&mut self, room: RoomId, now: Moment) {
        let Some(part) = self.table.edit(room) else { return };
        if part.link == Link::Ready {
            self.table.fenced += 1;
            return;
        }
        if !planted::queue_charged_to_handshake() {
            part.link = Link::Waiting;
        }
        part.base.link_broken = false;
        if !part.is_started() {
            part.enter(Stage::PagesAtDecode, now);
        }
        self.window.remove(&room);
    }

    pub(super) fn peer_committed(&mut self, room: RoomId, epoch: Epoch, now: Moment, out: &mut Vec<Effect>) {
        if self.current(room, epoch).is_some() {
            self.end(room, PartEnd::HandedOver, Ending::Now, now, out);
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
        if self.current(room, epoch).is_some() {
            self.end(room, PartEnd::Failed(reason), Ending::Relayed(evidence), now, out);
        }
    }

    /// The connection broke. One that could not be made at all is a signal: nobody listens at D's address any more.
    pub(super) fn broken(
        &mut self,
        room: RoomId,
        epoch: Epoch,
        unacked: bool,
        refused: bool,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let in_grace = self.table.in_grace();
        let Some(part) = self.current(room, epoch) else { return };
        if in_grace {
            part.held = Some(HeldBreak { epoch, unacked });
            return;
        }
        part.base.link_broken = true;
        part.base.unacked |= unacked;
        if refused {
            part.link = Link::Down;
            let how = Ending::Waited(Owes::Decode, part.base.phase_since);
            self.end(room, PartEnd::Failed(Reason::DecodeLost), how, now, out);
        } else {
            self.lost_session(room, Reason::TransferLost, now, out);
        }
    }

    /// Connections that broke while the node was stopped are tried again; with no epoch left nobody is accused.
    pub(super) fn judge_held_breaks(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let held: Vec<(RoomId, HeldBreak)> = self
            .table
            .live
            .iter()
            .filter_map(|(room, part)| part.held.map(|held| (*room, held)))
            .collect();
        for (room, held) in held {
            let Some(part) = self.table.edit(room) else { continue };
            part.held = None;
            if part.base.epoch != held.epoch {
                continue;
            }
            part.base.link_broken = true;
            part.base.unacked |= held.unacked;
            self.lost_session(room, Reason::SelfPaused, now, out);
        }
    }

    /// Only the session ended: the next epoch begins under the timers already armed, while epochs are left. Those spent
    /// while Queued do not count. Without any left the part ends for `reason`. The old session's sender is destroyed: its
    /// permit must come back.
    fn lost_session(&mut self, room: RoomId, reason: Reason, now: Moment, out: &mut Vec<Effect>) {
        let most = self.table.config.settings.max_epochs;
        let Some(part) = self.table.edit(room) else { return };
        if part.base.sessions.contains(&part.base.epoch) {
            out.push(Effect::KillSession {
                room,
                epoch: part.base.epoch,
            });
        }
        part.link = Link::Down;
        part.failures = part.failures.saturating_add(1);
        part.spent += u32::from(part.base.phase != Phase::Queued);
        let (seq, spent, started) = (part.base.seq, part.spent, part.is_started());
        if spent >= most {
            self.end(room, PartEnd::Failed(reason), Ending::Now, now, out);
        } else if started {
            // It needs no place in the hello window: other timers of this room run, and bound the handshake as well.
            self.connect(room, now, out);
        } else {
            part.enter(Stage::Window, now);
            self.window.remove(&room);
            self.turn_queue.remove(&(seq, room));
            self.queue_hello(room);
        }
    }

    // === the engine ===

    pub(super) fn sample(&mut self, room: RoomId, counters: Counters, unacked: bool, now: Moment) {
        let Some(part) = self.table.edit(room) else {
            self.table.fenced += 1;
            return;
        };
        part.base.unacked = unacked;
        let computed = part.sample(counters, now);
        self.rate.computed(computed);
    }

    pub(super) fn sealed(&mut self, room: RoomId, bytes: u64, now: Moment, out: &mut Vec<Effect>) {
        self.table.all_sealed(room);
        if !self.table.engine_back(room, out) {
            return;
        }
        let page_tokens = self.table.config.page_tokens;
        if let Some(part) = self.table.edit(room) {
            // A short prompt is over before anybody has looked.
            let computed = part.sealed(bytes, page_tokens, now);
            self.rate.computed(computed);
        }
    }

    pub(super) fn kept(&mut self, room: RoomId, read_within: Millis, now: Moment, out: &mut Vec<Effect>) {
        self.table.kept_in_vain(room, out);
        if !self.table.engine_back(room, out) {
            return;
        }
        if let Some(part) = self.table.edit(room) {
            part.kept(read_within, now);
        }
    }

    /// Rooms that had begun with the former engine are over; those that wait for a turn get it from the new one.
    pub(super) fn engine_restarted(&mut self, now: Moment, out: &mut Vec<Effect>) {
        for room in self.table.engine_reborn(now, out) {
            let how = Ending::Waited(Owes::Prefill, now);
            self.end(room, PartEnd::Failed(Reason::EngineRestarted), how, now, out);
        }
        self.rate.restart();
    }

    /// The engine's job is over without a manifest.
    pub(super) fn engine_gave_up(&mut self, room: RoomId, reason: Reason, now: Moment, out: &mut Vec<Effect>) {
        if self.table.engine_back(room, out) {
            self.end(
                room,
                PartEnd::Failed(reason),
                Ending::Waited(Owes::Prefill, now),
                now,
                out,
            );
        }
    }
}
