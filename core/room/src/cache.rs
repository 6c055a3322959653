//! The prefix cache of a prefill worker, as its ledger sees it: which pages may be read again, who reads them, and which go.
//!
//! Pages are known by the hash of what is in them and before it. The engine's pool knows which page that is, and does what is
//! decided here. A page of the cache is written by nobody: it was sealed by the room that computed it, and is published when
//! that room is over, handed over, and let go of by everybody.

mod check;

use std::collections::{BTreeMap, BTreeSet};

use crate::pages::{PageCounts, PageState};
use crate::planted;

/// The name of a whole page of a prompt: a hash over its tokens, all before them, and the tenant. Made by the worker, with a
/// key that nobody else knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BlockHash(pub u128);

/// A page of the cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Block {
    /// The page before it in the prompt; it is in the cache as long as this one is.
    parent: Option<BlockHash>,
    /// The pages after it that are in the cache.
    children: BTreeSet<BlockHash>,
    /// Live rooms that read it.
    live: u32,
    /// Rooms that are over and may still read it.
    closing: u32,
    /// When it was last let go of, in the cache's own count.
    used: u64,
    /// It may be corrupt: no other room reads it, and it goes with its last reader.
    doomed: bool,
}

impl Block {
    /// What its page counts as.
    const fn state(&self) -> PageState {
        match (self.live, self.closing) {
            (0, 0) => PageState::Cached,
            (0, _) => PageState::Quarantined,
            (..) => PageState::Held,
        }
    }

    fn is_leaf(&self) -> bool {
        matches!(self.state(), PageState::Cached) && self.children.is_empty()
    }
}

/// The pages of the cache by their names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Cache {
    most: u32,
    clock: u64,
    blocks: BTreeMap<BlockHash, Block>,
    /// Those that nobody reads and that nothing follows, the longest unused first: what goes next.
    leaves: BTreeSet<(u64, BlockHash)>,
    /// How many pages count as held, quarantined and cached.
    counts: PageCounts,
}

impl Cache {
    /// An empty one for at most so many pages; with 0 nothing is kept.
    #[must_use]
    pub fn new(most: u32) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// Whether anything is ever kept.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.most > 0
    }

    /// Pages in it, read or not.
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.blocks.len()).unwrap_or(u32::MAX)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// How many of its pages count as what; `free` is 0.
    #[must_use]
    pub const fn counts(&self) -> PageCounts {
        self.counts
    }

    /// How many pages of a prompt are here, from its beginning without a gap.
    #[must_use]
    pub fn reusable(&self, chain: &[BlockHash]) -> u32 {
        let here = |hash: &&BlockHash| self.blocks.get(hash).is_some_and(|block| !block.doomed);
        u32::try_from(chain.iter().take_while(here).count()).unwrap_or(u32::MAX)
    }

    /// How many of these pages nobody reads: they count as available, and do not once a room has them.
    #[must_use]
    pub fn unread(&self, chain: &[BlockHash]) -> u32 {
        let unread = |hash: &&BlockHash| {
            self.blocks
                .get(hash)
                .is_some_and(|block| matches!(block.state(), PageState::Cached))
        };
        u32::try_from(chain.iter().filter(unread).count()).unwrap_or(u32::MAX)
    }

    /// A room reads these pages from now on.
    pub fn pin(&mut self, chain: &[BlockHash], pages: &mut PageCounts) {
        for hash in chain {
            self.change(*hash, pages, |block| block.live += 1);
        }
    }

    /// A room that read these pages is over; its sender and its engine may still read them.
    pub fn part_over(&mut self, chain: &[BlockHash], pages: &mut PageCounts) {
        for hash in chain {
            self.change(*hash, pages, |block| {
                block.live = block.live.saturating_sub(1);
                block.closing += 1;
            });
        }
    }

    /// Nobody of a room that is over reads these pages any more. Returns those that go: they may be corrupt, and it was their
    /// last reader.
    pub fn let_go(&mut self, chain: &[BlockHash], pages: &mut PageCounts) -> Vec<BlockHash> {
        for hash in chain {
            self.clock += 1;
            let clock = self.clock;
            self.change(*hash, pages, |block| {
                block.closing = block.closing.saturating_sub(1);
                block.used = clock;
            });
        }
        self.drop_doomed(chain, pages)
    }

    /// These pages may be corrupt, and so what was computed from them: none of it is read again. Returns those that go now;
    /// the others go with their last reader.
    pub fn doom(&mut self, chain: &[BlockHash], pages: &mut PageCounts) -> Vec<BlockHash> {
        let mut found: Vec<BlockHash> = chain.to_vec();
        let mut at = 0;
        while let Some(hash) = found.get(at).copied() {
            at += 1;
            if let Some(block) = self.blocks.get_mut(&hash).filter(|block| !block.doomed) {
                block.doomed = true;
                found.extend(block.children.iter().copied());
            }
        }
        self.drop_doomed(&found, pages)
    }

    /// Takes out what is doomed and not read, what follows first.
    fn drop_doomed(&mut self, found: &[BlockHash], pages: &mut PageCounts) -> Vec<BlockHash> {
        let mut gone = vec![];
        for hash in found.iter().rev() {
            let mut next = Some(*hash);
            while let Some(hash) = next.take() {
                if self
                    .blocks
                    .get(&hash)
                    .is_some_and(|block| block.doomed && block.is_leaf())
                {
                    next = self.take_out(hash, pages);
                    gone.push(hash);
                }
            }
        }
        gone
    }

    /// Makes so many pages free, or as many as there are without a reader: the longest unused first, and never one that another
    /// follows.
    pub fn evict(&mut self, wanted: u32, pages: &mut PageCounts) -> Vec<BlockHash> {
        let mut gone = vec![];
        while gone.len() < wanted as usize {
            let read = planted::evict_under_reader()
                .then(|| self.blocks.keys().next_back().copied())
                .flatten();
            let Some(hash) = read.or_else(|| self.leaves.first().map(|(_, hash)| *hash)) else {
                break;
            };
            self.take_out(hash, pages);
            gone.push(hash);
        }
        gone
    }

    /// The pages of a room that is over and clean are published: those of its whole pages from `own` on, which are its own and
    /// count as quarantined. Those that are here already stay the room's, and go with it. Returns what is kept, by the page's
    /// place in the prompt, and what goes for it.
    pub fn publish(
        &mut self,
        chain: &[BlockHash],
        own: u32,
        pages: &mut PageCounts,
    ) -> (Vec<(u32, BlockHash)>, Vec<BlockHash>) {
        let (mut kept, mut gone) = (vec![], vec![]);
        let mut parent: Option<BlockHash> = None;
        for (at, hash) in (0_u32..).zip(chain.iter().copied()) {
            let known = self.blocks.get(&hash).map(|block| block.doomed);
            match known {
                // What follows could not be reached, or is not to be.
                Some(true) => break,
                None if at < own => break,
                Some(false) if !planted::publish_twice() || at < own => {}
                Some(false) => kept.push((at, hash)),
                None => {
                    if !self.make_place(parent, pages, &mut gone) {
                        break;
                    }
                    self.put_in(hash, parent, pages);
                    kept.push((at, hash));
                }
            }
            parent = Some(hash);
        }
        (kept, gone)
    }

    /// Whether there is a place for one more, at the cost of the longest unused if need be, though not of the one it follows.
    fn make_place(&mut self, parent: Option<BlockHash>, pages: &mut PageCounts, gone: &mut Vec<BlockHash>) -> bool {
        if self.len() < self.most {
            return true;
        }
        let oldest = self
            .leaves
            .iter()
            .map(|(_, hash)| *hash)
            .find(|hash| Some(*hash) != parent);
        oldest.is_some_and(|hash| {
            self.take_out(hash, pages);
            gone.push(hash);
            self.len() < self.most
        })
    }

    fn put_in(&mut self, hash: BlockHash, parent: Option<BlockHash>, pages: &mut PageCounts) {
        self.clock += 1;
        let block = Block {
            parent,
            used: self.clock,
            ..Block::default()
        };
        self.leaves.insert((block.used, hash));
        self.blocks.insert(hash, block);
        self.counts.cached += 1;
        pages.shift(PageState::Quarantined, PageState::Cached, 1);
        if let Some(parent) = parent {
            self.change(parent, pages, |block| {
                block.children.insert(hash);
            });
        }
    }

    /// Its page is free from now on. Returns its parent.
    fn take_out(&mut self, hash: BlockHash, pages: &mut PageCounts) -> Option<BlockHash> {
        let block = self.blocks.remove(&hash)?;
        self.leaves.remove(&(block.used, hash));
        let count = self.counts.slot(block.state());
        *count = count.saturating_sub(1);
        pages.shift(block.state(), PageState::Free, 1);
        if let Some(parent) = block.parent {
            self.change(parent, pages, |parent| {
                parent.children.remove(&hash);
            });
        }
        block.parent
    }

    /// Changes a page; what follows from that is kept true.
    fn change(&mut self, hash: BlockHash, pages: &mut PageCounts, change: impl FnOnce(&mut Block)) {
        let Some(block) = self.blocks.get_mut(&hash) else {
            return;
        };
        self.leaves.remove(&(block.used, hash));
        let before = block.state();
        change(block);
        let after = block.state();
        if block.is_leaf() {
            self.leaves.insert((block.used, hash));
        }
        if before != after {
            pages.shift(before, after, 1);
            self.counts.shift(before, after, 1);
        }
    }
}
