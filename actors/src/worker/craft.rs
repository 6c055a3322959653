//! What differs between the two workers: how a room's orders are executed.

use std::sync::Arc;

use innkeeper_room::{RoomId, Token};
use ractor::ActorCell;

use crate::ports::OpenRoom;
use crate::worker::ledger::{Order, WorkerLedger};

/// Casts an event back to the ledger; whether it still listens. Callable from any thread.
pub type Report<E> = Arc<dyn Fn(E) -> bool + Send + Sync>;

/// The event type of a craft's ledger.
pub type EventOf<C> = <<C as Craft>::Ledger as WorkerLedger>::Event;

/// One worker's way of executing orders. All methods return at once.
pub trait Craft: Send + Sync + 'static {
    /// Its ledger.
    type Ledger: WorkerLedger;
    /// The handles of one room: sessions, engine jobs. Outlives the room's actor, so that the fences work without it.
    type Room: Send + Sync + 'static;
    /// An order to a room.
    type Command: Send + 'static;
    /// Something from the data plane that must be seen by `rooms` itself before the ledger is told.
    type Greeting: Send + 'static;

    /// The event of an Open.
    fn open_event(&self, open: &OpenRoom) -> EventOf<Self>;

    /// Makes a room's handles.
    fn room(&self, open: OpenRoom, report: Report<EventOf<Self>>) -> Arc<Self::Room>;

    /// Takes in a greeting and names its event.
    fn greet(&self, greeting: Self::Greeting, report: &Report<EventOf<Self>>) -> EventOf<Self>;

    /// Sorts an effect.
    fn order(&self, effect: <Self::Ledger as WorkerLedger>::Effect) -> Order<Self::Command>;

    /// Executes an order. `parent` is the room's actor, to link children to; without it only fences are executed, and
    /// what would begin something is answered as over.
    fn execute(
        &self,
        room: Option<&Arc<Self::Room>>,
        command: Self::Command,
        parent: Option<ActorCell>,
    ) -> impl Future<Output = ()> + Send;

    /// What a report period adds: the newest counters of a room.
    fn sample(&self, id: RoomId, room: &Self::Room) -> Option<EventOf<Self>>;

    /// Tokens that the room has produced.
    fn tokens(&self, room: &Self::Room, position: u32, count: u32) -> Vec<Token>;

    /// Whether its data plane answers.
    fn alive(&self) -> bool {
        true
    }

    /// Whether nothing of the room is left that could touch a page.
    fn idle(&self, room: &Self::Room) -> bool;

    /// Cancels and destroys whatever the room has; used when its actor died and at the end of a drain.
    fn fence(&self, room: &Self::Room);
}
