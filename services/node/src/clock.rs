//! The node's clock. CLOCK_BOOTTIME in production: the usual monotonic clock stands still while a machine sleeps, and a
//! node that slept must see that it did.

use innkeeper_room::Moment;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// A source of [`Moment`]s. Copies share one origin: all parts of a process use copies of one clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Source);

#[derive(Clone, Copy, Debug)]
enum Source {
    Boot,
    Runtime(Instant),
}

impl Clock {
    /// The time since the machine started, sleep included.
    #[must_use]
    pub const fn boot() -> Self {
        Self(Source::Boot)
    }

    /// Tokio's time since now, which tests can pause and advance. It begins at one hour, so that nothing underflows.
    #[must_use]
    pub fn runtime() -> Self {
        Self(Source::Runtime(Instant::now()))
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Moment {
        match self.0 {
            Source::Boot => {
                let time = clock_gettime(ClockId::Boottime);
                let secs = u64::try_from(time.tv_sec).unwrap_or(0);
                let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
                Moment(secs.saturating_mul(1000).saturating_add(nanos / 1_000_000))
            }
            Source::Runtime(origin) => {
                Moment(3_600_000 + u64::try_from(origin.elapsed().as_millis()).unwrap_or(u64::MAX / 2))
            }
        }
    }
}

impl innkeeper_actors::clock::Clock for Clock {
    fn now(&self) -> Moment {
        Self::now(self)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use innkeeper_room::Millis;

    use super::*;

    #[test]
    fn the_boot_clock_goes_on() {
        let clock = Clock::boot();
        let before = clock.now();
        std::thread::sleep(Duration::from_millis(5));
        assert!(clock.now().since(before) >= Millis(4));
    }

    #[tokio::test(start_paused = true)]
    async fn the_runtime_clock_follows_a_paused_runtime() {
        let clock = Clock::runtime();
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(clock.now().since(before), Millis(7000));
    }
}
