//! The world: simulated milliseconds, a queue of what happens next, and one seed that decides everything else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use innkeeper_room::ledger::router::{Outcome, RoomEnd};
use innkeeper_room::ledger::{EngineKind, decode, prefill, router};
use innkeeper_room::{Incarnation, Millis, Moment, RequestKey, Role, RoomId, Settings};

use crate::control::{Ctl, CtlMsg, RouterSide};
use crate::data::{DataMsg, Session};
use crate::faults::Fault;
use crate::node::{Brain, Engine, In, Node, Pool, incarnation};
use crate::remote::Remote;
use crate::rng::Rng;
use crate::store::{Store, StoreAct};

/// Tokens in a page.
pub(crate) const PAGE_TOKENS: u32 = 4;
/// Bytes of a slab; a page is one slab here.
pub(crate) const PAGE_BYTES: u64 = 100;

/// Adds a line to the story, if somebody reads it.
macro_rules! tell {
    ($world:expr, $($text:tt)*) => {
        if $world.loud {
            let text = format!($($text)*);
            $world.say(&text);
        }
    };
}
pub(crate) use tell;

/// What happens at some time.
#[derive(Clone, Debug, Hash)]
pub(crate) enum Act {
    In(usize, u32, In),
    Ctl {
        w: usize,
        generation: u32,
        to_w: bool,
        msg: CtlMsg,
    },
    CtlBreak {
        w: usize,
        generation: u32,
        at_r: bool,
    },
    CtlRetry(usize),
    PingDue {
        w: usize,
        generation: u32,
        at_r: bool,
        since: u64,
    },
    Data {
        session: u64,
        to_d: bool,
        msg: DataMsg,
    },
    DataTimeout {
        session: u64,
        since: u64,
    },
    Store(StoreAct),
    Client(ClientAct),
    Fault(Fault),
    FaultOver(Fault),
    Restart(usize),
    Exit(usize, u32),
    MustBeOver {
        w: usize,
        life: u32,
        room: RoomId,
    },
    StreamGrace {
        room: RoomId,
        side: router::Side,
        generation: u32,
    },
}

/// What a client does.
#[derive(Clone, Debug, Hash)]
pub(crate) enum ClientAct {
    Arrive(RequestKey),
    Abort(RequestKey),
    Gone(RequestKey),
    Stalls(RequestKey),
}

/// A client with its one request.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Client {
    pub(crate) prompt: u32,
    pub(crate) max_tokens: u32,
    pub(crate) arrives: u64,
    pub(crate) arrived: bool,
    pub(crate) tokens: u32,
    /// A stop string ends it after so many tokens.
    pub(crate) stops_after: Option<u32>,
    pub(crate) answer: Option<(Outcome, u64)>,
    /// It aborted or left: an abort is a right answer.
    pub(crate) gave_up: Option<u64>,
    /// Its router died under it.
    pub(crate) cut_off: bool,
    pub(crate) failed_rooms: u32,
}

impl Client {
    /// Whether it waits for its answer.
    pub(crate) const fn is_open(&self) -> bool {
        self.arrived && self.answer.is_none()
    }
}

/// How a world is made.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) prefills: usize,
    pub(crate) decodes: usize,
    /// At each decode worker.
    pub(crate) pages: u32,
    /// At each prefill worker.
    pub(crate) prefill_pages: u32,
    pub(crate) permits: u32,
    pub(crate) requests: u32,
    /// Engines are processes of their own.
    pub(crate) remote: bool,
}

impl Shape {
    /// Whose process the workers' engines are.
    pub(crate) const fn engine_kind(&self) -> EngineKind {
        if self.remote {
            EngineKind::Remote
        } else {
            EngineKind::Own
        }
    }

    /// Pages of a node's pool.
    pub(crate) const fn pages_of(&self, index: usize) -> u32 {
        if index == 0 {
            0
        } else if index <= self.prefills {
            self.prefill_pages
        } else {
            self.pages
        }
    }
}

/// The world.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) next: u64,
    pub(crate) queue: BTreeMap<(u64, u64), Act>,
    pub(crate) rng: Rng,
    pub(crate) settings: Settings,
    pub(crate) shape: Shape,
    pub(crate) nodes: Vec<Node>,
    pub(crate) ctl: BTreeMap<usize, Ctl>,
    pub(crate) router: RouterSide,
    pub(crate) links: BTreeMap<(usize, usize), Option<u64>>,
    pub(crate) sessions: BTreeMap<u64, Session>,
    pub(crate) next_session: u64,
    pub(crate) store: Store,
    pub(crate) clients: BTreeMap<RequestKey, Client>,
    pub(crate) ends: BTreeMap<RoomId, RoomEnd>,
    pub(crate) part_ends: BTreeMap<(usize, u32, RoomId), u32>,
    pub(crate) loud: bool,
    pub(crate) lines: u64,
    /// The numbers that rooms have in the story.
    pub(crate) story_rooms: BTreeMap<RoomId, usize>,
    pub(crate) errors: Vec<String>,
    pub(crate) touched_nodes: BTreeSet<usize>,
    pub(crate) touched_links: BTreeSet<(usize, usize)>,
    pub(crate) router_paused: u64,
    /// When R last went on after a stop.
    pub(crate) router_runs_since: u64,
    /// When R last heard of a room.
    pub(crate) heard: BTreeMap<RoomId, u64>,
    /// How far R heard each worker's engine to be, and when it last heard that it moved.
    pub(crate) engines_heard: BTreeMap<Incarnation, (u64, u64)>,
    /// Rooms of which R heard something that may be progress since it last renewed their lease.
    pub(crate) moved: BTreeSet<RoomId>,
    pub(crate) pauses: u32,
    pub(crate) steps: u64,
    /// Neither pings nor kernels find out that nothing is heard.
    pub(crate) deaf: bool,
    /// What the adversary does in this run.
    pub(crate) faults: Vec<Fault>,
    /// Faults that are not over yet.
    pub(crate) open_faults: u32,
    /// How long things take, where no seed decides.
    pub(crate) exact: Option<Exact>,
    /// Prompts have names, and prefill workers keep what they compute.
    pub(crate) cached: bool,
    /// How routers choose workers; prompts are looked at unless it is as by default.
    pub(crate) policies: router::Policies,
}

/// A world without chance, for the explorer: messages take no time, so that time passes only when nothing can happen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exact {
    /// How long an engine's chunk or step takes, in ms.
    pub(crate) step: u64,
    /// Which side every coin falls on.
    pub(crate) coin: bool,
    /// The canonical order of an instant.
    pub(crate) order: Order,
}

/// A canonical order of what may happen in one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// What was caused first happens first: everybody keeps pace.
    Oldest,
    /// What was caused last happens first: one chain of messages runs to its end before the next one moves.
    Newest,
}

impl World {
    /// A world at rest in which one seed decides everything.
    pub(crate) fn new(seed: u64, shape: Shape, loud: bool) -> Self {
        Self::with(Rng::new(seed), None, shape, loud)
    }

    /// A world at rest without chance.
    pub(crate) fn exact(exact: Exact, shape: Shape, loud: bool) -> Self {
        Self::with(Rng::fixed(exact.coin), Some(exact), shape, loud)
    }

    fn with(mut rng: Rng, exact: Option<Exact>, shape: Shape, loud: bool) -> Self {
        let mut settings = Settings::from_ttl(Millis(2000));
        settings.queue_timeout = Millis(20_000);
        settings.request_timeout = Millis(60_000);
        settings.permits = shape.permits;
        settings.hello_window = 3;
        settings.prefill_concurrency = 2;
        settings.prefill_floor = 40;
        settings.decode_floor = 5;
        settings.transfer_floor = 1000;
        // They are the router's own requests: what is checked here is clients'. Breakers count failures, which would tell
        // apart states that do not differ, and need more of them than an exact world has.
        settings.canary_period = Millis(0);
        if exact.is_some() {
            settings.breaker_failures = 0;
            // A lease that is asked for later is granted later, and that is explored.
            settings.lease_after = Millis(0);
            // Coarse clockwork: a silence is then few steps long.
            settings.report_period = settings.progress_ttl.scale(1, 4);
            // Longer than what a late clock may be, which is longer here as well.
            let late = settings.progress_ttl.scale(3, 5);
            settings.connect_timeout = late;
            settings.ask_timeout = late;
            settings.who_timeout = late;
            settings.queue_timeout = Millis(6000);
            settings.request_timeout = Millis(30_000);
            // A rate tells apart states that do not differ, and what waits is to wait at the workers, whose queues are explored.
            settings.predict_wait = 0;
            settings.page_booking_percent = 0;
            settings.prefill_booking_tokens = 0;
        }
        if exact.is_none() && rng.one_in(2) {
            settings.lease_after = Millis(0);
            // Rooms wait at the workers for pages and turns; in the other half of all worlds they wait at the router.
            settings.page_booking_percent = 0;
            settings.prefill_booking_tokens = 0;
        }
        debug_assert_eq!(settings.validate(), Ok(()));
        let mut world = Self {
            now: 0,
            next: 0,
            queue: BTreeMap::new(),
            rng,
            settings,
            nodes: vec![],
            ctl: BTreeMap::new(),
            router: RouterSide::default(),
            links: BTreeMap::new(),
            sessions: BTreeMap::new(),
            next_session: 0,
            store: Store::default(),
            clients: BTreeMap::new(),
            ends: BTreeMap::new(),
            part_ends: BTreeMap::new(),
            loud,
            lines: 0,
            story_rooms: BTreeMap::new(),
            errors: vec![],
            touched_nodes: BTreeSet::new(),
            touched_links: BTreeSet::new(),
            router_paused: 0,
            router_runs_since: 0,
            heard: BTreeMap::new(),
            engines_heard: BTreeMap::new(),
            moved: BTreeSet::new(),
            pauses: 0,
            steps: 0,
            deaf: false,
            faults: vec![],
            open_faults: 0,
            exact,
            cached: false,
            policies: router::Policies::default(),
            shape: shape.clone(),
        };
        for index in 0..=shape.prefills + shape.decodes {
            let role = if index == 0 {
                Role::Router
            } else if index <= shape.prefills {
                Role::Prefill
            } else {
                Role::Decode
            };
            let node = world.fresh_node(index, role, 0);
            world.nodes.push(node);
            if index > 0 {
                world.ctl.insert(index, Ctl::default());
            }
        }
        for index in 0..world.nodes.len() {
            world.boot(index);
        }
        world
    }

    pub(crate) fn fresh_node(&mut self, index: usize, role: Role, life: u32) -> Node {
        let incarnation = incarnation(index, life);
        let now = self.clock(index);
        let settings = self.settings.clone();
        let config = || prefill::Config {
            settings: self.settings.clone(),
            incarnation,
            total_pages: self.shape.pages_of(index),
            page_tokens: PAGE_TOKENS,
            context: 1000,
            engine: self.shape.engine_kind(),
        };
        let brain = match role {
            Role::Router => {
                let seed = [self.rng.bits(), self.rng.bits() ^ u64::from(life)];
                let config = router::Config {
                    settings,
                    incarnation,
                    seed,
                };
                Brain::R(Box::new(router::Ledger::new(config, now).with_policies(self.policies)))
            }
            Role::Prefill => Brain::P(Box::new(prefill::Ledger::new(config(), now))),
            Role::Decode => Brain::D(Box::new(decode::Ledger::new(config(), now))),
        };
        Node {
            index,
            role,
            life,
            incarnation,
            up: true,
            stopped: None,
            hung: false,
            inbox: VecDeque::new(),
            mailbox: VecDeque::new(),
            brain,
            alarm: None,
            serving: true,
            draining: false,
            engine: Engine {
                remote: Remote {
                    life: life * 1000,
                    ..Remote::default()
                },
                ..Engine::default()
            },
            pool: Pool::new(self.shape.pages_of(index)),
            rooms: BTreeMap::new(),
            streams: BTreeMap::new(),
            late: 0,
            slow: 1,
        }
    }

    /// How long a message or an answer is under way.
    pub(crate) fn latency(&mut self, low: u64, high: u64) -> u64 {
        if self.exact.is_some() {
            0
        } else {
            self.rng.between(low, high)
        }
    }

    /// How long an engine's chunk or step takes.
    pub(crate) fn step_takes(&mut self) -> u64 {
        match self.exact {
            Some(exact) => exact.step,
            None => self.rng.between(20, 60),
        }
    }

    /// D's secret of a room.
    pub(crate) fn secret(&mut self, room: RoomId) -> u64 {
        match self.exact {
            Some(_) => room.get() ^ 0x5ec2_e75e_c2e7,
            None => self.rng.bits(),
        }
    }

    /// A node's own clock: no two are alike.
    pub(crate) fn clock(&self, index: usize) -> Moment {
        Moment(self.now + 1_000_000 * (index as u64 + 1))
    }

    /// Starts a node's clockwork.
    pub(crate) fn boot(&mut self, index: usize) {
        let life = self.nodes[index].life;
        let first = self.now + self.rng.between(1, self.settings.report_period.0);
        self.schedule(first, Act::In(index, life, In::Period));
        let soon = self.now + self.rng.between(1, 5);
        self.schedule(soon, Act::In(index, life, In::Keeper));
        self.relist(index);
    }

    /// A process at the same address, another life.
    pub(crate) fn restart(&mut self, index: usize) {
        if self.nodes[index].up {
            return;
        }
        let (role, life) = (self.nodes[index].role, self.nodes[index].life + 1);
        let node = self.fresh_node(index, role, life);
        self.nodes[index] = node;
        if index == 0 {
            self.router = RouterSide::default();
        }
        tell!(
            self,
            "{} starts again as {}",
            self.nodes[index].name(),
            self.nodes[index].incarnation
        );
        self.boot(index);
    }

    /// Puts something into the queue.
    pub(crate) fn schedule(&mut self, at: u64, act: Act) {
        self.next += 1;
        self.queue.insert((at.max(self.now), self.next), act);
    }

    /// Something is wrong: the run fails.
    pub(crate) fn wrong(&mut self, what: String) {
        tell!(self, "WRONG: {what}");
        if self.errors.len() < 20 {
            self.errors.push(format!("at {} ms: {what}", self.now));
        }
    }

    /// Runs until `end`.
    pub(crate) fn run_until(&mut self, end: u64) {
        while let Some(((at, _), _)) = self.queue.first_key_value() {
            if *at > end || !self.errors.is_empty() {
                break;
            }
            let Some(((at, _), act)) = self.queue.pop_first() else {
                break;
            };
            self.now = at;
            self.steps += 1;
            if self.steps > 2_000_000 {
                return self.wrong("too many events: something spins".into());
            }
            self.act(act);
        }
        self.now = self.now.max(end);
    }

    pub(crate) fn act(&mut self, act: Act) {
        match act {
            Act::In(node, life, what) => self.input(node, life, what),
            Act::Ctl {
                w,
                generation,
                to_w,
                msg,
            } => self.ctl_arrives(w, generation, to_w, msg),
            Act::CtlBreak { w, generation, at_r } => self.ctl_breaks(w, generation, at_r),
            Act::CtlRetry(w) => self.ctl_retry(w),
            Act::PingDue {
                w,
                generation,
                at_r,
                since,
            } => self.ping_due(w, generation, at_r, since),
            Act::Data { session, to_d, msg } => self.data_arrives(session, to_d, msg),
            Act::DataTimeout { session, since } => self.data_timeout(session, since),
            Act::Store(act) => self.store_act(act),
            Act::Client(act) => self.client(act),
            Act::Fault(fault) => self.begin_fault(fault),
            Act::FaultOver(fault) => {
                self.open_faults = self.open_faults.saturating_sub(1);
                self.end_fault(fault);
            }
            Act::Restart(node) => self.restart(node),
            Act::MustBeOver { w, life, room } => self.must_be_over(w, life, room),
            Act::Exit(node, life) => {
                if self.nodes[node].life == life {
                    self.crash(node, 200);
                }
            }
            Act::StreamGrace { room, side, generation } => self.stream_grace(room, side, generation),
        }
    }

    /// Something reaches a node: its process may be stopped, gone, or its ledger may hang.
    pub(crate) fn input(&mut self, node: usize, life: u32, what: In) {
        let n = &mut self.nodes[node];
        if !n.up || n.life != life {
            return;
        }
        if n.stopped.is_some() {
            n.inbox.push_back(what);
        } else if n.hung && what.is_for_ledger() {
            n.mailbox.push_back(what);
        } else {
            self.handle(node, what);
        }
    }

    /// The same from within the node.
    pub(crate) fn input_now(&mut self, node: usize, what: In) {
        let life = self.nodes[node].life;
        self.input(node, life, what);
    }

    /// An event for a prefill worker's ledger.
    pub(crate) fn p_event(&mut self, p: usize, event: prefill::Event) {
        self.input_now(p, In::P(event));
    }

    /// An event for a decode worker's ledger.
    pub(crate) fn d_event(&mut self, d: usize, event: decode::Event) {
        self.input_now(d, In::D(event));
    }

    /// An event for the router's ledger.
    pub(crate) fn r_event(&mut self, event: router::Event) {
        self.input_now(0, In::R(event));
    }

    pub(crate) fn handle(&mut self, node: usize, what: In) {
        match what {
            In::Period => self.period(node),
            In::Due(at) => {
                if self.nodes[node].alarm == Some(at) {
                    self.nodes[node].alarm = None;
                    self.tick(node);
                }
            }
            In::R(event) => self.step_router(event),
            In::P(event) => self.step_prefill(node, event),
            In::D(event) => self.step_decode(node, event),
            In::Open {
                spec,
                token,
                generation,
            } => self.open_at(node, *spec, token, generation),
            In::Evidence {
                room,
                generation,
                until,
            } => self.answer_evidence(node, room, generation, until),
            In::EngineStep(step) => self.engine_step(node, step),
            In::Dial { room, epoch } => self.dial(node, room, epoch),
            In::Data { session, msg } => self.data_in(node, session, msg),
            In::LetGo { session } => self.let_go(node, session),
            In::Keeper => self.keeper(node),
            In::Remote(life, what) => self.of_remote(node, life, &what),
        }
    }

    /// Only time has passed.
    pub(crate) fn tick(&mut self, node: usize) {
        match self.nodes[node].brain {
            Brain::R(_) => self.step_router(router::Event::Tick),
            Brain::P(_) => self.step_prefill(node, prefill::Event::Tick),
            Brain::D(_) => self.step_decode(node, decode::Event::Tick),
        }
    }

    pub(crate) fn period(&mut self, node: usize) {
        let life = self.nodes[node].life;
        if node == 0 {
            self.tick(0);
        } else {
            self.worker_period(node);
        }
        let next = self.now + self.settings.report_period.0;
        self.schedule(next, Act::In(node, life, In::Period));
    }

    /// Sets the alarm as the ledger wants it.
    pub(crate) fn set_alarm(&mut self, node: usize) {
        let offset = self.clock(node).0 - self.now;
        let due = match &self.nodes[node].brain {
            Brain::R(ledger) => ledger.next_deadline(),
            Brain::P(ledger) => ledger.next_deadline(),
            Brain::D(ledger) => ledger.next_deadline(),
        };
        let at = due.map(|due| due.0.saturating_sub(offset).max(self.now + 1));
        if self.nodes[node].alarm != at {
            self.nodes[node].alarm = at;
            let life = self.nodes[node].life;
            if let Some(at) = at {
                self.schedule(at, Act::In(node, life, In::Due(at)));
            }
        }
    }
}
