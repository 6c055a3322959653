//! KV pages of one worker by state. The engine's pool holds page ids and executes; these counts decide.

use serde::{Deserialize, Serialize};

/// I7: `free + cached + held + quarantined = total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct PageCounts {
    /// Of no room.
    pub free: u32,
    /// Of the prefix cache and read by nobody: free as soon as they are needed.
    pub cached: u32,
    /// Of live rooms; a page that several of them read counts once.
    pub held: u32,
    /// Of rooms that are over but which somebody might still touch.
    pub quarantined: u32,
}

/// What a page counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// Of no room.
    Free,
    /// Of the prefix cache and read by nobody.
    Cached,
    /// Of a live room.
    Held,
    /// Of rooms that are over.
    Quarantined,
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

    /// Takes free pages for a room; whether there were enough (else nothing changes).
    #[must_use]
    pub fn hold(&mut self, pages: u32) -> bool {
        if pages > self.free {
            return false;
        }
        self.shift(PageState::Free, PageState::Held, pages);
        true
    }

    /// The room is over; its pages may still be touched.
    pub fn quarantine(&mut self, pages: u32) {
        self.shift(PageState::Held, PageState::Quarantined, pages);
    }

    /// Nobody touches these pages any more.
    pub fn release(&mut self, pages: u32) {
        self.shift(PageState::Quarantined, PageState::Free, pages);
    }

    /// How many count as this.
    pub fn slot(&mut self, state: PageState) -> &mut u32 {
        match state {
            PageState::Free => &mut self.free,
            PageState::Cached => &mut self.cached,
            PageState::Held => &mut self.held,
            PageState::Quarantined => &mut self.quarantined,
        }
    }

    /// So many pages count as something else from now on. Saturates: a caller's wrong count cannot break the sum.
    pub fn shift(&mut self, from: PageState, to: PageState, pages: u32) {
        let there = self.slot(from);
        let moved = pages.min(*there);
        *there -= moved;
        *self.slot(to) += moved;
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
