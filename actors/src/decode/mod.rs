//! The decode worker's way of executing its ledger's orders.

mod doorbell;
mod lobby;
mod room;
mod transfer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use innkeeper_engine::Engine;
use innkeeper_room::ledger::decode::{Effect, Event, Ledger, SessionId};
use innkeeper_room::{Epoch, Evidence, FromWorker, HelloReply, Reason, RoomId, Token};
use ractor::{Actor, ActorCell};

pub use crate::decode::doorbell::{Answers, Doorbell, own_side};
pub use crate::decode::lobby::{Doorman, Greeting};
use crate::decode::lobby::{Lobby, Visitor};
pub use crate::decode::room::DecodeRoom;
use crate::decode::transfer::Transfer;
use crate::ports::OpenRoom;
use crate::tasks::Tasks;
use crate::worker::craft::{Craft, Report};
use crate::worker::ledger::Order;

/// The decode worker's craft.
pub struct Decode {
    engine: Arc<dyn Engine>,
    data_addr: String,
    random: Box<dyn Fn() -> u64 + Send + Sync>,
    lobby: Lobby,
    tasks: Tasks,
    answers: Answers,
}

/// An order to a room.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Take pages.
    OpenPages(u32),
    /// Answer a hello.
    Reply(SessionId, RoomId, Epoch, HelloReply),
    /// Destroy the session.
    Kill(Epoch),
    /// Say Committed as a last word.
    SayCommitted(Epoch),
    /// Say Fail as a last word.
    SayFail(Epoch, Reason, Evidence),
    /// Start decoding.
    Decode,
    /// Have the engine read the KV by its ticket.
    Pull,
    /// Stop decoding.
    CancelEngine,
    /// Give the pages back.
    ClosePages,
}

impl Decode {
    /// With this engine. `data_addr` is what R is told of the data plane; `random` gives fresh secrets from the OS.
    pub fn new(
        engine: Arc<dyn Engine>,
        data_addr: String,
        random: Box<dyn Fn() -> u64 + Send + Sync>,
        tasks: Tasks,
    ) -> Self {
        Self {
            engine,
            data_addr,
            random,
            lobby: Lobby::default(),
            tasks,
            answers: Arc::new(AtomicBool::new(true)),
        }
    }

    /// Whether the data plane answers, for whoever rings its bell.
    #[must_use]
    pub fn answers(&self) -> Answers {
        Arc::clone(&self.answers)
    }

    /// Ready needs the session's permit; a session that said hello before and was told to wait is kept by the room.
    async fn reply(
        &self,
        room: Option<&Arc<DecodeRoom>>,
        session: SessionId,
        epoch: Epoch,
        reply: HelloReply,
        parent: Option<ActorCell>,
    ) {
        let stays = matches!(reply, HelloReply::Ready | HelloReply::Wait);
        let visitor = self.lobby.take(session);
        let (Some(room), true) = (room, stays) else {
            if let Some(visitor) = visitor {
                visitor.session.reply(reply, None);
            } else if let Some(session) = room.and_then(|room| room.session(epoch)) {
                session.reply(reply, None);
            }
            return;
        };
        if let Some(visitor) = visitor
            && !self.admit(room, epoch, visitor, parent).await
        {
            return;
        }
        match reply {
            HelloReply::Ready if !room.ready(&self.engine, epoch) => {
                room.kill(epoch);
                room.tell(Event::Broken { room: room.id(), epoch });
            }
            HelloReply::Wait => {
                if let Some(session) = room.session(epoch) {
                    session.reply(HelloReply::Wait, None);
                }
            }
            _ => {}
        }
    }

    /// The room keeps the session, and a transfer of its own owns it.
    async fn admit(&self, room: &Arc<DecodeRoom>, epoch: Epoch, visitor: Visitor, parent: Option<ActorCell>) -> bool {
        if !room.keep(epoch, visitor.session) {
            return false;
        }
        let args = transfer::Args {
            room: Arc::clone(room),
            epoch,
            events: visitor.events,
            engine: Arc::clone(&self.engine),
            tasks: self.tasks.clone(),
        };
        let spawned = match parent {
            Some(parent) => Transfer::spawn_linked(None, Transfer, args, parent)
                .await
                .map(|_| ())
                .map_err(|e| e.to_string()),
            None => Err("its room's actor is gone".to_owned()),
        };
        if let Err(why) = &spawned {
            tracing::warn!(room = %room.id(), epoch = epoch.0, why, "no transfer could be started");
            room.kill(epoch);
            room.session_over(epoch);
            room.tell(Event::Broken { room: room.id(), epoch });
            room.tell(Event::Quiesced { room: room.id(), epoch });
        }
        spawned.is_ok()
    }
}

impl Craft for Decode {
    type Ledger = Ledger;
    type Room = DecodeRoom;
    type Command = Command;
    type Greeting = Greeting;

    fn open_event(&self, open: &OpenRoom) -> Event {
        Event::Open {
            spec: open.spec.clone(),
            token: (self.random)(),
        }
    }

    fn room(&self, open: OpenRoom, report: Report<Event>) -> Arc<DecodeRoom> {
        Arc::new(DecodeRoom::new(open, report))
    }

    fn greet(&self, greeting: Greeting, _report: &Report<Event>) -> Event {
        self.lobby.enter(greeting)
    }

    fn order(&self, effect: Effect) -> Order<Command> {
        match effect {
            Effect::Tell {
                room,
                message: FromWorker::Admitted { token, .. },
            } => Order::Tell(
                room,
                FromWorker::Admitted {
                    data_addr: self.data_addr.clone(),
                    token,
                },
            ),
            Effect::Tell { room, message } => Order::Tell(room, message),
            Effect::Begin { room } => Order::Begin(room),
            Effect::OpenPages { room, tokens } => Order::Room(room, Command::OpenPages(tokens)),
            Effect::Reply {
                session,
                room,
                epoch,
                reply,
            } => Order::Room(room, Command::Reply(session, room, epoch, reply)),
            Effect::KillSession { room, epoch } => Order::Room(room, Command::Kill(epoch)),
            Effect::SayCommitted { room, epoch } => Order::Room(room, Command::SayCommitted(epoch)),
            Effect::SayFail {
                room,
                epoch,
                reason,
                evidence,
            } => Order::Room(room, Command::SayFail(epoch, reason, evidence)),
            Effect::Decode { room } => Order::Room(room, Command::Decode),
            Effect::Pull { room } => Order::Room(room, Command::Pull),
            Effect::CancelEngine { room } => Order::Room(room, Command::CancelEngine),
            Effect::ClosePages { room } => Order::Room(room, Command::ClosePages),
            Effect::End { room } => Order::End(room),
            Effect::Serving(serving) => Order::Serving(serving),
            Effect::Exit { why } => Order::Exit(why),
        }
    }

    async fn execute(&self, room: Option<&Arc<DecodeRoom>>, command: Command, parent: Option<ActorCell>) {
        if let Command::Reply(session, _, epoch, reply) = command {
            // Also for rooms that are not here: every hello is answered.
            self.reply(room, session, epoch, reply, parent).await;
            return;
        }
        // Without handles there is nothing that could be touched.
        let Some(room) = room else { return };
        match command {
            Command::OpenPages(tokens) => room.open_pages(&self.engine, tokens),
            Command::Kill(epoch) => {
                if !room.kill(epoch) {
                    room.tell(Event::Quiesced { room: room.id(), epoch });
                }
            }
            Command::SayCommitted(epoch) => {
                if let Some(session) = room.session(epoch) {
                    session.committed();
                }
            }
            Command::SayFail(epoch, reason, evidence) => {
                if let Some(session) = room.session(epoch) {
                    session.fail(reason, evidence);
                }
            }
            Command::Decode => room.decode(&self.engine),
            Command::Pull => room.pull(&self.engine),
            Command::CancelEngine => room.cancel(&self.engine),
            Command::ClosePages => room.close_pages(&self.engine),
            Command::Reply(..) => {}
        }
    }

    fn sample(&self, _id: RoomId, _room: &DecodeRoom) -> Option<Event> {
        None
    }

    fn tokens(&self, room: &DecodeRoom, position: u32, count: u32) -> Vec<Token> {
        room.tokens(position, count)
    }

    fn alive(&self) -> bool {
        let usable = self.engine.tickets().is_none_or(|tickets| !tickets.seen().given_up);
        usable && self.answers.load(Ordering::Relaxed)
    }

    fn idle(&self, room: &DecodeRoom) -> bool {
        room.idle()
    }

    fn fence(&self, room: &DecodeRoom) {
        room.kill_all();
    }
}
