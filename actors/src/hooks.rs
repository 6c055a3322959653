//! What the tree tells the services' metrics, logs and spans. Called on the ledger's actor: implementations return at once.
//!
//! The ledgers are pure and know nothing of this; what is told is what their executors see pass: what a ledger is told,
//! what it orders, what parts and routers say to each other. Every method but the first three may be left out.

use innkeeper_leases::Member;
use innkeeper_room::ledger::router::{Effect, Event, Outcome, RoomEnd, Side};
use innkeeper_room::{Epoch, Evidence, FromWorker, Incarnation, PartEnd, Phase, RequestKey, RoomId, ToWorker};

use crate::ports::{NewRequest, OpenRoom};

/// Hears what happens.
pub trait Hooks: Send + Sync + 'static {
    /// A worker's part ended.
    fn part_ended(&self, room: RoomId, end: PartEnd, evidence: &Evidence);
    /// A router's room is over and blame is known.
    fn room_ended(&self, end: &RoomEnd);
    /// A client's request was answered.
    fn answered(&self, outcome: &Outcome);
    /// A canary was answered.
    fn canary(&self, _outcome: &Outcome) {}

    /// A worker's part begins.
    fn part_opened(&self, _open: &OpenRoom) {}
    /// A worker's part says something to its router, its end included.
    fn part_says(&self, _room: RoomId, _message: &FromWorker) {}
    /// A router says something to a worker's part.
    fn part_hears(&self, _room: RoomId, _message: &ToWorker) {}
    /// A part's data connection broke.
    fn connection_broke(&self, _room: RoomId, _broke: &Broke) {}

    /// A client's request comes to a router's ledger.
    fn arrived(&self, _request: RequestKey, _what: &NewRequest) {}
    /// A router's ledger is told this.
    fn told(&self, _event: &Event) {}
    /// A router's ledger has ordered this; it is executed next.
    fn ordered(&self, _effect: &Effect) {}
    /// A router's room is in this phase after what it was told.
    fn room_phase(&self, _room: RoomId, _phase: Phase) {}
    /// The W3C trace context that a room's workers are to follow, if it is not the one that the request came with.
    fn traceparent(&self, _room: RoomId) -> Option<String> {
        None
    }

    /// A member of the cluster appeared or changed.
    fn member(&self, _member: &Member) {}
    /// Why a room's stream to a worker broke, for people; the ledger is told of the break next.
    fn stream_broke(&self, _room: RoomId, _side: Side, _why: &str) {}
    /// Why the node stream to a worker broke, for people; the ledger is told of it next.
    fn node_broke(&self, _node: Incarnation, _why: &str) {}

    /// Whether the lease store is away.
    fn degraded(&self, _away: bool) {}
}

/// How a part's data connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broke {
    /// Of which epoch.
    pub epoch: Epoch,
    /// Bytes were not acknowledged by the peer's kernel (only P knows).
    pub unacked: bool,
    /// It was never established (only P knows).
    pub refused: bool,
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {
    fn part_ended(&self, _room: RoomId, _end: PartEnd, _evidence: &Evidence) {}
    fn room_ended(&self, _end: &RoomEnd) {}
    fn answered(&self, _outcome: &Outcome) {}
}
