//! The actor of one epoch on a prefill worker. It owns the session: if it dies, the session is destroyed and the room
//! decides (next epoch or end). The session's events are pumped by an owned task that outlives the actor, so that the
//! fence is always heard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use innkeeper_engine::Engine;
use innkeeper_room::ledger::prefill::Event;
use innkeeper_room::{Epoch, Millis, SlabSource};
use innkeeper_transfer::{Backend, Dial, SendEvent};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::prefill::room::PrefillRoom;
use crate::tasks::Tasks;

/// What a transfer is made of.
pub struct Args {
    /// Its room.
    pub room: Arc<PrefillRoom>,
    /// Its try.
    pub epoch: Epoch,
    /// Backoff before it.
    pub after: Millis,
    /// Who knows how old the lease of its KV is, if it has one.
    pub engine: Arc<dyn Engine>,
    /// How KV moves.
    pub backend: Arc<dyn Backend>,
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
    room: Arc<PrefillRoom>,
    epoch: Epoch,
    over: Arc<AtomicBool>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.over.load(Ordering::Acquire) {
            self.room.kill(self.epoch);
            let room = self.room.id();
            self.room.tell(Event::Broken {
                room,
                epoch: self.epoch,
                unacked: false,
                refused: false,
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
            run(args).await;
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

/// Dials after the backoff and pumps the session's events until it is quiesced.
async fn run(args: Args) {
    let Args {
        room,
        epoch,
        after,
        engine,
        backend,
        ..
    } = args;
    if after > Millis(0) {
        tokio::time::sleep(after.duration()).await;
    }
    if !room.is_fenced(epoch) {
        let dial = Dial {
            addr: room.open.decode_addr.clone(),
            room: room.id(),
            epoch,
            token: room.open.token,
            prefill: room.open.spec.prefill,
            decode: room.open.spec.decode,
        };
        let (session, mut events) = backend.dial(dial, Arc::clone(&room) as Arc<dyn SlabSource>);
        room.attach(epoch, session);
        // No deadline: the ledger has one for every phase, and kills the session, which then quiesces.
        while let Some(event) = events.recv().await {
            if event == SendEvent::Quiesced {
                break;
            }
            hear(&room, &*engine, epoch, event);
        }
    }
    room.session_over(epoch);
    room.tell(Event::Quiesced { room: room.id(), epoch });
}

fn hear(handles: &PrefillRoom, engine: &dyn Engine, epoch: Epoch, event: SendEvent) {
    let room = handles.id();
    match event {
        SendEvent::Reply(reply) => handles.tell(Event::Reply { room, epoch, reply }),
        SendEvent::Sent(bytes) => handles.moved(bytes, 0),
        SendEvent::Verified(bytes) => handles.moved(0, bytes),
        SendEvent::AsksLeaseAge => {
            let age = engine.tickets().and_then(|tickets| tickets.lease_age(room));
            if let Some(session) = handles.session(epoch) {
                session.lease_age(age);
            }
        }
        SendEvent::Committed => handles.tell(Event::Committed { room, epoch }),
        SendEvent::PeerFailed(reason, evidence) => {
            handles.tell(Event::PeerFailed {
                room,
                epoch,
                reason,
                evidence,
            });
        }
        SendEvent::Broken { why, unacked, refused } => {
            tracing::info!(%room, epoch = epoch.0, why, unacked, refused, "the data connection broke");
            handles.tell(Event::Broken {
                room,
                epoch,
                unacked,
                refused,
            });
        }
        SendEvent::SourceClosed => {
            handles.tell(Event::Broken {
                room,
                epoch,
                unacked: false,
                refused: false,
            });
        }
        SendEvent::Quiesced => {}
    }
}
