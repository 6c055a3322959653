//! What must always be true of the cache, and its tests.

use std::collections::BTreeMap;

use super::{BlockHash, Cache};
use crate::pages::PageCounts;

impl Cache {
    /// What is wrong with it, given the pages that live rooms read and those that rooms which are over may still read.
    /// Walks all of it.
    pub(crate) fn wrong<'a>(
        &self,
        mut live: impl Iterator<Item = &'a [BlockHash]>,
        mut closing: impl Iterator<Item = &'a [BlockHash]>,
    ) -> Option<String> {
        let readers = |chains: &mut dyn Iterator<Item = &'a [BlockHash]>| {
            let mut readers: BTreeMap<BlockHash, u32> = BTreeMap::new();
            for hash in chains.flatten() {
                *readers.entry(*hash).or_default() += 1;
            }
            readers
        };
        let (live, closing) = (readers(&mut live), readers(&mut closing));
        let lost = live
            .keys()
            .chain(closing.keys())
            .find(|hash| !self.blocks.contains_key(hash));
        if let Some(hash) = lost {
            return Some(format!("{hash:?} is read and is not in the cache"));
        }
        let mut counts = PageCounts::default();
        let mut leaves = 0;
        for (hash, block) in &self.blocks {
            *counts.slot(block.state()) += 1;
            let read = (live.get(hash).copied(), closing.get(hash).copied());
            if (block.live, block.closing) != (read.0.unwrap_or(0), read.1.unwrap_or(0)) {
                return Some(format!("{hash:?} is read by {read:?}, not as {block:?} says"));
            }
            let follows = |parent: &BlockHash| self.blocks.get(parent).is_some_and(|it| it.children.contains(hash));
            if !block.parent.as_ref().is_none_or(follows) {
                return Some(format!("{hash:?} is in the cache without what is before it"));
            }
            let reached = |child: &BlockHash| self.blocks.get(child).is_some_and(|it| it.parent == Some(*hash));
            if !block.children.iter().all(reached) {
                return Some(format!("{hash:?} is followed by what is gone"));
            }
            leaves += usize::from(block.is_leaf());
            if block.is_leaf() != self.leaves.contains(&(block.used, *hash)) {
                return Some(format!(
                    "{hash:?} is a leaf and not in the order of leaves, or the other way round"
                ));
            }
        }
        if counts != self.counts || leaves != self.leaves.len() || self.len() > self.most {
            let (len, most) = (self.len(), self.most);
            return Some(format!(
                "{len} pages of at most {most}: {counts:?} are counted as {:?}",
                self.counts
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOTAL: u32 = 16;

    /// A room's life in the cache: what it reads, what is its own, and how far it is over.
    #[derive(Clone, Debug)]
    struct Room {
        chain: Vec<BlockHash>,
        reused: u32,
        own: u32,
        over: bool,
    }

    impl Room {
        fn shared(&self) -> &[BlockHash] {
            &self.chain[..self.reused as usize]
        }
    }

    /// A chain of pages: which branch a prompt takes at its second page, and how long it is.
    fn chain(branch: u8, len: usize) -> Vec<BlockHash> {
        let name = |at: usize| u128::from(if at == 0 { 0 } else { branch }) << 64 | at as u128;
        (0..len).map(name).map(BlockHash).collect()
    }

    #[derive(Clone, Debug)]
    enum Act {
        Open(u8, usize),
        Over(usize),
        Release(usize, bool),
        Doom(usize),
        Evict(u32),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            6 => (0_u8..3, 1_usize..6).prop_map(|(branch, len)| Act::Open(branch, len)),
            4 => (0_usize..8).prop_map(Act::Over),
            6 => (0_usize..8, prop::bool::weighted(0.8)).prop_map(|(room, clean)| Act::Release(room, clean)),
            1 => (0_usize..8).prop_map(Act::Doom),
            1 => (0_u32..4).prop_map(Act::Evict),
        ]
    }

    struct Bench {
        cache: Cache,
        pages: PageCounts,
        rooms: Vec<Room>,
    }

    impl Bench {
        fn new(most: u32) -> Self {
            Self {
                cache: Cache::new(most),
                pages: PageCounts::all_free(TOTAL),
                rooms: vec![],
            }
        }

        /// As the ledger does it. One page more than the chain has is the room's own, for the token that is computed.
        fn open(&mut self, chain: Vec<BlockHash>) -> Option<&Room> {
            let reused = self.cache.reusable(&chain);
            let own = u32::try_from(chain.len()).unwrap() + 1 - reused;
            let shared = &chain[..reused as usize];
            if own + self.cache.unread(shared) > self.pages.available() {
                return None;
            }
            self.cache.pin(shared, &mut self.pages);
            let short = own.saturating_sub(self.pages.free);
            let gone = self.cache.evict(short, &mut self.pages);
            assert_eq!(gone.len(), short as usize, "what is available can be had");
            assert!(self.pages.hold(own));
            self.rooms.push(Room {
                chain,
                reused,
                own,
                over: false,
            });
            self.rooms.last()
        }

        fn over(&mut self, at: usize) {
            let room = &mut self.rooms[at];
            if !room.over {
                room.over = true;
                self.pages.quarantine(room.own);
                let shared = room.shared().to_vec();
                self.cache.part_over(&shared, &mut self.pages);
            }
        }

        fn release(&mut self, at: usize, clean: bool) -> Vec<(u32, BlockHash)> {
            self.over(at);
            let room = self.rooms.remove(at);
            let _ = self.cache.let_go(room.shared(), &mut self.pages);
            let (kept, _) = if clean {
                self.cache.publish(&room.chain, room.reused, &mut self.pages)
            } else {
                Default::default()
            };
            self.pages.release(room.own - u32::try_from(kept.len()).unwrap());
            kept
        }

        /// The whole of it: an open and a clean end.
        fn serve(&mut self, chain: Vec<BlockHash>) -> (u32, Vec<(u32, BlockHash)>) {
            let reused = self.open(chain).expect("there is place").reused;
            (reused, self.release(self.rooms.len() - 1, true))
        }

        fn wrong(&self) -> Option<String> {
            let of = |over| {
                let rooms = self.rooms.iter().filter(move |room| room.over == over);
                rooms.map(|room| &room.chain[..room.reused as usize])
            };
            let own = |over| {
                let rooms = self.rooms.iter().filter(move |room| room.over == over);
                rooms.map(|room| room.own).sum::<u32>()
            };
            let (shared, pages) = (self.cache.counts(), self.pages);
            let counted = pages.total() == TOTAL
                && pages.held == own(false) + shared.held
                && pages.quarantined == own(true) + shared.quarantined
                && pages.cached == shared.cached;
            let lost = (!counted).then(|| format!("{pages:?}, of these in the cache {shared:?}: {:?}", self.rooms));
            lost.or_else(|| self.cache.wrong(of(false), of(true)))
        }
    }

    proptest! {
        #[test]
        fn every_page_is_counted_once_and_no_page_goes_under_its_reader(
            most in 0_u32..12,
            acts in proptest::collection::vec(act(), 1..120),
        ) {
            let mut bench = Bench::new(most);
            for act in acts {
                let rooms = bench.rooms.len();
                match act {
                    Act::Open(branch, len) => drop(bench.open(chain(branch, len)).cloned()),
                    Act::Over(at) if at < rooms => bench.over(at),
                    Act::Release(at, clean) if at < rooms => drop(bench.release(at, clean)),
                    Act::Doom(at) if at < rooms => {
                        let shared = bench.rooms[at].shared().to_vec();
                        let gone = bench.cache.doom(&shared, &mut bench.pages);
                        prop_assert_eq!(bench.cache.reusable(&shared), 0);
                        let read = |hash: &BlockHash| bench.rooms.iter().any(|room| room.shared().contains(hash));
                        prop_assert!(!gone.iter().any(read), "{:?} goes under its reader", gone);
                    }
                    Act::Evict(wanted) => {
                        let gone = bench.cache.evict(wanted, &mut bench.pages);
                        let read = |hash: &BlockHash| bench.rooms.iter().any(|room| room.shared().contains(hash));
                        prop_assert!(!gone.iter().any(read), "{:?} goes under its reader", gone);
                    }
                    Act::Over(_) | Act::Release(..) | Act::Doom(_) => {}
                }
                prop_assert_eq!(bench.wrong(), None);
            }
            while !bench.rooms.is_empty() {
                bench.release(0, false);
                prop_assert_eq!(bench.wrong(), None);
            }
            prop_assert_eq!(bench.pages.available(), TOTAL, "all is available when nobody is left");
        }
    }

    #[test]
    fn what_is_unused_longest_goes_first_and_never_what_another_page_follows() {
        let mut bench = Bench::new(TOTAL);
        assert_eq!(bench.serve(chain(1, 3)).1.len(), 3);
        assert_eq!(
            bench.serve(chain(2, 3)),
            (1, vec![(1, chain(2, 2)[1]), (2, chain(2, 3)[2])])
        );
        // The first branch is read again: the second is now unused longer, and its end goes first.
        assert_eq!(bench.serve(chain(1, 3)), (3, vec![]));
        assert_eq!(bench.cache.evict(1, &mut bench.pages), [chain(2, 3)[2]]);
        assert_eq!(bench.cache.evict(1, &mut bench.pages), [chain(2, 2)[1]]);
        assert_eq!(
            bench.cache.evict(9, &mut bench.pages).len(),
            3,
            "then the other, from its end"
        );
        assert_eq!(bench.pages, PageCounts::all_free(TOTAL));
    }

    #[test]
    fn two_rooms_that_computed_the_same_leave_it_once() {
        let mut bench = Bench::new(TOTAL);
        bench.open(chain(1, 3)).expect("there is place");
        bench.open(chain(1, 3)).expect("there is place");
        assert_eq!(bench.release(0, true).len(), 3);
        assert_eq!(bench.release(0, true), vec![], "the other's pages are free again");
        assert_eq!((bench.pages.cached, bench.pages.free), (3, TOTAL - 3));
    }

    #[test]
    fn a_corrupt_page_takes_along_what_was_computed_from_it_when_its_last_reader_goes() {
        let mut bench = Bench::new(TOTAL);
        bench.serve(chain(1, 2));
        bench.serve(chain(1, 4));
        bench.open(chain(1, 2)).expect("there is place");
        let gone = bench.cache.doom(&chain(1, 1), &mut bench.pages);
        assert_eq!(gone, [chain(1, 4)[3], chain(1, 3)[2]], "nobody reads these");
        assert_eq!(bench.cache.reusable(&chain(1, 4)), 0);
        bench.release(0, true);
        assert_eq!(bench.wrong(), None);
        assert_eq!(
            bench.pages,
            PageCounts::all_free(TOTAL),
            "and nothing of it was published anew"
        );
    }

    #[test]
    fn a_bound_is_kept_by_giving_up_what_is_oldest_though_not_what_is_to_be_followed() {
        let mut bench = Bench::new(2);
        assert_eq!(bench.serve(chain(1, 4)).1.len(), 2);
        assert_eq!(
            bench.serve(chain(2, 2)),
            (1, vec![(1, chain(2, 2)[1])]),
            "for the other branch's end"
        );
        assert_eq!(bench.cache.reusable(&chain(1, 4)), 1);
        assert_eq!(Bench::new(0).serve(chain(1, 4)).1, vec![]);
    }
}
