//! The workers as R knows them: who is registered, whose control link stands, who reports, and who went.

use std::collections::BTreeSet;

use super::booking::Books;
use super::{Effect, Ledger, Load, MemberInfo, Side};
use crate::ids::{Incarnation, Role, RoomId};
use crate::ledger::EngineKind;
use crate::planted;
use crate::reason::Reason;
use crate::settings::Settings;
use crate::time::Moment;

/// A worker.
#[derive(Clone, Debug, Hash)]
pub(super) struct Member {
    pub(super) info: MemberInfo,
    /// The node stream stands.
    pub(super) link: bool,
    /// It stands but no Load came for too long.
    pub(super) lost: bool,
    /// Answers to Who that are still to come over this connection. A question that was dropped counts as one: then a stop of R is got
    /// over with the end of its recovery, which is bounded.
    asked: u32,
    /// R was stopped, and after so many answers it will have heard one that was asked for since: the connection may be one that
    /// broke meanwhile, with old reports and answers in it that are still to be read. 0: it counts as there.
    unproven: u32,
    pub(super) load: Option<Load>,
    /// Rooms that it last reported beyond those of this router: other routers', and those that are over here and not yet there.
    pub(super) foreign: usize,
    /// When the last Load came.
    pub(super) heard_at: Moment,
    /// When its engine was last seen to have finished a chunk or step.
    pub(super) engine_moved: Moment,
    /// Its key is gone, and it has not registered again: nothing will tell when it goes, but its connection.
    pub(super) keyless: bool,
    /// The answer to Who is due then.
    pub(super) who_due: Option<Moment>,
    /// It refused a room for want of a place: not asked before, unless it reports one.
    pub(super) full_until: Option<Moment>,
    /// Live rooms in which it has a part.
    pub(super) rooms: BTreeSet<RoomId>,
    /// Of these, those that it was asked to open and has not admitted. P is asked only once D has answered: a D that is mute
    /// takes no place of P's, which others need.
    pub(super) opening: BTreeSet<RoomId>,
    /// What these rooms take of it.
    pub(super) books: Books,
    /// When it was last seen to serve a room to its end, or a canary was sent to it.
    pub(super) looked_at: Moment,
    /// The number of the last time it was picked: among equals the one that waits longest is next.
    pub(super) picked: u64,
}

impl Member {
    fn new(info: MemberInfo, now: Moment) -> Self {
        Self {
            info,
            link: false,
            lost: false,
            asked: 0,
            unproven: 0,
            load: None,
            foreign: 0,
            heard_at: now,
            engine_moved: now,
            keyless: false,
            who_due: None,
            full_until: None,
            rooms: BTreeSet::new(),
            opening: BTreeSet::new(),
            books: Books::default(),
            looked_at: now,
            picked: 0,
        }
    }

    /// The question who it is.
    fn asks(&mut self) -> Effect {
        self.asked = self.asked.saturating_add(1);
        Effect::Who {
            incarnation: self.info.incarnation,
        }
    }

    /// Whether it has ever spoken itself.
    const fn was_heard(&self) -> bool {
        self.link || self.load.is_some()
    }

    /// Whether new rooms may be opened at it.
    pub(super) fn usable(&self) -> bool {
        self.info.serving && self.link && !self.lost && self.unproven == 0 && self.load.is_none_or(|load| load.serving)
    }

    /// Rooms at it: those of this router, which are known at every moment, and what its last report has beyond them.
    pub(super) fn booked(&self) -> usize {
        self.rooms.len() + self.foreign
    }

    /// Whether a room more may have a place in its table, and it may be asked for one now.
    pub(super) fn has_place(&self, open_window: u32) -> bool {
        self.full_until.is_none()
            && self.booked() < self.info.permits as usize
            && self.opening.len() < open_window as usize
    }

    pub(super) fn next_deadline(&self, settings: &Settings) -> Option<Moment> {
        let fresh = (self.link && !self.lost).then(|| self.heard_at + settings.router_ttl());
        [fresh, self.who_due, self.full_until].into_iter().flatten().min()
    }
}

impl Ledger {
    pub(super) fn member_up(&mut self, info: MemberInfo) {
        let (now, incarnation) = (self.now, info.incarnation);
        match info.role {
            Role::Prefill | Role::Decode => {}
            Role::Router => return,
        }
        if self.replaced.get(&incarnation).is_some() {
            // Its key outlives it until its lease ends.
            self.fenced += 1;
            return;
        }
        if let Some(member) = self.member_mut(incarnation) {
            member.keyless = false;
            member.who_due = None;
            member.info = info;
        } else {
            // Of two lives that were never heard nobody knows which is older: a list is not in the order of births, and holds
            // the key of a dead one until its lease ends. Whichever answers at the address is used.
            let replaced: Vec<Incarnation> = self
                .members
                .iter()
                .filter(|(_, member)| member.info.control == info.control && member.was_heard())
                .map(|(old, _)| *old)
                .collect();
            for old in replaced {
                self.replace_member(old);
            }
            self.members.insert(incarnation, Member::new(info, now));
        }
        self.pump = true;
    }

    /// A key went: asking costs nothing, and etcd may have been wiped under a worker that is well.
    pub(super) fn member_gone(&mut self, incarnation: Incarnation) {
        let due = self.now + self.settings.who_timeout;
        let Some(member) = self.member_mut(incarnation) else {
            return;
        };
        member.keyless = true;
        if member.who_due.is_none() {
            member.who_due = Some(due);
            let asks = member.asks();
            self.push(asks);
        }
    }

    pub(super) fn who_answered(&mut self, asked: Incarnation, answered: Incarnation) {
        if asked != answered {
            self.replace_member(asked);
        } else if let Some(member) = self.member_mut(asked) {
            member.who_due = None;
            member.asked = member.asked.saturating_sub(1);
            member.unproven = member.unproven.saturating_sub(1);
            self.pump = true;
        }
    }

    /// R finds that it was stopped: rooms are opened only at workers that answer from now on. One that never does fails
    /// by its reports, or with its connection.
    pub(super) fn prove_members(&mut self) {
        for member in self.members.values_mut() {
            if member.link {
                self.out.push(member.asks());
            }
            member.unproven = member.asked.max(1);
        }
    }

    /// The answer may have been lost without its connection: what counts from now on is what always counts.
    pub(super) fn recovered(&mut self) {
        self.recovers_until = None;
        self.members.values_mut().for_each(|member| member.unproven = 0);
        self.pump = true;
    }

    pub(super) fn node_up(&mut self, incarnation: Incarnation) {
        let now = self.now;
        let Some(member) = self.member_mut(incarnation) else {
            return;
        };
        member.link = true;
        member.lost = false;
        // Questions went with the connection before this one.
        (member.asked, member.unproven) = (0, 0);
        member.heard_at = now;
        let again = member.who_due.is_some().then(|| member.asks());
        self.pump = true;
        self.out.extend(again);
    }

    pub(super) fn node_down(&mut self, incarnation: Incarnation) {
        let due = self.now + self.settings.who_timeout;
        let Some(member) = self.member_mut(incarnation) else {
            return;
        };
        member.link = false;
        if member.keyless {
            // It may have answered while it was leaving: without a key and a connection it has its time to come back.
            member.who_due.get_or_insert(due);
        }
        self.pump = true;
        if self.held {
            self.cut_rooms(incarnation);
        } else {
            self.fail_rooms(incarnation, None);
        }
    }

    pub(super) fn load(&mut self, incarnation: Incarnation, load: Load) {
        let now = self.now;
        let Some(member) = self.member_mut(incarnation) else {
            self.fenced += 1;
            return;
        };
        let moved = member.load.is_none_or(|old| load.engine_progress > old.engine_progress);
        if moved {
            member.engine_moved = now;
        }
        let steps = moved && member.info.engine == EngineKind::Remote;
        member.heard_at = now;
        member.lost = false;
        member.load = Some(load);
        member.foreign = (load.rooms as usize).saturating_sub(member.rooms.len());
        member.reconcile(load.free_pages);
        self.pump = true;
        if steps {
            self.engine_stepped(incarnation);
        }
        if planted::lease_renewed_by_liveness() {
            for (room, _) in self.rooms_with(incarnation) {
                self.progress(room);
            }
        }
    }

    pub(super) fn fire_member(&mut self, incarnation: Incarnation) {
        let (now, ttl) = (self.now, self.settings.router_ttl());
        let Some(member) = self.member_mut(incarnation) else {
            return;
        };
        if member.full_until.is_some_and(|due| due <= now) {
            member.full_until = None;
            self.pump = true;
        }
        let Some(member) = self.member_mut(incarnation) else {
            return;
        };
        if member.who_due.is_some_and(|due| due <= now) {
            self.drop_member(incarnation);
        } else if member.link && !member.lost && member.heard_at + ttl <= now {
            member.lost = true;
            self.pump = true;
            self.fail_rooms(incarnation, None);
        }
    }

    /// Another life answers in its place: it never comes back.
    pub(super) fn replace_member(&mut self, incarnation: Incarnation) {
        self.replaced.insert(incarnation, ());
        self.drop_member(incarnation);
    }

    /// Its rooms fail, and R forgets the connection to it. If only its key was lost, it registers again.
    pub(super) fn drop_member(&mut self, incarnation: Incarnation) {
        if !self.members.contains_key(&incarnation) {
            return;
        }
        self.fail_rooms(incarnation, Some(Reason::MemberLost));
        self.dirty.insert(super::Timer::Member(incarnation));
        self.members.remove(&incarnation);
        self.forget_parties(incarnation);
        self.chooser.forget(incarnation);
        self.pump = true;
        self.push(Effect::Drop { incarnation });
    }

    /// Fails the rooms in which this node has a part that counts: `…_lost` unless there is a better reason.
    fn fail_rooms(&mut self, incarnation: Incarnation, reason: Option<Reason>) {
        for (id, side) in self.rooms_with(incarnation) {
            self.fail(id, reason.unwrap_or(side.lost()), Some(side), None);
        }
    }

    fn cut_rooms(&mut self, incarnation: Incarnation) {
        for (id, side) in self.rooms_with(incarnation) {
            if let Some(room) = self.live_mut(id) {
                room.part_mut(side).cut = true;
            }
        }
    }

    /// What an engine of others does for a room shows in its steps alone: they are progress of all rooms that wait for it.
    fn engine_stepped(&mut self, incarnation: Incarnation) {
        let due = self.now + self.settings.router_ttl();
        for (id, side) in self.rooms_with(incarnation) {
            if self.live_mut(id).is_some_and(|room| room.hear_step(side, due)) {
                self.progress(id);
            }
        }
    }

    fn rooms_with(&self, incarnation: Incarnation) -> Vec<(RoomId, Side)> {
        let Some(member) = self.members.get(&incarnation) else {
            return Vec::new();
        };
        let side = match member.info.role {
            Role::Prefill => Side::Prefill,
            Role::Decode => Side::Decode,
            Role::Router => return Vec::new(),
        };
        let counts = |id: &RoomId| {
            self.rooms
                .get(id)
                .is_some_and(|room| room.is_live() && room.counts(side) && room.part(side).ended.is_none())
        };
        member
            .rooms
            .iter()
            .copied()
            .filter(counts)
            .map(|id| (id, side))
            .collect()
    }

    /// It is asked to open a room.
    pub(super) fn asked(&mut self, incarnation: Incarnation, room: RoomId) {
        if let Some(member) = self.members.get_mut(&incarnation)
            && member.rooms.contains(&room)
        {
            member.opening.insert(room);
        }
    }

    /// It answered an Open: another one may be asked.
    pub(super) fn opened(&mut self, incarnation: Incarnation, room: RoomId) {
        if let Some(member) = self.members.get_mut(&incarnation)
            && member.opening.remove(&room)
        {
            self.pump = true;
        }
    }

    /// The node has no part in the room any more.
    pub(super) fn unbook(&mut self, incarnation: Incarnation, room: RoomId) {
        self.opened(incarnation, room);
        if let Some(member) = self.members.get_mut(&incarnation)
            && member.rooms.remove(&room)
        {
            member.books.free(room);
            self.pump = true;
        }
    }
}
