//! What the worker's ledger orders, executed.

use std::sync::Arc;

use innkeeper_room::{FromWorker, RoomId};
use ractor::{Actor, ActorRef};

use super::{Entry, Fresh, RoomsMessage, State};
use crate::outbox::Outbox;
use crate::worker::craft::{Craft, EventOf};
use crate::worker::ledger::{Common, Order, WorkerLedger};
use crate::worker::room::{Room, RoomMessage};

impl<C: Craft> State<C> {
    /// One step of the ledger, and the execution of all that it orders. `fresh` is the room that is just being opened:
    /// it is entered if the ledger begins it, and only hears the refusal otherwise.
    pub(super) async fn step(
        &mut self,
        myself: &ActorRef<RoomsMessage<C>>,
        event: EventOf<C>,
        mut fresh: Option<Fresh<C>>,
    ) {
        if let Some((room, broke)) = C::Ledger::broke(&event) {
            self.parts.hooks.connection_broke(room, &broke);
        }
        let effects = self.parts.ledger.step(event, self.parts.clock.now());
        for effect in effects {
            match self.parts.craft.order(effect) {
                Order::Begin(id) => {
                    if let Some(Fresh { open, room, outbox }) = fresh.take_if(|fresh| fresh.open.spec.room == id) {
                        self.parts.hooks.part_opened(&open);
                        self.begin(myself, id, room, outbox).await;
                    }
                }
                Order::Tell(id, message) => match &fresh {
                    // An Open that is refused is answered on the stream it came on, never on that of a room that exists.
                    Some(fresh) if fresh.open.spec.room == id => {
                        fresh.outbox.say(message, vec![]);
                    }
                    _ => self.tell(id, message),
                },
                Order::Room(id, command) => self.order(id, command).await,
                Order::Engine(command) => self.parts.craft.execute(None, command, None).await,
                Order::End(id) => self.end(id),
                Order::Serving(serving) => {
                    self.serving = serving;
                    self.parts.signals.serving.send_replace(serving);
                }
                Order::Exit(why) => {
                    tracing::error!(why, "this process must exit: its pages cannot be got back otherwise");
                    self.parts.signals.exit.send_replace(Some(why.to_owned()));
                }
            }
        }
        if let Some(fresh) = fresh {
            fresh.outbox.close();
        }
    }

    async fn begin(&mut self, myself: &ActorRef<RoomsMessage<C>>, id: RoomId, room: Arc<C::Room>, outbox: Arc<Outbox>) {
        let actor = Room::new(Arc::clone(&self.parts.craft));
        let spawned = Actor::spawn_linked(None, actor, Arc::clone(&room), myself.get_cell()).await;
        let actor = match spawned {
            Ok((actor, _)) => {
                self.actors.insert(actor.get_id(), id);
                Some(actor)
            }
            Err(error) => {
                tracing::error!(room = %id, %error, "the room's actor could not be spawned");
                // No supervision event follows a failed start: the ledger is told by a message of our own.
                (self.report)(C::Ledger::event(Common::ActorDied(id)));
                None
            }
        };
        self.rooms.insert(
            id,
            Entry {
                room,
                outbox,
                actor,
                ended: false,
            },
        );
    }

    fn tell(&self, id: RoomId, message: FromWorker) {
        self.parts.hooks.part_says(id, &message);
        if let FromWorker::Ended { end, evidence, .. } = &message {
            self.parts.hooks.part_ended(id, *end, evidence);
        }
        let Some(entry) = self.rooms.get(&id) else { return };
        let tokens = match &message {
            FromWorker::Tokens { position, count } => self.parts.craft.tokens(&entry.room, *position, *count),
            _ => vec![],
        };
        entry.outbox.say(message, tokens);
    }

    async fn order(&self, id: RoomId, command: C::Command) {
        let entry = self.rooms.get(&id);
        if let Some(actor) = entry.and_then(|entry| entry.actor.as_ref()) {
            if let Err(ractor::MessagingErr::SendErr(RoomMessage::Do(command))) = actor.cast(RoomMessage::Do(command)) {
                self.parts
                    .craft
                    .execute(entry.map(|entry| &entry.room), command, None)
                    .await;
            }
        } else {
            self.parts
                .craft
                .execute(entry.map(|entry| &entry.room), command, None)
                .await;
        }
    }

    fn end(&mut self, id: RoomId) {
        let now = self.parts.clock.now();
        let Some(entry) = self.rooms.get_mut(&id) else { return };
        entry.ended = true;
        entry.outbox.close();
        if let Some(actor) = entry.actor.take() {
            // A failed send means that it is gone already.
            if actor.cast(RoomMessage::Leave).is_ok() {
                self.reaper.told(actor.get_cell(), now);
            }
        }
    }
}
