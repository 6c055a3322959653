//! Which beginnings of prompts each worker was sent: a radix tree over blocks of tokens. Approximate: a worker may have dropped
//! what it was sent, or never come to it.
//!
//! A block's hash stands for the whole way from the root, so a node is found by the hash of its first block alone, and none
//! needs to know its parent or its children. Whoever wants to can make two beginnings with the same hash: the node that was there
//! gives way to the new one then, and nothing worse follows.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::ids::Incarnation;

/// The tree. A placement costs it as many look-ups as there are forks on the prompt's way, and a comparison for each block.
#[derive(Clone, Debug, Hash)]
pub(super) struct Seen {
    /// By their first blocks.
    nodes: BTreeMap<u64, Node>,
    /// What each worker has of each node, that to forget first in front: the longest unused, of one prompt the deepest. Nothing
    /// was used later than what it hangs from, so the first is always a leaf of its worker's.
    order: BTreeSet<(u64, Reverse<usize>, u64, Incarnation)>,
    /// How many nodes each worker has.
    held: BTreeMap<Incarnation, usize>,
    /// Placements so far: the tree's own time.
    time: u64,
    /// Blocks, those of each worker counted for themselves.
    blocks: usize,
    most: usize,
}

/// Blocks that follow each other, without a fork between them.
#[derive(Clone, Debug, Hash)]
struct Node {
    run: Vec<u64>,
    /// Blocks before it.
    depth: usize,
    /// Who was sent it, and when last.
    workers: BTreeMap<Incarnation, u64>,
}

impl Seen {
    /// An empty tree of at most so many blocks; 0: it stays empty.
    pub(super) const fn new(most: usize) -> Self {
        Self {
            nodes: BTreeMap::new(),
            order: BTreeSet::new(),
            held: BTreeMap::new(),
            time: 0,
            blocks: 0,
            most,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// For how many blocks from the beginning each worker was sent the same; those that share none are left out.
    pub(super) fn matches(&self, blocks: &[u64]) -> BTreeMap<Incarnation, u32> {
        let mut found = BTreeMap::new();
        // Whoever has a node has those above it.
        for (node, shared) in self.way(blocks) {
            let depth = count(node.depth + shared);
            found.extend(node.workers.keys().map(|worker| (*worker, depth)));
        }
        found
    }

    /// The same for one worker.
    pub(super) fn matched(&self, blocks: &[u64], worker: Incarnation) -> u32 {
        let of_worker = self
            .way(blocks)
            .take_while(|(node, _)| node.workers.contains_key(&worker));
        of_worker.last().map_or(0, |(node, shared)| count(node.depth + shared))
    }

    /// A worker is sent this prompt.
    pub(super) fn sent(&mut self, blocks: &[u64], worker: Incarnation) {
        if self.most == 0 || blocks.is_empty() {
            return;
        }
        self.time += 1;
        let whole: Vec<(u64, usize)> = self.way(blocks).map(|(node, shared)| (node.run[0], shared)).collect();
        let mut known = 0;
        for (first, shared) in whole {
            self.fork(first, shared);
            self.touch(first, worker);
            known += shared;
        }
        if let Some(first) = blocks.get(known) {
            let node = Node {
                run: blocks[known..].to_vec(),
                depth: known,
                workers: BTreeMap::new(),
            };
            self.insert(*first, node);
            self.touch(*first, worker);
        }
        while self.blocks > self.most
            && let Some((_, _, first, worker)) = self.order.pop_first()
        {
            self.drop_one(first, worker);
        }
    }

    /// A worker is gone, or is not to be believed: nothing leads to it any more.
    pub(super) fn forget(&mut self, worker: Incarnation) {
        if !self.held.contains_key(&worker) {
            // It is asked for each room that a worker loses, and looks at the whole tree.
            return;
        }
        let of_worker = self.nodes.iter().filter(|(_, node)| node.workers.contains_key(&worker));
        let all: Vec<u64> = of_worker.map(|(first, _)| *first).collect();
        for first in all {
            self.drop_one(first, worker);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.most);
    }

    /// The nodes on a prompt's way, each with the number of its blocks that are the prompt's; only the last one's may be fewer
    /// than it has.
    fn way<'a>(&'a self, blocks: &'a [u64]) -> impl Iterator<Item = (&'a Node, usize)> + 'a {
        let mut known = Some(0);
        std::iter::from_fn(move || {
            let rest = blocks.get(known?..)?;
            let node = self.nodes.get(rest.first()?).filter(|node| Some(node.depth) == known)?;
            let shared = node
                .run
                .iter()
                .zip(rest)
                .take_while(|(one, other)| one == other)
                .count();
            known = known.filter(|_| shared == node.run.len()).map(|known| known + shared);
            Some((node, shared))
        })
    }

    /// Makes two of a node, the first one of so many blocks, if it has more.
    fn fork(&mut self, first: u64, blocks: usize) {
        let Some(node) = self.nodes.get_mut(&first).filter(|node| blocks < node.run.len()) else {
            return;
        };
        let rest = Node {
            run: node.run.split_off(blocks),
            depth: node.depth + blocks,
            workers: node.workers.clone(),
        };
        self.insert(rest.run[0], rest);
    }

    /// Puts a node there; one of the same hash that is there gives way.
    fn insert(&mut self, first: u64, node: Node) {
        let old = self.nodes.get(&first).map(|old| old.workers.keys().copied().collect());
        let old: Vec<Incarnation> = old.unwrap_or_default();
        for worker in old {
            self.drop_one(first, worker);
        }
        for (worker, then) in &node.workers {
            self.order.insert((*then, Reverse(node.depth), first, *worker));
            *self.held.entry(*worker).or_default() += 1;
        }
        self.nodes.insert(first, node);
    }

    /// A worker has this node from now on, and has just used it.
    fn touch(&mut self, first: u64, worker: Incarnation) {
        let Some(node) = self.nodes.get_mut(&first) else { return };
        let depth = Reverse(node.depth);
        match node.workers.insert(worker, self.time) {
            Some(then) => drop(self.order.remove(&(then, depth, first, worker))),
            None => {
                self.blocks += node.run.len();
                *self.held.entry(worker).or_default() += 1;
            }
        }
        self.order.insert((self.time, depth, first, worker));
    }

    /// A worker has this node no more.
    fn drop_one(&mut self, first: u64, worker: Incarnation) {
        let Some(node) = self.nodes.get_mut(&first) else { return };
        if let Some(then) = node.workers.remove(&worker) {
            self.blocks -= node.run.len();
            self.order.remove(&(then, Reverse(node.depth), first, worker));
            if let Some(held) = self.held.get_mut(&worker) {
                *held -= 1;
                if *held == 0 {
                    self.held.remove(&worker);
                }
            }
        }
        if node.workers.is_empty() {
            self.nodes.remove(&first);
        }
    }

    /// Blocks that are kept, counted anew, with all that must hold of them.
    #[cfg(test)]
    pub(super) fn checked(&self) -> usize {
        let kept = self.nodes.iter().map(|(first, node)| {
            assert!(node.run.first() == Some(first) && !node.workers.is_empty());
            for (worker, then) in &node.workers {
                assert!(self.order.contains(&(*then, Reverse(node.depth), *first, *worker)));
            }
            node.run.len() * node.workers.len()
        });
        let kept = kept.sum();
        let places: usize = self.nodes.values().map(|node| node.workers.len()).sum();
        let held: usize = self.held.values().sum();
        assert_eq!((self.blocks, self.order.len(), held), (kept, places, places));
        assert!(kept <= self.most);
        kept
    }
}

fn count(blocks: usize) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: Incarnation = Incarnation::new(1);
    const B: Incarnation = Incarnation::new(2);

    #[test]
    fn the_longest_match_is_of_whoever_was_sent_it() {
        let mut seen = Seen::new(100);
        seen.sent(&[1, 2, 3], A);
        seen.sent(&[1, 2, 30, 40], B);
        assert_eq!(seen.matches(&[1, 2, 3, 4]), BTreeMap::from([(A, 3), (B, 2)]));
        assert_eq!((seen.matched(&[1, 2, 3, 4], A), seen.matched(&[9], A)), (3, 0));
        seen.forget(A);
        assert_eq!(seen.matches(&[1, 2, 3]), BTreeMap::from([(B, 2)]));
        seen.clear();
        assert_eq!((seen.is_empty(), seen.checked()), (true, 0));
    }

    #[test]
    fn what_was_used_last_stays_and_leaves_go_before_what_they_hang_from() {
        let mut seen = Seen::new(4);
        seen.sent(&[1, 2], A);
        seen.sent(&[1, 3], A);
        seen.sent(&[1, 4], A);
        assert_eq!(seen.checked(), 4);
        seen.sent(&[1, 5], A);
        assert_eq!(seen.matched(&[1, 2], A), 1, "the longest unused leaf went");
        assert_eq!(seen.matched(&[1, 3], A), 2);
        seen.sent(&[1, 6], B);
        assert_eq!(
            (seen.matched(&[1, 6], B), seen.matched(&[1, 3], A)),
            (2, 1),
            "each worker's count"
        );
        let mut seen = Seen::new(0);
        seen.sent(&[1], A);
        assert!(seen.is_empty());
    }

    #[test]
    fn a_node_is_forked_where_prompts_part() {
        let mut seen = Seen::new(100);
        seen.sent(&[1, 2, 3, 4], A);
        seen.sent(&[1, 2, 3, 4], B);
        assert_eq!((seen.nodes.len(), seen.checked()), (1, 8));
        seen.sent(&[1, 2], B);
        seen.sent(&[1, 2, 30], A);
        assert_eq!((seen.nodes.len(), seen.checked()), (3, 9));
        assert_eq!(seen.matches(&[1, 2, 30]), BTreeMap::from([(A, 3), (B, 2)]));
        assert_eq!(
            seen.matches(&[1, 2, 3]),
            BTreeMap::from([(A, 3), (B, 3)]),
            "a part of a node"
        );
    }

    #[test]
    fn beginnings_of_one_hash_cost_nothing_but_each_other() {
        let mut seen = Seen::new(3);
        for prompt in [&[5][..], &[1, 5], &[1, 9], &[7], &[7, 7], &[8, 80]] {
            seen.sent(prompt, A);
            seen.checked();
        }
        assert_eq!(seen.matched(&[8, 80], A), 2);
    }

    proptest! {
        /// Hashes that are no hashes: anything may be made equal.
        #[test]
        fn whatever_hashes_are_the_tree_stays_whole(
            most in 1_usize..12,
            sent in prop::collection::vec((0_u64..3, prop::collection::vec(0_u64..5, 1..6)), 0..80),
            asked in prop::collection::vec(0_u64..5, 1..6),
        ) {
            let mut seen = Seen::new(most);
            for (worker, prompt) in &sent {
                seen.sent(prompt, Incarnation::new(*worker));
                seen.checked();
                prop_assert!(seen.matches(&asked).values().all(|matched| *matched as usize <= asked.len()));
                prop_assert!(seen.matched(&asked, Incarnation::new(*worker)) as usize <= asked.len());
            }
            (0..3).for_each(|worker| seen.forget(Incarnation::new(worker)));
            prop_assert_eq!((seen.checked(), seen.is_empty()), (0, true));
        }

        /// Against what it should be: whole prompts in a list, the nodes of which are bounded by nothing.
        #[test]
        fn it_never_says_more_than_was_sent_and_never_grows_beyond_its_bound(
            most in 1_usize..40,
            sent in prop::collection::vec((0_u64..4, prop::collection::vec(0_u64..3, 1..6)), 0..60),
            asked in prop::collection::vec(0_u64..3, 1..6),
        ) {
            let chained = |prompt: &[u64]| -> Vec<u64> {
                prompt.iter().scan(7, |hash, token| { *hash = crate::prefix::chain(*hash, *token); Some(*hash) }).collect()
            };
            let mut seen = Seen::new(most);
            for (worker, prompt) in &sent {
                seen.sent(&chained(prompt), Incarnation::new(*worker));
                seen.checked();
            }
            for (worker, matched) in seen.matches(&chained(&asked)) {
                let common = |prompt: &[u64]| prompt.iter().zip(&asked).take_while(|(a, b)| a == b).count();
                let of = sent.iter().filter(|(of, _)| Incarnation::new(*of) == worker);
                prop_assert!(matched as usize <= of.map(|(_, prompt)| common(prompt)).max().unwrap_or(0));
                prop_assert_eq!(matched, seen.matched(&chained(&asked), worker));
            }
            if let Some((worker, last)) = sent.last().filter(|(_, last)| last.len() <= most) {
                prop_assert_eq!(seen.matched(&chained(last), Incarnation::new(*worker)) as usize, last.len());
            }
        }
    }
}
