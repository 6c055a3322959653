//! A small deterministic generator (splitmix64): one seed, one run.

/// The generator.
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    state: u64,
    /// Nothing is random: always the low end, the first one, and this side of every coin.
    fixed: Option<bool>,
}

impl Rng {
    /// From a seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bf0_3635,
            fixed: None,
        };
        rng.bits();
        rng
    }

    /// No chance at all: every coin falls on `coin`.
    pub(crate) fn fixed(coin: bool) -> Self {
        Self {
            state: 1,
            fixed: Some(coin),
        }
    }

    /// 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        if self.fixed.is_some() {
            return self.state;
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        if self.fixed.is_some() {
            return low;
        }
        low + self.bits() % (high.max(low) - low + 1)
    }

    /// True once in `n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.fixed.unwrap_or_else(|| self.bits().is_multiple_of(n))
    }

    /// One of these.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() || self.fixed.is_some() {
            of.first().copied()
        } else {
            let at = usize::try_from(self.bits() % of.len() as u64).ok()?;
            of.get(at).copied()
        }
    }
}
