//! What the two worker ledgers have in common, so that one `rooms` actor drives both.

use innkeeper_room::ledger::{EngineView, Gauges, RoomRow, decode, prefill};
use innkeeper_room::{Evidence, FromWorker, Incarnation, Moment, RoomId, ToWorker};

use crate::hooks::Broke;

/// Events that both ledgers know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Common {
    /// R says something about a room.
    FromRouter(RoomId, ToWorker),
    /// The room's stream ended.
    StreamEnded(RoomId),
    /// What the engine is doing.
    Engine(EngineView),
    /// The engine's process is another one.
    EngineRestarted,
    /// The room's door is gone.
    DoorGone(RoomId),
    /// A member's key is gone.
    MemberGone(Incarnation),
    /// The room's actor died.
    ActorDied(RoomId),
    /// Stop taking rooms.
    Drain,
    /// End what is left.
    DrainOver,
    /// Time has passed.
    Tick,
}

/// An effect, sorted by who executes it.
#[derive(Debug, PartialEq, Eq)]
pub enum Order<C> {
    /// Spawn the room's actor.
    Begin(RoomId),
    /// Say this to R.
    Tell(RoomId, FromWorker),
    /// The room's actor, or in its absence `rooms` itself.
    Room(RoomId, C),
    /// `rooms` itself, before any order that follows: it is of no room.
    Engine(C),
    /// The part is over.
    End(RoomId),
    /// Whether the node takes rooms.
    Serving(bool),
    /// The last fence.
    Exit(&'static str),
}

/// A worker's ledger.
pub trait WorkerLedger: Send + Sync + 'static {
    /// What it is told.
    type Event: Send + 'static;
    /// What it orders.
    type Effect: Send;

    /// An event that both ledgers know, as this one has it.
    fn event(common: Common) -> Self::Event;
    /// Whether an event is the break of a data connection.
    fn broke(event: &Self::Event) -> Option<(RoomId, Broke)>;
    /// Decides.
    fn step(&mut self, event: Self::Event, now: Moment) -> Vec<Self::Effect>;
    /// When it must be ticked.
    fn next_deadline(&self) -> Option<Moment>;
    /// Its live parts.
    fn rows(&self, now: Moment) -> Vec<RoomRow>;
    /// Its counts.
    fn gauges(&self, now: Moment) -> Gauges;
    /// What it sees of a room.
    fn evidence(&self, room: RoomId, now: Moment) -> Option<Evidence>;
    /// Whether it drains and nothing is left.
    fn drained(&self) -> bool;
}

macro_rules! worker_ledger {
    ($side:ident, $broke:expr) => {
        impl WorkerLedger for $side::Ledger {
            type Event = $side::Event;
            type Effect = $side::Effect;

            fn event(common: Common) -> Self::Event {
                match common {
                    Common::FromRouter(room, message) => $side::Event::FromRouter { room, message },
                    Common::StreamEnded(room) => $side::Event::StreamEnded { room },
                    Common::Engine(view) => $side::Event::Engine(view),
                    Common::EngineRestarted => $side::Event::EngineRestarted,
                    Common::DoorGone(room) => $side::Event::DoorGone { room },
                    Common::MemberGone(incarnation) => $side::Event::MemberGone { incarnation },
                    Common::ActorDied(room) => $side::Event::ActorDied { room },
                    Common::Drain => $side::Event::Drain,
                    Common::DrainOver => $side::Event::DrainOver,
                    Common::Tick => $side::Event::Tick,
                }
            }
            fn broke(event: &Self::Event) -> Option<(RoomId, Broke)> {
                $broke(event)
            }
            fn step(&mut self, event: Self::Event, now: Moment) -> Vec<Self::Effect> {
                $side::Ledger::step(self, event, now)
            }
            fn next_deadline(&self) -> Option<Moment> {
                $side::Ledger::next_deadline(self)
            }
            fn rows(&self, now: Moment) -> Vec<RoomRow> {
                $side::Ledger::rows(self, now)
            }
            fn gauges(&self, now: Moment) -> Gauges {
                $side::Ledger::gauges(self, now)
            }
            fn evidence(&self, room: RoomId, now: Moment) -> Option<Evidence> {
                $side::Ledger::evidence(self, room, now)
            }
            fn drained(&self) -> bool {
                $side::Ledger::drained(self)
            }
        }
    };
}

worker_ledger!(prefill, prefill_broke);
worker_ledger!(decode, decode_broke);

const fn prefill_broke(event: &prefill::Event) -> Option<(RoomId, Broke)> {
    let prefill::Event::Broken {
        room,
        epoch,
        unacked,
        refused,
    } = event
    else {
        return None;
    };
    let broke = Broke {
        epoch: *epoch,
        unacked: *unacked,
        refused: *refused,
    };
    Some((*room, broke))
}

const fn decode_broke(event: &decode::Event) -> Option<(RoomId, Broke)> {
    let decode::Event::Broken { room, epoch } = event else {
        return None;
    };
    let broke = Broke {
        epoch: *epoch,
        unacked: false,
        refused: false,
    };
    Some((*room, broke))
}
