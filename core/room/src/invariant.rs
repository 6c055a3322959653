//! The invariants by name. Each ledger checks its share of them (`violations`): after every step in debug builds, in
//! property tests, and in the model checker.

use std::fmt;

/// The ten invariants of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// One end: each part ends once, each room has one verdict; the first reason wins.
    I1,
    /// Bounded: without any further message everything is terminal within its bound; every live part has an armed timer.
    I2,
    /// Sticky abort: it counts from the moment it is accepted.
    I3,
    /// No silent no-op: an update for an unknown or ended room is an answer and creates no state.
    I4,
    /// Fencing: what belongs to another epoch or incarnation changes nothing and is counted.
    I5,
    /// No foreign bytes: pages are handed out again only when all permits are back or the session is destroyed.
    I6,
    /// Conservation: `free + cached + held + quarantined = total`; permits likewise.
    I7,
    /// No head-of-line: a step for one room changes another only through permit, page and engine counters.
    I8,
    /// Blame: evidence is reported once, and blame follows from it by one pure function.
    I9,
    /// At most one speaker: only the current room's tokens, at exactly the next position.
    I10,
}

/// An invariant that does not hold, and what was seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Violation {
    /// Which one.
    pub invariant: Invariant,
    /// What was seen, for people.
    pub what: String,
}

impl Violation {
    /// Names what was seen.
    #[must_use]
    pub const fn new(invariant: Invariant, what: String) -> Self {
        Self { invariant, what }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.what)
    }
}
