//! The three trees of a cluster, wired to each other without gRPC: real ledgers, actors, engine threads, sessions and
//! lease store, with faults in the data plane and in the engine.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

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
use innkeeper_engine::{Engine, MockConfig, MockEngine, monolithic};
use innkeeper_leases::{Member, MemberState, MemoryStore, Store};
use innkeeper_room::ledger::router::{AbortAnswer, OnFailure, Outcome};
use innkeeper_room::ledger::{Gauges, decode, prefill, router};
use innkeeper_room::{Incarnation, Millis, Reason, Role, RoomId, Settings, Work};
use innkeeper_transfer::fault::{Faults, Script, SeenBy};
use innkeeper_transfer::mem::MemNetwork;
use innkeeper_transfer::{Acceptor, Backend, Config, Listener, MemBackend};
use tokio::sync::mpsc;

const ROUTER: Incarnation = Incarnation::new(1);
const PREFILL: Incarnation = Incarnation::new(2);
const DECODE: Incarnation = Incarnation::new(3);
const ASK: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(15);
const PROMPT: u32 = 600;
const TOKENS: u32 = 12;

/// R's links as function calls.
#[derive(Default)]
struct DirectLinks {
    workers: Mutex<HashMap<Incarnation, Arc<dyn WorkerPort>>>,
    /// Whose prompts workers were told to have.
    tenants: Mutex<Vec<(Incarnation, u128)>>,
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

struct Cluster {
    router: Arc<RouterNode>,
    prefill: Arc<WorkerNode<Prefill>>,
    decode: Arc<WorkerNode<Decode>>,
    prefill_engine: Arc<MockEngine>,
    decode_engine: Arc<MockEngine>,
    store: Arc<MemoryStore>,
    links: Arc<DirectLinks>,
    faults: Faults,
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

impl Cluster {
    async fn start() -> Self {
        let settings = Arc::new(Settings::from_ttl(Millis(1000)));
        let engine = || {
            MockEngine::new(MockConfig {
                total_pages: 256,
                group_token_bytes: 512,
                chunk_target: Duration::from_millis(20),
                ..MockConfig::default()
            })
        };
        let (prefill_engine, decode_engine) = (engine(), engine());
        let backend = Arc::new(MemBackend::new(Config::from(&*settings), MemNetwork::default()));
        let faults = backend.faults();
        let backend: Arc<dyn Backend> = backend;
        let store = Arc::new(MemoryStore::default());
        let doorman = Doorman::new(DECODE);
        let listener = backend
            .listen("decode", Arc::clone(&doorman) as Arc<dyn Acceptor>)
            .await
            .unwrap();
        let parts = |incarnation, role, engine: &Arc<MockEngine>| WorkerParts {
            engine: Arc::clone(engine) as Arc<dyn Engine>,
            store: Arc::clone(&store) as Arc<dyn Store>,
            member: member(incarnation, role, &**engine),
            clock: Arc::new(TokioClock::start()),
            settings: Arc::clone(&settings),
            tasks: Tasks::new(),
            hooks: Arc::new(NoHooks),
        };
        let dynamic = |engine: &Arc<MockEngine>| Arc::clone(engine) as Arc<dyn Engine>;

        let prefill_parts = parts(PREFILL, Role::Prefill, &prefill_engine);
        let craft = Prefill::new(
            dynamic(&prefill_engine),
            Arc::clone(&backend),
            &settings,
            prefill_parts.tasks.clone(),
        );
        let config = prefill::Config {
            settings: (*settings).clone(),
            incarnation: PREFILL,
            total_pages: 256,
            page_tokens: 16,
            context: 8192,
        };
        let ledger = prefill::Ledger::new(config.clone(), prefill_parts.clock.now());
        let prefill = WorkerNode::start(Arc::new(craft), ledger, prefill_parts).await.unwrap();

        let decode_parts = parts(DECODE, Role::Decode, &decode_engine);
        let secret = Box::new(|| 77);
        let craft = Decode::new(
            dynamic(&decode_engine),
            "decode".into(),
            secret,
            decode_parts.tasks.clone(),
        );
        let config = decode::Config {
            incarnation: DECODE,
            ..config
        };
        let ledger = decode::Ledger::new(config, decode_parts.clock.now());
        let decode = WorkerNode::start(Arc::new(craft), ledger, decode_parts).await.unwrap();
        doorman.lead_to(decode.greeter());

        let links = Arc::new(DirectLinks::default());
        links
            .workers
            .lock()
            .unwrap()
            .insert(PREFILL, Arc::clone(&prefill) as Arc<dyn WorkerPort>);
        links
            .workers
            .lock()
            .unwrap()
            .insert(DECODE, Arc::clone(&decode) as Arc<dyn WorkerPort>);
        let clock = TokioClock::start();
        let config = router::Config {
            settings: (*settings).clone(),
            incarnation: ROUTER,
            seed: [1, 2],
        };
        let parts = RouterParts {
            ledger: router::Ledger::new(config, clock.now()),
            links: Arc::clone(&links) as Arc<dyn Links>,
            store: Arc::clone(&store) as Arc<dyn Store>,
            member: member(ROUTER, Role::Router, &*prefill_engine),
            clock: Arc::new(clock),
            settings,
            tasks: Tasks::new(),
            hooks: Arc::new(NoHooks),
            first_request: 1,
        };
        let router = RouterNode::start(parts).await.unwrap();
        let mut usable = router.usable();
        tokio::time::timeout(LIMIT, usable.wait_for(|usable| *usable == (1, 1)))
            .await
            .unwrap()
            .unwrap();
        drop(usable);
        Self {
            router,
            prefill,
            decode,
            prefill_engine,
            decode_engine,
            store,
            links,
            faults,
            _listener: listener,
        }
    }

    fn submit(&self, rid: &str) -> RequestStream {
        self.submit_of(rid, 0)
    }

    fn submit_of(&self, rid: &str, tenant: u128) -> RequestStream {
        self.router.submit(NewRequest {
            rid: rid.into(),
            client: "test".into(),
            model: None,
            work: Work { tenant, ..work() },
            blocks: innkeeper_room::prefix::Blocks::default(),
            max_tokens: TOKENS,
            class: innkeeper_room::Class::Normal,
            on_failure: OnFailure::Migrate,
        })
    }

    /// Everything is back: rooms, pages, permits, keys.
    async fn clean(&self) {
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
        assert_eq!(self.prefill_engine.pool().free(), 256);
        assert_eq!(self.decode_engine.pool().free(), 256);
    }
}

fn is_clean(gauges: &Gauges) -> bool {
    gauges.rooms.iter().sum::<u32>() == 0
        && gauges.pages.held + gauges.pages.quarantined == 0
        && gauges.room_permits + gauges.session_permits + gauges.engine_permits + gauges.requests == 0
        && gauges.stuck == 0
}

fn work() -> Work {
    Work {
        prompt: (0..PROMPT).map(|at| at * 31 % 250).collect(),
        ..Work::default()
    }
}

/// What one engine alone answers.
fn expected() -> Vec<u32> {
    let engine = MockEngine::new(MockConfig {
        group_token_bytes: 512,
        ..MockConfig::default()
    });
    let room = RoomId::from_random(9);
    let tokens = monolithic::generate(&*engine, room, &Arc::new(work()), TOKENS, &mut |_, _| {}).unwrap();
    tokens.iter().map(|token| token.id).collect()
}

/// All tokens, the outcome, and the number of attempts.
async fn answer(mut stream: RequestStream) -> (Vec<u32>, Outcome, u8) {
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

/// How much of the prompt was not computed, and all tokens.
async fn reused(mut stream: RequestStream) -> (u32, Vec<u32>) {
    let (mut reused, mut ids) = (vec![], vec![]);
    loop {
        let event = tokio::time::timeout(LIMIT, stream.events.recv()).await.unwrap();
        match event.unwrap() {
            RequestEvent::Reused(tokens) => reused.push(tokens),
            RequestEvent::Tokens(tokens) => ids.extend(tokens.iter().map(|token| token.id)),
            RequestEvent::Answered { outcome, .. } => {
                assert_eq!(outcome, Outcome::Done);
                assert!(reused.len() <= 1, "it is said once: {reused:?}");
                return (reused.iter().sum(), ids);
            }
        }
    }
}

#[tokio::test]
async fn a_tenants_prompt_is_computed_once() {
    let cluster = Cluster::start().await;
    let page = cluster.prefill_engine.layout().page_tokens;
    let whole = (PROMPT - 1) / page * page;
    for (rid, tenant, found) in [
        ("a", 1, 0),
        ("b", 1, whole),
        ("c", 2, 0),
        ("d", 2, whole),
        ("e", 0, 0),
        ("f", 0, 0),
    ] {
        let before = cluster.prefill_engine.status().prompt_tokens;
        assert_eq!(
            reused(cluster.submit_of(rid, tenant)).await,
            (found, expected()),
            "request {rid}"
        );
        // What was computed is published when everybody has let go of it.
        let wait = async {
            while cluster.prefill.gauges(ASK).await.unwrap().0.room_permits > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, wait).await.unwrap();
        let computed = cluster.prefill_engine.status().prompt_tokens - before;
        assert_eq!(computed, u64::from(PROMPT - found), "request {rid}");
    }
    let cached = 2 * (PROMPT / page);
    let (gauges, _) = cluster.prefill.gauges(ASK).await.unwrap();
    assert_eq!((gauges.pages.cached, gauges.pages.available()), (cached, 256));
    let status = cluster.prefill_engine.status();
    assert_eq!((status.cached_pages, status.free_pages), (cached, 256 - cached));
    assert_eq!(cluster.prefill_engine.pool().violations(), 0);
    let tenants = cluster.links.tenants.lock().unwrap().clone();
    let of = |worker| {
        tenants
            .iter()
            .filter(move |(to, _)| *to == worker)
            .map(|(_, tenant)| *tenant)
    };
    assert_eq!(of(PREFILL).collect::<Vec<_>>(), [1, 1, 2, 2, 0, 0]);
    assert!(
        of(DECODE).all(|tenant| tenant == 0),
        "whose it is concerns P alone: {tenants:?}"
    );
}

#[tokio::test]
async fn many_requests_at_once_are_answered_and_leave_nothing() {
    let cluster = Cluster::start().await;
    let streams: Vec<_> = (0..20)
        .map(|number| cluster.submit(&format!("request {number}")))
        .collect();
    let expected = expected();
    for stream in streams {
        assert_eq!(answer(stream).await, (expected.clone(), Outcome::Done, 1));
    }
    cluster.clean().await;
}

#[tokio::test]
async fn a_broken_data_connection_is_resumed_within_the_room() {
    for seen_by in [SeenBy::Both, SeenBy::Prefill] {
        let cluster = Cluster::start().await;
        cluster.faults.push(Script::cut(200_000, seen_by));
        let answered = answer(cluster.submit("cut")).await;
        assert_eq!(answered, (expected(), Outcome::Done, 1), "{seen_by:?}");
        cluster.clean().await;
    }
}

/// Only the one who dials can try again: what it does not see is a transfer that stalls, and the next attempt.
#[tokio::test]
async fn a_break_that_prefill_does_not_see_costs_an_attempt_and_no_more() {
    let cluster = Cluster::start().await;
    cluster.faults.push(Script::cut(200_000, SeenBy::Decode));
    assert_eq!(answer(cluster.submit("cut")).await, (expected(), Outcome::Done, 2));
    cluster.clean().await;
}

#[tokio::test]
async fn a_wedged_engine_ends_its_rooms_with_a_reason_and_comes_back() {
    let cluster = Cluster::start().await;
    cluster.prefill_engine.stall();
    let (ids, outcome, _) = answer(cluster.submit("wedged")).await;
    assert_eq!(ids, Vec::<u32>::new());
    let Outcome::Failed { reason, .. } = outcome else {
        panic!("answered {outcome:?} by an engine that stands still")
    };
    assert!(
        matches!(reason, Reason::EngineStalled | Reason::PrefillStalled),
        "{reason}"
    );
    cluster.prefill_engine.resume();
    cluster.clean().await;
    // Until the worker has reported that it moves, there is none to ask.
    let moving = async {
        loop {
            match answer(cluster.submit("moving again")).await {
                (ids, Outcome::Done, 1) => return ids,
                (
                    _,
                    Outcome::Failed {
                        reason: Reason::NoPrefillWorker | Reason::EngineStalled,
                        ..
                    },
                    _,
                ) => {}
                other => panic!("{other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert_eq!(tokio::time::timeout(LIMIT, moving).await.unwrap(), expected());
    cluster.clean().await;
}

#[tokio::test]
async fn an_engine_that_fails_costs_one_attempt() {
    let cluster = Cluster::start().await;
    cluster.decode_engine.fail_next();
    let (ids, outcome, attempts) = answer(cluster.submit("failing")).await;
    // With one pair and a blamed node there is nobody else to try.
    if outcome == Outcome::Done {
        assert_eq!((ids, attempts), (expected(), 2));
    } else {
        assert!(
            matches!(
                outcome,
                Outcome::Failed {
                    reason: Reason::EngineFailed,
                    ..
                }
            ),
            "{outcome:?}"
        );
    }
    cluster.clean().await;
}

#[tokio::test]
async fn an_abort_ends_a_request_before_it_arrives_while_it_lives_and_says_so_after_its_end() {
    let cluster = Cluster::start().await;
    let abort = |rid: &str| cluster.router.abort(rid.to_owned(), "test".to_owned());
    assert_eq!(abort("early").await, Some(AbortAnswer::Accepted));
    let (_, outcome, _) = answer(cluster.submit("early")).await;
    assert!(
        matches!(
            outcome,
            Outcome::Failed {
                reason: Reason::Aborted,
                ..
            }
        ),
        "{outcome:?}"
    );

    cluster.prefill_engine.set_speed(2_000, 1_000);
    let stream = cluster.submit("living");
    let computing = async {
        while cluster.prefill.gauges(ASK).await.unwrap().0.pages.held == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, computing).await.unwrap();
    assert_eq!(abort("living").await, Some(AbortAnswer::Aborted));
    let (_, outcome, _) = answer(stream).await;
    assert!(
        matches!(
            outcome,
            Outcome::Failed {
                reason: Reason::Aborted,
                ..
            }
        ),
        "{outcome:?}"
    );
    assert_eq!(abort("living").await, Some(AbortAnswer::AlreadyEnded));
    cluster.clean().await;
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_room_with_it() {
    let cluster = Cluster::start().await;
    cluster.prefill_engine.set_speed(2_000, 1_000);
    let stream = cluster.submit("leaving");
    let living = async {
        while cluster.prefill.gauges(ASK).await.unwrap().0.pages.held == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, living).await.unwrap();
    drop(stream);
    cluster.clean().await;
}

#[tokio::test]
async fn a_store_that_is_away_hurts_nobody() {
    let cluster = Cluster::start().await;
    cluster.store.pause();
    let (ids, outcome, attempts) = answer(cluster.submit("without a store")).await;
    assert_eq!((ids, outcome, attempts), (expected(), Outcome::Done, 1));
    cluster.store.resume();
    cluster.clean().await;
}

#[tokio::test]
async fn a_grant_that_is_answered_after_the_rooms_end_is_revoked_and_not_left_to_its_ttl() {
    let cluster = Cluster::start().await;
    // The request takes some tens of milliseconds, the lease would live for two seconds.
    cluster.store.delay_grants(Duration::from_millis(400));
    let began = tokio::time::Instant::now();
    assert_eq!(answer(cluster.submit("late grant")).await.1, Outcome::Done);
    assert!(
        began.elapsed() < Duration::from_millis(400),
        "the answer waited for the store"
    );
    cluster.clean().await;
    assert!(began.elapsed() < Duration::from_millis(1800), "{:?}", began.elapsed());
}
