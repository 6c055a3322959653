//! Finding out that this node was itself stopped (a signal, a frozen VM, a machine that slept): its clock is late.
//! A node that was stopped accuses nobody, because its timers ran out while it could not read its messages.

use crate::planted;
use crate::settings::Settings;
use crate::time::{Millis, Moment};

/// What one observation of the clock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pause {
    /// No stop: timers count.
    Running,
    /// The node was stopped from `since` on. Until `until` only messages are applied: timers, broken connections and ended
    /// streams do not count. `fresh` on the observation that found it.
    Paused {
        /// The last observation before the stop.
        since: Moment,
        /// When what is overdue or cut off will be judged.
        until: Moment,
        /// Whether this observation found the stop.
        fresh: bool,
    },
    /// The grace is over, told exactly once: now end what is overdue or cut off as `SelfPaused`.
    Resumed {
        /// The last observation before the stop.
        since: Moment,
    },
}

/// Compares each look at the clock with the one before. Hand it every event: what is late is then the node itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PauseDetector {
    limit: Millis,
    grace: Millis,
    last: Option<Moment>,
    paused: Option<(Moment, Moment)>,
}

impl PauseDetector {
    /// A detector that takes two observations more than `limit` apart for a stop: the longest healthy time between two
    /// events (a report period) plus what the clock may be late. The grace is 250 ms.
    #[must_use]
    pub const fn new(limit: Millis) -> Self {
        Self {
            limit,
            grace: Millis(250),
            last: None,
            paused: None,
        }
    }

    /// Changes how long only messages are applied after a stop.
    #[must_use]
    pub const fn with_grace(mut self, grace: Millis) -> Self {
        self.grace = grace;
        self
    }

    /// The protocol's detector: an event is due every report period, and the clock may be late by TTL/4.
    #[must_use]
    pub fn for_settings(settings: &Settings) -> Self {
        Self::new(settings.report_period + settings.progress_ttl.scale(1, 4)).with_grace(settings.grace)
    }

    /// Looks at the clock. A stop within the grace of another one prolongs the grace.
    pub fn observe(&mut self, now: Moment) -> Pause {
        let before = self.last.unwrap_or(now);
        self.last = Some(now.max(before));
        if now.since(before) > self.limit && !planted::pause_unnoticed() {
            let since = self.paused.map_or(before, |(since, _)| since);
            let until = now + self.grace;
            self.paused = Some((since, until));
            return Pause::Paused {
                since,
                until,
                fresh: true,
            };
        }
        match self.paused {
            None => Pause::Running,
            Some((since, until)) if now < until => Pause::Paused {
                since,
                until,
                fresh: false,
            },
            Some((since, _)) => {
                self.paused = None;
                Pause::Resumed { since }
            }
        }
    }

    /// When the grace is over and a look at the clock is needed; `None` without a stop.
    #[must_use]
    pub fn until(&self) -> Option<Moment> {
        self.paused.map(|(_, until)| until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_clock_is_a_stop_and_is_judged_once_after_the_grace() {
        let mut detector = PauseDetector::new(Millis(100));
        assert_eq!(detector.observe(Moment(0)), Pause::Running);
        assert_eq!(detector.observe(Moment(100)), Pause::Running);
        let found = Pause::Paused {
            since: Moment(100),
            until: Moment(1250),
            fresh: true,
        };
        assert_eq!(detector.observe(Moment(1000)), found);
        assert_eq!(detector.until(), Some(Moment(1250)));
        let held = Pause::Paused {
            since: Moment(100),
            until: Moment(1250),
            fresh: false,
        };
        for at in [1090, 1180, 1249] {
            assert_eq!(detector.observe(Moment(at)), held);
        }
        assert_eq!(detector.observe(Moment(1250)), Pause::Resumed { since: Moment(100) });
        assert_eq!(detector.observe(Moment(1251)), Pause::Running);
    }

    #[test]
    fn a_second_stop_within_the_grace_prolongs_it() {
        let mut detector = PauseDetector::new(Millis(100));
        let _ = detector.observe(Moment(0));
        let _ = detector.observe(Moment(500));
        let again = Pause::Paused {
            since: Moment(0),
            until: Moment(1150),
            fresh: true,
        };
        assert_eq!(detector.observe(Moment(900)), again);
    }
}
