use crate::time::{Millis, Moment};

/// How long the engine must have been busy for one measurement: long enough for several chunks (TTL/10 each by default).
const WINDOW: Millis = Millis(2000);

/// The measured rate of this node's prefill in tokens per second, while it had work all the time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct RateMeter {
    /// Prompt tokens computed by all rooms since the start.
    total: u64,
    /// When the measurement in hand began, and the total then.
    began: Option<(Moment, u64)>,
    /// Rooms that reuse a prefix computed in it: little is left of their prompts, and that little is slow behind a long prefix.
    helped: bool,
    rate: Option<u64>,
}

impl RateMeter {
    pub(super) fn computed(&mut self, tokens: u32) {
        self.total += u64::from(tokens);
    }

    /// A room that reuses a prefix computes now.
    pub(super) const fn reuses(&mut self) {
        self.helped = true;
    }

    /// Every report period. A measurement counts only if the engine had work from its first to its last look.
    /// `reusing`: a room that reuses a prefix computes now.
    pub(super) fn look(&mut self, busy: bool, reusing: bool, now: Moment) {
        let Some((began, total)) = self.began.filter(|_| busy) else {
            self.began = busy.then_some((now, self.total));
            self.helped = reusing;
            return;
        };
        let took = now.since(began);
        if took >= WINDOW {
            let measured = (self.total - total).saturating_mul(1000) / took.0.max(1);
            self.rate = match self.rate {
                // With that help a node can seem slow, never fast.
                None if self.helped => None,
                Some(rate) if self.helped && measured < rate => Some(rate),
                None => Some(measured),
                Some(rate) => Some((3 * rate + measured) / 4),
            };
            self.began = Some((now, self.total));
            self.helped = reusing;
        }
    }

    /// The node was stopped: the measurement in hand is void.
    pub(super) fn restart(&mut self) {
        self.began = None;
    }

    /// How many rooms may compute at once so that each gets the floor; at least one, at most `concurrency`.
    pub(super) fn rooms(&self, floor: u64, concurrency: u32) -> u32 {
        let fit = self.rate.map_or(u64::from(concurrency), |rate| rate / floor.max(1));
        u32::try_from(fit).unwrap_or(u32::MAX).min(concurrency).max(1)
    }
}
