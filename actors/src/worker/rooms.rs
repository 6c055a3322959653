//! `rooms` on a worker: owns the ledger, executes what it orders through one actor per room, and looks at the engine every
//! report period. Never restarted: if it dies, its tombstones and quarantine are gone, so the process exits.

use std::collections::HashMap;
use std::sync::Arc;

use innkeeper_engine::Engine;
use innkeeper_room::ledger::router::Load;
use innkeeper_room::ledger::{EngineView, Gauges, RoomRow};
use innkeeper_room::{Evidence, FromWorker, Millis, RoomId, Settings, ToWorker};
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
use crate::worker::ledger::{Common, Order, WorkerLedger};
use crate::worker::room::{Room, RoomMessage};

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

/// The actor's state.
pub struct State<C: Craft> {
    parts: Parts<C>,
    report: Report<EventOf<C>>,
    alarm: Alarm,
    rooms: HashMap<RoomId, Entry<C>>,
    actors: HashMap<ActorId, RoomId>,
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
            rooms: HashMap::new(),
            actors: HashMap::new(),
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
            RoomsMessage::FromRouter(room, said) => state.common(&myself, Common::FromRouter(room, said)).await,
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
        let id = open.spec.room;
        let room = self.parts.craft.room(open, Arc::clone(&self.report));
        self.step(myself, event, Some((id, room, outbox))).await;
    }

    /// One step of the ledger, and the execution of all that it orders. `fresh` is the room that is just being opened:
    /// it is entered if the ledger begins it, and only hears the refusal otherwise.
    async fn step(
        &mut self,
        myself: &ActorRef<RoomsMessage<C>>,
        event: EventOf<C>,
        mut fresh: Option<(RoomId, Arc<C::Room>, Arc<Outbox>)>,
    ) {
        let effects = self.parts.ledger.step(event, self.parts.clock.now());
        for effect in effects {
            match self.parts.craft.order(effect) {
                Order::Begin(id) => {
                    if let Some((_, room, outbox)) = fresh.take_if(|(fresh, _, _)| *fresh == id) {
                        self.begin(myself, id, room, outbox).await;
                    }
                }
                Order::Tell(id, message) => match &fresh {
                    // An Open that is refused is answered on the stream it came on, never on that of a room that exists.
                    Some((fresh, _, outbox)) if *fresh == id => {
                        outbox.say(message, vec![]);
                    }
                    _ => self.tell(id, message),
                },
                Order::Room(id, command) => self.order(id, command).await,
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
        if let Some((_, _, outbox)) = fresh {
            outbox.close();
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
            WatchEvent::MemberUp(_) | WatchEvent::Degraded(_) => {}
        }
    }

    async fn period(&mut self, myself: &ActorRef<RoomsMessage<C>>) {
        let status = self.parts.engine.status();
        let in_hand = status
            .in_hand
            .map(|hand| Millis(u64::try_from(hand.as_millis()).unwrap_or(u64::MAX)));
        let view = EngineView {
            progress: status.progress,
            in_hand,
            alive: true,
        };
        self.common(myself, Common::Engine(view)).await;
        let samples: Vec<_> = self
            .rooms
            .iter()
            .filter(|(_, entry)| !entry.ended)
            .filter_map(|(id, entry)| self.parts.craft.sample(*id, &entry.room))
            .collect();
        for sample in samples {
            self.step(myself, sample, None).await;
        }
        let now = self.parts.clock.now();
        self.reaper.tick(now);
        self.parts.signals.zombies.send_replace(self.reaper.zombies());
        let craft = Arc::clone(&self.parts.craft);
        self.rooms.retain(|_, entry| !(entry.ended && craft.idle(&entry.room)));
        let gauges = self.parts.ledger.gauges(now);
        self.parts.signals.loads.send_replace(Load {
            engine_progress: status.progress,
            engine_owes: in_hand.unwrap_or_default(),
            free_pages: gauges.pages.available(),
            rooms: gauges.room_permits,
            serving: self.serving,
        });
    }

    fn show(&self, show: Show) {
        let now = self.parts.clock.now();
        // A questioner that gave up is no failure of ours.
        match show {
            Show::Rows(answer) => drop(answer.send(self.parts.ledger.rows(now))),
            Show::Gauges(answer) => drop(answer.send((self.parts.ledger.gauges(now), self.reaper.zombies()))),
            Show::Evidence(room, answer) => drop(answer.send(self.parts.ledger.evidence(room, now))),
        }
    }
}
