//! The three trees of a cluster, wired to each other without gRPC: real ledgers, actors, engine threads, sessions and
//! lease store, with faults in the data plane and in the engine.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

mod direct;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use direct::{ASK, DECODE, Direct, LIMIT, PREFILL, answer};
use innkeeper_actors::ports::{RequestEvent, RequestStream, RouterPort};
use innkeeper_engine::{Engine, MockConfig, MockEngine, monolithic};
use innkeeper_room::ledger::router::{AbortAnswer, Outcome};
use innkeeper_room::{Millis, Reason, RoomId, Settings, Work};
use innkeeper_transfer::fault::{Script, SeenBy};

const PROMPT: u32 = 600;
const TOKENS: u32 = 12;

struct Cluster {
    direct: Direct,
    prefill_engine: Arc<MockEngine>,
    decode_engine: Arc<MockEngine>,
}

impl Deref for Cluster {
    type Target = Direct;

    fn deref(&self) -> &Direct {
        &self.direct
    }
}

impl Cluster {
    async fn start() -> Self {
        let engine = || {
            MockEngine::new(MockConfig {
                total_pages: 256,
                group_token_bytes: 512,
                chunk_target: Duration::from_millis(20),
                ..MockConfig::default()
            })
        };
        let (prefill_engine, decode_engine) = (engine(), engine());
        let prefill = Arc::clone(&prefill_engine) as Arc<dyn Engine>;
        let decode = Arc::clone(&decode_engine) as Arc<dyn Engine>;
        Self {
            direct: Direct::start(Settings::from_ttl(Millis(1000)), prefill, decode).await,
            prefill_engine,
            decode_engine,
        }
    }

    fn submit(&self, rid: &str) -> RequestStream {
        self.submit_of(rid, 0)
    }

    fn submit_of(&self, rid: &str, tenant: u128) -> RequestStream {
        self.direct.submit(rid, Work { tenant, ..work() }, TOKENS)
    }

    /// Everything is back, also in the engines.
    async fn clean(&self) {
        self.direct.clean().await;
        assert_eq!(self.prefill_engine.pool().free(), 256);
        assert_eq!(self.decode_engine.pool().free(), 256);
    }
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
