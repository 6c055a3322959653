//! `rooms` on a worker: owns the ledger, executes what it orders through one actor per room, and looks at the engine every
//! report period. Never restarted: if it dies, its tombstones and quarantine are gone, so the process exits.

mod execute;
mod show;

use std::collections::BTreeMap;
use std::sync::Arc;

use innkeeper_engine::Engine;
use innkeeper_room::ledger::router::Load;
use innkeeper_room::ledger::{Gauges, RoomRow};
use innkeeper_room::{Evidence, RoomId, Settings, ToWorker};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::{oneshot, watch};

use crate::clock::Clock;
use crate::hooks::Hooks;
use crate::outbox::Outbox;
use crate::ports::OpenRoom;
use crate::reaper::Reaper;
use crate::tasks::Tasks;
use crate::timer::{Alarm, Ring};
use crate::watch::WatchEvent;
use crate::worker::craft::{Craft, EventOf, Report};
use crate::worker::ledger::{Common, WorkerLedger};
use crate::worker::room::RoomMessage;

/// What `rooms` is told.
pub enum RoomsMessage<C: Craft> {
    /// A router opens a room.
    Open(Box<OpenRoom>, Arc<Outbox>),
    /// R says something about a room.
    FromRouter(RoomId, ToWorker),
    /// The room's stream ended.
    StreamEnded(RoomId),
    /// A room's engine job or transfer reports.
    Event(EventOf<C>),
    /// The data plane has a visitor.
    Greeting(C::Greeting),
    /// The lease store's watch tells.
    Watch(WatchEvent),
    /// The alarm clock rings.
    Ring(Ring),
    /// Somebody wants to see something.
    Show(Show),
    /// Stop taking rooms.
    Drain,
    /// End what is left.
    DrainOver,
    /// A test wants it to hang until the other end is dropped.
    #[cfg(feature = "testing")]
    Hang(oneshot::Receiver<()>),
}

/// Questions; whoever asks waits with a deadline of its own.
pub enum Show {
    /// All live parts.
    Rows(oneshot::Sender<Vec<RoomRow>>),
    /// The counts, with the number of zombies.
    Gauges(oneshot::Sender<(Gauges, u32)>),
    /// What the ledger sees of a room.
    Evidence(RoomId, oneshot::Sender<Option<Evidence>>),
}

/// What `rooms` shows without being asked.
#[derive(Clone)]
pub struct Signals {
    /// The node's report of itself, sent anew every report period.
    pub loads: watch::Sender<Load>,
    /// Whether it takes new rooms.
    pub serving: watch::Sender<bool>,
    /// Whether it drains and nothing is left.
    pub drained: watch::Sender<bool>,
    /// Actors that killing did not end.
    pub zombies: watch::Sender<u32>,
    /// The last fence: why the process must exit.
    pub exit: watch::Sender<Option<String>>,
}

/// What `rooms` is made of.
pub struct Parts<C: Craft> {
    /// How orders are executed.
    pub craft: Arc<C>,
    /// The ledger.
    pub ledger: C::Ledger,
    /// The engine to look at.
    pub engine: Arc<dyn Engine>,
    /// The node's clock.
    pub clock: Arc<dyn Clock>,
    /// The protocol's bounds.
    pub settings: Arc<Settings>,
    /// Where tasks live.
    pub tasks: Tasks,
    /// Who hears what ended.
    pub hooks: Arc<dyn Hooks>,
    /// What is shown.
    pub signals: Signals,
}

/// The actor.
pub struct Rooms<C: Craft>(std::marker::PhantomData<fn() -> C>);

impl<C: Craft> Default for Rooms<C> {
    fn default() -> Self {
        Self(std::marker::PhantomData)
    }
}

struct Entry<C: Craft> {
    room: Arc<C::Room>,
    outbox: Arc<Outbox>,
    actor: Option<ActorRef<RoomMessage<C>>>,
    ended: bool,
}

/// A room that is just being opened.
struct Fresh<C: Craft> {
    open: OpenRoom,
    room: Arc<C::Room>,
    outbox: Arc<Outbox>,
}

/// The actor's state.
pub struct State<C: Craft> {
    parts: Parts<C>,
    report: Report<EventOf<C>>,
    alarm: Alarm,
    rooms: BTreeMap<RoomId, Entry<C>>,
    actors: BTreeMap<ActorId, RoomId>,
    reaper: Reaper,
    serving: bool,
}

impl<C: Craft> Actor for Rooms<C> {
    type Msg = RoomsMessage<C>;
    type State = State<C>;
    type Arguments = Parts<C>;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        parts: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let ring = {
            let myself = myself.clone();
            move |ring| myself.cast(RoomsMessage::Ring(ring)).is_ok()
        };
        let alarm = Alarm::start(
            &parts.tasks,
            Arc::clone(&parts.clock),
            parts.settings.report_period,
            ring,
        );
        let reaper = Reaper::new(parts.settings.grace.scale(2, 1));
        let report: Report<EventOf<C>> = Arc::new(move |event| myself.cast(RoomsMessage::Event(event)).is_ok());
        Ok(State {
            parts,
            report,
            alarm,
            rooms: BTreeMap::new(),
            actors: BTreeMap::new(),
            reaper,
            serving: true,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RoomsMessage::Open(open, outbox) => state.open(&myself, *open, outbox).await,
            RoomsMessage::FromRouter(room, said) => {
                state.parts.hooks.part_hears(room, &said);
                state.common(&myself, Common::FromRouter(room, said)).await;
            }
            RoomsMessage::StreamEnded(room) => state.common(&myself, Common::StreamEnded(room)).await,
            RoomsMessage::Event(event) => state.step(&myself, event, None).await,
            RoomsMessage::Greeting(greeting) => {
                let event = state.parts.craft.greet(greeting, &state.report);
                state.step(&myself, event, None).await;
            }
            RoomsMessage::Watch(event) => state.watched(&myself, event).await,
            RoomsMessage::Ring(Ring::Period) => state.period(&myself).await,
            RoomsMessage::Ring(Ring::Due) => state.common(&myself, Common::Tick).await,
            RoomsMessage::Show(show) => state.show(show),
            RoomsMessage::Drain => state.common(&myself, Common::Drain).await,
            RoomsMessage::DrainOver => state.common(&myself, Common::DrainOver).await,
            #[cfg(feature = "testing")]
            RoomsMessage::Hang(released) => drop(released.await),
        }
        state.parts.signals.drained.send_if_modified(|drained| {
            let now = state.parts.ledger.drained();
            std::mem::replace(drained, now) != now
        });
        state.alarm.set(state.parts.ledger.next_deadline());
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(child, _, why) => {
                let why = why.unwrap_or_else(|| "stopped".to_owned());
                state.actor_gone(&myself, child.get_id(), &why).await;
            }
            SupervisionEvent::ActorFailed(child, error) => {
                state.actor_gone(&myself, child.get_id(), &error.to_string()).await;
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        state.alarm.set(state.parts.ledger.next_deadline());
        Ok(())
    }
}

impl<C: Craft> State<C> {
    async fn common(&mut self, myself: &ActorRef<RoomsMessage<C>>, common: Common) {
        self.step(myself, C::Ledger::event(common), None).await;
    }

    async fn open(&mut self, myself: &ActorRef<RoomsMessage<C>>, open: OpenRoom, outbox: Arc<Outbox>) {
        let event = self.parts.craft.open_event(&open);
        let room = self.parts.craft.room(open.clone(), Arc::clone(&self.report));
        self.step(myself, event, Some(Fresh { open, room, outbox })).await;
    }

    async fn actor_gone(&mut self, myself: &ActorRef<RoomsMessage<C>>, actor: ActorId, why: &str) {
        self.reaper.gone(actor);
        let Some(id) = self.actors.remove(&actor) else { return };
        let Some(entry) = self.rooms.get_mut(&id) else { return };
        if entry.ended {
            return;
        }
        tracing::error!(room = %id, why, "the room's actor died: its part ends");
        entry.actor = None;
        self.parts.craft.fence(&entry.room);
        self.common(myself, Common::ActorDied(id)).await;
    }

    async fn watched(&mut self, myself: &ActorRef<RoomsMessage<C>>, event: WatchEvent) {
        match event {
            WatchEvent::DoorGone(room) => self.common(myself, Common::DoorGone(room)).await,
            WatchEvent::MemberGone(incarnation) => self.common(myself, Common::MemberGone(incarnation)).await,
            WatchEvent::Absent { doors, members } => {
                // Absence from a fresh list proves nothing, but for a worker it is a question to R as well.
                for room in doors {
                    self.common(myself, Common::DoorGone(room)).await;
                }
                for incarnation in members {
                    self.common(myself, Common::MemberGone(incarnation)).await;
                }
            }
            WatchEvent::Degraded(away) => self.parts.hooks.degraded(away),
            WatchEvent::MemberUp(_) => {}
        }
    }
}
