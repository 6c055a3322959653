//! What the in-process store holds, as plain data: leases, keys, a bounded history. No waiting, no clock of its own.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use innkeeper_room::{Incarnation, RoomId};
use tokio::time::Instant;

use crate::keys::Key;
use crate::port::{Member, WatchEvent};

/// One change of one key.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    key: Key,
    /// The record, if a member's key was written.
    member: Option<Arc<Member>>,
    deleted: bool,
}

impl Change {
    /// What a watch of `own` tells of it; a foreign door is nobody's business.
    pub(crate) fn event_for(&self, own: Incarnation) -> Option<WatchEvent> {
        match (self.key, &self.member, self.deleted) {
            (Key::Member(node), _, true) => Some(WatchEvent::MemberGone(node)),
            (Key::Member(_), Some(member), false) => Some(WatchEvent::MemberUp(Box::new(member.as_ref().clone()))),
            (Key::Member(_), None, false) => None,
            (Key::Door(node, room), _, true) if node == own => Some(WatchEvent::DoorGone(room)),
            (Key::Door(node, room), _, false) if node == own => Some(WatchEvent::DoorSeen(room)),
            (Key::Door(..), ..) => None,
        }
    }
}

#[derive(Debug)]
struct Lease {
    ttl: Duration,
    ends: Instant,
    keys: BTreeSet<Key>,
}

#[derive(Debug)]
struct Record {
    lease: i64,
    member: Option<Arc<Member>>,
}

/// Leases, keys and history.
#[derive(Debug)]
pub(crate) struct State {
    /// How many changes of a key there were; starts again when the store is wiped.
    pub(crate) changes: u64,
    /// Counts wipes: a watch of an older one has a gap.
    pub(crate) generation: u64,
    leases: HashMap<i64, Lease>,
    ends: BTreeSet<(Instant, i64)>,
    keys: BTreeMap<Key, Record>,
    history: VecDeque<Change>,
    history_limit: usize,
}

impl State {
    pub(crate) fn new(history_limit: usize) -> Self {
        Self {
            changes: 0,
            generation: 0,
            leases: HashMap::new(),
            ends: BTreeSet::new(),
            keys: BTreeMap::new(),
            history: VecDeque::new(),
            history_limit,
        }
    }

    /// Ends the leases whose time is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(&(ends, id)) = self.ends.first() {
            if ends > now {
                break;
            }
            self.revoke(id);
        }
    }

    /// When the next lease ends, unless it is renewed.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.ends.first().map(|(ends, _)| *ends)
    }

    /// Grants a lease; false if the id is taken.
    pub(crate) fn grant(&mut self, id: i64, ttl: Duration, now: Instant) -> bool {
        if self.leases.contains_key(&id) {
            return false;
        }
        let ends = now + ttl;
        self.leases.insert(
            id,
            Lease {
                ttl,
                ends,
                keys: BTreeSet::new(),
            },
        );
        self.ends.insert((ends, id));
        true
    }

    /// Gives a lease its whole time again; false if there is none.
    pub(crate) fn renew(&mut self, id: i64, now: Instant) -> bool {
        let Some(lease) = self.leases.get_mut(&id) else {
            return false;
        };
        self.ends.remove(&(lease.ends, id));
        lease.ends = now + lease.ttl;
        self.ends.insert((lease.ends, id));
        true
    }

    /// Ends a lease and deletes its keys; false if there is none.
    pub(crate) fn revoke(&mut self, id: i64) -> bool {
        let Some(lease) = self.leases.remove(&id) else {
            return false;
        };
        self.ends.remove(&(lease.ends, id));
        for key in lease.keys {
            self.keys.remove(&key);
            self.remember(Change {
                key,
                member: None,
                deleted: true,
            });
        }
        true
    }

    /// Whether a key exists.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.keys.contains_key(key)
    }

    /// Writes keys under a lease; a key leaves the lease that it had before.
    pub(crate) fn put(&mut self, lease: i64, records: impl IntoIterator<Item = (Key, Option<Arc<Member>>)>) {
        for (key, member) in records {
            if let Some(before) = self.keys.insert(
                key,
                Record {
                    lease,
                    member: member.clone(),
                },
            ) && let Some(old) = self.leases.get_mut(&before.lease)
            {
                old.keys.remove(&key);
            }
            if let Some(new) = self.leases.get_mut(&lease) {
                new.keys.insert(key);
            }
            self.remember(Change {
                key,
                member,
                deleted: false,
            });
        }
    }

    /// Forgets the history, not the keys.
    pub(crate) fn compact(&mut self) {
        self.history.clear();
    }

    /// Comes back empty, as a store on a lost disk does.
    pub(crate) fn wipe(&mut self) {
        let generation = self.generation + 1;
        *self = Self {
            generation,
            ..Self::new(self.history_limit)
        };
    }

    /// Up to `limit` changes after the first `cursor` ones; `None` if some of them are forgotten.
    pub(crate) fn after(&self, cursor: u64, limit: usize) -> Option<Vec<Change>> {
        let unread = usize::try_from(self.changes.checked_sub(cursor)?).ok()?;
        let from = self.history.len().checked_sub(unread)?;
        Some(self.history.iter().skip(from).take(limit).cloned().collect())
    }

    /// All member records.
    pub(crate) fn members(&self) -> Vec<Member> {
        self.keys
            .values()
            .filter_map(|record| record.member.as_deref().cloned())
            .collect()
    }

    /// The rooms that have a door for this node.
    pub(crate) fn doors(&self, own: Incarnation) -> Vec<RoomId> {
        let rooms = self.keys.keys().filter_map(|key| match key {
            Key::Door(node, room) if *node == own => Some(*room),
            Key::Door(..) | Key::Member(_) => None,
        });
        rooms.collect()
    }

    /// Every key and its lease.
    pub(crate) fn all(&self) -> Vec<(String, i64)> {
        self.keys
            .iter()
            .map(|(key, record)| (key.to_string(), record.lease))
            .collect()
    }

    fn remember(&mut self, change: Change) {
        self.changes += 1;
        self.history.push_back(change);
        if self.history.len() > self.history_limit {
            self.history.pop_front();
        }
    }
}
