//! The three ledgers: all parts of one node, the permits and pages around them, and the deadlines. `step` is the only
//! entry that actors call: it looks up the room, decides, and returns what is to be done.

pub mod decode;
pub mod prefill;
pub mod router;
pub(crate) mod worker;

pub use worker::{Accused, EngineKind, Pinned};

use serde::{Deserialize, Serialize};

use crate::evidence::Owes;
use crate::ids::{Attempt, Epoch, Incarnation, RequestKey, RoomId};
use crate::phase::Phase;
use crate::time::Millis;

/// What an engine is doing, as the ledger sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct EngineView {
    /// Chunks and steps finished, absolute.
    pub progress: u64,
    /// How long the chunk or step in hand has been in hand; `None` if the engine owes none.
    pub in_hand: Option<Millis>,
    /// Whether the engine's own thread and the data plane answer.
    pub alive: bool,
}

/// One row of `rooms ls`: a part, as its node sees it now.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RoomRow {
    /// The room.
    pub room: RoomId,
    /// The router's number of the request.
    pub request: RequestKey,
    /// Which try.
    pub attempt: Attempt,
    /// Its phase.
    pub phase: Phase,
    /// P's current try to send.
    pub epoch: Epoch,
    /// Since the room began.
    pub age_ms: Millis,
    /// Since the phase began.
    pub phase_age_ms: Millis,
    /// Until the part ends if nothing moves.
    pub deadline_ms: Millis,
    /// How long that wait may be as a whole: `deadline_ms` of it is left.
    pub budget_ms: Millis,
    /// The prefill worker.
    pub prefill: Incarnation,
    /// The decode worker.
    pub decode: Incarnation,
    /// The router.
    pub owner: Incarnation,
    /// Who owes the next step.
    pub owes: Owes,
    /// Whether the store has confirmed a lease and it has not lapsed (workers do not know: false).
    pub leased: bool,
}

/// A worker's live parts by what they wait for. Finer than phases, and the queues that operators of other engines know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Queues {
    /// P: for a place to say hello, for D's answer or for D's pages. D: for P's hello or for pages.
    pub handshake: u32,
    /// P: D is ready; for the engine's turn and for pages here.
    pub turn: u32,
    /// P: computes. D: decodes.
    pub engine: u32,
    /// P: all is computed, bytes or the commit are outstanding. D: has pages, KV is on its way.
    pub transfer: u32,
}

/// Counts of a node, taken from the ledger at the moment of asking.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Gauges {
    /// Live parts by phase, in the order of [`Phase::ALL`].
    pub rooms: [u32; 7],
    /// How long the oldest of them has been in its phase, in the same order.
    pub oldest: [Millis; 7],
    /// The same parts by what they wait for; all zero on a router.
    pub queues: Queues,
    /// KV pages; all zero on a router.
    pub pages: crate::pages::PageCounts,
    /// Places taken in the room table.
    pub room_permits: u32,
    /// Permits to touch pages: readers and writers of the data plane.
    pub session_permits: u32,
    /// Permits to touch pages: the engine's.
    pub engine_permits: u32,
    /// Rooms that are over but whose permits are not all back.
    pub quarantined_rooms: u32,
    /// Accepted aborts for requests that have not arrived.
    pub tombstones: u32,
    /// Live parts older than their absolute deadline + 1 s. Must be 0.
    pub stuck: u32,
    /// Of the live part that comes closest to its end: how much of its budget is used, in thousandths.
    pub budget_used: u32,
    /// Live requests (R), those that wait for admission included.
    pub requests: u32,
    /// Requests that wait for admission (R).
    pub queued_requests: u32,
    /// Of these, those in the queue, by class in the order of [`crate::class::Class::ALL`] (R).
    pub waiting: [u32; 3],
    /// What they cost in tokens of prompt and answer (R).
    pub waiting_tokens: [u64; 3],
    /// How long one of each class would wait that came now (R).
    pub predicted_wait: [Millis; 3],
    /// Tenants with something in the queue (R).
    pub waiting_tenants: u32,
    /// Requests that were refused because more came than fits, by why (R).
    pub shed: router::Shed,
    /// KV pages of decode workers that are booked for this router's rooms (R).
    pub booked_pages: u64,
    /// Prompt tokens that are booked at prefill workers and not computed yet (R).
    pub booked_prompt_tokens: u64,
    /// Live rooms that should have a lease by now and have none confirmed (R).
    pub unleased: u32,
    /// Workers that are avoided because they were blamed for several rooms in a row (R).
    pub avoided_nodes: u32,
    /// Data links that are avoided for that (R).
    pub avoided_links: u32,
    /// KV pages of all decode workers (R).
    pub fleet_pages: u64,
    /// Those of them that were free or cached when their worker last reported (R).
    pub fleet_free: u64,
    /// Tokens in a page of theirs (R).
    pub fleet_page_tokens: u32,
    /// Messages and frames of another epoch or incarnation, and late reports that were answered, not applied.
    pub fenced: u64,
    /// KV pages of rooms that are over, which only the end of an engine's process may get back (workers whose engine is a
    /// process of its own).
    pub pinned: Option<Pinned>,
}

impl Gauges {
    /// Counts one live part that has been in its phase for so long.
    pub(crate) fn count_phase(&mut self, phase: Phase, age: Millis) {
        let slots = self.rooms.iter_mut().zip(&mut self.oldest);
        for ((rooms, oldest), _) in slots.zip(Phase::ALL).filter(|(_, slot)| *slot == phase) {
            *rooms += 1;
            *oldest = age.max(*oldest);
        }
    }

    /// Counts one live part of whose budget so much is left.
    pub(crate) fn count_budget(&mut self, left: Millis, budget: Millis) {
        let used = budget.0.saturating_sub(left.0).saturating_mul(1000) / budget.0.max(1);
        self.budget_used = self.budget_used.max(u32::try_from(used).unwrap_or(u32::MAX));
    }
}
