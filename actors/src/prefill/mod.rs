//! The prefill worker's way of executing its ledger's orders.

mod names;
mod room;
mod transfer;

use std::sync::Arc;

use innkeeper_engine::Engine;
use innkeeper_room::ledger::prefill::{Effect, Event, Ledger};
use innkeeper_room::{BlockHash, Epoch, Evidence, Millis, Reason, RoomId, Settings, Token};
use innkeeper_transfer::Backend;
use ractor::{Actor, ActorCell};

use crate::ports::OpenRoom;
use crate::prefill::names::Names;
pub use crate::prefill::room::PrefillRoom;
use crate::prefill::transfer::Transfer;
use crate::tasks::Tasks;
use crate::worker::craft::{Craft, Report};
use crate::worker::ledger::Order;

/// The prefill worker's craft.
pub struct Prefill {
    engine: Arc<dyn Engine>,
    backend: Arc<dyn Backend>,
    tasks: Tasks,
    names: Names,
}

/// An order to a room.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Connect after a pause.
    Connect(Epoch, Millis),
    /// Say Started.
    SayStarted(Epoch),
    /// Take pages, beside those that are reused, and compute.
    Compute(u32, Vec<BlockHash>),
    /// Stop computing.
    CancelEngine,
    /// Say Fail as a last word.
    SayFail(Epoch, Reason, Evidence),
    /// End the session quietly.
    Finish(Epoch),
    /// Destroy the session.
    Kill(Epoch),
    /// Give the pages back, but for those that are kept.
    ClosePages(Vec<(u32, BlockHash)>),
    /// These pages of the prefix cache are free. Of no room.
    Evict(Vec<BlockHash>),
}

impl Prefill {
    /// With this engine and this data plane.
    pub fn new(engine: Arc<dyn Engine>, backend: Arc<dyn Backend>, settings: &Settings, tasks: Tasks) -> Self {
        let (layout, limits) = (engine.layout(), engine.limits());
        // What the ledger refuses, or would keep nothing of, needs no names: they are made before it is asked.
        let longest = match settings.prefix_cache_percent {
            0 => 0,
            _ => limits
                .total_pages
                .saturating_mul(layout.page_tokens)
                .min(limits.context),
        };
        Self {
            names: Names::new(layout.page_tokens, longest),
            engine,
            backend,
            tasks,
        }
    }

    async fn connect(&self, room: &Arc<PrefillRoom>, epoch: Epoch, after: Millis, parent: Option<ActorCell>) {
        if !room.session_begins(epoch) {
            // Fenced before it began; whoever fenced it has answered.
            return;
        }
        let args = transfer::Args {
            room: Arc::clone(room),
            epoch,
            after,
            engine: Arc::clone(&self.engine),
            backend: Arc::clone(&self.backend),
            tasks: self.tasks.clone(),
        };
        let spawned = match parent {
            Some(parent) => Transfer::spawn_linked(None, Transfer, args, parent)
                .await
                .map(|_| ())
                .map_err(|e| e.to_string()),
            None => Err("its room's actor is gone".to_owned()),
        };
        if let Err(why) = spawned {
            tracing::warn!(room = %room.id(), epoch = epoch.0, why, "no transfer could be started");
            room.session_over(epoch);
            room.tell(Event::Broken {
                room: room.id(),
                epoch,
                unacked: false,
                refused: true,
            });
            room.tell(Event::Quiesced { room: room.id(), epoch });
        }
    }
}

/// Destroys a session. One that never began, because its order was lost with the room's actor or is still on its way, is
/// answered as over.
fn kill(room: &PrefillRoom, epoch: Epoch) {
    if !room.kill(epoch) {
        room.tell(Event::Quiesced { room: room.id(), epoch });
    }
}

impl Craft for Prefill {
    type Ledger = Ledger;
    type Room = PrefillRoom;
    type Command = Command;
    type Greeting = std::convert::Infallible;

    fn open_event(&self, open: &OpenRoom) -> Event {
        Event::Open {
            spec: open.spec.clone(),
            decode_addr: open.decode_addr.clone(),
            token: open.token,
            blocks: self.names.of(&open.work),
        }
    }

    fn room(&self, open: OpenRoom, report: Report<Event>) -> Arc<PrefillRoom> {
        Arc::new(PrefillRoom::new(open, report))
    }

    fn greet(&self, greeting: Self::Greeting, _report: &Report<Event>) -> Event {
        match greeting {}
    }

    fn order(&self, effect: Effect) -> Order<Command> {
        match effect {
            Effect::Tell { room, message } => Order::Tell(room, message),
            Effect::Begin { room } => Order::Begin(room),
            Effect::Connect { room, epoch, after } => Order::Room(room, Command::Connect(epoch, after)),
            Effect::SayStarted { room, epoch } => Order::Room(room, Command::SayStarted(epoch)),
            Effect::Compute { room, tokens, reuse } => Order::Room(room, Command::Compute(tokens, reuse)),
            Effect::CancelEngine { room } => Order::Room(room, Command::CancelEngine),
            Effect::SayFail {
                room,
                epoch,
                reason,
                evidence,
            } => Order::Room(room, Command::SayFail(epoch, reason, evidence)),
            Effect::FinishSession { room, epoch } => Order::Room(room, Command::Finish(epoch)),
            Effect::KillSession { room, epoch } => Order::Room(room, Command::Kill(epoch)),
            Effect::ClosePages { room, keep } => Order::Room(room, Command::ClosePages(keep)),
            Effect::Evict { blocks } => Order::Engine(Command::Evict(blocks)),
            Effect::End { room } => Order::End(room),
            Effect::Serving(serving) => Order::Serving(serving),
            Effect::Exit { why } => Order::Exit(why),
        }
    }

    async fn execute(&self, room: Option<&Arc<PrefillRoom>>, command: Command, parent: Option<ActorCell>) {
        if let Command::Evict(names) = &command {
            self.engine.evict(names);
        }
        // Without handles there is nothing that could be touched.
        let Some(room) = room else { return };
        match command {
            Command::Connect(epoch, after) => self.connect(room, epoch, after, parent).await,
            Command::SayStarted(epoch) => {
                if let Some(session) = room.session(epoch) {
                    session.started();
                }
            }
            Command::Compute(tokens, reuse) => room.compute(&self.engine, tokens, &reuse),
            Command::CancelEngine => room.cancel(&self.engine),
            Command::SayFail(epoch, reason, evidence) => match room.session(epoch) {
                Some(session) => session.fail(reason, evidence),
                None => kill(room, epoch),
            },
            Command::Finish(epoch) => match room.session(epoch) {
                Some(session) => session.finish(),
                None => kill(room, epoch),
            },
            Command::Kill(Epoch::TICKET) => room.give_back(&*self.engine),
            Command::Kill(epoch) => kill(room, epoch),
            Command::ClosePages(keep) => room.close_pages(&self.engine, &keep),
            Command::Evict(_) => {}
        }
    }

    fn sample(&self, id: RoomId, room: &PrefillRoom) -> Option<Event> {
        let session = room.current();
        let unacked = session.as_ref().is_some_and(|session| session.unacked());
        if let Some(session) = session {
            session.progress(self.engine.status().progress);
        }
        Some(Event::Sample {
            room: id,
            counters: room.counters(),
            unacked,
        })
    }

    fn tokens(&self, _room: &PrefillRoom, _position: u32, _count: u32) -> Vec<Token> {
        vec![]
    }

    fn alive(&self) -> bool {
        self.engine.tickets().is_none_or(|tickets| !tickets.seen().given_up)
    }

    fn idle(&self, room: &PrefillRoom) -> bool {
        room.idle()
    }

    fn fence(&self, room: &PrefillRoom) {
        room.kill_all();
    }
}
