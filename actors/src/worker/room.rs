//! The actor of one room on a worker. It executes the ledger's orders in order and owns the room's transfers. It decides
//! nothing and is never restarted: if it dies, for whatever reason, the ledger ends the part.

use std::sync::Arc;

use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};

use crate::worker::craft::Craft;

/// The room's actor.
pub struct Room<C: Craft> {
    craft: Arc<C>,
}

/// What the room's actor is told.
pub enum RoomMessage<C: Craft> {
    /// An order of the ledger.
    Do(C::Command),
    /// The part is over: go, after all orders before this one.
    Leave,
}

/// The actor's state.
pub struct State<C: Craft> {
    room: Arc<C::Room>,
    leaving: bool,
}

impl<C: Craft> State<C> {
    /// Ends the actor once it was told to leave and its transfers are over. The reaper's grace bounds the wait.
    fn leave_when_alone(&self, myself: &ActorRef<RoomMessage<C>>) {
        if self.leaving && myself.get_cell().get_children().is_empty() {
            myself.stop(None);
        }
    }
}

impl<C: Craft> Room<C> {
    /// For a worker of this craft.
    pub fn new(craft: Arc<C>) -> Self {
        Self { craft }
    }
}

impl<C: Craft> Actor for Room<C> {
    type Msg = RoomMessage<C>;
    type State = State<C>;
    type Arguments = Arc<C::Room>;

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        room: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(State { room, leaving: false })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RoomMessage::Do(command) => {
                self.craft
                    .execute(Some(&state.room), command, Some(myself.get_cell()))
                    .await
            }
            // Its end would kill its transfers, and with them their last words.
            RoomMessage::Leave => state.leaving = true,
        }
        state.leave_when_alone(&myself);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            // The transfer's guard, which goes with the event, has destroyed the session of one that died and told the ledger.
            SupervisionEvent::ActorTerminated(..) | SupervisionEvent::ActorFailed(..) => {}
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        state.leave_when_alone(&myself);
        Ok(())
    }
}
