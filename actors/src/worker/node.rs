//! A worker's tree as a whole: what the services start, ask and stop.

use std::sync::Arc;
use std::time::Duration;

use innkeeper_engine::Engine;
use innkeeper_leases::{Member, MemberState, Store};
use innkeeper_room::ledger::router::Load;
use innkeeper_room::ledger::{Gauges, RoomRow};
use innkeeper_room::{Evidence, FromWorker, Incarnation, Millis, Refusal, RoomId, Settings, ToWorker};
use ractor::{Actor, ActorCell, ActorRef, SpawnErr};
use tokio::sync::{oneshot, watch};

use crate::budget::RestartBudget;
use crate::clock::Clock;
use crate::hooks::Hooks;
use crate::keeper::{self, Keeper, KeeperMessage};
use crate::outbox::Outbox;
use crate::ports::{Answer, OpenRoom, RoomInlet, RoomPort, WorkerPort};
use crate::root::{Permanent, Root, RootMessage};
use crate::tasks::Tasks;
use crate::watch::Watch;
use crate::worker::craft::Craft;
use crate::worker::rooms::{Parts, Rooms, RoomsMessage, Show, Signals};
use crate::{root, watch as store_watch};

/// What a worker's tree is made of, besides its craft.
pub struct WorkerParts {
    /// The engine.
    pub engine: Arc<dyn Engine>,
    /// The lease store.
    pub store: Arc<dyn Store>,
    /// The node's record.
    pub member: Member,
    /// The node's clock.
    pub clock: Arc<dyn Clock>,
    /// The protocol's bounds.
    pub settings: Arc<Settings>,
    /// Where tasks live.
    pub tasks: Tasks,
    /// Who hears what ended.
    pub hooks: Arc<dyn Hooks>,
}

/// A running worker.
pub struct WorkerNode<C: Craft> {
    rooms: ActorRef<RoomsMessage<C>>,
    root: ActorRef<RootMessage>,
    keeper: Arc<std::sync::Mutex<Option<ActorRef<KeeperMessage>>>>,
    incarnation: Incarnation,
    settings: Arc<Settings>,
    loads: watch::Receiver<Load>,
    serving: watch::Receiver<bool>,
    drained: watch::Receiver<bool>,
    zombies: watch::Receiver<u32>,
    exit: watch::Receiver<Option<String>>,
    tasks: Tasks,
}

/// A worker's tree could not be started.
#[derive(Debug, thiserror::Error)]
#[error("the worker's supervision tree could not be started: {0}")]
pub struct StartError(#[from] SpawnErr);

impl<C: Craft> WorkerNode<C> {
    /// Starts the tree: `rooms` first, then what feeds it.
    ///
    /// # Errors
    /// An actor could not be started.
    pub async fn start(craft: Arc<C>, ledger: C::Ledger, parts: WorkerParts) -> Result<Arc<Self>, StartError> {
        let signals = Signals {
            loads: watch::Sender::default(),
            serving: watch::Sender::new(true),
            drained: watch::Sender::default(),
            zombies: watch::Sender::default(),
            exit: watch::Sender::default(),
        };
        let incarnation = parts.member.incarnation;
        let rooms_parts = Parts {
            craft,
            ledger,
            engine: parts.engine,
            clock: Arc::clone(&parts.clock),
            settings: Arc::clone(&parts.settings),
            tasks: parts.tasks.clone(),
            hooks: parts.hooks,
            signals: signals.clone(),
        };
        let (rooms, _) = Actor::spawn(None, Rooms::<C>::default(), rooms_parts).await?;
        let tell = {
            let rooms = rooms.clone();
            move |event| rooms.cast(RoomsMessage::Watch(event)).is_ok()
        };
        let keeper = Arc::default();
        let children = vec![
            adopted("rooms", rooms.get_cell()),
            watch_child(
                Arc::clone(&parts.store),
                incarnation,
                parts.tasks.clone(),
                Arc::new(tell),
            ),
            keeper_child(
                parts.store,
                parts.member,
                &parts.settings,
                parts.tasks.clone(),
                Arc::clone(&keeper),
            ),
        ];
        let args = root::Args {
            children,
            clock: parts.clock,
            tasks: parts.tasks.clone(),
            exit: signals.exit.clone(),
        };
        let (root, _) = Actor::spawn(None, Root, args).await?;
        Ok(Arc::new(Self {
            rooms,
            root,
            keeper,
            incarnation,
            settings: parts.settings,
            loads: signals.loads.subscribe(),
            serving: signals.serving.subscribe(),
            drained: signals.drained.subscribe(),
            zombies: signals.zombies.subscribe(),
            exit: signals.exit.subscribe(),
            tasks: parts.tasks,
        }))
    }

    /// Where the data plane's visitors go; whether somebody listens.
    pub fn greeter(&self) -> impl Fn(C::Greeting) -> bool + Send + Sync + use<C> {
        let rooms = self.rooms.clone();
        move |greeting| rooms.cast(RoomsMessage::Greeting(greeting)).is_ok()
    }

    /// All live parts; `None` if the ledger did not answer within `limit`.
    pub async fn rows(&self, limit: Duration) -> Option<Vec<RoomRow>> {
        self.ask(limit, Show::Rows).await
    }

    /// The counts and the number of zombies; `None` if the ledger did not answer within `limit`.
    pub async fn gauges(&self, limit: Duration) -> Option<(Gauges, u32)> {
        self.ask(limit, Show::Gauges).await
    }

    /// Whether it takes new rooms.
    #[must_use]
    pub fn serving(&self) -> watch::Receiver<bool> {
        self.serving.clone()
    }

    /// Actors that killing did not end, as of the last report period.
    #[must_use]
    pub fn zombies(&self) -> u32 {
        *self.zombies.borrow()
    }

    /// Why the process must exit, when it must.
    #[must_use]
    pub fn exit(&self) -> watch::Receiver<Option<String>> {
        self.exit.clone()
    }

    /// Where its tasks live.
    #[must_use]
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Stops admitting, finishes what there is within `limit`, ends the rest with `Draining`, and takes the record out
    /// last. Whether everything ended by itself.
    pub async fn drain(&self, limit: Duration) -> bool {
        self.keeper_says(KeeperMessage::State(MemberState::Draining));
        drop(self.rooms.cast(RoomsMessage::Drain));
        let mut drained = self.drained.clone();
        let in_time = tokio::time::timeout(limit, drained.wait_for(|drained| *drained))
            .await
            .is_ok();
        if !in_time {
            drop(self.rooms.cast(RoomsMessage::DrainOver));
            // What was ended by force is out after the grace and one destroyed session.
            let rest = (self.settings.grace + self.settings.grace + Millis(250)).duration();
            if tokio::time::timeout(rest, drained.wait_for(|drained| *drained))
                .await
                .is_err()
            {
                tracing::warn!("rooms are left at the end of the drain; the end of the process is their fence");
            }
        }
        self.leave().await;
        in_time
    }

    /// Ends the tree: the record is taken out, then all actors go. Called after [`WorkerNode::drain`].
    pub fn stop(&self) {
        self.root.kill();
        self.rooms.kill();
    }

    async fn leave(&self) {
        drop(self.root.cast(RootMessage::Closing));
        let (done, answer) = oneshot::channel();
        let limit = self.settings.connect_timeout.duration();
        self.keeper_says(KeeperMessage::Leave { limit, done });
        // One connect timeout more than the keeper itself takes.
        if !matches!(tokio::time::timeout(limit + limit, answer).await, Ok(Ok(true))) {
            tracing::info!("the member record could not be taken out; its TTL does it");
        }
    }

    fn keeper_says(&self, message: KeeperMessage) {
        let keeper = self.keeper.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(keeper) = keeper.as_ref() {
            // A keeper that is being restarted registers with the state of its record; nothing is lost by this one.
            drop(keeper.cast(message));
        }
    }

    async fn ask<T: Send + 'static>(
        &self,
        limit: Duration,
        show: impl FnOnce(oneshot::Sender<T>) -> Show,
    ) -> Option<T> {
        let (answer, question) = oneshot::channel();
        self.rooms.cast(RoomsMessage::Show(show(answer))).ok()?;
        tokio::time::timeout(limit, question).await.ok()?.ok()
    }
}

/// What a test does to a ledger from outside.
#[cfg(feature = "testing")]
impl<C: Craft> WorkerNode<C> {
    /// Hangs the ledger: until what comes back is dropped it takes in nothing, and what it is told waits.
    #[must_use]
    pub fn hang(&self) -> oneshot::Sender<()> {
        let (release, released) = oneshot::channel();
        drop(self.rooms.cast(RoomsMessage::Hang(released)));
        release
    }

    /// The ledger's actor: the root of those of its rooms.
    #[must_use]
    pub fn ledger_actor(&self) -> ractor::ActorCell {
        self.rooms.get_cell()
    }
}

impl<C: Craft> WorkerPort for WorkerNode<C> {
    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn open(&self, open: OpenRoom) -> RoomPort {
        let (outbox, from_room) = Outbox::open();
        let inlet = Inlet {
            rooms: self.rooms.clone(),
            room: open.spec.room,
            over: false.into(),
        };
        if self
            .rooms
            .cast(RoomsMessage::Open(Box::new(open), Arc::clone(&outbox)))
            .is_err()
        {
            outbox.say(FromWorker::Refused(Refusal::Draining), vec![]);
            outbox.close();
        }
        RoomPort {
            to_room: Box::new(inlet),
            from_room,
        }
    }

    fn loads(&self) -> watch::Receiver<Load> {
        self.loads.clone()
    }

    fn evidence(&self, room: RoomId) -> Answer<'_, Option<Evidence>> {
        let limit = self.settings.blame_wait.duration();
        Box::pin(async move { self.ask(limit, |answer| Show::Evidence(room, answer)).await.flatten() })
    }
}

struct Inlet<C: Craft> {
    rooms: ActorRef<RoomsMessage<C>>,
    room: RoomId,
    over: std::sync::atomic::AtomicBool,
}

impl<C: Craft> RoomInlet for Inlet<C> {
    fn say(&self, message: ToWorker) {
        // A dead `rooms` ends the process; there is nobody to tell.
        drop(self.rooms.cast(RoomsMessage::FromRouter(self.room, message)));
    }

    fn ended(&self) {
        if !self.over.swap(true, std::sync::atomic::Ordering::Relaxed) {
            drop(self.rooms.cast(RoomsMessage::StreamEnded(self.room)));
        }
    }
}

impl<C: Craft> Drop for Inlet<C> {
    fn drop(&mut self) {
        self.ended();
    }
}

/// A child that runs already and may never be restarted.
pub(crate) fn adopted(name: &'static str, cell: ActorCell) -> Permanent {
    let spawn: root::SpawnChild = Box::new(move |root| {
        let cell = cell.clone();
        Box::pin(async move {
            cell.link(root);
            Ok(cell)
        })
    });
    Permanent {
        name,
        spawn,
        budget: None,
    }
}

/// Five restarts a minute: a watch or a keeper that dies more often is broken, not unlucky.
fn usual_budget() -> RestartBudget {
    RestartBudget::new(5, Millis::from_secs(60))
}

pub(crate) fn watch_child(
    store: Arc<dyn Store>,
    own: Incarnation,
    tasks: Tasks,
    tell: Arc<dyn Fn(store_watch::WatchEvent) -> bool + Send + Sync>,
) -> Permanent {
    let spawn: root::SpawnChild = Box::new(move |root| {
        let args = store_watch::Args {
            store: Arc::clone(&store),
            own,
            tasks: tasks.clone(),
            tell: Arc::clone(&tell),
        };
        Box::pin(async move { Ok(Actor::spawn_linked(None, Watch, args, root).await?.0.get_cell()) })
    });
    Permanent {
        name: "room watch",
        spawn,
        budget: Some(usual_budget()),
    }
}

pub(crate) fn keeper_child(
    store: Arc<dyn Store>,
    member: Member,
    settings: &Settings,
    tasks: Tasks,
    current: Arc<std::sync::Mutex<Option<ActorRef<KeeperMessage>>>>,
) -> Permanent {
    let ttl = settings.lease_ttl.duration();
    let spawn: root::SpawnChild = Box::new(move |root| {
        let args = keeper::Args {
            store: Arc::clone(&store),
            member: member.clone(),
            ttl,
            tasks: tasks.clone(),
        };
        let current = Arc::clone(&current);
        Box::pin(async move {
            let (keeper, _) = Actor::spawn_linked(None, Keeper, args, root).await?;
            let cell = keeper.get_cell();
            *current.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(keeper);
            Ok(cell)
        })
    });
    Permanent {
        name: "lease keeper",
        spawn,
        budget: Some(usual_budget()),
    }
}
