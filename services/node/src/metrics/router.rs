//! What a router's ledger is told and orders, measured.

use std::collections::{HashMap, VecDeque};
use std::sync::PoisonError;
use std::time::Instant;

use innkeeper_room::ledger::router::{Chosen, Effect, Event, Ground, Policy, RoomEnd};
use innkeeper_room::{FromWorker, Phase, Reason, RequestKey, Role, RoomId, RoomSpec, ToWorker, Verdict};

use super::NodeMetrics;
use super::counted::{EvictionLabels, LeaseLabels, PlacementLabels, PolicyLabels, SentLabels};
use super::worker::InPhase;

/// Clients' requests and their rooms; canaries are none.
#[derive(Default)]
pub(super) struct Rooms {
    /// Requests that have no answer, and since when those wait that have no room.
    requests: HashMap<RequestKey, Option<Instant>>,
    rooms: HashMap<RoomId, Live>,
    /// Rooms that are over while a stream to a worker still stands, the oldest first.
    lingering: VecDeque<RoomId>,
}

/// Rooms that are over and whose streams are waited for, to measure how long an abort took. A stream whose end nobody tells,
/// as when an actor died, is given up once so many came after it.
const LINGERING: usize = 1024;

struct Live {
    place: InPhase,
    /// A worker refused it: it never existed in full.
    refused: bool,
    /// Its streams to workers that have not ended.
    streams: u8,
    renewing: Option<Instant>,
    aborted: Option<Instant>,
    over: bool,
}

impl NodeMetrics {
    /// A client's request comes to the ledger.
    pub fn arrived(&self, request: RequestKey) {
        self.rooms().requests.insert(request, Some(Instant::now()));
    }

    /// The ledger is told this.
    pub fn told(&self, event: &Event) {
        match event {
            Event::FromWorker {
                room,
                message: FromWorker::Refused(_),
                ..
            } => self.with(*room, |live| live.refused = true),
            Event::LeaseGranted { .. } => self.lease("grant", "ok"),
            Event::LeaseFailed { .. } => self.lease("grant", "failed"),
            Event::LeaseRenewed { room, .. } => {
                self.lease("renew", "ok");
                let mut since = None;
                self.with(*room, |live| since = live.renewing.take());
                if let Some(since) = since {
                    self.counted.renewed.observe(since.elapsed().as_secs_f64());
                }
            }
            Event::RenewFailed { not_found, .. } => self.lease("renew", if *not_found { "gone" } else { "failed" }),
            Event::StreamEnded { room, .. } => self.stream_ended(*room),
            _ => {}
        }
    }

    /// The ledger orders this.
    pub fn ordered(&self, effect: &Effect) {
        match effect {
            Effect::Begin { spec, passed, chosen } => self.room_begins(spec, *passed, chosen),
            Effect::Open { spec, .. } => self.with(spec.room, |live| live.streams += 1),
            Effect::Renew { room } => self.with(*room, |live| live.renewing = Some(Instant::now())),
            Effect::Tell {
                room,
                message: ToWorker::Abort(_),
                ..
            } => self.with(*room, |live| live.aborted = live.aborted.or(Some(Instant::now()))),
            Effect::Answer { request, .. } => {
                let waited = self.rooms().requests.remove(request).flatten();
                self.waited(waited);
            }
            Effect::Ended(end) => self.room_over(end),
            _ => {}
        }
    }

    /// A room is in this phase.
    pub fn room_phase(&self, room: RoomId, phase: Phase) {
        let mut rooms = self.rooms();
        if let Some(live) = rooms.rooms.get_mut(&room) {
            live.place.enter(phase, self);
        }
    }

    fn room_begins(&self, spec: &RoomSpec, passed: u32, chosen: &Chosen) {
        let mut rooms = self.rooms();
        // A canary's request never arrived here.
        let Some(waiting) = rooms.requests.get_mut(&spec.request) else {
            return;
        };
        let waited = waiting.take();
        let live = Live {
            place: InPhase::new(),
            refused: false,
            streams: 0,
            renewing: None,
            aborted: None,
            over: false,
        };
        rooms.rooms.insert(spec.room, live);
        drop(rooms);
        self.waited(waited);
        self.placed(chosen);
        if spec.attempt.0 > 1 {
            self.counted.retries.inc();
            if passed > 0 {
                self.counted.migrations.inc();
            }
        }
    }

    /// How the room's workers were chosen.
    pub(super) fn placed(&self, chosen: &Chosen) {
        let of = |role: Role, policy: Policy, by: Ground| {
            let labels = PlacementLabels {
                role: role.name(),
                policy: policy.label(),
                by: by.label(),
            };
            self.counted.placements.get_or_create(&labels).inc();
        };
        of(Role::Prefill, chosen.policies.prefill, chosen.prefill);
        of(Role::Decode, chosen.policies.decode, chosen.decode);
        if chosen.looked_at == 0 {
            return;
        }
        let policy = chosen.policies.prefill.label();
        let share = f64::from(chosen.sent_before) / f64::from(chosen.looked_at);
        self.counted
            .prefix_match
            .get_or_create(&PolicyLabels { policy })
            .observe(share);
        let tokens = [
            ("yes", chosen.sent_before),
            ("no", chosen.looked_at - chosen.sent_before),
        ];
        for (sent_before, tokens) in tokens {
            let labels = SentLabels { sent_before };
            self.counted
                .placed_tokens
                .get_or_create(&labels)
                .inc_by(u64::from(tokens));
        }
    }

    fn room_over(&self, end: &RoomEnd) {
        let mut rooms = self.rooms();
        if let Some(waiting) = rooms
            .requests
            .get_mut(&end.request)
            .filter(|_| end.verdict != Verdict::Done)
        {
            *waiting = Some(Instant::now());
        }
        let Some(live) = rooms.rooms.get_mut(&end.room) else {
            return;
        };
        live.over = true;
        live.place.leave(self);
        let evicted = match end.verdict {
            Verdict::Failed(reason) if !live.refused && !by_client(reason) => Some(reason),
            Verdict::Failed(_) | Verdict::Done => None,
        };
        if let Some(reason) = evicted {
            let labels = EvictionLabels {
                phase: live.place.phase().name(),
                reason: reason.code(),
                blame: end.blame.label(),
            };
            self.counted.evictions.get_or_create(&labels).inc();
        }
        if live.streams == 0 {
            rooms.rooms.remove(&end.room);
            return;
        }
        rooms.lingering.push_back(end.room);
        if rooms.lingering.len() > LINGERING
            && let Some(oldest) = rooms.lingering.pop_front()
        {
            rooms.rooms.remove(&oldest);
        }
    }

    /// Both workers' parts are over when both streams are.
    fn stream_ended(&self, room: RoomId) {
        let mut rooms = self.rooms();
        let Some(live) = rooms.rooms.get_mut(&room) else { return };
        live.streams = live.streams.saturating_sub(1);
        if live.streams > 0 {
            return;
        }
        if let Some(aborted) = live.aborted.take() {
            self.counted.aborted.observe(aborted.elapsed().as_secs_f64());
        }
        if live.over {
            rooms.rooms.remove(&room);
        }
    }

    fn waited(&self, since: Option<Instant>) {
        if let Some(since) = since {
            self.counted.queued.observe(since.elapsed().as_secs_f64());
        }
    }

    fn lease(&self, operation: &'static str, outcome: &'static str) {
        let labels = LeaseLabels { operation, outcome };
        self.counted.lease_operations.get_or_create(&labels).inc();
    }

    fn with(&self, room: RoomId, change: impl FnOnce(&mut Live)) {
        if let Some(live) = self.rooms().rooms.get_mut(&room) {
            change(live);
        }
    }

    #[cfg(test)]
    pub(super) fn live_rooms(&self) -> usize {
        self.rooms().rooms.len()
    }

    fn rooms(&self) -> std::sync::MutexGuard<'_, Rooms> {
        // Nothing is half done when something under the lock panics.
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client wanted the end.
const fn by_client(reason: Reason) -> bool {
    matches!(reason, Reason::Aborted | Reason::ClientStalled)
}
