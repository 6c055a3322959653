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

impl<C: Craft> Room<C> {
    /// For a worker of this craft.
    pub fn new(craft: Arc<C>) -> Self {
        Self { craft }
    }
}

impl<C: Craft> Actor for Room<C> {
    type Msg = RoomMessage<C>;
    type State = Arc<C::Room>;
    type Arguments = Arc<C::Room>;

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        room: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(room)
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        room: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RoomMessage::Do(command) => self.craft.execute(Some(room), command, Some(myself.get_cell())).await,
            RoomMessage::Leave => myself.stop(None),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        room: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            // A transfer that ended as it should has reported its end before; saying it again is harmless, because
            // reports of an epoch that is over are fenced.
            SupervisionEvent::ActorTerminated(child, _, _) | SupervisionEvent::ActorFailed(child, _) => {
                self.craft.child_died(room, child);
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}
