//! KV pages of one worker by state. The engine's pool holds page ids and executes; these counts decide.

use serde::{Deserialize, Serialize};

/// I7: `free + cached + held + quarantined = total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct PageCounts {
    /// Of no room.
    pub free: u32,
    /// Prefix pages without an owner, taken at once when needed.
    pub cached: u32,
    /// Of live rooms.
    pub held: u32,
    /// Of rooms that are over but which somebody might still touch.
    pub quarantined: u32,
}

impl PageCounts {
    /// A pool in which all pages are free.
    #[must_use]
    pub const fn all_free(total: u32) -> Self {
        Self {
            free: total,
            cached: 0,
            held: 0,
            quarantined: 0,
        }
    }

    /// All pages.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.free + self.cached + self.held + self.quarantined
    }

    /// Pages that a room can have now.
    #[must_use]
    pub const fn available(&self) -> u32 {
        self.free + self.cached
    }

    /// Takes pages for a room, free ones first; whether there were enough (else nothing changes).
    #[must_use]
    pub fn hold(&mut self, pages: u32) -> bool {
        if pages > self.available() {
            return false;
        }
        let from_free = pages.min(self.free);
        self.free -= from_free;
        self.cached -= pages - from_free;
        self.held += pages;
        true
    }

    /// The room is over; its pages may still be touched. Saturates: a caller's wrong count cannot break the sum.
    pub fn quarantine(&mut self, pages: u32) {
        let moved = pages.min(self.held);
        self.held -= moved;
        self.quarantined += moved;
    }

    /// Nobody touches these pages any more.
    pub fn release(&mut self, pages: u32) {
        let moved = pages.min(self.quarantined);
        self.quarantined -= moved;
        self.free += moved;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_conserved() {
        let mut pages = PageCounts::all_free(10);
        assert!(pages.hold(4));
        assert!(!pages.hold(7));
        pages.quarantine(4);
        pages.release(4);
        assert_eq!(pages, PageCounts::all_free(10));
        pages.release(3);
        assert_eq!(pages.total(), 10);
    }
}
