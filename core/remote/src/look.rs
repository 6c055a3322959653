//! What both engines show of themselves, and what of it proves that they move.

/// One look at an engine's gauges. They are published by the engine's own steps: an idle one shows old values.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Look {
    /// When the process began, as the bits of its seconds since 1970: who it is. `None`: it does not say.
    pub started: Option<u64>,
    /// What only grows.
    pub work: Counts,
    /// What goes up and down.
    pub load: Load,
    /// Prompt tokens whose KV came from another engine.
    pub external_tokens: u64,
    /// Leases that ended before anybody read (at prefill's engine).
    pub expired: u64,
    /// Reads that ended after their lease: what was read may have been foreign (at prefill's engine).
    pub late_reads: u64,
    /// The KV pool, if the engine tells.
    pub pool: Option<PoolSize>,
}

/// Counters of work that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Counts {
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Tokens produced.
    pub output_tokens: u64,
    /// Steps.
    pub steps: u64,
    /// Requests that ended well.
    pub finished: u64,
}

/// What an engine has in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Load {
    /// Requests in its batch.
    pub running: u64,
    /// Requests in its queue.
    pub waiting: u64,
    /// Of these, those that wait for KV from another engine.
    pub deferred: u64,
    /// Millionths of its pages in use.
    pub used: u64,
    /// SGLang's prefill: prompts computed whose KV is not handed over.
    pub inflight: u64,
    /// Whatever else only steps change, as one number.
    pub mark: u64,
}

/// The size of an engine's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolSize {
    /// Pages.
    pub pages: u32,
    /// Tokens in one.
    pub page_tokens: u32,
}

impl PoolSize {
    /// Pages that this many millionths of the pool are, rounded up.
    #[must_use]
    pub fn pages_of(&self, millionths: u64) -> u32 {
        let pages = millionths.saturating_mul(u64::from(self.pages)).div_ceil(1_000_000);
        u32::try_from(pages).unwrap_or(u32::MAX)
    }
}

impl Look {
    /// Whether it is a look at another process than `earlier` was.
    #[must_use]
    pub fn is_another_life(&self, earlier: &Self) -> bool {
        match (self.started, earlier.started) {
            (Some(now), Some(before)) => now != before,
            // A process that does not say when it began is known by counters that went back.
            (None, _) | (_, None) => {
                let (now, before) = (self.work, earlier.work);
                now.prompt_tokens < before.prompt_tokens
                    || now.output_tokens < before.output_tokens
                    || now.steps < before.steps
                    || now.finished < before.finished
            }
        }
    }

    /// Whether the engine has made a step since `earlier`. With `probed`, a canary of our own is in it: that it is in the
    /// queue, or in a batch that does not move, says nothing.
    #[must_use]
    pub fn has_moved(&self, earlier: &Self, probed: bool) -> bool {
        let load = |load: Load| {
            let seen = (load.used, load.inflight, load.deferred, load.mark);
            let ours = if probed { (0, 0) } else { (load.running, load.waiting) };
            (seen, ours)
        };
        self.work != earlier.work || load(self.load) != load(earlier.load)
    }
}

/// A gauge as a whole number; what is none of that counts as nothing.
pub(crate) fn whole(value: f64) -> u64 {
    if value.is_finite() && value > 0.0 {
        value.round() as u64
    } else {
        0
    }
}

/// A share from 0 to 1 in millionths.
pub(crate) fn millionths(share: f64) -> u64 {
    whole(share.clamp(0.0, 1.0) * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queued_canary_is_no_step() {
        let before = Look::default();
        let mut after = before.clone();
        after.load.running = 1;
        after.load.waiting = 1;
        assert!(after.has_moved(&before, false));
        assert!(!after.has_moved(&before, true));
        after.load.used = 10;
        assert!(after.has_moved(&before, true), "a page was taken by a step");
        let mut after = before.clone();
        after.work.output_tokens = 1;
        assert!(after.has_moved(&before, true));
    }

    #[test]
    fn another_life_is_seen_with_and_without_its_start() {
        let life = |started, steps| Look {
            started,
            work: Counts {
                steps,
                ..Counts::default()
            },
            ..Look::default()
        };
        assert!(life(Some(2), 9).is_another_life(&life(Some(1), 5)));
        assert!(!life(Some(1), 3).is_another_life(&life(Some(1), 5)));
        assert!(life(None, 3).is_another_life(&life(None, 5)));
        assert!(!life(None, 6).is_another_life(&life(None, 5)));
    }

    #[test]
    fn odd_numbers_are_nothing() {
        assert_eq!(whole(f64::NAN), 0);
        assert_eq!(whole(-1.0), 0);
        assert_eq!(whole(2.5e3), 2500);
        assert_eq!(millionths(7.0), 1_000_000);
        assert_eq!(millionths(f64::NAN), 0);
    }
}
