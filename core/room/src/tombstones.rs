//! Accepted aborts for requests that have not arrived. They live as long as a request may, end every arrival under their
//! id until then, and are bounded per client and together: when full an abort is refused, never forgotten.

use std::collections::{BTreeMap, VecDeque};

use crate::planted;
use crate::time::{Millis, Moment};

/// The tombstones of one router.
#[derive(Clone, Debug, Hash)]
pub struct Tombstones {
    age: Millis,
    capacity: usize,
    per_client: usize,
    by_rid: BTreeMap<String, Tombstone>,
    by_client: BTreeMap<String, usize>,
    /// In the order of expiry; all have the same age, so that this is the order of arrival.
    order: VecDeque<(Moment, String)>,
}

#[derive(Clone, Debug, Hash)]
struct Tombstone {
    client: String,
    expires: Moment,
}

impl Tombstones {
    /// None yet: at most `capacity`, of these `per_client` from one client, each kept for `age`.
    #[must_use]
    pub fn new(capacity: u32, per_client: u32, age: Millis) -> Self {
        Self {
            age,
            capacity: capacity as usize,
            per_client: per_client as usize,
            by_rid: BTreeMap::new(),
            by_client: BTreeMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Accepts an abort; whether there was a place. A second abort under the same id is accepted by the first one's.
    #[must_use]
    pub fn accept(&mut self, rid: &str, client: &str, now: Moment) -> bool {
        self.expire(now);
        if self.by_rid.contains_key(rid) {
            return true;
        }
        let of_client = self.by_client.get(client).copied().unwrap_or(0);
        if self.by_rid.len() >= self.capacity || of_client >= self.per_client {
            return false;
        }
        if planted::early_abort_lost() {
            return true;
        }
        let expires = now + self.age;
        self.by_rid.insert(
            rid.to_owned(),
            Tombstone {
                client: client.to_owned(),
                expires,
            },
        );
        self.by_client.insert(client.to_owned(), of_client + 1);
        self.order.push_back((expires, rid.to_owned()));
        true
    }

    /// Whether an arrival under this id ends at once.
    #[must_use]
    pub fn covers(&self, rid: &str, now: Moment) -> bool {
        self.by_rid.get(rid).is_some_and(|tombstone| now < tombstone.expires)
    }

    /// Drops those that are too old.
    pub fn expire(&mut self, now: Moment) {
        while let Some((expires, _)) = self.order.front() {
            if *expires > now {
                return;
            }
            let Some((_, rid)) = self.order.pop_front() else { return };
            let Some(tombstone) = self.by_rid.remove(&rid) else {
                continue;
            };
            if let Some(count) = self.by_client.get_mut(&tombstone.client) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.by_client.remove(&tombstone.client);
                }
            }
        }
    }

    /// When the oldest one goes.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Moment> {
        self.order.front().map(|(expires, _)| *expires)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_rid.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_rid.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_refuse_and_age_frees() {
        let mut tombstones = Tombstones::new(3, 2, Millis(100));
        assert!(tombstones.accept("a", "x", Moment(0)));
        assert!(tombstones.accept("b", "x", Moment(10)));
        assert!(!tombstones.accept("c", "x", Moment(20)), "the client's quota");
        assert!(
            tombstones.accept("a", "x", Moment(20)),
            "the same id again needs no place"
        );
        assert!(tombstones.accept("c", "y", Moment(20)));
        assert!(!tombstones.accept("d", "z", Moment(30)), "all places");
        assert!(tombstones.covers("a", Moment(99)) && !tombstones.covers("a", Moment(100)));
        assert!(tombstones.accept("d", "x", Moment(100)), "a's place");
        assert_eq!(tombstones.len(), 3);
        tombstones.expire(Moment(1000));
        assert!(tombstones.is_empty() && tombstones.by_client.is_empty());
    }
}
