//! `rooms` on a router: owns the ledger with its requests, rooms, members and tombstones, and executes what it orders.
//! Never restarted: if it dies, its tombstones are gone, so the process exits.

mod execute;
mod show;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use innkeeper_room::ledger::router::{AbortAnswer, Arrival, Event, Ledger, MemberView, OnFailure, Side};
use innkeeper_room::ledger::{Gauges, RoomRow};
use innkeeper_room::prefix::Blocks;
use innkeeper_room::{Attempt, Class, FromWorker, Incarnation, RequestKey, RoomId, Work};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::{mpsc, oneshot, watch};

use crate::hooks::Hooks;
use crate::ports::{NewRequest, RequestEvent, WorkerSays};
use crate::reaper::Reaper;
use crate::router::nodes::Nodes;
use crate::router::request::{Request, RequestMessage};
use crate::router::room::{RouterRoom, Shared, Told};
use crate::timer::{Alarm, Ring};
use crate::watch::WatchEvent;

/// What `rooms` is told.
pub enum RoomsMessage {
    /// A request arrives.
    Submit(RequestKey, Box<NewRequest>, mpsc::Sender<RequestEvent>),
    /// Somebody asks for an abort.
    Abort(String, String, oneshot::Sender<AbortAnswer>),
    /// The ledger wants a canary sent through this pair, with as many tokens of a prompt.
    Canary((Incarnation, Incarnation), u32),
    /// An event for the ledger.
    Event(Event),
    /// A worker says something about a room.
    Says(RoomId, Side, WorkerSays),
    /// Why a room's stream broke.
    Broke(RoomId, Side, String),
    /// Why a node stream broke.
    NodeBroke(Incarnation, String),
    /// The lease store's watch tells.
    Watch(WatchEvent),
    /// The alarm clock rings.
    Ring(Ring),
    /// Somebody wants to see something.
    Show(Show),
    /// A test wants it to hang until the other end is dropped.
    #[cfg(feature = "testing")]
    Hang(oneshot::Receiver<()>),
}

impl From<Told> for RoomsMessage {
    fn from(told: Told) -> Self {
        match told {
            Told::Event(event) => Self::Event(event),
            Told::Says(room, side, says) => Self::Says(room, side, says),
            Told::Broke(room, side, why) => Self::Broke(room, side, why),
            Told::NodeBroke(node, why) => Self::NodeBroke(node, why),
        }
    }
}

/// Questions; whoever asks waits with a deadline of its own.
pub enum Show {
    /// The rooms that this router owns.
    Rows(oneshot::Sender<Vec<RoomRow>>),
    /// The counts, with the number of zombies.
    Gauges(oneshot::Sender<(Gauges, u32)>),
    /// The records of all routers, this one included.
    Routers(oneshot::Sender<Vec<innkeeper_leases::Member>>),
    /// The workers, as the ledger and the store see them.
    Members(oneshot::Sender<Vec<(MemberView, Option<innkeeper_leases::Member>)>>),
}

/// What `rooms` is made of.
pub struct Parts {
    /// The ledger.
    pub ledger: Ledger,
    /// What all rooms share.
    pub shared: Arc<Shared>,
    /// Who hears what ended.
    pub hooks: Arc<dyn Hooks>,
    /// Whether it drains and nothing is left.
    pub drained: watch::Sender<bool>,
    /// Actors that killing did not end.
    pub zombies: watch::Sender<u32>,
    /// How many workers of each role it can use: (prefill, decode).
    pub usable: watch::Sender<(usize, usize)>,
    /// The number of the next request, a client's or a canary.
    pub next_request: Arc<AtomicU64>,
}

/// The actor.
#[derive(Default)]
pub struct Rooms;

/// Its state.
pub struct State {
    parts: Parts,
    nodes: Nodes,
    alarm: Alarm,
    reaper: Reaper,
    requests: BTreeMap<RequestKey, Entry>,
    actors: BTreeMap<ActorId, RequestKey>,
    rooms: BTreeMap<RoomId, (RequestKey, Arc<RouterRoom>)>,
    tickets: BTreeMap<u64, oneshot::Sender<AbortAnswer>>,
    next_ticket: u64,
    /// An end token has passed the gate of this request.
    end_token: Option<RequestKey>,
}

struct Entry {
    actor: Option<ActorRef<RequestMessage>>,
    events: mpsc::Sender<RequestEvent>,
    work: Work,
    passed: Vec<u32>,
    live_rooms: u32,
    last_room: Option<RoomId>,
    attempts: Attempt,
    answered: bool,
    /// The client has been told how much of its prompt was not computed.
    reused: bool,
    /// It is the router's own.
    canary: bool,
}

impl Actor for Rooms {
    type Msg = RoomsMessage;
    type State = State;
    type Arguments = Parts;

    async fn pre_start(&self, myself: ActorRef<RoomsMessage>, parts: Parts) -> Result<State, ActorProcessingErr> {
        let shared = Arc::clone(&parts.shared);
        let ring = move |ring| myself.cast(RoomsMessage::Ring(ring)).is_ok();
        let alarm = Alarm::start(
            &shared.tasks,
            Arc::clone(&shared.clock),
            shared.settings.report_period,
            ring,
        );
        let nodes = Nodes::new(
            Arc::clone(&shared.links),
            shared.tasks.clone(),
            Arc::clone(&shared.tell),
        );
        Ok(State {
            nodes,
            alarm,
            reaper: Reaper::new(shared.settings.grace.scale(2, 1)),
            requests: BTreeMap::new(),
            actors: BTreeMap::new(),
            rooms: BTreeMap::new(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            end_token: None,
            parts,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<RoomsMessage>,
        message: RoomsMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RoomsMessage::Submit(key, request, events) => state.submit(&myself, key, *request, events, None).await,
            RoomsMessage::Abort(rid, client, answer) => state.abort(&myself, rid, client, answer).await,
            RoomsMessage::Canary(pair, prompt_tokens) => state.canary(&myself, pair, prompt_tokens).await,
            RoomsMessage::Event(event) => state.step(&myself, event, &[]).await,
            RoomsMessage::Says(room, side, says) => {
                if let (Side::Prefill, FromWorker::Started { reused, .. }) = (side, &says.message) {
                    state.reused(room, *reused);
                }
                let event = Event::FromWorker {
                    room,
                    side,
                    message: says.message,
                };
                state.step(&myself, event, &says.tokens).await;
                // Nothing may come between an end token and the end: a break of D's connection that did would open another
                // room, which would speak beyond it.
                if let Some(request) = state.end_token.take() {
                    state.step(&myself, Event::Satisfied { request }, &[]).await;
                }
            }
            RoomsMessage::Broke(room, side, why) => state.parts.hooks.stream_broke(room, side, &why),
            RoomsMessage::NodeBroke(node, why) => state.parts.hooks.node_broke(node, &why),
            RoomsMessage::Watch(event) => state.watched(&myself, event).await,
            RoomsMessage::Ring(ring) => {
                state.step(&myself, Event::Tick, &[]).await;
                if ring == Ring::Period {
                    state.period();
                }
            }
            RoomsMessage::Show(show) => state.show(show),
            #[cfg(feature = "testing")]
            RoomsMessage::Hang(released) => drop(released.await),
        }
        state.settle();
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<RoomsMessage>,
        event: SupervisionEvent,
        state: &mut State,
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
        state.settle();
        Ok(())
    }
}

impl State {
    async fn submit(
        &mut self,
        myself: &ActorRef<RoomsMessage>,
        key: RequestKey,
        request: NewRequest,
        events: mpsc::Sender<RequestEvent>,
        pair: Option<(Incarnation, Incarnation)>,
    ) {
        if pair.is_none() {
            self.parts.hooks.arrived(key, &request);
        }
        let NewRequest {
            rid,
            client,
            model,
            work,
            blocks,
            max_tokens,
            class,
            on_failure,
        } = request;
        let prompt_tokens = u32::try_from(work.prompt.len()).unwrap_or(u32::MAX);
        let entry = Entry {
            actor: None,
            events,
            work,
            passed: vec![],
            live_rooms: 0,
            last_room: None,
            attempts: Attempt(0),
            answered: false,
            reused: false,
            canary: pair.is_some(),
        };
        self.requests.insert(key, entry);
        self.ensure_actor(myself, key).await;
        let arrival = Arrival {
            request: key,
            rid,
            client,
            model,
            prompt_tokens,
            blocks,
            max_tokens,
            class,
            on_failure,
            pair,
        };
        self.step(myself, Event::Arrive(arrival), &[]).await;
    }

    /// A canary is a request whose answer only the ledger listens to.
    async fn canary(&mut self, myself: &ActorRef<RoomsMessage>, pair: (Incarnation, Incarnation), prompt_tokens: u32) {
        let key = RequestKey(self.parts.next_request.fetch_add(1, Ordering::Relaxed));
        let rid = format!("innkeeper-canary-{}", key.0);
        let request = NewRequest {
            client: "innkeeper".to_owned(),
            model: None,
            // Which tokens they are does not matter: every vocabulary has these.
            work: Work {
                prompt: (0..prompt_tokens).map(|index| 1 + index % 8).collect(),
                request_id: rid.as_str().into(),
                ..Work::default()
            },
            rid,
            blocks: Blocks::default(),
            max_tokens: 1,
            class: Class::High,
            on_failure: OnFailure::Fail,
        };
        let (events, _nobody_listens) = mpsc::channel(1);
        self.submit(myself, key, request, events, Some(pair)).await;
    }

    /// The request's actor; another one if it died. Its rooms ended with it.
    async fn ensure_actor(&mut self, myself: &ActorRef<RoomsMessage>, key: RequestKey) {
        let Some(entry) = self.requests.get_mut(&key).filter(|entry| entry.actor.is_none()) else {
            return;
        };
        let tell = Arc::clone(&self.parts.shared.tell);
        match Actor::spawn_linked(None, Request, tell, myself.get_cell()).await {
            Ok((actor, _)) => {
                self.actors.insert(actor.get_id(), key);
                entry.actor = Some(actor);
            }
            // Its rooms are then executed by `rooms` itself: nothing is lost but the separation.
            Err(error) => tracing::error!(request = key.0, %error, "the request's actor could not be spawned"),
        }
    }

    async fn abort(
        &mut self,
        myself: &ActorRef<RoomsMessage>,
        rid: String,
        client: String,
        answer: oneshot::Sender<AbortAnswer>,
    ) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.tickets.insert(ticket, answer);
        self.step(myself, Event::Abort { rid, client, ticket }, &[]).await;
    }

    async fn watched(&mut self, myself: &ActorRef<RoomsMessage>, event: WatchEvent) {
        match event {
            WatchEvent::MemberUp(member) => {
                self.parts.hooks.member(&member);
                if let Some(event) = self.nodes.up(*member) {
                    self.step(myself, event, &[]).await;
                }
            }
            WatchEvent::MemberGone(incarnation) if self.nodes.router_gone(incarnation) => {}
            WatchEvent::MemberGone(incarnation) => self.step(myself, Event::MemberGone { incarnation }, &[]).await,
            WatchEvent::DoorGone(room) => self.step(myself, Event::DoorGone { room }, &[]).await,
            WatchEvent::Absent { doors, members } => {
                for room in doors {
                    self.step(myself, Event::DoorAbsent { room }, &[]).await;
                }
                // A member that is absent is asked who it is; one that answers stays, and registers again by itself.
                for incarnation in members {
                    if self.nodes.router_gone(incarnation) {
                        continue;
                    }
                    self.step(myself, Event::MemberGone { incarnation }, &[]).await;
                }
            }
            WatchEvent::Degraded(away) => self.parts.hooks.degraded(away),
        }
    }

    async fn actor_gone(&mut self, myself: &ActorRef<RoomsMessage>, actor: ActorId, why: &str) {
        self.reaper.gone(actor);
        let Some(key) = self.actors.remove(&actor) else { return };
        let Some(entry) = self.requests.get_mut(&key) else {
            return;
        };
        tracing::error!(request = key.0, why, "the request's actor died: its rooms end");
        entry.actor = None;
        let rooms: Vec<_> = self
            .rooms
            .iter()
            .filter(|(_, (of, _))| *of == key)
            .map(|(id, _)| *id)
            .collect();
        for room in rooms {
            self.step(myself, Event::ActorDied { room }, &[]).await;
        }
    }
}
