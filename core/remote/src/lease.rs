//! Was the KV read while prefill's engine still kept it? vLLM's reader is told nothing when it reads pages that have been
//! given to another request: it answers, with wrong tokens. So the worker must know that the read ended inside the lease.
//!
//! No two clocks are compared. Decode's own clock gives an upper bound of the lease's age, because prefill's leg is posted
//! only after decode's Ready; where that is not enough, prefill's worker gives one on its own clock. The lease may be
//! longer than this by the reader's heartbeats: they are not counted on.

use innkeeper_room::{Millis, Moment};

/// How long prefill's engine keeps KV that nobody reads. vLLM does not report it: it is a setting, and must be the engine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease(pub Millis);

impl Lease {
    /// vLLM's own default.
    pub const DEFAULT: Self = Self(Millis(30_000));

    /// What counts of it: a fifth is for everything that is not measured (the engine's clock, its steps, rounding).
    #[must_use]
    pub const fn counted(self) -> Millis {
        // Rounded down, unlike `scale`.
        Millis(self.0.0 / 5 * 4)
    }

    /// Whether decode's leg may still begin: a lease half gone is not worth a read.
    #[must_use]
    pub const fn may_begin(self, age: Millis) -> bool {
        age.0 <= self.0.0 / 2
    }

    /// Whether a read that ended at this age, or earlier, ended inside of it.
    #[must_use]
    pub const fn holds(self, age: Millis) -> bool {
        age.0 < self.counted().0
    }
}

/// What follows from the first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The read ended inside the lease.
    Proven,
    /// Decode alone cannot say: prefill's worker must be asked, *now*.
    AskPrefill,
}

/// Decode's side of the proof, for one room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeSide {
    lease: Lease,
    ready_sent: Moment,
}

impl DecodeSide {
    /// Ready is being said now: prefill's leg cannot have been posted before.
    #[must_use]
    pub const fn ready(lease: Lease, now: Moment) -> Self {
        Self { lease, ready_sent: now }
    }

    /// An upper bound of the lease's age.
    #[must_use]
    pub const fn age(&self, now: Moment) -> Millis {
        now.since(self.ready_sent)
    }

    /// The first token is there.
    #[must_use]
    pub const fn first_token(&self, now: Moment) -> Proof {
        if self.lease.holds(self.age(now)) {
            Proof::Proven
        } else {
            Proof::AskPrefill
        }
    }

    /// Prefill's worker, asked after the first token, says that the lease was at most this old when it answered.
    #[must_use]
    pub const fn answered(&self, age: Millis) -> bool {
        self.lease.holds(age)
    }
}

/// Prefill's side, for all legs of one engine: until when was a leg certainly not finished?
///
/// The engine counts the requests that finished, and nobody else sends to it. Those whose answers this driver had got by some
/// moment are among those that had finished later; if the count is no higher, they are all of them, and every other leg was
/// unfinished then. A count is not older than the look before the one that brought it, provided that both were quick: gauges and
/// answers come out of one process, which may have been slow itself. So a look proves something for the moment of the
/// look before it, and by the answers that had arrived by then.
#[derive(Clone, Debug)]
pub struct PrefillSide {
    quick: Millis,
    /// Finished requests that are not this driver's, from before it began.
    foreign: Option<u64>,
    answered: u64,
    last_quick: Option<Earlier>,
    unfinished_at: Option<Moment>,
}

/// The look before.
#[derive(Clone, Copy, Debug)]
struct Earlier {
    sent: Moment,
    answered: u64,
}

/// When a leg was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted(pub Moment);

impl PrefillSide {
    /// For a progress TTL.
    #[must_use]
    pub const fn new(ttl: Millis) -> Self {
        Self {
            quick: ttl.scale(1, 10),
            foreign: None,
            answered: 0,
            last_quick: None,
            unfinished_at: None,
        }
    }

    /// The engine answered a request of this driver as finished, whatever it was (a leg, a canary).
    pub const fn answered(&mut self) {
        self.answered = self.answered.saturating_add(1);
    }

    /// A look was sent at `sent`, when this many answers had come (see [`Self::answers`]), and came back at `back` with a count of
    /// finished requests. `idle`: no request of this driver was out at any time in between.
    pub fn look(&mut self, sent: Moment, answers: u64, back: Moment, finished: u64, idle: bool) {
        if back.since(sent) > self.quick {
            self.last_quick = None;
            return;
        }
        let now = Earlier {
            sent,
            answered: answers,
        };
        let before = self.last_quick.replace(now);
        if idle {
            // Lower than the truth if the count is old; then less is proven.
            let foreign = finished.saturating_sub(self.answered);
            self.foreign = Some(self.foreign.map_or(foreign, |known| known.max(foreign)));
        }
        if let (Some(before), Some(foreign)) = (before, self.foreign)
            && finished <= foreign.saturating_add(before.answered)
        {
            self.unfinished_at = self.unfinished_at.max(Some(before.sent));
        }
    }

    /// Answers that have come: to be read when a look is sent.
    #[must_use]
    pub const fn answers(&self) -> u64 {
        self.answered
    }

    /// Another process: its counters begin anew, and no leg lives.
    pub const fn restarted(&mut self) {
        self.foreign = None;
        self.answered = 0;
        self.last_quick = None;
        self.unfinished_at = None;
    }

    /// Until when a leg without an answer was certainly unfinished. To be kept when its answer comes: later looks say
    /// nothing about it.
    #[must_use]
    pub const fn unfinished_at(&self) -> Option<Moment> {
        self.unfinished_at
    }
}

/// An upper bound of the age of the lease of a leg that has finished: `kept` is [`PrefillSide::unfinished_at`] of the moment at
/// which its answer came.
#[must_use]
pub fn age(leg: Posted, kept: Option<Moment>, now: Moment) -> Millis {
    now.since(leg.0.max(kept.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEASE: Lease = Lease(Millis(10_000));

    fn at(ms: u64) -> Moment {
        Moment(1_000_000 + ms)
    }

    #[test]
    fn decode_proves_what_ends_early_and_asks_for_the_rest() {
        let side = DecodeSide::ready(LEASE, at(0));
        assert!(LEASE.may_begin(side.age(at(5000))) && !LEASE.may_begin(side.age(at(5001))));
        assert_eq!(side.first_token(at(7999)), Proof::Proven);
        assert_eq!(side.first_token(at(8000)), Proof::AskPrefill);
        assert!(side.answered(Millis(7999)) && !side.answered(Millis(8000)));
    }

    #[test]
    fn prefill_knows_from_counts_until_when_a_leg_ran() {
        let mut side = PrefillSide::new(Millis(5000));
        side.look(at(0), 0, at(5), 3, true);
        assert_eq!(side.unfinished_at(), None);
        // A leg runs; the counts are as before.
        side.look(at(1000), 0, at(1005), 3, false);
        assert_eq!(side.unfinished_at(), Some(at(0)), "dated at the look before");
        side.look(at(2000), 0, at(2005), 3, false);
        assert_eq!(side.unfinished_at(), Some(at(1000)));
        // It has finished there, and its answer is still under way.
        side.look(at(3000), 0, at(3005), 4, false);
        assert_eq!(side.unfinished_at(), Some(at(1000)));
        let kept = side.unfinished_at();
        side.answered();
        assert_eq!(age(Posted(at(500)), kept, at(3500)), Millis(2500));
        // A second leg: what the look before knew of answers is not enough, then it is.
        side.look(at(4000), 1, at(4005), 4, false);
        assert_eq!(side.unfinished_at(), Some(at(1000)));
        side.look(at(5000), 1, at(5005), 4, false);
        assert_eq!(side.unfinished_at(), Some(at(4000)));
    }

    #[test]
    fn an_old_count_and_a_newer_answer_prove_nothing() {
        let mut side = PrefillSide::new(Millis(5000));
        side.look(at(0), 0, at(5), 0, true);
        side.look(at(1000), 0, at(1005), 0, false);
        // A has finished, unanswered; B finishes after the count was taken, and its answer is here first.
        side.answered();
        side.look(at(2000), 1, at(2005), 1, false);
        assert_eq!(
            side.unfinished_at(),
            Some(at(0)),
            "one finished, one answered, and they are not the same"
        );
    }

    #[test]
    fn a_slow_look_proves_nothing_and_neither_does_the_next() {
        let mut side = PrefillSide::new(Millis(5000));
        side.look(at(0), 0, at(5), 0, true);
        side.look(at(1000), 0, at(1600), 0, false);
        assert_eq!(side.unfinished_at(), None);
        side.look(at(2000), 0, at(2005), 0, false);
        assert_eq!(side.unfinished_at(), None);
        side.look(at(3000), 0, at(3005), 0, false);
        assert_eq!(side.unfinished_at(), Some(at(2000)));
    }

    #[test]
    fn without_an_idle_look_only_the_posting_counts() {
        let mut side = PrefillSide::new(Millis(5000));
        side.look(at(0), 0, at(5), 9, false);
        side.look(at(1000), 0, at(1005), 9, false);
        assert_eq!(side.unfinished_at(), None);
        assert_eq!(age(Posted(at(200)), None, at(3200)), Millis(3000));
    }

    /// What the world does with one engine: requests finish there in any order, answers arrive later in any order, and
    /// gauges lag behind by up to a look.
    #[derive(Clone, Copy, Debug)]
    enum Act {
        Post,
        Finish(usize),
        Deliver(usize),
        Look { took: u64, lag: bool },
        Wait(u64),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            Just(Act::Post),
            any::<usize>().prop_map(Act::Finish),
            any::<usize>().prop_map(Act::Deliver),
            (0u64..700, any::<bool>()).prop_map(|(took, lag)| Act::Look { took, lag }),
            (1u64..4000).prop_map(Act::Wait),
        ]
    }

    struct LegOf {
        posted: Moment,
        finished: Option<Moment>,
        answered: bool,
    }

    proptest! {
        /// A leg's lease begins when it finishes in the engine. The bound is never lower than its age, as long as gauges
        /// are not older than the look before.
        #[test]
        fn the_bound_is_never_lower_than_the_truth(acts in proptest::collection::vec(act(), 0..80), foreign in 0u64..5) {
            let mut side = PrefillSide::new(Millis(5000));
            let mut now = at(0);
            let mut legs: Vec<LegOf> = vec![];
            // The true count when the last look was sent.
            let mut at_last_look = foreign;
            side.look(now, 0, now, foreign, true);
            for act in acts {
                match act {
                    Act::Post => legs.push(LegOf { posted: now, finished: None, answered: false }),
                    Act::Finish(which) => {
                        let mut open: Vec<_> = legs.iter_mut().filter(|leg| leg.finished.is_none()).collect();
                        let count = open.len().max(1);
                        if let Some(leg) = open.get_mut(which % count) { leg.finished = Some(now); }
                    }
                    Act::Deliver(which) => {
                        let mut done: Vec<_> = legs.iter_mut().filter(|leg| leg.finished.is_some() && !leg.answered).collect();
                        let count = done.len().max(1);
                        if let Some(leg) = done.get_mut(which % count) {
                            let bound = age(Posted(leg.posted), side.unfinished_at(), now);
                            let truth = now.since(leg.finished.unwrap_or(now));
                            prop_assert!(bound >= truth, "{bound:?} {truth:?}");
                            leg.answered = true;
                            side.answered();
                        }
                    }
                    Act::Look { took, lag } => {
                        let finished = foreign + legs.iter().filter(|leg| leg.finished.is_some()).count() as u64;
                        let shown = if lag { at_last_look } else { finished };
                        let (sent, answers) = (now, side.answers());
                        now = now + Millis(took);
                        let idle = legs.iter().all(|leg| leg.answered);
                        side.look(sent, answers, now, shown, idle);
                        at_last_look = finished;
                    }
                    Act::Wait(ms) => now = now + Millis(ms),
                }
            }
        }
    }
}
