//! The rate cap: one bucket for all sessions of a backend, first come first served.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Hands out times at which bytes may be sent. A killed session's reservation is lost: that only sends less.
#[derive(Debug)]
pub(crate) struct Bucket {
    per_second: u64,
    free_at: Mutex<Option<Instant>>,
}

/// What may be sent at once after an idle time.
const BURST: Duration = Duration::from_millis(50);

impl Bucket {
    pub(crate) fn new(per_second: u64) -> Self {
        Self {
            per_second: per_second.max(1),
            free_at: Mutex::new(None),
        }
    }

    /// Reserves `bytes`; they may be sent at the time returned.
    pub(crate) fn reserve(&self, bytes: usize, now: Instant) -> Instant {
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = now.checked_sub(BURST).unwrap_or(now);
        let start = free_at.map_or(oldest, |at| at.max(oldest));
        let cost = Duration::from_nanos((bytes as u64).saturating_mul(1_000_000_000) / self.per_second);
        *free_at = Some(start + cost);
        start.max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_and_an_idle_time_saves_little() {
        let bucket = Bucket::new(200_000);
        let now = Instant::now() + Duration::from_secs(10);
        let mut last = now;
        for _ in 0..20 {
            let at = bucket.reserve(10_000, now);
            assert!(at >= last && at.duration_since(last) <= Duration::from_millis(50));
            last = at;
        }
        // 20 frames of 10 kB at 200 kB/s: the last starts 19 × 50 ms after the first, less the burst.
        assert_eq!(last.duration_since(now), Duration::from_millis(900));
        let later = now + Duration::from_secs(60);
        assert_eq!(bucket.reserve(10_000, later), later);
    }
}
