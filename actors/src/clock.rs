//! Where the actors get the time from. One clock per node; no two nodes' times are ever compared.

use innkeeper_room::Moment;

/// A monotonic clock that also runs while the machine sleeps (CLOCK_BOOTTIME in production).
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Moment;
}

/// The tokio clock, which tests can pause.
#[derive(Debug)]
pub struct TokioClock {
    start: tokio::time::Instant,
}

impl TokioClock {
    /// Starts at one hour, so that "an hour ago" can be expressed.
    #[must_use]
    pub fn start() -> Self {
        Self {
            start: tokio::time::Instant::now(),
        }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        Moment(elapsed.saturating_add(3_600_000))
    }
}
