//! The router's ledger: requests, their rooms, the workers, tombstones, leases and all their deadlines.
//!
//! `step` is the only entry: it looks at the clock, applies the event, fires what is due, opens what can be opened, and
//! returns what is to be done. While R was itself stopped, only messages are applied.

mod aborts;
mod admission;
mod attempts;
mod booking;
mod canaries;
mod contract;
mod gate;
mod leases;
mod members;
mod overload;
mod placement;
mod policy;
mod queue;
mod reports;
mod timers;
mod verdicts;
mod views;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use contract::*;
pub use overload::Shed;
pub use policy::{Chosen, Ground, NoSuchPolicy, Policies, Policy};
pub use views::MemberView;

use self::members::Member;
use self::overload::Drain;
use self::policy::Chooser;
use self::queue::Queue;
use self::timers::Timer;
use crate::breaker::Breakers;
use crate::bucket::Bucket;
use crate::deadlines::Deadlines;
use crate::id_source::IdSource;
use crate::ids::{Incarnation, RequestKey, RoomId};
use crate::lru::Lru;
use crate::pause::{Pause, PauseDetector};
use crate::reason::Verdict;
use crate::request::Request;
use crate::room::Room;
use crate::settings::Settings;
use crate::time::Moment;
use crate::tombstones::Tombstones;

/// What a router's ledger is made of.
#[derive(Clone, Debug, Hash)]
pub struct Config {
    /// The bounds.
    pub settings: Settings,
    /// The router's life.
    pub incarnation: Incarnation,
    /// 128 bits from the OS, for room ids.
    pub seed: [u64; 2],
}

/// All that a router knows and decides. Deterministic, without I/O.
#[derive(Clone, Debug, Hash)]
pub struct Ledger {
    settings: Settings,
    me: Incarnation,
    ids: IdSource,
    bucket: Bucket,
    now: Moment,
    pause: PauseDetector,
    /// R was stopped, and only messages are applied.
    held: bool,
    /// R was stopped, and until then its workers have time to be connected again: without any, requests wait.
    recovers_until: Option<Moment>,
    draining: bool,
    members: BTreeMap<Incarnation, Member>,
    /// Lives that are known to be over: another one answered in their place. A list may still hold their keys.
    replaced: Lru<Incarnation, ()>,
    picks: u64,
    /// Whom to prefer.
    chooser: Chooser,
    /// Whom to avoid.
    breakers: Breakers,
    /// Pairs through which a canary is on its way.
    canaries: BTreeSet<(Incarnation, Incarnation)>,
    /// When a pair was last seen to serve or last looked at.
    looked: BTreeMap<(Incarnation, Incarnation), Moment>,
    /// When the next canaries are thought of.
    canary_at: Moment,
    requests: BTreeMap<RequestKey, Request>,
    by_rid: BTreeMap<String, BTreeSet<RequestKey>>,
    /// Requests that wait for a pair.
    queue: Queue,
    /// How fast the queue goes down.
    drain: Drain,
    /// Requests that were refused because more came than fits.
    shed: Shed,
    /// Something happened that may let a waiting request go on, or end.
    pump: bool,
    tombstones: Tombstones,
    /// Requests that ended lately, with the time until which that is remembered, and by their id.
    ended: Lru<RequestKey, (String, Moment)>,
    ended_rids: BTreeMap<String, RequestKey>,
    /// Rooms that live, and those whose blame is not known yet.
    rooms: BTreeMap<RoomId, Room>,
    remembered: Lru<RoomId, Verdict>,
    /// Rooms that ended before the store answered their grant, and until when that answer is waited for.
    late_grants: BTreeMap<RoomId, Moment>,
    deadlines: Deadlines<Timer>,
    dirty: BTreeSet<Timer>,
    fenced: u64,
    out: Vec<Effect>,
}

impl Ledger {
    /// A router that knows nobody yet.
    #[must_use]
    pub fn new(config: Config, now: Moment) -> Self {
        let settings = config.settings;
        let mut pause = PauseDetector::for_settings(&settings);
        let _ = pause.observe(now);
        Self {
            me: config.incarnation,
            ids: IdSource::new(config.seed),
            bucket: Bucket::new(settings.retry_bucket, settings.retry_gain_milli),
            now,
            pause,
            held: false,
            recovers_until: None,
            draining: false,
            members: BTreeMap::new(),
            replaced: Lru::new(settings.remembered_rooms as usize),
            picks: 0,
            chooser: Chooser::new(&settings),
            breakers: Breakers::new(settings.breaker_failures, settings.breaker_open),
            canaries: BTreeSet::new(),
            looked: BTreeMap::new(),
            canary_at: now,
            requests: BTreeMap::new(),
            by_rid: BTreeMap::new(),
            queue: Queue::default(),
            drain: Drain::default(),
            shed: Shed::default(),
            pump: false,
            tombstones: Tombstones::new(
                settings.max_tombstones,
                settings.tombstones_per_client,
                settings.request_timeout,
            ),
            ended: Lru::new(settings.remembered_rooms as usize),
            ended_rids: BTreeMap::new(),
            rooms: BTreeMap::new(),
            remembered: Lru::new(settings.remembered_rooms as usize),
            late_grants: BTreeMap::new(),
            deadlines: Deadlines::new(),
            dirty: BTreeSet::new(),
            fenced: 0,
            out: Vec::new(),
            settings,
        }
    }

    /// The same, with policies of its own: see [`Event::Policies`].
    #[must_use]
    pub fn with_policies(mut self, policies: Policies) -> Self {
        self.chooser.set(policies);
        self
    }

    /// The policies in force.
    #[must_use]
    pub const fn policies(&self) -> Policies {
        self.chooser.policies()
    }

    /// Applies one event, and what is due by `now`. A clock that goes back counts as one that stands.
    pub fn step(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        let now = now.max(self.now);
        self.now = now;
        let pause = self.pause.observe(now);
        self.look_at_pause(pause);
        self.apply(event);
        if let Pause::Resumed { .. } = pause {
            self.resume();
        }
        if self.recovers_until.is_some_and(|until| until <= now) {
            self.recovered();
        }
        if !self.held {
            self.fire_due();
            self.send_canaries();
            self.admit();
        }
        self.arm_dirty();
        self.check();
        std::mem::take(&mut self.out)
    }

    /// When `step` must be called next, with `Tick` if nothing else happens. At least every report period: a ledger that
    /// is not called takes itself for stopped.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let heartbeat = self.now + self.settings.report_period;
        let due = if self.held {
            self.pause.until()
        } else {
            self.deadlines.next()
        };
        Some(due.map_or(heartbeat, |due| due.min(heartbeat)))
    }

    /// Whether the router drains and nothing is left.
    #[must_use]
    pub fn drained(&self) -> bool {
        self.draining && self.requests.is_empty() && self.rooms.is_empty()
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Arrive(arrival) => self.arrive(arrival),
            Event::Abort { rid, client, ticket } => self.abort(&rid, &client, ticket),
            Event::ClientGone { request } => self.client_gone(request),
            Event::ClientStalled { request } => self.client_stalled(request),
            Event::Satisfied { request } => self.satisfied(request),
            Event::MemberUp(info) => self.member_up(info),
            Event::MemberGone { incarnation } => self.member_gone(incarnation),
            Event::NodeUp { incarnation } => self.node_up(incarnation),
            Event::NodeDown { incarnation } => self.node_down(incarnation),
            Event::Load { incarnation, load } => self.load(incarnation, load),
            Event::WhoAnswered { asked, answered } => self.who_answered(asked, answered),
            Event::FromWorker { room, side, message } => self.hear_worker(room, side, message),
            Event::StreamEnded { room, side, broken } => self.stream_ended(room, side, broken),
            Event::LeaseGranted { room, sent } => self.lease_granted(room, sent),
            Event::LeaseFailed { room, exists } => self.lease_failed(room, exists),
            Event::LeaseRenewed { room, sent } => self.lease_renewed(room, sent),
            Event::RenewFailed { room, not_found } => self.renew_failed(room, not_found),
            Event::DoorGone { room } => self.door_gone(room),
            Event::DoorAbsent { room } => self.door_absent(room),
            Event::Evict { room } => self.evict(room),
            Event::ActorDied { room } => self.actor_died(room),
            Event::Policies(policies) => self.chooser.set(policies),
            Event::Drain => self.draining = true,
            Event::DrainOver => self.drain_over(),
            Event::Tick => {}
        }
    }

    fn push(&mut self, effect: Effect) {
        self.out.push(effect);
    }

    /// A room, to change; its timer is armed anew at the end of the step.
    fn room_mut(&mut self, room: RoomId) -> Option<&mut Room> {
        self.dirty.insert(Timer::Room(room));
        self.rooms.get_mut(&room)
    }

    /// A room without a verdict, to change.
    fn live_mut(&mut self, room: RoomId) -> Option<&mut Room> {
        self.room_mut(room).filter(|room| room.is_live())
    }

    /// A request, to change.
    fn request_mut(&mut self, request: RequestKey) -> Option<&mut Request> {
        self.dirty.insert(Timer::Request(request));
        self.requests.get_mut(&request)
    }

    /// A member, to change.
    fn member_mut(&mut self, incarnation: Incarnation) -> Option<&mut Member> {
        self.dirty.insert(Timer::Member(incarnation));
        self.members.get_mut(&incarnation)
    }

    /// In debug builds every step is checked, unless there is so much that checking would make the node late.
    fn check(&self) {
        #[cfg(debug_assertions)]
        if self.rooms.len() + self.requests.len() <= 256 {
            let violations = self.violations();
            debug_assert!(violations.is_empty(), "invariants broken: {violations:?}");
        }
    }
}

impl Side {
    /// Both, P first.
    pub const BOTH: [Self; 2] = [Self::Prefill, Self::Decode];

    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Prefill => Self::Decode,
            Self::Decode => Self::Prefill,
        }
    }

    /// The reason of a room whose connection to this worker broke.
    #[must_use]
    pub const fn lost(self) -> crate::reason::Reason {
        match self {
            Self::Prefill => crate::reason::Reason::PrefillLost,
            Self::Decode => crate::reason::Reason::DecodeLost,
        }
    }
}
