//! How long an engine is waited for, all from one knob.

use std::time::Duration;

/// The deadlines of everything that is asked of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// To connect. The engine is next door.
    pub connect: Duration,
    /// A look at its gauges.
    pub look: Duration,
    /// A canary, a release, an abort.
    pub probe: Duration,
    /// Between two aborts of a leg that has not ended: an abort that comes before its request is lost.
    pub abort_again: Duration,
    /// For an aborted leg to end. Then its connection is closed, and what it holds is the fence's to get back.
    pub ending: Duration,
    /// For prefill's leg to end by itself, once decode has committed.
    pub after_commit: Duration,
}

impl Times {
    /// All of them from a progress TTL.
    #[must_use]
    pub fn from_ttl(ttl: Duration) -> Self {
        Self {
            connect: ttl * 2 / 5,
            look: ttl / 4,
            probe: ttl / 2,
            abort_again: (ttl / 50).max(Duration::from_millis(20)),
            ending: ttl * 2,
            after_commit: ttl,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_ttl_aborts_ten_times_a_second() {
        let times = Times::from_ttl(Duration::from_secs(5));
        assert_eq!(times.abort_again, Duration::from_millis(100));
        assert_eq!(times.connect, Duration::from_secs(2));
        assert_eq!(times.probe, Duration::from_millis(2500));
        assert_eq!(times.ending, Duration::from_secs(10));
        assert_eq!(times.after_commit, Duration::from_secs(5));
    }
}
