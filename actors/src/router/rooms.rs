//! `rooms` on a router: owns the ledger with its requests, rooms, members and tombstones, and executes what it orders.
//! Never restarted: if it dies, its tombstones are gone, so the process exits.

use std::collections::HashMap;
use std::sync::Arc;

use innkeeper_room::ledger::router::{AbortAnswer, Arrival, Effect, Event, Ledger, MemberView, Outcome, Side};
use innkeeper_room::ledger::{Gauges, RoomRow};
use innkeeper_room::{Attempt, Incarnation, RequestKey, RoomId, RoomSpec, Token, Work};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::{mpsc, oneshot, watch};

use crate::hooks::Hooks;
use crate::ports::{NewRequest, NodeQuestion, OpenRoom, RequestEvent, Target, WorkerSays};
use crate::reaper::Reaper;
use crate::router::nodes::Nodes;
use crate::router::request::{Request, RequestMessage};
use crate::router::room::{Command, RouterRoom, Shared, Told, revoke_late};
use crate::timer::{Alarm, Ring};
use crate::watch::WatchEvent;

/// What `rooms` is told.
pub enum RoomsMessage {
    /// A request arrives.
    Submit(RequestKey, Box<NewRequest>, mpsc::Sender<RequestEvent>),
    /// Somebody asks for an abort.
    Abort(String, String, oneshot::Sender<AbortAnswer>),
    /// An event for the ledger.
    Event(Event),
    /// A worker says something about a room.
    Says(RoomId, Side, WorkerSays),
    /// The lease store's watch tells.
    Watch(WatchEvent),
    /// The alarm clock rings.
    Ring(Ring),
    /// Somebody wants to see something.
    Show(Show),
}

impl From<Told> for RoomsMessage {
    fn from(told: Told) -> Self {
        match told {
            Told::Event(event) => Self::Event(event),
            Told::Says(room, side, says) => Self::Says(room, side, says),
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
    requests: HashMap<RequestKey, Entry>,
    actors: HashMap<ActorId, RequestKey>,
    rooms: HashMap<RoomId, (RequestKey, Arc<RouterRoom>)>,
    tickets: HashMap<u64, oneshot::Sender<AbortAnswer>>,
    next_ticket: u64,
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
            requests: HashMap::new(),
            actors: HashMap::new(),
            rooms: HashMap::new(),
            tickets: HashMap::new(),
            next_ticket: 0,
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
            RoomsMessage::Submit(key, request, events) => state.submit(&myself, key, *request, events).await,
            RoomsMessage::Abort(rid, client, answer) => state.abort(&myself, rid, client, answer).await,
            RoomsMessage::Event(event) => state.step(&myself, event, &[]).await,
            RoomsMessage::Says(room, side, says) => {
                let event = Event::FromWorker {
                    room,
                    side,
                    message: says.message,
                };
                state.step(&myself, event, &says.tokens).await;
            }
            RoomsMessage::Watch(event) => state.watched(&myself, event).await,
            RoomsMessage::Ring(ring) => {
                state.step(&myself, Event::Tick, &[]).await;
                if ring == Ring::Period {
                    state.period();
                }
            }
            RoomsMessage::Show(show) => state.show(show),
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
    ) {
        let NewRequest {
            rid,
            client,
            model,
            work,
            max_tokens,
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
        };
        self.requests.insert(key, entry);
        self.ensure_actor(myself, key).await;
        let arrival = Arrival {
            request: key,
            rid,
            client,
            model,
            prompt_tokens,
            max_tokens,
        };
        self.step(myself, Event::Arrive(arrival), &[]).await;
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
            WatchEvent::Degraded(_) => {}
        }
    }

    /// One step of the ledger, and the execution of all that it orders. `tokens` are those of the message in hand.
    async fn step(&mut self, myself: &ActorRef<RoomsMessage>, event: Event, tokens: &[Token]) {
        let effects = self.parts.ledger.step(event, self.parts.shared.clock.now());
        for effect in effects {
            self.execute(myself, effect, tokens).await;
        }
    }

    async fn execute(&mut self, myself: &ActorRef<RoomsMessage>, effect: Effect, tokens: &[Token]) {
        match effect {
            Effect::AnswerAbort { ticket, answer } => {
                if let Some(asker) = self.tickets.remove(&ticket) {
                    // An asker that gave up is no failure of ours.
                    let _ = asker.send(answer);
                }
            }
            Effect::Begin { spec, .. } => self.begin(myself, spec).await,
            Effect::Open {
                spec,
                side,
                decode_addr,
                token,
                passed,
            } => {
                self.open(spec, side, decode_addr, token, passed);
            }
            Effect::Tell { room, side, message } => self.order(room, Command::Tell(side, message)),
            Effect::AskEvidence { room, node, .. } => self.nodes.ask_evidence(node, room),
            Effect::CloseStream { room, side } => self.order(room, Command::Close(side)),
            Effect::Who { incarnation } => self.nodes.ask(incarnation, NodeQuestion::Who),
            Effect::Grant { spec } => self.order(spec.room, Command::Grant),
            Effect::Renew { room } => self.order(room, Command::Renew),
            Effect::Revoke { room } if !self.rooms.contains_key(&room) => revoke_late(&self.parts.shared, room),
            Effect::Revoke { room } => self.order(room, Command::Revoke),
            Effect::Pass {
                request, skip, count, ..
            } => self.pass(request, skip, count, tokens),
            Effect::Answer { request, outcome } => self.answer(request, outcome),
            Effect::Ended(end) => self.parts.hooks.room_ended(&end),
            Effect::End { room } => self.end(room),
            Effect::Drop { incarnation } => self.nodes.drop_node(incarnation),
        }
    }

    async fn begin(&mut self, myself: &ActorRef<RoomsMessage>, spec: RoomSpec) {
        let (key, id) = (spec.request, spec.room);
        self.ensure_actor(myself, key).await;
        let Some(entry) = self.requests.get_mut(&key) else {
            return;
        };
        entry.live_rooms += 1;
        entry.last_room = Some(id);
        entry.attempts = entry.attempts.max(spec.attempt);
        let room = Arc::new(RouterRoom::new(spec, Arc::clone(&self.parts.shared)));
        if let Some(actor) = &entry.actor {
            // A dead actor is heard of by supervision, which ends the room.
            drop(actor.cast(RequestMessage::Begin(Arc::clone(&room))));
        }
        self.rooms.insert(id, (key, room));
    }

    fn open(&self, spec: RoomSpec, side: Side, decode_addr: String, token: u64, passed: u32) {
        let id = spec.room;
        let meant = match side {
            Side::Prefill => spec.prefill,
            Side::Decode => spec.decode,
        };
        let Some(entry) = self.requests.get(&spec.request) else {
            return;
        };
        let work = entry.continued(passed);
        // A worker that is not known any more refuses the connection of an address that nobody has.
        let unknown = || Target {
            incarnation: meant,
            control: String::new(),
        };
        let target = self.nodes.target(meant).unwrap_or_else(unknown);
        let open = OpenRoom {
            spec,
            work: Arc::new(work),
            decode_addr,
            token,
        };
        self.order(id, Command::Open(side, target, Box::new(open)));
    }

    fn order(&self, id: RoomId, command: Command) {
        let Some((key, room)) = self.rooms.get(&id) else { return };
        let actor = self.requests.get(key).and_then(|entry| entry.actor.as_ref());
        let Some(actor) = actor else {
            return room.execute(command);
        };
        if let Err(ractor::MessagingErr::SendErr(RequestMessage::Do(_, command))) =
            actor.cast(RequestMessage::Do(id, command))
        {
            room.execute(command);
        }
    }

    fn pass(&mut self, request: RequestKey, skip: u32, count: u32, tokens: &[Token]) {
        let Some(entry) = self.requests.get_mut(&request) else {
            return;
        };
        let passing: Vec<_> = tokens
            .iter()
            .skip(skip as usize)
            .take(count as usize)
            .cloned()
            .collect();
        entry.passed.extend(passing.iter().map(|token| token.id));
        // The channel holds all tokens of the request; a closed one is a client that left, which is heard of by its control.
        drop(entry.events.try_send(RequestEvent::Tokens(passing)));
    }

    fn answer(&mut self, key: RequestKey, outcome: Outcome) {
        self.parts.hooks.answered(&outcome);
        let Some(entry) = self.requests.get_mut(&key) else {
            return;
        };
        let answered = RequestEvent::Answered {
            outcome,
            room: entry.last_room,
            attempts: entry.attempts,
        };
        drop(entry.events.try_send(answered));
        entry.answered = true;
        self.forget_if_over(key);
    }

    fn end(&mut self, id: RoomId) {
        let Some((key, room)) = self.rooms.remove(&id) else {
            return;
        };
        let mut actor = None;
        if let Some(entry) = self.requests.get_mut(&key) {
            entry.live_rooms = entry.live_rooms.saturating_sub(1);
            actor = entry.actor.as_ref();
        }
        // Behind all that is still to be said on its streams, which the room's actor ends as it goes.
        if actor.is_none_or(|actor| actor.cast(RequestMessage::RoomOver(id)).is_err()) {
            room.close_all();
        }
        self.forget_if_over(key);
    }

    /// A request goes when it is answered and all its rooms are over.
    fn forget_if_over(&mut self, key: RequestKey) {
        if !self
            .requests
            .get(&key)
            .is_some_and(|entry| entry.answered && entry.live_rooms == 0)
        {
            return;
        }
        if let Some(actor) = self.requests.remove(&key).and_then(|entry| entry.actor)
            && actor.cast(RequestMessage::Leave).is_ok()
        {
            self.reaper.told(actor.get_cell(), self.parts.shared.clock.now());
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

    fn period(&mut self) {
        self.reaper.tick(self.parts.shared.clock.now());
        self.parts.zombies.send_replace(self.reaper.zombies());
        let members = self.parts.ledger.members();
        let usable = |role| {
            members
                .iter()
                .filter(|member| member.info.role == role && is_usable(member))
                .count()
        };
        let usable = (
            usable(innkeeper_room::Role::Prefill),
            usable(innkeeper_room::Role::Decode),
        );
        self.parts
            .usable
            .send_if_modified(|old| std::mem::replace(old, usable) != usable);
    }

    fn settle(&mut self) {
        let drained = self.parts.ledger.drained();
        self.parts
            .drained
            .send_if_modified(|old| std::mem::replace(old, drained) != drained);
        self.alarm.set(self.parts.ledger.next_deadline());
    }

    fn show(&self, show: Show) {
        let now = self.parts.shared.clock.now();
        // A questioner that gave up is no failure of ours.
        match show {
            Show::Rows(answer) => drop(answer.send(self.parts.ledger.rows(now))),
            Show::Gauges(answer) => drop(answer.send((self.parts.ledger.gauges(now), self.reaper.zombies()))),
            Show::Routers(answer) => drop(answer.send(self.nodes.routers().cloned().collect())),
            Show::Members(answer) => drop(answer.send(self.members())),
        }
    }

    fn members(&self) -> Vec<(MemberView, Option<innkeeper_leases::Member>)> {
        let known: HashMap<Incarnation, _> = self
            .nodes
            .members()
            .map(|member| (member.incarnation, member))
            .collect();
        let views = self.parts.ledger.members().into_iter();
        views
            .map(|view| {
                let member = known.get(&view.info.incarnation).map(|member| (*member).clone());
                (view, member)
            })
            .collect()
    }
}

/// Whether new rooms may go to a worker.
fn is_usable(member: &MemberView) -> bool {
    member.info.serving && member.link_up && !member.lost && member.load.is_none_or(|load| load.serving)
}

impl Entry {
    /// The work of the next room: the prompt is followed by the tokens that have passed the gate.
    fn continued(&self, passed: u32) -> Work {
        let passed_ids = self.passed.iter().copied().take(passed as usize);
        Work {
            prompt: self.work.prompt.iter().copied().chain(passed_ids).collect(),
            start_position: self.work.start_position + passed,
            ..self.work.clone()
        }
    }
}
