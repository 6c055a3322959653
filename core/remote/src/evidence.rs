//! Has the engine moved? A process that answers `/health` may have a core that does not: only steps prove steps.
//!
//! Evidence is any change of what steps publish, any token that comes, and the answer to a canary. An engine that owes
//! something and has shown nothing for half a progress TTL gets a canary, a request of one token on a connection of its
//! own; one that owes nothing gets one every two TTL. How long it has been silent is told to the ledger's watch, as an
//! engine of our own tells how long it has had a chunk in hand: who is wedged is decided there, at a whole TTL.

use innkeeper_room::{Millis, Moment};

use crate::look::Look;

/// What the ledger's watch is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Pieces of evidence so far.
    pub progress: u64,
    /// How long what it owes has been overdue for evidence; `None` if it owes nothing.
    pub in_hand: Option<Millis>,
}

/// What a look was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The engine has moved.
    Moved,
    /// It looks as before.
    Same,
    /// It is another process than before. Nothing that is known of the former holds.
    Restarted,
}

/// Watches one engine.
#[derive(Clone, Debug)]
pub struct StepWatch {
    ttl: Millis,
    progress: u64,
    last: Option<Look>,
    /// The last evidence, or the moment from which any is owed.
    quiet_since: Moment,
    owes: bool,
    canary: Canary,
}

/// The canary of the moment. A silent engine may be sent several in a row, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Canary {
    /// None is needed.
    Home,
    /// One is out; the first of its row went out then.
    Out { first: Moment },
    /// One has failed; the next follows then.
    Failed { first: Moment, again: Moment },
}

impl StepWatch {
    /// Of an engine that owes nothing, with this progress TTL.
    #[must_use]
    pub const fn new(ttl: Millis, now: Moment) -> Self {
        Self {
            ttl,
            progress: 0,
            last: None,
            quiet_since: now,
            owes: false,
            canary: Canary::Home,
        }
    }

    /// How long a canary may take.
    #[must_use]
    pub const fn canary_limit(&self) -> Millis {
        self.ttl.scale(1, 2)
    }

    /// Legs or tickets are out, or none is. What begins to be owed is owed from now on.
    pub fn owes(&mut self, owes: bool, now: Moment) {
        if owes && !self.owes {
            self.quiet_since = self.quiet_since.max(now);
        }
        self.owes = owes;
    }

    /// Something came out of the engine: a token, the end of a leg.
    pub fn evidence(&mut self, now: Moment) {
        self.progress = self.progress.saturating_add(1);
        self.quiet_since = self.quiet_since.max(now);
        if !matches!(self.canary, Canary::Out { .. }) {
            self.canary = Canary::Home;
        }
    }

    /// Somebody looked.
    pub fn look(&mut self, look: Look, now: Moment) -> Seen {
        let probed = self.canary != Canary::Home;
        let seen = match &self.last {
            Some(last) if look.is_another_life(last) => Seen::Restarted,
            Some(last) if look.has_moved(last, probed) => Seen::Moved,
            Some(_) => Seen::Same,
            // The first look says what is, not that anything moves.
            None => Seen::Same,
        };
        self.last = Some(look);
        match seen {
            Seen::Moved => self.evidence(now),
            Seen::Restarted => self.restarted(now),
            Seen::Same => {}
        }
        seen
    }

    /// The process is another one: it owes nothing yet.
    pub fn restarted(&mut self, now: Moment) {
        self.progress = self.progress.saturating_add(1);
        self.quiet_since = now;
        self.canary = Canary::Home;
        self.owes = false;
    }

    /// What was seen last.
    #[must_use]
    pub const fn last(&self) -> Option<&Look> {
        self.last.as_ref()
    }

    /// When the next canary is due; `None` while one is out.
    #[must_use]
    pub fn canary_due(&self) -> Option<Moment> {
        match self.canary {
            Canary::Out { .. } => None,
            Canary::Failed { again, .. } => Some(again),
            Canary::Home if self.owes => Some(self.quiet_since + self.ttl.scale(1, 2)),
            Canary::Home => Some(self.quiet_since + self.ttl.scale(2, 1)),
        }
    }

    /// One goes out.
    pub fn canary_sent(&mut self, now: Moment) {
        self.canary = match self.canary {
            Canary::Home => Canary::Out { first: now },
            Canary::Out { first } | Canary::Failed { first, .. } => Canary::Out { first },
        };
    }

    /// It was answered.
    pub fn canary_answered(&mut self, now: Moment) {
        self.canary = Canary::Home;
        self.evidence(now);
    }

    /// It was not, in time or at all. A refused connection fails at once: the next one waits a little.
    pub fn canary_failed(&mut self, now: Moment) {
        let first = match self.canary {
            Canary::Out { first } | Canary::Failed { first, .. } => first,
            Canary::Home => now,
        };
        let again = now + self.ttl.scale(1, 10);
        self.canary = Canary::Failed { first, again };
    }

    /// What the ledger's watch is told. An engine that owes nothing owes an answer to its canary.
    #[must_use]
    pub fn status(&self, now: Moment) -> Status {
        let since = match (self.owes, self.canary) {
            (true, _) => Some(self.quiet_since),
            (false, Canary::Out { first } | Canary::Failed { first, .. }) => Some(first.max(self.quiet_since)),
            (false, Canary::Home) => None,
        };
        Status {
            progress: self.progress,
            in_hand: since.map(|since| now.since(since)),
        }
    }

    /// How long nothing has been seen to move, owed or not: a metric.
    #[must_use]
    pub const fn age(&self, now: Moment) -> Millis {
        now.since(self.quiet_since)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::look::Counts;

    const TTL: Millis = Millis(5000);

    fn at(ms: u64) -> Moment {
        Moment(10_000 + ms)
    }

    fn watch() -> StepWatch {
        StepWatch::new(TTL, at(0))
    }

    fn steps(steps: u64) -> Look {
        Look {
            started: Some(1),
            work: Counts {
                steps,
                ..Counts::default()
            },
            ..Look::default()
        }
    }

    #[test]
    fn an_idle_engine_owes_nothing_and_is_asked_every_two_ttl() {
        let mut watch = watch();
        assert_eq!(watch.canary_due(), Some(at(10_000)));
        assert_eq!(watch.status(at(9_999)).in_hand, None);
        watch.canary_sent(at(10_000));
        assert_eq!(watch.canary_due(), None, "one at a time");
        assert_eq!(watch.status(at(10_100)).in_hand, Some(Millis(100)), "it owes an answer");
        watch.canary_answered(at(10_200));
        let status = watch.status(at(10_300));
        assert_eq!((status.progress, status.in_hand), (1, None));
        assert_eq!(watch.canary_due(), Some(at(20_200)));
    }

    #[test]
    fn silence_while_it_owes_is_counted_from_the_debt_or_the_last_step() {
        let mut watch = watch();
        watch.owes(true, at(1000));
        assert_eq!(watch.canary_due(), Some(at(3500)), "half a TTL");
        watch.evidence(at(2000));
        assert_eq!(watch.canary_due(), Some(at(4500)));
        assert_eq!(watch.status(at(5000)).in_hand, Some(Millis(3000)));
        watch.owes(true, at(5000));
        assert_eq!(
            watch.status(at(5000)).in_hand,
            Some(Millis(3000)),
            "more work is no step"
        );
        watch.owes(false, at(5000));
        assert_eq!(watch.status(at(5000)).in_hand, None);
        watch.owes(true, at(9000));
        assert_eq!(
            watch.status(at(9100)).in_hand,
            Some(Millis(100)),
            "old silence was nobody's debt"
        );
    }

    #[test]
    fn a_frozen_core_is_a_ttl_old_when_its_second_canary_ends() {
        let mut watch = watch();
        watch.owes(true, at(0));
        watch.look(steps(7), at(0));
        let due = watch.canary_due().expect("due");
        watch.canary_sent(due);
        assert_eq!(watch.look(steps(7), at(3000)), Seen::Same);
        watch.canary_failed(due + watch.canary_limit());
        assert_eq!(watch.status(due + watch.canary_limit()).in_hand, Some(TTL));
    }

    #[test]
    fn a_failed_canary_is_sent_again_but_not_at_once() {
        let mut watch = watch();
        watch.owes(true, at(0));
        watch.canary_sent(at(2500));
        watch.canary_failed(at(2501));
        assert_eq!(watch.canary_due(), Some(at(3001)), "a tenth of a TTL later");
        watch.canary_sent(at(3001));
        watch.canary_answered(at(3100));
        assert_eq!(watch.status(at(3100)).in_hand, Some(Millis(0)));
    }

    #[test]
    fn stale_gauges_and_a_canary_in_the_queue_are_no_evidence() {
        let mut watch = watch();
        watch.owes(true, at(0));
        watch.look(steps(7), at(0));
        watch.canary_sent(at(2500));
        let mut queued = steps(7);
        queued.load.waiting = 1;
        assert_eq!(watch.look(queued.clone(), at(2600)), Seen::Same);
        queued.work.steps = 8;
        assert_eq!(watch.look(queued, at(2700)), Seen::Moved);
    }

    #[test]
    fn another_process_owes_nothing() {
        let mut watch = watch();
        watch.owes(true, at(0));
        watch.look(steps(7), at(0));
        let mut other = steps(0);
        other.started = Some(2);
        assert_eq!(watch.look(other, at(4000)), Seen::Restarted);
        assert_eq!(watch.status(at(4100)).in_hand, None);
    }

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Owes(bool),
        Evidence,
        Look(u64),
        Sent,
        Answered,
        Failed,
        Restarted,
        Wait(u64),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            any::<bool>().prop_map(Act::Owes),
            Just(Act::Evidence),
            (0u64..4).prop_map(Act::Look),
            Just(Act::Sent),
            Just(Act::Answered),
            Just(Act::Failed),
            Just(Act::Restarted),
            (0u64..6000).prop_map(Act::Wait),
        ]
    }

    proptest! {
        /// Whatever happens: progress never goes back, the debt is never older than the last evidence, something is
        /// always due, and an engine that owes and says nothing reaches a TTL in a TTL.
        #[test]
        fn the_watch_never_sleeps(acts in proptest::collection::vec(act(), 0..40)) {
            let mut watch = watch();
            let (mut now, mut moved) = (at(0), at(0));
            let mut progress = 0;
            for act in acts {
                match act {
                    Act::Owes(owes) => watch.owes(owes, now),
                    Act::Evidence => watch.evidence(now),
                    Act::Look(count) => { watch.look(steps(count), now); }
                    Act::Sent => watch.canary_sent(now),
                    Act::Answered => watch.canary_answered(now),
                    Act::Failed => watch.canary_failed(now),
                    Act::Restarted => watch.restarted(now),
                    Act::Wait(ms) => now = now + Millis(ms),
                }
                let status = watch.status(now);
                prop_assert!(status.progress >= progress);
                if status.progress > progress {
                    moved = now;
                }
                progress = status.progress;
                prop_assert!(status.in_hand.is_none_or(|age| age <= now.since(moved)));
                let out = matches!(watch.canary, Canary::Out { .. });
                prop_assert!(out || watch.canary_due().is_some());
                prop_assert!(watch.canary_due().is_none_or(|due| due <= now + TTL.scale(2, 1)));
            }
            watch.owes(true, now);
            let later = now + TTL;
            prop_assert!(watch.status(later).in_hand.is_some_and(|age| age >= TTL));
        }
    }
}
