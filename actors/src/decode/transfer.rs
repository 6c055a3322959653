//! The actor of one epoch on a decode worker. It owns the session: if it dies, the session is destroyed and the room waits
//! for the next hello. The session's events are pumped by an owned task that outlives the actor, so that the fence is
//! always heard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use innkeeper_engine::Engine;
use innkeeper_room::ledger::decode::Event;
use innkeeper_room::{Epoch, Manifest};
use innkeeper_transfer::RecvEvent;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::mpsc;

use crate::decode::room::DecodeRoom;
use crate::tasks::Tasks;

/// What a transfer is made of.
pub struct Args {
    /// Its room, which keeps the session already.
    pub room: Arc<DecodeRoom>,
    /// P's try.
    pub epoch: Epoch,
    /// What the session tells.
    pub events: mpsc::Receiver<RecvEvent>,
    /// Whether it reads KV by tickets, and how long that may take.
    pub engine: Arc<dyn Engine>,
    /// Where tasks live.
    pub tasks: Tasks,
}

/// The actor.
#[derive(Default)]
pub struct Transfer;

/// The session is over.
pub struct Over;

/// Destroys the session when the actor goes before it is over, however it goes.
pub struct Guard {
    room: Arc<DecodeRoom>,
    epoch: Epoch,
    over: Arc<AtomicBool>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.over.load(Ordering::Acquire) {
            self.room.kill(self.epoch);
            self.room.tell(Event::Broken {
                room: self.room.id(),
                epoch: self.epoch,
            });
        }
    }
}

impl Actor for Transfer {
    type Msg = Over;
    type State = Guard;
    type Arguments = Args;

    async fn pre_start(&self, myself: ActorRef<Over>, args: Args) -> Result<Guard, ActorProcessingErr> {
        let over = Arc::new(AtomicBool::new(false));
        let guard = Guard {
            room: Arc::clone(&args.room),
            epoch: args.epoch,
            over: Arc::clone(&over),
        };
        let tasks = args.tasks.clone();
        tasks.spawn_watching("transfer", async move {
            pump(&args.room, &*args.engine, args.epoch, args.events).await;
            over.store(true, Ordering::Release);
            // A failed send means that the actor is gone already.
            drop(myself.cast(Over));
        })?;
        Ok(guard)
    }

    async fn handle(&self, myself: ActorRef<Over>, _over: Over, _guard: &mut Guard) -> Result<(), ActorProcessingErr> {
        myself.stop(None);
        Ok(())
    }
}

/// Pumps a session's events until it is quiesced.
async fn pump(room: &DecodeRoom, engine: &dyn Engine, epoch: Epoch, mut events: mpsc::Receiver<RecvEvent>) {
    // No deadline: the ledger has one for every phase, and kills the session, which then quiesces.
    while let Some(event) = events.recv().await {
        if event == RecvEvent::Quiesced {
            break;
        }
        hear(room, engine, epoch, event);
    }
    room.session_over(epoch);
    room.tell(Event::Quiesced { room: room.id(), epoch });
}

fn hear(handles: &DecodeRoom, engine: &dyn Engine, epoch: Epoch, event: RecvEvent) {
    let room = handles.id();
    match event {
        RecvEvent::Started => handles.tell(Event::Started { room, epoch }),
        RecvEvent::Verified(bytes) => handles.tell(Event::Verified { room, epoch, bytes }),
        RecvEvent::PeerProgress(progress) => handles.tell(Event::PeerProgress { room, epoch, progress }),
        RecvEvent::Complete(manifest) => complete(handles, engine, epoch, manifest),
        RecvEvent::LeaseAge(age) => handles.lease_age(epoch, age),
        RecvEvent::Corrupt(why) => {
            tracing::error!(%room, epoch = epoch.0, why, "the KV that arrived contradicts its manifest");
            handles.tell(Event::Corrupt { room, epoch });
        }
        RecvEvent::PeerFailed(reason, evidence) => {
            handles.tell(Event::PeerFailed {
                room,
                epoch,
                reason,
                evidence,
            });
        }
        RecvEvent::Broken { why } => {
            tracing::info!(%room, epoch = epoch.0, why, "the data connection broke");
            handles.tell(Event::Broken { room, epoch });
        }
        RecvEvent::Quiesced => {}
    }
}

/// Slabs, which are all there; or a ticket, for an engine that reads by it.
fn complete(handles: &DecodeRoom, engine: &dyn Engine, epoch: Epoch, manifest: Manifest) {
    let room = handles.id();
    let has_ticket = manifest.ticket.is_some();
    let tokens = manifest.token_count;
    let event = match engine.tickets() {
        Some(tickets) if has_ticket => Event::Ticket {
            room,
            epoch,
            read_within: tickets.read_within(tokens),
        },
        None if !has_ticket => Event::Complete { room, epoch },
        Some(_) | None => {
            tracing::error!(%room, has_ticket, "the peer's engine hands its KV over in another way than this one");
            handles.tell(Event::Corrupt { room, epoch });
            return;
        }
    };
    handles.sealed(manifest);
    handles.tell(event);
}
