//! What R knows of a room's lease. Asked for once the room has lived for a moment: a room that is over by then costs the store
//! nothing. Renewed because of progress, at most once per third of its TTL, with a trailing renewal so that progress between
//! two renewals counts.

use crate::time::{Millis, Moment};

/// Where the lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseState {
    /// The room is too young: asked for then.
    Early(Moment),
    /// Asked for; the room runs unleased until the store confirms.
    Asked,
    /// Confirmed, and it has not lapsed.
    Leased,
    /// Never granted in time, or lapsed: never leased again.
    Unleased,
}

/// A room's lease, as R knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    state: LeaseState,
    /// How long the store has to answer the grant.
    ttl: Millis,
    /// The store has not answered the grant.
    pending: bool,
    /// It said yes: there is something to revoke.
    granted: bool,
    /// The grant counts until here; a later yes is left to its TTL.
    grant_due: Moment,
    /// When R sent the last renewal that was confirmed (the grant is one).
    confirmed: Moment,
    /// When R sent the last renewal.
    sent: Moment,
    /// When progress was last reported.
    reported: Option<Moment>,
    /// Progress was reported since the last renewal was sent.
    owes_renewal: bool,
    /// A renewal was answered `not found`: judged then.
    not_found_due: Option<Moment>,
}

/// What the lease's own timer wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseDue {
    /// Nothing yet.
    Nothing,
    /// To ask the store for it.
    Grant,
    /// The trailing renewal.
    Renew,
    /// The watch had its time to show a DELETE.
    NotFound,
}

impl Lease {
    /// The lease of a room that begins now, to be asked for when it has lived for `after`.
    #[must_use]
    pub fn new(now: Moment, after: Millis, ttl: Millis) -> Self {
        Self {
            state: LeaseState::Early(now + after),
            ttl,
            pending: false,
            granted: false,
            grant_due: now + after + ttl,
            confirmed: now,
            sent: now,
            reported: None,
            owes_renewal: false,
            not_found_due: None,
        }
    }

    /// Where it stands.
    #[must_use]
    pub const fn state(&self) -> LeaseState {
        self.state
    }

    /// Whether the store confirmed it and it has not lapsed.
    #[must_use]
    pub const fn is_leased(&self) -> bool {
        matches!(self.state, LeaseState::Leased)
    }

    /// Whether the room should have it and runs without it.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        matches!(self.state, LeaseState::Asked | LeaseState::Unleased)
    }

    /// Whether the store still owes the answer to the grant.
    #[must_use]
    pub const fn is_pending(&self) -> bool {
        self.pending
    }

    /// Whether the end of the room revokes it: it was granted in time, and the store was not seen to have lost it.
    #[must_use]
    pub const fn to_revoke(&self) -> bool {
        self.granted && self.is_leased()
    }

    /// The store said yes to the grant that was sent at `sent`.
    pub fn granted(&mut self, sent: Moment, now: Moment) {
        if !self.pending {
            return;
        }
        self.pending = false;
        if self.state == LeaseState::Asked && now <= self.grant_due {
            self.state = LeaseState::Leased;
            self.granted = true;
            self.confirmed = sent;
            self.sent = sent;
        } else {
            self.state = LeaseState::Unleased;
        }
    }

    /// The store said no, or nothing in time.
    pub fn refused(&mut self) {
        if self.pending {
            self.pending = false;
            self.state = LeaseState::Unleased;
        }
    }

    /// The room goes on without it, and is never leased again.
    pub fn lapse(&mut self) {
        self.state = LeaseState::Unleased;
        self.not_found_due = None;
        self.owes_renewal = false;
    }

    /// Progress was reported; whether to renew now.
    #[must_use]
    pub fn progress(&mut self, now: Moment, period: Millis) -> bool {
        self.reported = Some(now);
        self.owes_renewal = true;
        self.renew_if_due(now, period)
    }

    /// A renewal that was sent at `sent` was confirmed.
    pub fn renewed(&mut self, sent: Moment) {
        self.confirmed = self.confirmed.max(sent);
        self.not_found_due = None;
    }

    /// A renewal was answered `not found`: the watch gets this long to show the DELETE.
    pub fn not_found(&mut self, due: Moment) {
        if self.is_leased() && self.not_found_due.is_none() {
            self.not_found_due = Some(due);
        }
    }

    /// Whether progress was reported since the last confirmed renewal was sent.
    #[must_use]
    pub fn reported_since_confirmed(&self) -> bool {
        self.reported.is_some_and(|reported| reported > self.confirmed)
    }

    /// How long ago R sent the last renewal that was confirmed.
    #[must_use]
    pub const fn renewed_ago(&self, now: Moment) -> Millis {
        now.since(self.confirmed)
    }

    /// When the lease's own timer is due.
    #[must_use]
    pub fn next(&self, period: Millis) -> Option<Moment> {
        match self.state {
            LeaseState::Early(due) => Some(due),
            LeaseState::Asked | LeaseState::Unleased => None,
            LeaseState::Leased => {
                let trailing = self.owes_renewal.then(|| self.sent + period);
                [trailing, self.not_found_due].into_iter().flatten().min()
            }
        }
    }

    /// What the lease's own timer wants now.
    #[must_use]
    pub fn due(&mut self, now: Moment, period: Millis) -> LeaseDue {
        if let LeaseState::Early(due) = self.state
            && due <= now
        {
            self.ask(now);
            return LeaseDue::Grant;
        }
        if self.not_found_due.is_some_and(|due| due <= now) {
            self.not_found_due = None;
            return LeaseDue::NotFound;
        }
        if self.renew_if_due(now, period) {
            LeaseDue::Renew
        } else {
            LeaseDue::Nothing
        }
    }

    fn ask(&mut self, now: Moment) {
        self.state = LeaseState::Asked;
        self.pending = true;
        self.grant_due = now + self.ttl;
        self.confirmed = now;
        self.sent = now;
    }

    fn renew_if_due(&mut self, now: Moment, period: Millis) -> bool {
        let renew = self.is_leased() && self.owes_renewal && now >= self.sent + period;
        if renew {
            self.sent = now;
            self.owes_renewal = false;
        }
        renew
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Millis = Millis(100);

    fn asked() -> Lease {
        let mut lease = Lease::new(Moment(0), Millis(0), Millis(300));
        assert_eq!(lease.due(Moment(0), PERIOD), LeaseDue::Grant);
        lease
    }

    fn leased() -> Lease {
        let mut lease = asked();
        lease.granted(Moment(0), Moment(5));
        lease
    }

    #[test]
    fn renews_at_most_once_per_period_and_trails() {
        let mut lease = leased();
        assert!(!lease.progress(Moment(50), PERIOD), "too early");
        assert_eq!(lease.next(PERIOD), Some(Moment(100)));
        assert_eq!(lease.due(Moment(100), PERIOD), LeaseDue::Renew);
        assert_eq!(lease.next(PERIOD), None, "nothing moved since");
        assert_eq!(lease.due(Moment(500), PERIOD), LeaseDue::Nothing);
        assert!(lease.progress(Moment(600), PERIOD));
    }

    #[test]
    fn it_is_asked_for_once_the_room_has_lived_for_a_moment() {
        let mut lease = Lease::new(Moment(10), Millis(40), Millis(300));
        assert!(!lease.progress(Moment(20), PERIOD), "nothing to renew");
        assert_eq!(lease.next(PERIOD), Some(Moment(50)));
        assert_eq!(lease.due(Moment(49), PERIOD), LeaseDue::Nothing);
        assert!(
            !lease.is_pending() && !lease.to_revoke(),
            "an end before then has nothing to give back"
        );
        assert_eq!(lease.due(Moment(60), PERIOD), LeaseDue::Grant);
        assert_eq!(lease.due(Moment(60), PERIOD), LeaseDue::Nothing, "once");
        assert!(lease.is_pending());
        // The store's time runs from when it was asked.
        lease.granted(Moment(60), Moment(360));
        assert!(lease.is_leased());
        assert_eq!(lease.next(PERIOD), Some(Moment(160)), "the progress before it counts");
    }

    #[test]
    fn a_yes_after_the_deadline_leaves_the_room_unleased() {
        let mut lease = asked();
        lease.granted(Moment(0), Moment(301));
        assert_eq!(lease.state(), LeaseState::Unleased);
        assert!(!lease.to_revoke());
    }

    #[test]
    fn progress_counts_against_the_moment_a_renewal_was_sent() {
        let mut lease = leased();
        assert!(lease.progress(Moment(150), PERIOD));
        assert!(lease.reported_since_confirmed());
        lease.renewed(Moment(150));
        assert!(!lease.reported_since_confirmed());
        assert_eq!(lease.renewed_ago(Moment(200)), Millis(50));
    }
}
