//! One room on a router: the handles, and the actor that executes the ledger's orders for it. It decides nothing and is
//! never restarted: if it dies, the ledger ends the room.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use innkeeper_leases::{Doors, Store, StoreError};
use innkeeper_room::ledger::router::{Event, Side};
use innkeeper_room::{Incarnation, RoomId, RoomSpec, Settings, ToWorker};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::ports::{LinkItem, Links, OpenRoom, Target, WorkerSays};
use crate::tasks::Tasks;

/// What a room tells `rooms`.
pub enum Told {
    /// An event for the ledger.
    Event(Event),
    /// A worker says something about the room.
    Says(RoomId, Side, WorkerSays),
    /// Why the room's stream to a worker broke, for people; its end follows.
    Broke(RoomId, Side, String),
    /// Why the node stream to a worker broke, for people; that it is down follows.
    NodeBroke(Incarnation, String),
}

/// Casts what a room hears; whether anybody still listens.
pub type Tell = Arc<dyn Fn(Told) -> bool + Send + Sync>;

/// What all rooms of a router share.
pub struct Shared {
    /// The links to workers.
    pub links: Arc<dyn Links>,
    /// The lease store.
    pub store: Arc<dyn Store>,
    /// The node's clock.
    pub clock: Arc<dyn Clock>,
    /// The protocol's bounds.
    pub settings: Arc<Settings>,
    /// Where tasks live.
    pub tasks: Tasks,
    /// Who is told.
    pub tell: Tell,
}

/// A room's handles. They outlive its actor, so that its streams can be ended without it.
pub struct RouterRoom {
    /// What was asked.
    pub spec: RoomSpec,
    shared: Arc<Shared>,
    streams: Mutex<BTreeMap<Side, mpsc::Sender<ToWorker>>>,
}

/// An order to a room.
#[derive(Debug)]
pub enum Command {
    /// Open it at a worker.
    Open(Side, Target, Box<OpenRoom>),
    /// Say this to a worker.
    Tell(Side, ToWorker),
    /// End the stream to a worker.
    Close(Side),
    /// Grant the lease and write the doors.
    Grant,
    /// Renew the lease.
    Renew,
    /// Revoke the lease.
    Revoke,
}

impl RouterRoom {
    /// A room without streams.
    pub fn new(spec: RoomSpec, shared: Arc<Shared>) -> Self {
        Self {
            spec,
            shared,
            streams: Mutex::default(),
        }
    }

    /// Executes an order; returns at once.
    pub fn execute(self: &Arc<Self>, command: Command) {
        match command {
            Command::Open(side, target, open) => self.open(side, &target, *open),
            Command::Tell(side, message) => self.say(side, message),
            Command::Close(side) => {
                self.streams().remove(&side);
            }
            Command::Grant => self.lease(Self::grant),
            Command::Renew => self.lease(Self::renew),
            Command::Revoke => self.lease(Self::revoke),
        }
    }

    /// Ends all streams.
    pub fn close_all(&self) {
        self.streams().clear();
    }

    fn open(self: &Arc<Self>, side: Side, target: &Target, open: OpenRoom) {
        let mut link = self.shared.links.open(target, open);
        self.streams().insert(side, link.to);
        let (room, tell) = (self.spec.room, Arc::clone(&self.shared.tell));
        let pump = async move {
            // No deadline: the ledger has one for every phase, and the link ends itself once its sender is dropped.
            while let Some(item) = link.from.recv().await {
                let (told, last) = match item {
                    LinkItem::Says(says) => (Told::Says(room, side, says), false),
                    LinkItem::Ended { broken, why } => {
                        tracing::debug!(%room, ?side, broken, why, "a room's stream ended");
                        if broken {
                            tell(Told::Broke(room, side, why));
                        }
                        (Told::Event(Event::StreamEnded { room, side, broken }), true)
                    }
                };
                if !tell(told) || last {
                    return;
                }
            }
            // The link's task died without its last word.
            tell(Told::Event(Event::StreamEnded {
                room,
                side,
                broken: true,
            }));
        };
        if self.shared.tasks.spawn("room_stream", pump).is_err() {
            self.streams().remove(&side);
            (self.shared.tell)(Told::Event(Event::StreamEnded {
                room,
                side,
                broken: true,
            }));
        }
    }

    fn say(&self, side: Side, message: ToWorker) {
        let mut streams = self.streams();
        // A full channel is a dead link: its stream ends, which the worker and the ledger hear.
        if streams
            .get(&side)
            .is_some_and(|stream| stream.try_send(message).is_err())
        {
            streams.remove(&side);
        }
    }

    /// Runs one operation of the lease in a task of its own. Each is tried once, with the lease's own TTL as its deadline.
    fn lease<F, Fut>(self: &Arc<Self>, operation: F)
    where
        F: FnOnce(Arc<Self>) -> Fut,
        Fut: Future<Output = Option<Event>> + Send + 'static,
    {
        let tell = Arc::clone(&self.shared.tell);
        let operation = operation(Arc::clone(self));
        let run = async move {
            if let Some(event) = operation.await {
                tell(Told::Event(event));
            }
        };
        if let Err(closed) = self.shared.tasks.spawn("lease", run) {
            tracing::debug!(%closed, "the lease is left to its TTL");
        }
    }

    async fn grant(self: Arc<Self>) -> Option<Event> {
        let RoomSpec {
            room,
            router,
            prefill,
            decode,
            ..
        } = self.spec;
        let sent = self.shared.clock.now();
        let ttl = self.shared.settings.lease_ttl.duration();
        let doors = Doors {
            room,
            router,
            prefill,
            decode,
        };
        let granted = tokio::time::timeout(ttl, self.shared.store.open_room(&doors, ttl)).await;
        Some(match granted {
            Ok(Ok(())) => Event::LeaseGranted { room, sent },
            Ok(Err(StoreError::Exists)) => Event::LeaseFailed { room, exists: true },
            Ok(Err(_)) | Err(_) => Event::LeaseFailed { room, exists: false },
        })
    }

    async fn renew(self: Arc<Self>) -> Option<Event> {
        let room = self.spec.room;
        let sent = self.shared.clock.now();
        let ttl = self.shared.settings.lease_ttl.duration();
        let renewed = tokio::time::timeout(ttl, self.shared.store.renew_room(room)).await;
        Some(match renewed {
            Ok(Ok(())) => Event::LeaseRenewed { room, sent },
            Ok(Err(StoreError::NotFound)) => Event::RenewFailed { room, not_found: true },
            Ok(Err(_)) | Err(_) => Event::RenewFailed { room, not_found: false },
        })
    }

    async fn revoke(self: Arc<Self>) -> Option<Event> {
        revoke(&self.shared, self.spec.room).await;
        None
    }

    fn streams(&self) -> std::sync::MutexGuard<'_, BTreeMap<Side, mpsc::Sender<ToWorker>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Revokes the lease of a room that is over already: the store's yes to its grant came late.
pub fn revoke_late(shared: &Arc<Shared>, room: RoomId) {
    let late = Arc::clone(shared);
    if let Err(closed) = shared.tasks.spawn("lease", async move { revoke(&late, room).await }) {
        tracing::debug!(%closed, "the lease is left to its TTL");
    }
}

/// Tried once, with the lease's own TTL as its deadline: after that there is nothing to revoke.
async fn revoke(shared: &Shared, room: RoomId) {
    let ttl = shared.settings.lease_ttl.duration();
    match tokio::time::timeout(ttl, shared.store.revoke_room(room)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%room, %error, "the lease was not revoked; its TTL ends it"),
        Err(_) => tracing::debug!(%room, "the lease was not revoked in time; its TTL ends it"),
    }
}

/// What a room's actor is told.
pub enum RoomMessage {
    /// An order of the ledger.
    Do(Command),
    /// The room is over: go, after all orders before this one.
    Leave,
}

/// A room's actor.
#[derive(Default)]
pub struct Room;

/// Ends the room's streams when its actor goes, however it goes.
pub struct Streams(Arc<RouterRoom>);

impl Drop for Streams {
    fn drop(&mut self) {
        self.0.close_all();
    }
}

impl Actor for Room {
    type Msg = RoomMessage;
    type State = Streams;
    type Arguments = Arc<RouterRoom>;

    async fn pre_start(
        &self,
        _myself: ActorRef<RoomMessage>,
        room: Arc<RouterRoom>,
    ) -> Result<Streams, ActorProcessingErr> {
        Ok(Streams(room))
    }

    async fn handle(
        &self,
        myself: ActorRef<RoomMessage>,
        message: RoomMessage,
        room: &mut Streams,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RoomMessage::Do(command) => room.0.execute(command),
            RoomMessage::Leave => myself.stop(None),
        }
        Ok(())
    }
}
