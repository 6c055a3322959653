//! The last fence: an engine's process is ended so that pages come back. Who, when, and how often at most.
//!
//! Pages of a read that was given up stay with decode's engine until prefill's runs or dies (over TCP), so it is the
//! *accused* whose process must end. Each worker restarts its own engine and no other. Decode's worker therefore gives the
//! accused prefill's worker time to do it, and ends its own engine only if that did not help. Both at once would be worse
//! than either.

use std::collections::VecDeque;

pub use innkeeper_room::ledger::Accused;
use innkeeper_room::{Millis, Moment};

/// Why an engine is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// It owes steps and makes none.
    Wedged,
    /// It holds pages of rooms that are over.
    Pinned,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Nothing; look again then. `None`: nothing will ever be due by itself.
    Wait(Option<Moment>),
    /// End the process and start another.
    Restart(Cause),
    /// It was restarted too often: take no more rooms and call somebody.
    GiveUp,
}

/// How often an engine may be restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// This often.
    pub restarts: usize,
    /// In this time.
    pub within: Millis,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            restarts: 3,
            within: Millis(600_000),
        }
    }
}

/// The fence of one engine.
#[derive(Clone, Debug)]
pub struct Fence {
    ttl: Millis,
    budget: Budget,
    taken: VecDeque<Moment>,
    wedged_at: Option<Moment>,
    /// The oldest pages in quarantine, and who is accused of them.
    pinned: Option<(Moment, Accused)>,
    /// A restart is under way since.
    restarting: Option<Moment>,
    gave_up: bool,
}

/// A restart that brings nothing in this many TTL has failed: the next may be tried.
const STARTS_IN: u64 = 24;

impl Fence {
    /// With this progress TTL.
    #[must_use]
    pub const fn new(ttl: Millis, budget: Budget) -> Self {
        Self {
            ttl,
            budget,
            taken: VecDeque::new(),
            wedged_at: None,
            pinned: None,
            restarting: None,
            gave_up: false,
        }
    }

    /// The ledger's watch calls the engine wedged, or no longer.
    pub fn wedged(&mut self, wedged: bool, now: Moment) {
        self.wedged_at = wedged.then(|| self.wedged_at.unwrap_or(now));
    }

    /// Pages of rooms that are over are still out: since when the oldest, and whom its room accused.
    pub const fn pinned(&mut self, oldest: Option<(Moment, Accused)>) {
        self.pinned = oldest;
    }

    /// The process is another one, whoever started it.
    pub const fn restarted(&mut self) {
        self.wedged_at = None;
        self.pinned = None;
        self.restarting = None;
    }

    /// Restarts that count against the budget now.
    #[must_use]
    pub fn spent(&self, now: Moment) -> usize {
        self.taken
            .iter()
            .filter(|at| now.since(**at) < self.budget.within)
            .count()
    }

    /// What is to be done now. An order to restart is given once: it counts as taken.
    pub fn decide(&mut self, now: Moment) -> Order {
        if let Some(since) = self.restarting {
            let over = since + self.ttl.scale(STARTS_IN, 1);
            if now < over {
                return Order::Wait(Some(over));
            }
            self.restarting = None;
        }
        let Some((due, cause)) = self.due() else {
            return Order::Wait(None);
        };
        if now < due {
            return Order::Wait(Some(due));
        }
        while self
            .taken
            .front()
            .is_some_and(|at| now.since(*at) >= self.budget.within)
        {
            self.taken.pop_front();
        }
        if self.taken.len() >= self.budget.restarts {
            self.gave_up = true;
            return Order::GiveUp;
        }
        self.gave_up = false;
        self.taken.push_back(now);
        self.restarting = Some(now);
        Order::Restart(cause)
    }

    /// Whether it was restarted too often.
    #[must_use]
    pub const fn gave_up(&self) -> bool {
        self.gave_up
    }

    /// When what would be done, if nothing changes.
    fn due(&self) -> Option<(Moment, Cause)> {
        // A wedged engine has had a whole TTL and its canaries already.
        let wedged = self.wedged_at.map(|at| (at + self.ttl.scale(1, 2), Cause::Wedged));
        let pinned = self.pinned.map(|(since, accused)| {
            let patience = match accused {
                Accused::Own => 2,
                Accused::Peer => 4,
            };
            (since + self.ttl.scale(patience, 1), Cause::Pinned)
        });
        match (wedged, pinned) {
            (Some(wedged), Some(pinned)) => Some(if pinned.0 < wedged.0 { pinned } else { wedged }),
            (wedged, pinned) => wedged.or(pinned),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TTL: Millis = Millis(5000);

    fn at(ms: u64) -> Moment {
        Moment(ms)
    }

    fn fence() -> Fence {
        Fence::new(TTL, Budget::default())
    }

    #[test]
    fn a_wedged_engine_is_restarted_half_a_ttl_after_the_verdict() {
        let mut fence = fence();
        assert_eq!(fence.decide(at(0)), Order::Wait(None));
        fence.wedged(true, at(1000));
        fence.wedged(true, at(2000));
        assert_eq!(
            fence.decide(at(3499)),
            Order::Wait(Some(at(3500))),
            "from the first verdict"
        );
        assert_eq!(fence.decide(at(3500)), Order::Restart(Cause::Wedged));
        assert_eq!(fence.decide(at(3600)), Order::Wait(Some(at(123_500))), "one at a time");
        fence.restarted();
        assert_eq!(fence.decide(at(9000)), Order::Wait(None));
    }

    #[test]
    fn an_engine_that_comes_back_by_itself_is_left_alone() {
        let mut fence = fence();
        fence.wedged(true, at(0));
        fence.wedged(false, at(2000));
        assert_eq!(fence.decide(at(60_000)), Order::Wait(None));
    }

    #[test]
    fn pages_pinned_by_the_peer_wait_for_its_own_worker_first() {
        let mut fence = fence();
        fence.pinned(Some((at(0), Accused::Peer)));
        assert_eq!(fence.decide(at(19_999)), Order::Wait(Some(at(20_000))));
        fence.pinned(None);
        assert_eq!(fence.decide(at(20_000)), Order::Wait(None), "they are back");
        fence.pinned(Some((at(20_000), Accused::Own)));
        assert_eq!(fence.decide(at(30_000)), Order::Restart(Cause::Pinned));
    }

    #[test]
    fn three_in_ten_minutes_and_then_somebody_is_called() {
        let mut fence = fence();
        for round in 0..3 {
            let start = at(round * 60_000);
            fence.wedged(true, start);
            assert_eq!(fence.decide(start + TTL), Order::Restart(Cause::Wedged));
            fence.restarted();
        }
        fence.wedged(true, at(200_000));
        assert_eq!(fence.decide(at(210_000)), Order::GiveUp);
        assert!(fence.gave_up());
        assert_eq!(fence.spent(at(210_000)), 3);
        assert_eq!(
            fence.decide(at(605_000)),
            Order::Restart(Cause::Wedged),
            "the first is ten minutes old"
        );
        assert!(!fence.gave_up());
    }

    #[test]
    fn a_restart_that_brings_nothing_is_tried_again() {
        let mut fence = fence();
        fence.wedged(true, at(0));
        assert_eq!(fence.decide(at(2500)), Order::Restart(Cause::Wedged));
        assert_eq!(fence.decide(at(122_500)), Order::Restart(Cause::Wedged));
    }

    proptest! {
        /// Whatever happens, the budget holds and no restart overlaps another.
        #[test]
        fn the_budget_holds(acts in proptest::collection::vec((0u8..5, 0u64..90_000), 0..80)) {
            let mut fence = fence();
            let mut now = at(0);
            let mut restarts: Vec<Moment> = vec![];
            let mut under_way: Option<Moment> = None;
            for (act, wait) in acts {
                now = now + Millis(wait);
                match act {
                    0 => fence.wedged(true, now),
                    1 => fence.pinned(Some((now, Accused::Own))),
                    2 => fence.pinned(Some((now, Accused::Peer))),
                    3 => { fence.restarted(); under_way = None; }
                    _ => fence.wedged(false, now),
                }
                if let Order::Restart(_) = fence.decide(now) {
                    prop_assert!(under_way.is_none_or(|since| now.since(since) >= TTL.scale(STARTS_IN, 1)));
                    under_way = Some(now);
                    restarts.push(now);
                    let recent = restarts.iter().filter(|before| now.since(**before) < Millis(600_000)).count();
                    prop_assert!(recent <= 3);
                }
            }
        }
    }
}
