//! What R does about the leases of its rooms. Their end is evidence, judged by who can vouch for the room.

use super::{Effect, Ledger, Timer};
use crate::evidence::Owes;
use crate::ids::RoomId;
use crate::planted;
use crate::reason::Reason;
use crate::time::Moment;
use crate::vouch::{self, NOT_FOUND_GRACE, Sign, Standing, Vouched};

impl Ledger {
    pub(super) fn lease_granted(&mut self, id: RoomId, sent: Moment) {
        let now = self.now;
        if let Some(room) = self.live_mut(id) {
            room.lease.granted(sent.min(now), now);
        } else if self.late_grants.remove(&id).is_some() && !planted::late_grant_kept() {
            self.dirty.insert(Timer::LateGrant(id));
            self.push(Effect::Revoke { room: id });
        }
    }

    /// No lease, for whatever reason: the room runs unleased. What is not ours is never revoked.
    pub(super) fn lease_failed(&mut self, id: RoomId, _exists: bool) {
        if let Some(room) = self.live_mut(id) {
            room.lease.refused();
        } else if self.late_grants.remove(&id).is_some() {
            self.dirty.insert(Timer::LateGrant(id));
        }
    }

    pub(super) fn lease_renewed(&mut self, id: RoomId, sent: Moment) {
        let now = self.now;
        if let Some(room) = self.live_mut(id) {
            room.lease.renewed(sent.min(now));
        }
    }

    /// Only `not found` means something: the watch then gets its time to show the DELETE. The next progress tries again.
    pub(super) fn renew_failed(&mut self, id: RoomId, not_found: bool) {
        let due = self.now + NOT_FOUND_GRACE;
        if not_found && let Some(room) = self.live_mut(id) {
            room.lease.not_found(due);
        }
    }

    pub(super) fn door_gone(&mut self, id: RoomId) {
        self.lease_ended(id, Sign::Deleted);
    }

    pub(super) fn door_absent(&mut self, id: RoomId) {
        self.lease_ended(id, Sign::Absent);
    }

    /// What a revocation by hand does, also for a room that has no lease: one that it has is given back with the end.
    pub(super) fn evict(&mut self, id: RoomId) {
        self.fail(id, Reason::LeaseRevoked, None, None);
    }

    pub(super) fn lease_ended(&mut self, id: RoomId, sign: Sign) {
        let (now, lease_ttl) = (self.now, self.settings.lease_ttl);
        let Some(room) = self.live_mut(id) else { return };
        let standing = Standing {
            leased: room.lease.is_leased(),
            phase: room.phase,
            owes: room.owes(),
            reported: room.lease.reported_since_confirmed(),
            renewed: room.lease.renewed_ago(now),
            lease_ttl,
        };
        match vouch::judge(&standing, sign) {
            Vouched::Ignore => {}
            Vouched::Lapse => room.lease.lapse(),
            // R did not renew because it was itself stopped: nothing follows for anybody else.
            Vouched::Expired(_) if room.lived_through_stop => room.lease.lapse(),
            Vouched::Expired(Owes::Nobody | Owes::Prefill | Owes::Decode | Owes::Router) => {
                room.lease.lapse();
                self.fail(id, Reason::LeaseExpired, None, None);
            }
            Vouched::Revoked => {
                room.lease.lapse();
                self.fail(id, Reason::LeaseRevoked, None, None);
            }
        }
    }

    /// The room is over: revokes its lease, or waits for the answer to its grant, to revoke it then. Once, either way.
    pub(super) fn give_back_lease(&mut self, id: RoomId) {
        // The store answers a grant within the lease TTL or never; twice that is enough to stop waiting.
        let due = self.now + self.settings.lease_ttl.scale(2, 1);
        let Some(room) = self.rooms.get(&id) else { return };
        if room.lease.to_revoke() {
            self.push(Effect::Revoke { room: id });
        } else if room.lease.is_pending() && self.late_grants.len() < self.settings.remembered_rooms as usize {
            // With more than that open the store is far behind: the TTL ends those leases.
            self.late_grants.insert(id, due);
            self.dirty.insert(Timer::LateGrant(id));
        }
    }
}
