//! What the tree tells the services' metrics and logs. Called on the ledger's actor: implementations return at once.

use innkeeper_room::ledger::router::{Outcome, RoomEnd};
use innkeeper_room::{Evidence, PartEnd, RoomId};

/// Hears what ended.
pub trait Hooks: Send + Sync + 'static {
    /// A worker's part ended.
    fn part_ended(&self, room: RoomId, end: PartEnd, evidence: &Evidence);
    /// A router's room is over and blame is known.
    fn room_ended(&self, end: &RoomEnd);
    /// A client's request was answered.
    fn answered(&self, outcome: &Outcome);
    /// A client's answer is carried on elsewhere: a room begins after its first token.
    fn migrated(&self) {}
    /// A canary was answered.
    fn canary(&self, _outcome: &Outcome) {}
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {
    fn part_ended(&self, _room: RoomId, _end: PartEnd, _evidence: &Evidence) {}
    fn room_ended(&self, _end: &RoomEnd) {}
    fn answered(&self, _outcome: &Outcome) {}
}
