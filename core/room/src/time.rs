//! Time as the core sees it: milliseconds on one node's own clock, handed in with every event.
//!
//! The clock is CLOCK_BOOTTIME in production (the usual one stands still while a machine sleeps). No two nodes' times
//! are ever compared.

use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// A point in time on the local clock, in milliseconds since some start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Moment(pub u64);

/// A length of time in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Moment {
    /// How long ago `earlier` was; zero if it lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl Millis {
    /// A whole number of seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    /// `self × numerator ÷ denominator`, rounded up; a zero denominator counts as 1.
    #[must_use]
    pub const fn scale(self, numerator: u64, denominator: u64) -> Self {
        let denominator = if denominator == 0 { 1 } else { denominator };
        Self(self.0.saturating_mul(numerator).div_ceil(denominator))
    }

    /// The time that `amount` units take at `per_second` units a second, rounded up; a zero rate counts as 1.
    #[must_use]
    pub const fn at_rate(amount: u64, per_second: u64) -> Self {
        let per_second = if per_second == 0 { 1 } else { per_second };
        Self(amount.saturating_mul(1000).div_ceil(per_second))
    }

    /// The same as a `std` duration, for the actors that sleep.
    #[must_use]
    pub const fn duration(self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0)
    }
}

impl Add<Millis> for Moment {
    type Output = Self;
    fn add(self, rhs: Millis) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}

impl Sub<Millis> for Moment {
    type Output = Self;
    fn sub(self, rhs: Millis) -> Self {
        Self(self.0.saturating_sub(rhs.0))
    }
}

impl Add for Millis {
    type Output = Self;
    fn add(self, rhs: Self) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}
