//! The lease store: leases with doors, member keys, watches, and its being away, wiped or late.

use std::collections::{BTreeMap, BTreeSet};

use innkeeper_room::ledger::router::{Event, MemberInfo};
use innkeeper_room::ledger::{decode, prefill};
use innkeeper_room::{Incarnation, Moment, Role, RoomId, RoomSpec};

use crate::node::{Brain, In, index_of};
use crate::world::{Act, PAGE_TOKENS, World, tell};

/// What is asked of the store, and what it does by itself.
#[derive(Clone, Debug, Hash)]
pub(crate) enum StoreAct {
    Grant { sent: Moment, spec: Box<RoomSpec> },
    Renew { sent: Moment, room: RoomId },
    Revoke { room: RoomId },
    RoomExpires { room: RoomId, at: u64 },
    MemberExpires { incarnation: Incarnation, at: u64 },
    Relist { node: usize },
}

/// The store.
#[derive(Clone, Default, Hash)]
pub(crate) struct Store {
    pub(crate) away: bool,
    /// How much later than usual it answers a grant.
    pub(crate) late: u64,
    /// Renewals are lost on their way.
    pub(crate) deaf: bool,
    pub(crate) rooms: BTreeMap<RoomId, (u64, [usize; 3])>,
    pub(crate) members: BTreeMap<Incarnation, (u64, MemberInfo)>,
    seen_doors: BTreeMap<usize, BTreeSet<RoomId>>,
    seen_members: BTreeMap<usize, BTreeSet<Incarnation>>,
    /// When the last news arrives at each node: a watch keeps its order.
    told: BTreeMap<usize, u64>,
    /// Nodes whose watch stands.
    watching: BTreeSet<usize>,
}

impl World {
    /// An operation is on its way to the store.
    pub(crate) fn store_send(&mut self, act: StoreAct) {
        let at = self.now + self.latency(1, 5);
        self.schedule(at, Act::Store(act));
    }

    fn reply_r(&mut self, after: u64, event: Event) {
        let life = self.nodes[0].life;
        self.schedule(self.now + after, Act::In(0, life, In::R(event)));
    }

    /// The store does something.
    pub(crate) fn store_act(&mut self, act: StoreAct) {
        let ttl = self.settings.lease_ttl.0;
        let lat = self.latency(1, 5);
        match act {
            StoreAct::Grant { sent, spec } => {
                let room = spec.room;
                if self.store.away {
                    let after = if self.rng.one_in(2) { lat } else { ttl };
                    return self.reply_r(after, Event::LeaseFailed { room, exists: false });
                }
                let doors = [0, index_of(spec.prefill), index_of(spec.decode)];
                self.put_room(room, doors);
                if self.store.late + lat >= ttl {
                    self.reply_r(ttl, Event::LeaseFailed { room, exists: false });
                } else {
                    self.reply_r(lat + self.store.late, Event::LeaseGranted { room, sent });
                }
            }
            StoreAct::Renew { sent, room } => {
                if self.store.away || self.store.deaf {
                    return self.reply_r(ttl.min(1000), Event::RenewFailed { room, not_found: false });
                }
                match self.store.rooms.get(&room).map(|(_, doors)| *doors) {
                    Some(doors) => {
                        self.arm_room(room, doors);
                        self.reply_r(lat, Event::LeaseRenewed { room, sent });
                    }
                    None => self.reply_r(lat, Event::RenewFailed { room, not_found: true }),
                }
            }
            StoreAct::Revoke { room } => {
                if !self.store.away {
                    self.delete_room(room);
                }
            }
            StoreAct::RoomExpires { room, at } => {
                if self.store.rooms.get(&room).is_some_and(|(expires, _)| *expires == at) {
                    // A store that is away expires leases all the same; its watchers find out by their lists.
                    self.delete_room(room);
                }
            }
            StoreAct::MemberExpires { incarnation, at } => {
                if self
                    .store
                    .members
                    .get(&incarnation)
                    .is_some_and(|(expires, _)| *expires == at)
                {
                    tell!(self, "the key of {incarnation} expires");
                    self.store.members.remove(&incarnation);
                    self.member_gone(incarnation);
                }
            }
            StoreAct::Relist { node } => self.list(node),
        }
    }

    /// News for a node's watch, in order.
    fn watch_send(&mut self, node: usize, what: In) {
        let life = self.nodes[node].life;
        let at = self.now + self.latency(1, 8);
        let last = self.store.told.entry(node).or_default();
        *last = at.max(*last);
        let at = *last;
        self.schedule(at, Act::In(node, life, what));
    }

    fn put_room(&mut self, room: RoomId, doors: [usize; 3]) {
        self.arm_room(room, doors);
        for node in doors {
            if self.store.watching.contains(&node) {
                self.store.seen_doors.entry(node).or_default().insert(room);
            }
        }
    }

    fn arm_room(&mut self, room: RoomId, doors: [usize; 3]) {
        let at = self.now + self.settings.lease_ttl.0;
        self.store.rooms.insert(room, (at, doors));
        self.schedule(at, Act::Store(StoreAct::RoomExpires { room, at }));
    }

    /// A room's lease ends: whoever watches a door of it sees it go.
    pub(crate) fn delete_room(&mut self, room: RoomId) {
        let Some((_, doors)) = self.store.rooms.remove(&room) else {
            return;
        };
        for node in doors {
            let seen = self.store.seen_doors.entry(node).or_default();
            if self.store.watching.contains(&node) && seen.remove(&room) {
                self.door_gone(node, room, false);
            }
        }
    }

    fn door_gone(&mut self, node: usize, room: RoomId, absent: bool) {
        let what = match self.nodes[node].brain {
            Brain::R(_) if absent => In::R(Event::DoorAbsent { room }),
            Brain::R(_) => In::R(Event::DoorGone { room }),
            Brain::P(_) => In::P(prefill::Event::DoorGone { room }),
            Brain::D(_) => In::D(decode::Event::DoorGone { room }),
        };
        self.watch_send(node, what);
    }

    fn member_gone(&mut self, incarnation: Incarnation) {
        let watching: Vec<usize> = self.store.watching.iter().copied().collect();
        for node in watching {
            if self.store.seen_members.entry(node).or_default().remove(&incarnation) {
                self.tell_member_gone(node, incarnation);
            }
        }
    }

    fn tell_member_gone(&mut self, node: usize, incarnation: Incarnation) {
        let what = match self.nodes[node].brain {
            Brain::R(_) => In::R(Event::MemberGone { incarnation }),
            Brain::P(_) => In::P(prefill::Event::MemberGone { incarnation }),
            Brain::D(_) => In::D(decode::Event::MemberGone { incarnation }),
        };
        self.watch_send(node, what);
    }

    /// A node's keeper renews its key, or writes it again.
    pub(crate) fn keeper(&mut self, node: usize) {
        let ttl = self.settings.lease_ttl.0;
        let life = self.nodes[node].life;
        self.schedule(self.now + ttl / 3, Act::In(node, life, In::Keeper));
        if self.store.away {
            return;
        }
        let info = MemberInfo {
            incarnation: self.nodes[node].incarnation,
            role: self.nodes[node].role,
            control: format!("node{node}"),
            model: "m".into(),
            class: 7,
            pages: self.shape.pages_of(node),
            page_tokens: PAGE_TOKENS,
            engine: self.shape.engine_kind(),
            context: 1000,
            permits: self.shape.permits,
            serving: true,
        };
        let at = self.now + ttl;
        let fresh = self
            .store
            .members
            .insert(info.incarnation, (at, info.clone()))
            .is_none();
        self.schedule(
            at,
            Act::Store(StoreAct::MemberExpires {
                incarnation: info.incarnation,
                at,
            }),
        );
        if !fresh {
            return;
        }
        let watching: Vec<usize> = self.store.watching.iter().copied().collect();
        for watcher in watching {
            self.store
                .seen_members
                .entry(watcher)
                .or_default()
                .insert(info.incarnation);
        }
        if self.store.watching.contains(&0) && node != 0 && info.role != Role::Router {
            self.watch_send(0, In::R(Event::MemberUp(info)));
        }
    }

    /// A node's watch begins anew with a full list, if the store is there.
    pub(crate) fn relist(&mut self, node: usize) {
        self.store.watching.remove(&node);
        if self.nodes[node].life > 0 && self.store.seen_doors.contains_key(&node) {
            self.store.seen_doors.remove(&node);
            self.store.seen_members.remove(&node);
        }
        self.list(node);
    }

    fn list(&mut self, node: usize) {
        if self.store.away {
            let after = self.rng.between(200, 1000);
            return self.schedule(self.now + after, Act::Store(StoreAct::Relist { node }));
        }
        self.store.watching.insert(node);
        let doors: BTreeSet<RoomId> = self
            .store
            .rooms
            .iter()
            .filter(|(_, (_, doors))| doors.contains(&node))
            .map(|(room, _)| *room)
            .collect();
        let members: BTreeSet<Incarnation> = self.store.members.keys().copied().collect();
        let old_doors = self.store.seen_doors.insert(node, doors.clone()).unwrap_or_default();
        let old_members = self
            .store
            .seen_members
            .insert(node, members.clone())
            .unwrap_or_default();
        for room in old_doors.difference(&doors) {
            self.door_gone(node, *room, true);
        }
        for member in old_members.difference(&members) {
            self.tell_member_gone(node, *member);
        }
        if node == 0 {
            let infos: Vec<MemberInfo> = self.store.members.values().map(|(_, info)| info.clone()).collect();
            for info in infos.into_iter().filter(|info| info.role != Role::Router) {
                self.watch_send(0, In::R(Event::MemberUp(info)));
            }
        }
    }

    /// The store is away: no watch stands.
    pub(crate) fn store_away(&mut self, away: bool) {
        self.store.away = away;
        if away {
            self.store.watching.clear();
        } else {
            self.list_all(1000);
        }
    }

    /// Everything in the store is gone, without an event.
    pub(crate) fn store_wiped(&mut self) {
        self.store.rooms.clear();
        self.store.members.clear();
        self.store.watching.clear();
        // A watch from an old revision stays silent until something tells of the lower one.
        self.list_all(4000);
    }

    fn list_all(&mut self, within: u64) {
        for node in 0..self.nodes.len() {
            let after = self.rng.between(10, within);
            self.schedule(self.now + after, Act::Store(StoreAct::Relist { node }));
        }
    }
}
