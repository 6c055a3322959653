use crate::evidence::Owes;
use crate::reason::Reason;
use crate::time::{Millis, Moment};

/// What happens when a timer is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TimerKind {
    /// Counters changed and were not reported yet. Ends nothing.
    Report,
    /// The session had its last word and did not give its permit back: destroy it. Ends nothing.
    LastWord,
    /// The part ends.
    End {
        /// The debt.
        reason: Reason,
        /// Whose.
        owes: Owes,
    },
}

/// One armed timer of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Timer {
    pub(crate) at: Moment,
    /// Since when the part waits.
    pub(crate) since: Moment,
    pub(crate) kind: TimerKind,
}

/// The timers of a part, computed from its state whenever they are needed: a timer cannot be forgotten or left behind.
#[derive(Clone, Copy, Debug, Hash, Default)]
pub(crate) struct Timers {
    first: Option<Timer>,
    first_end: Option<Timer>,
}

impl Timers {
    /// Arms one that ends the part `after` since `since`.
    pub(crate) fn end(&mut self, since: Moment, after: Millis, reason: Reason, owes: Owes) {
        self.arm(Timer {
            at: since + after,
            since,
            kind: TimerKind::End { reason, owes },
        });
    }

    /// Arms any. Of two at the same time the one armed first counts.
    pub(crate) fn arm(&mut self, timer: Timer) {
        keep_earlier(&mut self.first, timer);
        if matches!(timer.kind, TimerKind::End { .. }) {
            keep_earlier(&mut self.first_end, timer);
        }
    }

    /// The earliest.
    pub(crate) const fn first(&self) -> Option<Timer> {
        self.first
    }

    /// The earliest that ends the part: what bounds it.
    pub(crate) const fn bound(&self) -> Option<Timer> {
        self.first_end
    }
}

fn keep_earlier(slot: &mut Option<Timer>, timer: Timer) {
    if slot.is_none_or(|old| timer.at < old.at) {
        *slot = Some(timer);
    }
}
