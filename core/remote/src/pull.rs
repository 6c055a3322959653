//! How long a read of KV may take. While vLLM reads, nothing moves that could be seen: no timer can be armed on bytes, so
//! an absolute deadline rules, made from what the pair's first read took.

use innkeeper_room::{Millis, Settings};

/// A read is given up when it is this many times slower than the pair's own.
const SLOWER: u64 = 10;
/// Without a measurement.
const FLOOR_TOKENS: u64 = Settings::READ_FLOOR;

/// What a pair's reads take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PullRate {
    /// Tokens per second; 0: not measured.
    tokens: u64,
}

impl PullRate {
    /// A read of `tokens` tokens took this long. The fastest counts: a pair that was slow once is not slow for ever.
    pub fn measured(&mut self, tokens: u64, took: Millis) {
        let rate = tokens.saturating_mul(1000) / took.0.max(1);
        self.tokens = self.tokens.max(rate);
    }

    /// Tokens per second below which a read is given up.
    #[must_use]
    pub const fn floor(&self) -> u64 {
        let tenth = self.tokens / SLOWER;
        if tenth > FLOOR_TOKENS { tenth } else { FLOOR_TOKENS }
    }

    /// The deadline of a read of `tokens` tokens, from its begin: what the floor takes and two TTL, or what is left of the
    /// lease if that is less.
    #[must_use]
    pub fn budget(&self, tokens: u32, ttl: Millis, lease_left: Millis) -> Millis {
        let slowest = Millis::at_rate(u64::from(tokens), self.floor()) + ttl.scale(2, 1);
        slowest.min(lease_left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_follows_the_pair_and_ends_with_the_lease() {
        let mut rate = PullRate::default();
        let ttl = Millis(5000);
        assert_eq!(rate.budget(300, ttl, Millis(60_000)), Millis(20_000));
        rate.measured(128, Millis(10));
        assert_eq!(rate.floor(), 1280);
        assert_eq!(rate.budget(1280, ttl, Millis(60_000)), Millis(11_000));
        assert_eq!(rate.budget(1280, ttl, Millis(3000)), Millis(3000));
        rate.measured(128, Millis(10_000));
        assert_eq!(rate.floor(), 1280, "one slow read changes nothing");
        rate.measured(1, Millis(0));
    }
}
