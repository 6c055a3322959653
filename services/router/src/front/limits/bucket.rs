//! A bucket that fills by time: so many a minute, at most a minute's worth at once.

use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
/// Parts of one: the microseconds of a minute.
const ONE: u64 = 60_000_000;

/// What is left of one limit of one tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// What is in it, in parts of which a limit of one gains one in a microsecond: so every gain is exact.
    parts: u64,
    filled: Instant,
}

/// What a tenant is told of one of its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// So many a minute.
    pub(crate) limit: u32,
    /// So many now.
    pub(crate) remaining: u32,
    /// Until it is whole again.
    pub(crate) reset: Duration,
}

impl Bucket {
    /// A full one.
    pub(super) fn full(limit: u32, now: Instant) -> Self {
        Self {
            parts: whole(limit),
            filled: now,
        }
    }

    /// Takes so many, or says in how long they will be there; more than a minute's worth never are.
    pub(super) fn take(&mut self, limit: u32, amount: u64, now: Instant) -> Result<(), Duration> {
        self.fill(limit, now);
        let wanted = amount.saturating_mul(ONE);
        match self.parts.checked_sub(wanted) {
            Some(rest) => {
                self.parts = rest;
                Ok(())
            }
            None => Err(time_for(limit, wanted - self.parts)),
        }
    }

    /// Gives back what was taken for nothing.
    pub(super) fn give_back(&mut self, limit: u32, amount: u64) {
        let more = self.parts.saturating_add(amount.saturating_mul(ONE));
        self.parts = more.min(whole(limit));
    }

    /// What is left of it.
    pub(super) fn left(&mut self, limit: u32, now: Instant) -> Left {
        self.fill(limit, now);
        Left {
            limit,
            remaining: u32::try_from(self.parts / ONE).unwrap_or(u32::MAX),
            reset: time_for(limit, whole(limit) - self.parts),
        }
    }

    /// A limit that was lowered counts from now on.
    fn fill(&mut self, limit: u32, now: Instant) {
        let gap = now.saturating_duration_since(self.filled).min(MINUTE);
        let micros = u64::try_from(gap.as_micros()).unwrap_or(ONE);
        self.filled = now.max(self.filled);
        self.parts = self.parts.saturating_add(micros * u64::from(limit)).min(whole(limit));
    }
}

fn whole(limit: u32) -> u64 {
    u64::from(limit) * ONE
}

/// How long a limit takes for so many parts.
fn time_for(limit: u32, parts: u64) -> Duration {
    Duration::from_micros(parts.div_ceil(u64::from(limit.max(1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_there_at_once_and_comes_back_evenly() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut bucket = Bucket::full(60, start);
        assert_eq!((0..60).filter(|_| bucket.take(60, 1, start).is_ok()).count(), 60);
        assert_eq!(bucket.take(60, 1, start), Err(Duration::from_secs(1)));
        assert_eq!(bucket.take(60, 2, at(500)), Err(Duration::from_millis(1500)));
        assert_eq!(bucket.take(60, 1, at(1000)), Ok(()));
        let left = bucket.left(60, at(31_000));
        assert_eq!(
            (left.limit, left.remaining, left.reset),
            (60, 30, Duration::from_secs(30))
        );
        assert_eq!(
            bucket.left(60, at(10_000_000)).remaining,
            60,
            "never more than a minute"
        );
        assert!(bucket.take(60, 61, at(10_000_000)).is_err(), "it never holds that much");
    }

    #[test]
    fn many_small_gains_are_as_much_as_a_large_one() {
        let start = Instant::now();
        let mut bucket = Bucket::full(1, start);
        assert_eq!(bucket.take(1, 1, start), Ok(()));
        for step in 0..600_000_u64 {
            bucket.left(1, start + Duration::from_micros(step * 97));
        }
        assert_eq!(bucket.take(1, 1, start + Duration::from_secs(60)), Ok(()));
    }

    #[test]
    fn a_limit_that_changes_counts_from_then_on() {
        let start = Instant::now();
        let mut bucket = Bucket::full(100, start);
        assert_eq!(bucket.left(10, start).remaining, 10);
        assert!(bucket.take(10, 11, start).is_err());
        assert_eq!(
            bucket.left(1000, start).remaining,
            10,
            "what was not there does not come at once"
        );
        bucket.give_back(1000, 5);
        assert_eq!(bucket.left(1000, start).remaining, 15);
    }
}
