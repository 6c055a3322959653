//! The gate of a room: the commit, the tokens that pass, and what counts as progress.

use super::{Effect, Ledger, Side};
use crate::ids::RoomId;
use crate::message::ToWorker;
use crate::phase::Phase;
use crate::reason::Reason;
use crate::room::TokensHeard;

impl Ledger {
    /// R knows that D has committed, by whatever word.
    pub(super) fn committed(&mut self, id: RoomId) {
        let (now, settings) = (self.now, self.settings.clone());
        let Some(room) = self.live_mut(id) else { return };
        if room.hear_commit(now, &settings) {
            self.progress(id);
        }
        self.tell_commit(id);
    }

    /// P's part ends by D's word or by R's, whichever it hears first.
    pub(super) fn tell_commit(&mut self, id: RoomId) {
        let Some(room) = self.live_mut(id) else { return };
        let tell = !room.told_commit && room.prefill.stream && room.prefill.ended.is_none();
        if tell {
            room.told_commit = true;
            self.push(Effect::Tell {
                room: id,
                side: Side::Prefill,
                message: ToWorker::Committed,
            });
        }
    }

    /// I10: tokens of the current room at exactly the next position pass; nothing else ever does.
    pub(super) fn tokens(&mut self, id: RoomId, side: Side, position: u32, count: u32) {
        let (now, settings) = (self.now, self.settings.clone());
        if side == Side::Prefill || count == 0 {
            // Only D speaks.
            self.fenced += 1;
            return;
        }
        self.committed(id);
        let Some(room) = self.live_mut(id) else { return };
        let (key, heard) = (room.spec.request, room.hear_tokens(position, count, now, &settings));
        let (taken, full) = (room.taken, room.taken >= room.spec.max_tokens);
        match heard {
            TokensHeard::Gap => self.fail(id, Reason::ProtocolError, Some(Side::Decode), None),
            TokensHeard::Duplicate => {
                self.fenced += 1;
                self.push(Effect::Tell {
                    room: id,
                    side,
                    message: ToWorker::Taken(taken),
                });
            }
            TokensHeard::Pass { skip, count } => {
                if let Some(request) = self.request_mut(key) {
                    request.passed = request.passed.saturating_add(count);
                }
                self.push(Effect::Pass {
                    request: key,
                    room: id,
                    skip,
                    count,
                });
                self.push(Effect::Tell {
                    room: id,
                    side,
                    message: ToWorker::Taken(taken),
                });
                self.progress(id);
                if full {
                    self.done(id);
                }
            }
        }
    }

    /// Something moved: the queue clock follows the phase, and the lease is renewed because of it.
    pub(super) fn progress(&mut self, id: RoomId) {
        let (now, period) = (self.now, self.settings.lease_ttl.scale(1, 3));
        let Some(room) = self.live_mut(id) else { return };
        let (key, queued) = (room.spec.request, room.phase == Phase::Queued);
        let renew = room.lease.progress(now, period);
        if renew {
            self.push(Effect::Renew { room: id });
        }
        if let Some(request) = self.request_mut(key) {
            if queued {
                request.queue.run(now);
            } else {
                request.queue.stop(now);
            }
        }
    }
}
