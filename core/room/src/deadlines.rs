//! One queue for all deadlines of a ledger: at most one per key, the earliest first, every operation O(log n).

use std::collections::{BTreeMap, BTreeSet};

use crate::time::Moment;

/// Deadlines by key. A key has at most one: the earliest of what it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Deadlines<K> {
    by_key: BTreeMap<K, Moment>,
    by_time: BTreeSet<(Moment, K)>,
}

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Self {
            by_key: BTreeMap::new(),
            by_time: BTreeSet::new(),
        }
    }
}

impl<K: Copy + Ord> Deadlines<K> {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets, moves or (with `None`) removes the deadline of a key.
    pub fn set(&mut self, key: K, at: Option<Moment>) {
        let old = match at {
            Some(at) => self.by_key.insert(key, at),
            None => self.by_key.remove(&key),
        };
        if old == at {
            return;
        }
        if let Some(old) = old {
            self.by_time.remove(&(old, key));
        }
        if let Some(at) = at {
            self.by_time.insert((at, key));
        }
    }

    /// The deadline of a key.
    #[must_use]
    pub fn get(&self, key: K) -> Option<Moment> {
        self.by_key.get(&key).copied()
    }

    /// The earliest deadline.
    #[must_use]
    pub fn next(&self) -> Option<Moment> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Removes and returns a key that is due: the earliest, and of those the smallest key.
    pub fn take_due(&mut self, now: Moment) -> Option<K> {
        let (at, key) = self.by_time.first().copied()?;
        if at > now {
            return None;
        }
        self.set(key, None);
        Some(key)
    }

    /// How many keys have a deadline.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether no key has one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_comes_first_and_a_key_has_one() {
        let mut queue = Deadlines::new();
        queue.set("b", Some(Moment(5)));
        queue.set("a", Some(Moment(9)));
        queue.set("a", Some(Moment(3)));
        queue.set("c", Some(Moment(1)));
        queue.set("c", None);
        assert_eq!(queue.next(), Some(Moment(3)));
        assert_eq!(queue.take_due(Moment(2)), None);
        assert_eq!(queue.take_due(Moment(5)), Some("a"));
        assert_eq!(queue.take_due(Moment(5)), Some("b"));
        assert_eq!(queue.take_due(Moment(100)), None);
        assert!(queue.is_empty());
    }
}
