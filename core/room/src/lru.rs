//! A bounded memory: what was put in or touched longest ago is forgotten first. For ended rooms: one that is not in it is
//! Unknown, with the same effect for whoever asks.

use std::collections::BTreeMap;

/// At most `capacity` entries; every operation O(log n).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lru<K, V> {
    capacity: usize,
    clock: u64,
    entries: BTreeMap<K, (u64, V)>,
    by_age: BTreeMap<u64, K>,
}

impl<K: Copy + Ord, V> Lru<K, V> {
    /// An empty memory for `capacity` entries; with 0 it remembers nothing.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            clock: 0,
            entries: BTreeMap::new(),
            by_age: BTreeMap::new(),
        }
    }

    /// Puts an entry in as the newest; returns what had to be forgotten for it.
    pub fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        self.clock += 1;
        if let Some((age, _)) = self.entries.insert(key, (self.clock, value)) {
            self.by_age.remove(&age);
        }
        self.by_age.insert(self.clock, key);
        if self.entries.len() <= self.capacity {
            return None;
        }
        let (_, oldest) = self.by_age.pop_first()?;
        self.entries.remove(&oldest).map(|(_, value)| (oldest, value))
    }

    /// Looks at an entry; its age stays.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// Looks at an entry to change it; its age stays.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(_, value)| value)
    }

    /// Takes an entry out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (age, value) = self.entries.remove(key)?;
        self.by_age.remove(&age);
        Some(value)
    }

    /// Makes an entry the newest; whether there is one.
    pub fn touch(&mut self, key: &K) -> bool {
        let Some((age, _)) = self.entries.get_mut(key) else {
            return false;
        };
        self.by_age.remove(age);
        self.clock += 1;
        *age = self.clock;
        self.by_age.insert(self.clock, *key);
        true
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, (_, value))| (key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut memory = Lru::new(2);
        assert_eq!(memory.insert(1, 'a'), None);
        assert_eq!(memory.insert(2, 'b'), None);
        assert!(memory.touch(&1));
        assert_eq!(memory.insert(3, 'c'), Some((2, 'b')));
        assert_eq!(memory.get(&1), Some(&'a'));
        assert_eq!(memory.insert(1, 'z'), None);
        assert_eq!(memory.len(), 2);
        assert_eq!(memory.remove(&3), Some('c'));
    }

    #[test]
    fn without_room_nothing_is_remembered() {
        let mut memory = Lru::new(0);
        assert_eq!(memory.insert(1, 'a'), Some((1, 'a')));
        assert!(memory.is_empty());
    }
}
