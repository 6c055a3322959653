//! The three trees of a cluster, wired to each other without gRPC: real ledgers, actors, engines, sessions and lease store.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use innkeeper_actors::clock::{Clock, TokioClock};
use innkeeper_actors::decode::{Decode, Doorman};
use innkeeper_actors::hooks::NoHooks;
use innkeeper_actors::ports::{
    LinkItem, Links, NewRequest, NodeEvent, NodeLink, NodeQuestion, OpenRoom, RequestEvent, RequestStream, RoomLink,
    RoomPort, RouterPort, Target, WorkerPort,
};
use innkeeper_actors::prefill::Prefill;
use innkeeper_actors::router::{RouterNode, RouterParts};
use innkeeper_actors::tasks::Tasks;
use innkeeper_actors::worker::node::{WorkerNode, WorkerParts};
use innkeeper_engine::Engine;
use innkeeper_leases::{Member, MemberState, MemoryStore, Store};
use innkeeper_room::ledger::router::{OnFailure, Outcome};
use innkeeper_room::ledger::{EngineKind, Gauges, decode, prefill, router};
use innkeeper_room::{Incarnation, Role, Settings, Work};
use innkeeper_transfer::fault::Faults;
use innkeeper_transfer::mem::MemNetwork;
use innkeeper_transfer::{Acceptor, Backend, Config, Listener, MemBackend};
use tokio::sync::mpsc;

const ROUTER: Incarnation = Incarnation::new(1);
pub const PREFILL: Incarnation = Incarnation::new(2);
pub const DECODE: Incarnation = Incarnation::new(3);
pub const ASK: Duration = Duration::from_secs(1);
/// Longer than anything takes.
pub const LIMIT: Duration = Duration::from_secs(15);

/// R's links as function calls.
#[derive(Default)]
pub struct DirectLinks {
    workers: Mutex<HashMap<Incarnation, Arc<dyn WorkerPort>>>,
    /// Whose prompts workers were told to have.
    pub tenants: Mutex<Vec<(Incarnation, u128)>>,
}

impl DirectLinks {
    fn worker(&self, incarnation: Incarnation) -> Arc<dyn WorkerPort> {
        Arc::clone(&self.workers.lock().unwrap()[&incarnation])
    }
}

impl Links for DirectLinks {
    fn open(&self, target: &Target, open: OpenRoom) -> RoomLink {
        self.tenants
            .lock()
            .unwrap()
            .push((target.incarnation, open.work.tenant));
        let RoomPort { to_room, mut from_room } = self.worker(target.incarnation).open(open);
        let (to, mut said) = mpsc::channel(64);
        let (says, from) = mpsc::channel(64);
        tokio::spawn(async move {
            let mut open = true;
            loop {
                tokio::select! {
                    message = said.recv(), if open => match message {
                        Some(message) => to_room.say(message),
                        None => {
                            to_room.ended();
                            open = false;
                        }
                    },
                    told = from_room.next() => {
                        let Some(told) = told else { break };
                        let _ = says.send(LinkItem::Says(told)).await;
                    }
                }
            }
            let _ = says
                .send(LinkItem::Ended {
                    broken: false,
                    why: "over".into(),
                })
                .await;
        });
        RoomLink { to, from }
    }

    fn node(&self, target: &Target) -> NodeLink {
        let worker = self.worker(target.incarnation);
        let (ask, mut asked) = mpsc::channel(16);
        let (events_in, events) = mpsc::channel(16);
        tokio::spawn(async move {
            let mut loads = worker.loads();
            loop {
                let event = tokio::select! {
                    changed = loads.changed() => {
                        if changed.is_err() { return }
                        let load = *loads.borrow_and_update();
                        NodeEvent::Load { incarnation: worker.incarnation(), load }
                    }
                    question = asked.recv() => match question {
                        Some(NodeQuestion::Who) => NodeEvent::Identity { incarnation: worker.incarnation() },
                        Some(NodeQuestion::Evidence(room)) => {
                            NodeEvent::Evidence { room, evidence: worker.evidence(room).await }
                        }
                        None => return,
                    },
                };
                if events_in.send(event).await.is_err() {
                    return;
                }
            }
        });
        NodeLink { ask, events }
    }

    fn forget(&self, _incarnation: Incarnation) {}
}

/// One router, one prefill and one decode worker.
pub struct Direct {
    pub router: Arc<RouterNode>,
    pub prefill: Arc<WorkerNode<Prefill>>,
    pub decode: Arc<WorkerNode<Decode>>,
    pub store: Arc<MemoryStore>,
    pub links: Arc<DirectLinks>,
    pub faults: Faults,
    _listener: Box<dyn Listener>,
}

fn member(incarnation: Incarnation, role: Role, engine: &dyn Engine) -> Member {
    Member {
        incarnation,
        role,
        name: role.to_string(),
        pid: 1,
        http: String::new(),
        control: format!("{role}:1"),
        data: String::new(),
        model: "mock".into(),
        layout: engine.layout().clone(),
        revision: "1".into(),
        pages: engine.limits().total_pages,
        context: engine.limits().context,
        permits: 16,
        state: MemberState::Serving,
    }
}

fn kind_of(engine: &dyn Engine) -> EngineKind {
    match engine.tickets() {
        Some(_) => EngineKind::Remote,
        None => EngineKind::Own,
    }
}

/// What all nodes share.
struct Ground {
    settings: Arc<Settings>,
    store: Arc<MemoryStore>,
    backend: Arc<dyn Backend>,
}

impl Ground {
    fn parts(&self, incarnation: Incarnation, role: Role, engine: &Arc<dyn Engine>) -> WorkerParts {
        WorkerParts {
            engine: Arc::clone(engine),
            store: Arc::clone(&self.store) as Arc<dyn Store>,
            member: member(incarnation, role, &**engine),
            clock: Arc::new(TokioClock::start()),
            settings: Arc::clone(&self.settings),
            tasks: Tasks::new(),
            hooks: Arc::new(NoHooks),
        }
    }

    fn config(&self, incarnation: Incarnation, engine: &Arc<dyn Engine>) -> prefill::Config {
        let limits = engine.limits();
        prefill::Config {
            settings: (*self.settings).clone(),
            incarnation,
            total_pages: limits.total_pages,
            page_tokens: engine.layout().page_tokens,
            context: limits.context,
            engine: kind_of(&**engine),
        }
    }

    async fn prefill(&self, engine: &Arc<dyn Engine>) -> Arc<WorkerNode<Prefill>> {
        let parts = self.parts(PREFILL, Role::Prefill, engine);
        let craft = Prefill::new(
            Arc::clone(engine),
            Arc::clone(&self.backend),
            &self.settings,
            parts.tasks.clone(),
        );
        let ledger = prefill::Ledger::new(self.config(PREFILL, engine), parts.clock.now());
        WorkerNode::start(Arc::new(craft), ledger, parts).await.unwrap()
    }

    async fn decode(&self, engine: &Arc<dyn Engine>) -> Arc<WorkerNode<Decode>> {
        let parts = self.parts(DECODE, Role::Decode, engine);
        let secret = Box::new(|| 77);
        let craft = Decode::new(Arc::clone(engine), "decode".into(), secret, parts.tasks.clone());
        let ledger = decode::Ledger::new(self.config(DECODE, engine), parts.clock.now());
        WorkerNode::start(Arc::new(craft), ledger, parts).await.unwrap()
    }

    async fn router(&self, links: &Arc<DirectLinks>, engine: &Arc<dyn Engine>) -> Arc<RouterNode> {
        let clock = TokioClock::start();
        let config = router::Config {
            settings: (*self.settings).clone(),
            incarnation: ROUTER,
            seed: [1, 2],
        };
        let parts = RouterParts {
            ledger: router::Ledger::new(config, clock.now()),
            links: Arc::clone(links) as Arc<dyn Links>,
            store: Arc::clone(&self.store) as Arc<dyn Store>,
            member: member(ROUTER, Role::Router, &**engine),
            clock: Arc::new(clock),
            settings: Arc::clone(&self.settings),
            tasks: Tasks::new(),
            hooks: Arc::new(NoHooks),
            first_request: 1,
        };
        RouterNode::start(parts).await.unwrap()
    }
}

impl Direct {
    /// Starts all three, and waits until the pair can be used.
    pub async fn start(settings: Settings, prefill: Arc<dyn Engine>, decode: Arc<dyn Engine>) -> Self {
        let backend = Arc::new(MemBackend::new(Config::from(&settings), MemNetwork::default()));
        let faults = backend.faults();
        let ground = Ground {
            settings: Arc::new(settings),
            store: Arc::new(MemoryStore::default()),
            backend,
        };
        let doorman = Doorman::new(DECODE);
        let acceptor = Arc::clone(&doorman) as Arc<dyn Acceptor>;
        let listener = ground.backend.listen("decode", acceptor).await.unwrap();
        let prefill_node = ground.prefill(&prefill).await;
        let decode_node = ground.decode(&decode).await;
        doorman.lead_to(decode_node.greeter());
        let links = Arc::new(DirectLinks::default());
        {
            let mut workers = links.workers.lock().unwrap();
            workers.insert(PREFILL, Arc::clone(&prefill_node) as Arc<dyn WorkerPort>);
            workers.insert(DECODE, Arc::clone(&decode_node) as Arc<dyn WorkerPort>);
        }
        let router = ground.router(&links, &prefill).await;
        let mut usable = router.usable();
        tokio::time::timeout(LIMIT, usable.wait_for(|usable| *usable == (1, 1)))
            .await
            .unwrap()
            .unwrap();
        drop(usable);
        Self {
            router,
            prefill: prefill_node,
            decode: decode_node,
            store: ground.store,
            links,
            faults,
            _listener: listener,
        }
    }

    pub fn submit(&self, rid: &str, work: Work, max_tokens: u32) -> RequestStream {
        self.router.submit(NewRequest {
            rid: rid.into(),
            client: "test".into(),
            model: None,
            work,
            blocks: innkeeper_room::prefix::Blocks::default(),
            max_tokens,
            class: innkeeper_room::Class::Normal,
            on_failure: OnFailure::Migrate,
        })
    }

    /// Everything is back: rooms, pages, permits, keys.
    pub async fn clean(&self) {
        let wait = async {
            loop {
                let gauges = [
                    self.router.gauges(ASK).await.unwrap(),
                    self.prefill.gauges(ASK).await.unwrap(),
                    self.decode.gauges(ASK).await.unwrap(),
                ];
                let keys = self.store.keys().await.unwrap();
                let doors = keys.iter().filter(|(key, _)| key.contains("/doors/")).count();
                if doors == 0 && gauges.iter().all(|(gauges, zombies)| is_clean(gauges) && *zombies == 0) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(LIMIT, wait).await.is_err() {
            panic!(
                "left behind: {:?} {:?} {:?}",
                self.router.gauges(ASK).await,
                self.prefill.gauges(ASK).await,
                self.decode.gauges(ASK).await
            );
        }
    }
}

fn is_clean(gauges: &Gauges) -> bool {
    gauges.rooms.iter().sum::<u32>() == 0
        && gauges.pages.held + gauges.pages.quarantined == 0
        && gauges.room_permits + gauges.session_permits + gauges.engine_permits + gauges.requests == 0
        && gauges.stuck == 0
}

/// All tokens, the outcome, and the number of attempts.
pub async fn answer(mut stream: RequestStream) -> (Vec<u32>, Outcome, u8) {
    let mut ids = vec![];
    loop {
        match tokio::time::timeout(LIMIT, stream.events.recv())
            .await
            .unwrap()
            .unwrap()
        {
            RequestEvent::Reused(_) => {}
            RequestEvent::Tokens(tokens) => ids.extend(tokens.iter().map(|token| token.id)),
            RequestEvent::Answered { outcome, attempts, .. } => return (ids, outcome, attempts.0),
        }
    }
}
