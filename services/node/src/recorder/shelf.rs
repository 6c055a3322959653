//! Records of parts that are over, in memory: so many of each kind, the oldest forgotten first.

use std::collections::VecDeque;
use std::sync::Arc;

use innkeeper_room::RoomId;

use super::record::{Kind, Record};

/// Good ends that are kept, in memory only.
const GOOD: usize = 1000;
/// Of the places for bad ends, how many those have that are nobody's failure.
const MINOR_PART: usize = 4;

/// Places for ends that are nobody's failure, beside so many for others.
pub(super) const fn minor_places(rooms: usize) -> usize {
    rooms.div_ceil(MINOR_PART)
}

/// The records.
pub(super) struct Shelf {
    good: VecDeque<Arc<Record>>,
    minor: VecDeque<Arc<Record>>,
    bad: VecDeque<Arc<Record>>,
    most_bad: usize,
}

impl Shelf {
    pub(super) fn new(rooms: u32) -> Self {
        Self {
            good: VecDeque::new(),
            minor: VecDeque::new(),
            bad: VecDeque::new(),
            most_bad: (rooms as usize).max(1),
        }
    }

    /// Puts one in as the newest, in the place of what was known of the same part.
    pub(super) fn put(&mut self, record: Arc<Record>) {
        let (shelf, most) = match record.kind() {
            Kind::Good => (&mut self.good, GOOD),
            Kind::Minor => (&mut self.minor, minor_places(self.most_bad)),
            Kind::Bad => (&mut self.bad, self.most_bad),
        };
        // What is written again was put in just now.
        let recent = shelf.len().saturating_sub(64)..shelf.len();
        let same = |old: &Arc<Record>| old.room == record.room && old.incarnation == record.incarnation;
        if let Some(old) = shelf.range_mut(recent).rev().find(|old| same(old)) {
            *old = record;
            return;
        }
        if shelf.len() == most {
            shelf.pop_front();
        }
        shelf.push_back(record);
    }

    /// What is known of a room; the newest, should several lives of the node have known it.
    pub(super) fn get(&self, room: RoomId) -> Option<Arc<Record>> {
        let all = [&self.bad, &self.minor, &self.good];
        all.into_iter()
            .flat_map(|shelf| shelf.iter().rev())
            .find(|record| record.room == room)
            .cloned()
    }

    /// The newest of all kinds, newest first.
    pub(super) fn newest(&self, limit: usize) -> Vec<Arc<Record>> {
        let all = [&self.bad, &self.minor, &self.good];
        let mut found: Vec<_> = all
            .into_iter()
            .flat_map(|shelf| shelf.iter().rev().take(limit).cloned())
            .collect();
        found.sort_by_key(|record| std::cmp::Reverse(record.ended_unix_ms));
        found.truncate(limit);
        found
    }

    #[cfg(test)]
    pub(super) fn weight(&self) -> (usize, usize) {
        let all = || [&self.bad, &self.minor, &self.good].into_iter().flatten();
        (all().count(), all().map(|record| record.weight()).sum())
    }
}
