//! Who can vouch for a room whose lease ended: how R judges that evidence. The end of a lease alone proves nothing,
//! because etcd may be away, empty or cut off while the room is well.

use crate::evidence::Owes;
use crate::phase::Phase;
use crate::planted;
use crate::time::Millis;

/// How long R waits after a renewal was answered `not found`, before it judges: the watch may still show the DELETE,
/// which says more.
pub const NOT_FOUND_GRACE: Millis = Millis(1000);

/// What R knows of the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    /// The lease was granted, and it has not lapsed since. Without it the room runs `unleased`.
    pub leased: bool,
    /// The room's phase.
    pub phase: Phase,
    /// Who owes the next step.
    pub owes: Owes,
    /// Progress was reported since the last confirmed renewal was sent (the grant counts as a renewal).
    pub reported: bool,
    /// How long ago R *sent* the last renewal that was confirmed.
    pub renewed: Millis,
    /// The lease's TTL.
    pub lease_ttl: Millis,
}

/// How R learned that the lease is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sign {
    /// A DELETE of R's own door, on a watch without a gap since the door was seen.
    Deleted,
    /// The door is absent from a list after a gap.
    Absent,
    /// A renewal was answered `not found`, and [`NOT_FOUND_GRACE`] brought no DELETE.
    NotFound,
}

/// What the end of a lease means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vouched {
    /// The room is over or unleased already: nothing.
    Ignore,
    /// The room goes on `unleased`, counted, and is never leased again.
    Lapse,
    /// Nothing moved for a whole lease: `LeaseExpired`, and this one owed.
    Expired(Owes),
    /// Somebody revoked it on purpose: `LeaseRevoked`.
    Revoked,
}

/// Judges the end of a room's lease.
#[must_use]
pub fn judge(standing: &Standing, sign: Sign) -> Vouched {
    if standing.phase.is_terminal() || !standing.leased {
        return Vouched::Ignore;
    }
    match sign {
        Sign::Absent if planted::outage_evicts() => Vouched::Expired(standing.owes),
        Sign::Absent | Sign::NotFound => Vouched::Lapse,
        Sign::Deleted => deleted(standing),
    }
}

fn deleted(standing: &Standing) -> Vouched {
    // It cannot have expired, whoever owes and whatever was reported: the TTL began no earlier than R sent the renewal.
    if standing.renewed < standing.lease_ttl {
        return Vouched::Revoked;
    }
    if standing.phase == Phase::Queued || standing.owes == Owes::Nobody || standing.reported {
        return Vouched::Lapse;
    }
    Vouched::Expired(standing.owes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Millis = Millis(7000);

    /// A decode that owes, silent for a whole lease.
    const STUCK: Standing = Standing {
        leased: true,
        phase: Phase::Decoding,
        owes: Owes::Decode,
        reported: false,
        renewed: TTL,
        lease_ttl: TTL,
    };

    #[test]
    fn a_lease_that_ran_out_in_silence_did_its_work() {
        assert_eq!(judge(&STUCK, Sign::Deleted), Vouched::Expired(Owes::Decode));
        let prefill = Standing {
            phase: Phase::WaitingForInput,
            owes: Owes::Prefill,
            ..STUCK
        };
        assert_eq!(judge(&prefill, Sign::Deleted), Vouched::Expired(Owes::Prefill));
    }

    #[test]
    fn progress_without_a_confirmed_renewal_is_a_lapse() {
        assert_eq!(
            judge(
                &Standing {
                    reported: true,
                    ..STUCK
                },
                Sign::Deleted
            ),
            Vouched::Lapse
        );
    }

    #[test]
    fn a_delete_younger_than_the_ttl_is_a_revoke() {
        for reported in [false, true] {
            let young = Standing {
                renewed: Millis(6999),
                reported,
                ..STUCK
            };
            assert_eq!(judge(&young, Sign::Deleted), Vouched::Revoked);
        }
    }

    #[test]
    fn an_operator_may_evict_a_room_that_waits() {
        let queued = Standing {
            phase: Phase::Queued,
            owes: Owes::Nobody,
            renewed: Millis(0),
            ..STUCK
        };
        assert_eq!(judge(&queued, Sign::Deleted), Vouched::Revoked);
    }

    #[test]
    fn nobody_owes_in_a_queue() {
        for owes in [Owes::Nobody, Owes::Prefill] {
            let queued = Standing {
                phase: Phase::Queued,
                owes,
                ..STUCK
            };
            assert_eq!(judge(&queued, Sign::Deleted), Vouched::Lapse);
        }
        assert_eq!(
            judge(
                &Standing {
                    owes: Owes::Nobody,
                    ..STUCK
                },
                Sign::Deleted
            ),
            Vouched::Lapse
        );
    }

    #[test]
    fn absence_and_not_found_never_end_a_room() {
        for phase in Phase::ALL {
            for reported in [false, true] {
                for renewed in [Millis(0), TTL, Millis(100_000)] {
                    for sign in [Sign::Absent, Sign::NotFound] {
                        let verdict = judge(
                            &Standing {
                                phase,
                                reported,
                                renewed,
                                ..STUCK
                            },
                            sign,
                        );
                        assert!(
                            matches!(verdict, Vouched::Lapse | Vouched::Ignore),
                            "{phase} {verdict:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn an_unleased_or_ended_room_ignores_all() {
        for sign in [Sign::Deleted, Sign::Absent, Sign::NotFound] {
            assert_eq!(
                judge(
                    &Standing {
                        leased: false,
                        renewed: Millis(0),
                        ..STUCK
                    },
                    sign
                ),
                Vouched::Ignore
            );
            for phase in [Phase::Done, Phase::Failed] {
                assert_eq!(judge(&Standing { phase, ..STUCK }, sign), Vouched::Ignore);
            }
        }
    }
}
