//! How often a permanent child may be restarted. A value, so that it can be tested without actors.

use std::collections::VecDeque;

use innkeeper_room::{Millis, Moment};

/// At most `max` restarts within any `window`.
#[derive(Clone, Debug)]
pub struct RestartBudget {
    max: usize,
    window: Millis,
    spent: VecDeque<Moment>,
}

impl RestartBudget {
    /// A full budget.
    #[must_use]
    pub const fn new(max: usize, window: Millis) -> Self {
        Self {
            max,
            window,
            spent: VecDeque::new(),
        }
    }

    /// Takes one restart; whether there was one left.
    #[must_use]
    pub fn take(&mut self, now: Moment) -> bool {
        while self.spent.front().is_some_and(|at| now.since(*at) >= self.window) {
            self.spent.pop_front();
        }
        if self.spent.len() >= self.max {
            return false;
        }
        self.spent.push_back(now);
        true
    }

    /// The pause before the next restart: 50 ms doubled for each restart still counted, at most 2 s.
    #[must_use]
    pub fn backoff(&self) -> Millis {
        Millis((50 << self.spent.len().saturating_sub(1).min(6)).min(2000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spent_budget_refills_with_time() {
        let mut budget = RestartBudget::new(2, Millis(1000));
        assert!(budget.take(Moment(0)));
        assert!(budget.take(Moment(500)));
        assert!(!budget.take(Moment(999)));
        assert!(budget.take(Moment(1000)));
        assert!(!budget.take(Moment(1001)));
        assert!(budget.backoff() > Millis(0));
    }
}
