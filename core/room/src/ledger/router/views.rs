//! What a router shows of itself: rows, gauges, members, and whether its invariants hold.

use super::{Ledger, Load, MemberInfo, Timer};
use crate::breaker::{BreakerState, Party};
use crate::class::Class;
use crate::ids::{Incarnation, RequestKey, Role, RoomId};
use crate::invariant::{Invariant, Violation};
use crate::ledger::{Gauges, RoomRow};
use crate::phase::Phase;
use crate::request::{Request, Stage};
use crate::room::Room;
use crate::time::{Millis, Moment};

/// A worker as R sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemberView {
    /// Who it is.
    pub info: MemberInfo,
    /// Its node stream stands.
    pub link_up: bool,
    /// The stream stands, but it has not reported for too long.
    pub lost: bool,
    /// Its last report.
    pub load: Option<Load>,
    /// It takes no new rooms, and has none left.
    pub drained: bool,
    /// Whether it is avoided.
    pub breaker: BreakerState,
    /// The workers to which its data plane is avoided.
    pub avoided_peers: Vec<Incarnation>,
}

/// A room older than its deadline by more than this is stuck.
const STUCK_AFTER: Millis = Millis(1000);

impl Ledger {
    /// The live rooms.
    #[must_use]
    pub fn rows(&self, now: Moment) -> Vec<RoomRow> {
        self.live_rooms().map(|(id, room)| self.row_of(id, room, now)).collect()
    }

    /// One live room.
    #[must_use]
    pub fn row(&self, room: RoomId, now: Moment) -> Option<RoomRow> {
        self.rooms
            .get(&room)
            .filter(|found| found.is_live())
            .map(|found| self.row_of(room, found, now))
    }

    /// A room's phase, if it lives.
    #[must_use]
    pub fn phase(&self, room: RoomId) -> Option<Phase> {
        self.rooms
            .get(&room)
            .filter(|found| found.is_live())
            .map(|found| found.phase)
    }

    /// The workers.
    #[must_use]
    pub fn members(&self) -> Vec<MemberView> {
        let view = |member: &super::Member| MemberView {
            info: member.info.clone(),
            link_up: member.link,
            lost: member.lost,
            load: member.load,
            drained: !(member.info.serving && member.load.is_none_or(|load| load.serving)) && member.booked() == 0,
            breaker: self.breakers.state(Party::Node(member.info.incarnation), self.now),
            avoided_peers: self.breakers.avoided_peers(member.info.incarnation),
        };
        self.members.values().map(view).collect()
    }

    /// Counts, at this moment.
    #[must_use]
    pub fn gauges(&self, now: Moment) -> Gauges {
        let mut gauges = Gauges {
            tombstones: count(self.tombstones.len()),
            requests: count(self.requests.len()),
            queued_requests: count(
                self.requests
                    .values()
                    .filter(|request| request.stage == Stage::Waiting)
                    .count(),
            ),
            fenced: self.fenced,
            avoided_nodes: self.breakers.avoided().0,
            avoided_links: self.breakers.avoided().1,
            ..Gauges::default()
        };
        for member in self.members.values().filter(|member| member.info.role == Role::Decode) {
            let free = member.load.map_or(member.info.pages, |load| load.free_pages);
            gauges.fleet_pages += u64::from(member.info.pages);
            gauges.fleet_free += u64::from(free);
            gauges.fleet_page_tokens = member.info.page_tokens;
            gauges.booked_pages += member.books.booked().0;
        }
        for member in self.members.values().filter(|member| member.info.role == Role::Prefill) {
            gauges.booked_prompt_tokens += member.books.booked().1;
        }
        self.gauge_overload(&mut gauges);
        for (_, room) in self.live_rooms() {
            gauges.count_phase(room.phase, now.since(room.phase_since));
            let (left, whole) = self.budget_of(room, now);
            gauges.count_budget(left, whole);
            gauges.room_permits += 1;
            gauges.unleased += u32::from(room.lease.is_missing());
            // Judged by the last step: after a stop of R nothing is overdue before its grace is over.
            let overdue = self
                .deadline_of(room)
                .is_some_and(|due| due + STUCK_AFTER < now.min(self.now));
            gauges.stuck += u32::from(overdue && !self.held);
        }
        gauges
    }

    /// What waits, and what was refused because too much came.
    fn gauge_overload(&self, gauges: &mut Gauges) {
        gauges.waiting = self.queue.waiting();
        gauges.waiting_tokens = self.queue.tokens();
        gauges.predicted_wait = Class::ALL.map(|class| self.predicted_for(class));
        gauges.waiting_tenants = count(self.queue.tenants());
        gauges.shed = self.shed;
    }

    fn live_rooms(&self) -> impl Iterator<Item = (RoomId, &Room)> {
        self.rooms
            .iter()
            .filter(|(_, room)| room.is_live())
            .map(|(id, room)| (*id, room))
    }

    fn row_of(&self, id: RoomId, room: &Room, now: Moment) -> RoomRow {
        let (deadline_ms, budget_ms) = self.budget_of(room, now);
        RoomRow {
            room: id,
            request: room.spec.request,
            attempt: room.spec.attempt,
            phase: room.phase,
            epoch: room.epoch(),
            age_ms: now.since(room.began),
            phase_age_ms: now.since(room.phase_since),
            deadline_ms,
            budget_ms,
            prefill: room.spec.prefill,
            decode: room.spec.decode,
            owner: self.me,
            owes: room.owes(),
            leased: room.lease.is_leased(),
        }
    }

    /// When the room ends if nothing moves: the first of its own timers and its request's deadlines.
    fn deadline_of(&self, room: &Room) -> Option<Moment> {
        let own = room.clocks.first().map(|(due, _)| due);
        let request = self.requests.get(&room.spec.request).map(Request::next_deadline);
        [own, request].into_iter().flatten().min()
    }

    /// What is left of the wait that ends the room first if nothing moves, and how long that wait may be as a whole.
    fn budget_of(&self, room: &Room, now: Moment) -> (Millis, Millis) {
        let own = room
            .clocks
            .first()
            .map(|(due, clock)| (due, clock.budget(due.since(room.phase_since), &self.settings)));
        let request = self.requests.get(&room.spec.request);
        let request = request.map(|request| request.next_budget(&self.settings));
        let first = [own, request].into_iter().flatten().min();
        first.map_or((Millis(0), Millis(0)), |(due, budget)| (due.since(now), budget))
    }

    /// The invariants that do not hold, I1 to I5 and I9 to I10 as far as R has a share in them. Empty in a right program.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        self.rooms
            .iter()
            .for_each(|(id, room)| self.check_room(*id, room, &mut found));
        self.requests
            .iter()
            .for_each(|(key, request)| self.check_request(*key, request, &mut found));
        self.check_indices(&mut found);
        found
    }

    fn check_room(&self, id: RoomId, room: &Room, found: &mut Vec<Violation>) {
        let mut broken = |invariant, what: &str| found.push(Violation::new(invariant, format!("room {id}: {what}")));
        if self.remembered.get(&id).is_some() {
            broken(Invariant::I1, "has ended and lives");
        }
        if !room.is_live() && self.deadlines.get(Timer::Room(id)).is_none() {
            broken(Invariant::I9, "waits for blame without a deadline");
        }
        if !room.is_live() {
            return;
        }
        let Some(request) = self.requests.get(&room.spec.request) else {
            return broken(Invariant::I10, "lives without a request");
        };
        if request.gate() != Some(id) {
            broken(Invariant::I10, "lives, but its request's gate is not open for it");
        }
        if request.passed != room.passed_before + room.taken || request.passed > request.arrival.max_tokens {
            broken(Invariant::I10, "its tokens are not those that passed the gate");
        }
        for side in super::Side::BOTH {
            let part = room.part(side);
            let owes = room.counts(side) && part.ended.is_none();
            let member = self.members.get(&part.node);
            if owes && member.is_some_and(|member| !member.rooms.contains(&id)) {
                broken(Invariant::I4, "lives at a worker that is not booked for it");
            }
        }
        let queued = room.phase == Phase::Queued && request.queue.due().is_some();
        if !(room.is_armed() || queued || self.held) {
            broken(Invariant::I2, "no timer is armed");
        }
        if room.next_deadline(&self.settings) != self.deadlines.get(Timer::Room(id)) {
            broken(Invariant::I2, "its timer is not in the queue");
        }
    }

    fn check_request(&self, key: RequestKey, request: &Request, found: &mut Vec<Violation>) {
        let mut broken =
            |invariant, what: &str| found.push(Violation::new(invariant, format!("request {}: {what}", key.0)));
        let armed = self.deadlines.get(Timer::Request(key));
        if armed != Some(request.next_deadline()) || armed.is_some_and(|due| due > request.deadline) {
            broken(Invariant::I2, "its deadline is not armed");
        }
        let right = match request.stage {
            Stage::Waiting => request.not_before.is_some() || self.is_ready(key, request),
            Stage::Running(room) => self.rooms.get(&room).is_some_and(Room::is_live),
            Stage::Judging(room) => self.rooms.get(&room).is_some_and(|room| !room.is_live()),
        };
        if !right {
            broken(Invariant::I2, "nothing leads it on");
        }
        if !self
            .by_rid
            .get(&request.arrival.rid)
            .is_some_and(|keys| keys.contains(&key))
        {
            broken(Invariant::I3, "an abort would not find it");
        }
    }

    fn is_ready(&self, key: RequestKey, request: &Request) -> bool {
        self.queue.contains(Self::place_of(request), key)
    }

    fn check_indices(&self, found: &mut Vec<Violation>) {
        let live = |id: &RoomId| self.rooms.get(id).is_some_and(Room::is_live);
        for (node, member) in &self.members {
            if !member.rooms.iter().all(live) || !member.opening.is_subset(&member.rooms) {
                found.push(Violation::new(
                    Invariant::I4,
                    format!("member {node} is booked for a room that has ended"),
                ));
            }
        }
        for (node, member) in &self.members {
            if !member.books_are_true() {
                found.push(Violation::new(
                    Invariant::I7,
                    format!("what is booked at member {node} is not the sum over its live rooms"),
                ));
            }
        }
        if !self.queue.is_true() {
            found.push(Violation::new(
                Invariant::I7,
                "the queue's sums are not those of what waits".into(),
            ));
        }
        let waits = |key: RequestKey| {
            self.requests
                .get(&key)
                .is_some_and(|request| request.stage == Stage::Waiting)
        };
        if !self.queue.keys().all(waits) {
            found.push(Violation::new(
                Invariant::I4,
                "a request waits for admission that has ended or has a room".into(),
            ));
        }
        if self
            .by_rid
            .values()
            .flatten()
            .any(|key| !self.requests.contains_key(key))
        {
            found.push(Violation::new(Invariant::I3, "an ended request can be aborted".into()));
        }
        let most = self.settings.remembered_rooms as usize;
        if self.remembered.len() > most || self.ended.len() > most || self.ended_rids.len() > most {
            found.push(Violation::new(Invariant::I4, "more is remembered than may be".into()));
        }
        if self.tombstones.len() > self.settings.max_tombstones as usize {
            found.push(Violation::new(Invariant::I3, "more tombstones than places".into()));
        }
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
