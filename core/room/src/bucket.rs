//! The retry bucket: every extra attempt takes a token, every admission gives a fraction of one back, so that a failing
//! fleet is not hammered. Counted in thousandths, so that it is exact.

/// Tokens of extra attempts, in thousandths.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    milli: u64,
    capacity: u64,
    gain: u64,
}

/// What one extra attempt costs, in thousandths.
const TOKEN: u64 = 1000;

impl Bucket {
    /// A full bucket of `tokens` tokens that gains `gain_milli` thousandths per admission.
    #[must_use]
    pub fn new(tokens: u32, gain_milli: u32) -> Self {
        let capacity = u64::from(tokens) * TOKEN;
        Self {
            milli: capacity,
            capacity,
            gain: u64::from(gain_milli),
        }
    }

    /// A request was admitted to its first attempt.
    pub fn gain(&mut self) {
        self.milli = (self.milli + self.gain).min(self.capacity);
    }

    /// Takes a token for an extra attempt; whether there was one.
    #[must_use]
    pub fn take(&mut self) -> bool {
        match self.milli.checked_sub(TOKEN) {
            Some(rest) => {
                self.milli = rest;
                true
            }
            None => false,
        }
    }

    /// What is in it, in thousandths of a token.
    #[must_use]
    pub const fn milli(&self) -> u64 {
        self.milli
    }

    /// What fits into it, in thousandths of a token.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_full_runs_empty_and_gains_by_admissions() {
        let mut bucket = Bucket::new(2, 100);
        assert!(bucket.take());
        assert!(bucket.take());
        assert!(!bucket.take());
        (0..9).for_each(|_| bucket.gain());
        assert!(!bucket.take());
        bucket.gain();
        assert!(bucket.take());
        (0..100).for_each(|_| bucket.gain());
        assert_eq!(bucket.milli(), 2000);
    }
}
