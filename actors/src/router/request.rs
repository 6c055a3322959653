//! The actor of one request on a router: the parent of its rooms, one after the other. The ledger decides when there is
//! another one; this only keeps them in one place, so that a request's end is the end of all that it had.

use std::collections::BTreeMap;
use std::sync::Arc;

use innkeeper_room::RoomId;
use innkeeper_room::ledger::router::Event;
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};

use crate::router::room::{Command, Room, RoomMessage, RouterRoom, Tell, Told};

/// What a request's actor is told.
pub enum RequestMessage {
    /// A room begins.
    Begin(Arc<RouterRoom>),
    /// An order to a room.
    Do(RoomId, Command),
    /// A room is over.
    RoomOver(RoomId),
    /// The request is answered and its rooms are over: go, after all orders before this one.
    Leave,
}

/// The actor.
#[derive(Default)]
pub struct Request;

/// Its state.
pub struct State {
    tell: Tell,
    rooms: BTreeMap<RoomId, (Arc<RouterRoom>, ActorRef<RoomMessage>)>,
    actors: BTreeMap<ActorId, RoomId>,
    leaving: bool,
}

impl Actor for Request {
    type Msg = RequestMessage;
    type State = State;
    type Arguments = Tell;

    async fn pre_start(&self, _myself: ActorRef<RequestMessage>, tell: Tell) -> Result<State, ActorProcessingErr> {
        Ok(State {
            tell,
            rooms: BTreeMap::new(),
            actors: BTreeMap::new(),
            leaving: false,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<RequestMessage>,
        message: RequestMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RequestMessage::Begin(room) => {
                let id = room.spec.room;
                match Room::spawn_linked(None, Room, Arc::clone(&room), myself.get_cell()).await {
                    Ok((actor, _)) => {
                        state.actors.insert(actor.get_id(), id);
                        state.rooms.insert(id, (room, actor));
                    }
                    Err(error) => {
                        tracing::error!(room = %id, %error, "the room's actor could not be spawned");
                        (state.tell)(Told::Event(Event::ActorDied { room: id }));
                    }
                }
            }
            RequestMessage::Do(id, command) => state.order(id, command),
            RequestMessage::RoomOver(id) => {
                if let Some((_, actor)) = state.rooms.remove(&id) {
                    // A failed send means that it is gone already.
                    drop(actor.cast(RoomMessage::Leave));
                }
            }
            // Its end would kill its rooms' actors, and with them what they still have to say.
            RequestMessage::Leave if !state.actors.is_empty() => state.leaving = true,
            RequestMessage::Leave => myself.stop(None),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<RequestMessage>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(child, _, why) => {
                state.gone(child.get_id(), &why.unwrap_or_else(|| "stopped".to_owned()));
            }
            SupervisionEvent::ActorFailed(child, error) => state.gone(child.get_id(), &error.to_string()),
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        if state.leaving && state.actors.is_empty() {
            myself.stop(None);
        }
        Ok(())
    }
}

impl State {
    fn order(&self, id: RoomId, command: Command) {
        let Some((room, actor)) = self.rooms.get(&id) else {
            return;
        };
        if let Err(ractor::MessagingErr::SendErr(RoomMessage::Do(command))) = actor.cast(RoomMessage::Do(command)) {
            room.execute(command);
        }
    }

    fn gone(&mut self, actor: ActorId, why: &str) {
        let Some(id) = self.actors.remove(&actor) else { return };
        // One that was told to leave is not in the table any more.
        if let Some((room, _)) = self.rooms.get(&id) {
            tracing::error!(room = %id, why, "the room's actor died: the room ends");
            (self.tell)(Told::Event(Event::ActorDied { room: room.spec.room }));
        }
    }
}
