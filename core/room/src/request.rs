//! A request in R: its gate, its attempts, its deadlines. One terminal answer, after one or more attempts, under one
//! absolute deadline.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{Attempt, Incarnation, RoomId};
use crate::ledger::router::Arrival;
use crate::message::Refusal;
use crate::reason::{Blame, Reason};
use crate::settings::Settings;
use crate::time::{Millis, Moment};

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// In the admission queue.
    Waiting,
    /// Its room lives; the gate is open for that room's tokens and for no others.
    Running(RoomId),
    /// Its room has failed and the gate is shut; what follows waits for blame.
    Judging(RoomId),
}

/// The time that a request may wait for its turn or for pages: a budget over all attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueClock {
    left: Millis,
    since: Option<Moment>,
}

impl QueueClock {
    /// A clock that runs from now on.
    #[must_use]
    pub const fn running(budget: Millis, now: Moment) -> Self {
        Self {
            left: budget,
            since: Some(now),
        }
    }

    /// Runs it.
    pub fn run(&mut self, now: Moment) {
        if self.since.is_none() {
            self.since = Some(now);
        }
    }

    /// Stops it.
    pub fn stop(&mut self, now: Moment) {
        self.left = self.left(now);
        self.since = None;
    }

    /// What is left of the budget.
    #[must_use]
    pub fn left(&self, now: Moment) -> Millis {
        match self.since {
            Some(since) => Millis(self.left.0.saturating_sub(now.since(since).0)),
            None => self.left,
        }
    }

    /// When the budget is spent; `None` while it does not run.
    #[must_use]
    pub fn due(&self) -> Option<Moment> {
        self.since.map(|since| since + self.left)
    }
}

/// A live request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What arrived.
    pub arrival: Arrival,
    /// The absolute deadline.
    pub deadline: Moment,
    /// Where it stands.
    pub stage: Stage,
    /// Tokens that passed the gate: the next position, over all attempts.
    pub passed: u32,
    /// Time to wait.
    pub queue: QueueClock,
    /// Not tried again before: it came back from workers that refused it.
    pub not_before: Option<Moment>,
    /// Attempts that are spent (a refusal and a stop spend none).
    pub spent: u8,
    /// Rooms that failed, the number of the running one included.
    pub attempt: u8,
    /// Whether it ever had a room: the bucket gained by it.
    pub admitted: bool,
    /// Pairs that failed it.
    pub failed_pairs: BTreeSet<(Incarnation, Incarnation)>,
    /// Nodes blamed for that: never asked again for this request.
    pub blamed: BTreeSet<Incarnation>,
    /// Workers that refused it in this round, and why.
    pub refused: BTreeMap<Incarnation, Refusal>,
    /// The last failure, for the answer when nothing more can be tried.
    pub failure: Option<(Reason, Blame)>,
}

impl Request {
    /// A request that arrived now.
    #[must_use]
    pub fn new(arrival: Arrival, now: Moment, settings: &Settings) -> Self {
        let queue = QueueClock::running(settings.queue_limit(arrival.class), now);
        Self {
            arrival,
            deadline: now + settings.request_timeout,
            stage: Stage::Waiting,
            passed: 0,
            queue,
            not_before: None,
            spent: 0,
            attempt: 1,
            admitted: false,
            failed_pairs: BTreeSet::new(),
            blamed: BTreeSet::new(),
            refused: BTreeMap::new(),
            failure: None,
        }
    }

    /// The room whose tokens pass.
    #[must_use]
    pub const fn gate(&self) -> Option<RoomId> {
        match self.stage {
            Stage::Running(room) => Some(room),
            Stage::Waiting | Stage::Judging(_) => None,
        }
    }

    /// The number of the running or next try.
    #[must_use]
    pub const fn attempt(&self) -> Attempt {
        Attempt(self.attempt)
    }

    /// Tokens of prompt and answer so far: what the next room computes.
    #[must_use]
    pub const fn prompt(&self) -> u32 {
        self.arrival.prompt_tokens.saturating_add(self.passed)
    }

    /// Tokens that may still be produced.
    #[must_use]
    pub const fn remaining(&self) -> u32 {
        self.arrival.max_tokens.saturating_sub(self.passed)
    }

    /// What it costs in tokens, when it is weighed against others; nothing once it had a room: what failed there was not its
    /// sender's doing.
    #[must_use]
    pub fn cost(&self) -> u64 {
        if self.admitted {
            return 0;
        }
        u64::from(self.prompt()) + u64::from(self.remaining())
    }

    /// When R does something about it by itself next.
    #[must_use]
    pub fn next_deadline(&self) -> Moment {
        let retry = match self.stage {
            Stage::Waiting => self.not_before,
            Stage::Running(_) | Stage::Judging(_) => None,
        };
        [self.queue.due(), retry]
            .into_iter()
            .flatten()
            .fold(self.deadline, Moment::min)
    }

    /// As [`Request::next_deadline`], with how long that wait may be as a whole.
    #[must_use]
    pub fn next_budget(&self, settings: &Settings) -> (Moment, Millis) {
        let due = self.next_deadline();
        let budget = if due == self.deadline {
            settings.request_timeout
        } else {
            settings.queue_limit(self.arrival.class)
        };
        (due, budget)
    }

    /// A room of it has failed: remembers whom to avoid from now on, and spends the attempt unless a node had been stopped.
    pub fn failed(&mut self, pair: (Incarnation, Incarnation), reason: Reason, blame: Blame) {
        self.failed_pairs.insert(pair);
        self.failure = Some((reason, blame));
        self.attempt = self.attempt.saturating_add(1);
        self.refused.clear();
        if reason == Reason::SelfPaused {
            // It runs again, and is as good as before: it may be asked again where there is no other pair.
            return;
        }
        self.spent = self.spent.saturating_add(1);
        if let Blame::Prefill(node) | Blame::Decode(node) = blame {
            self.blamed.insert(node);
        }
    }

    /// Back to admission: each worker may be asked again, but for those that it can never fit.
    pub fn requeue(&mut self, now: Moment, not_before: Option<Moment>) {
        self.stage = Stage::Waiting;
        self.not_before = not_before;
        self.refused.retain(|_, refusal| *refusal == Refusal::TooLarge);
        self.queue.run(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::Class;
    use crate::ids::RequestKey;
    use crate::ledger::router::OnFailure;

    #[test]
    fn queue_time_is_a_budget_over_all_attempts() {
        let mut clock = QueueClock::running(Millis(100), Moment(0));
        clock.stop(Moment(60));
        assert_eq!(clock.due(), None);
        clock.run(Moment(1000));
        assert_eq!(clock.due(), Some(Moment(1040)));
        clock.run(Moment(1020));
        assert_eq!(clock.due(), Some(Moment(1040)), "it runs already");
        assert_eq!(clock.left(Moment(5000)), Millis(0));
    }

    #[test]
    fn a_stop_spends_no_attempt() {
        let arrival = Arrival {
            request: RequestKey(1),
            rid: "a".into(),
            client: "c".into(),
            model: None,
            prompt_tokens: 10,
            blocks: crate::prefix::Blocks::default(),
            max_tokens: 5,
            class: Class::Normal,
            on_failure: OnFailure::Migrate,
            pair: None,
        };
        let mut request = Request::new(arrival, Moment(0), &Settings::default());
        let pair = (Incarnation::new(1), Incarnation::new(2));
        request.failed(pair, Reason::SelfPaused, Blame::Nobody);
        assert_eq!(request.spent, 0);
        request.failed(pair, Reason::DecodeLost, Blame::Decode(pair.1));
        assert_eq!(request.spent, 1);
        assert!(request.blamed.contains(&pair.1));
        assert_eq!(request.attempt(), Attempt(3));
    }
}
