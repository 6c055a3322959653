//! Ways in which such systems got stuck elsewhere (`docs/faults.md`) that need no fault but a full house, a bad request, a
//! client that changes its mind, or a worker that is asked to go.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use innkeeper_integration::{Answer, Cluster, Options, completion, oracle, signal, until};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const PATH: &str = "/v1/completions";
const SOON: Duration = Duration::from_secs(20);

fn options() -> Options {
    Options::mock().ttl_ms(2000)
}

fn many(cluster: &Cluster, number: usize, body: &Value) -> JoinSet<Answer> {
    let mut asked = JoinSet::new();
    for _ in 0..number {
        let (client, body) = (cluster.client.clone(), body.clone());
        asked.spawn(async move { client.post(PATH, &body).await });
    }
    asked
}

async fn tally(asked: JoinSet<Answer>) -> BTreeMap<(u16, String), usize> {
    let mut tally = BTreeMap::new();
    for answer in asked.join_all().await {
        *tally.entry((answer.status, answer.code().to_owned())).or_default() += 1;
    }
    tally
}

fn all_done(number: usize) -> BTreeMap<(u16, String), usize> {
    BTreeMap::from([((200, String::new()), number)])
}

/// Waiting for a place is charged to nobody's handshake and nobody's transfer.
#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_at_once_on_four_places() {
    let flags = options().flag("permits", 4).flag("mock-decode-us-per-token", 10_000);
    let cluster = Cluster::start(flags).await;
    let asked = many(&cluster, 64, &completion("mock", "crowd", 10));
    assert_eq!(tally(asked).await, all_done(64));
    assert_eq!(
        cluster
            .failures()
            .await
            .iter()
            .find(|(reason, ..)| reason != "overloaded"),
        None
    );
    oracle(&cluster).await;
}

/// A full pool is a queue with a deadline of its own: 503 with Retry-After, blame on nobody.
#[tokio::test(flavor = "multi_thread")]
async fn all_pages_of_decode_are_held() {
    let flags = options()
        .flag("kv-pages", 32)
        .flag("queue-timeout-ms", 1500)
        .flag("mock-decode-us-per-token", 20_000);
    let cluster = Cluster::start(flags).await;
    let holds = cluster.submit(&completion("mock", "holder", 400));
    cluster.wait_phase("decoding", SOON).await;
    let began = Instant::now();
    let answer = cluster.client.post(PATH, &completion("mock", "waiter", 400)).await;
    assert_eq!((answer.status, answer.code()), (503, "queue_timeout"), "{answer:?}");
    assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    assert!(began.elapsed() >= Duration::from_millis(1400), "{:?}", began.elapsed());
    assert_eq!(
        holds.await.unwrap().status,
        200,
        "the one that holds them is not disturbed"
    );
    oracle(&cluster).await;
}

/// Prefill goes while decode still waits for pages: the room ends at once, on both sides.
#[tokio::test(flavor = "multi_thread")]
async fn prefill_dies_while_decode_waits_for_pages() {
    let flags = options()
        .etcd()
        .flag("kv-pages", 32)
        // What waits is to wait at the worker here.
        .flag("page-booking-percent", 0)
        .flag("mock-decode-us-per-token", 20_000);
    let cluster = Cluster::start(flags).await;
    let holds = cluster.submit(&completion("mock", "holder", 400));
    cluster.wait_phase("decoding", SOON).await;
    let waits = cluster.submit(&completion("mock", "waiter", 400));
    until(SOON, "the second room has said hello and queues", || async {
        let rooms = cluster.router_rooms().await?;
        let waiting = rooms.iter().any(|room| room.phase == "queued" && room.epoch > 0);
        if waiting { Ok(()) } else { Err(format!("{rooms:?}")) }
    })
    .await;
    cluster.kill("prefill-0").await;
    let began = Instant::now();
    let answer = waits.await.unwrap();
    let typed = answer.status == 200 || ["prefill_lost", "no_prefill_worker"].contains(&answer.code());
    assert!(typed, "{answer:?}");
    assert!(
        answer.status == 200 || began.elapsed() < Duration::from_secs(6),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(
        holds.await.unwrap().status,
        200,
        "after its commit a room needs no prefill worker"
    );
    cluster.wait_whole().await;
    oracle(&cluster).await;
}

/// Client-chosen ids may repeat; rooms never do.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_id_twice_and_two_answers_of_one_request() {
    let cluster = Cluster::start(options()).await;
    let body = completion("mock", "twice", 5);
    let (one, other) = tokio::join!(
        cluster.client.post_as("same", PATH, &body),
        cluster.client.post_as("same", PATH, &body)
    );
    assert_eq!((one.status, other.status), (200, 200), "{one:?} {other:?}");
    assert_eq!(one.token_ids(), other.token_ids());
    let mut two = body;
    two["n"] = json!(2);
    let answer = cluster.client.complete(&two).await;
    assert_eq!(answer.body["choices"].as_array().map(Vec::len), Some(2), "{answer:?}");
    oracle(&cluster).await;
}

/// What can never fit is refused before a room exists; nothing of it reaches a worker.
#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_fit_is_refused_at_the_door() {
    let cluster = Cluster::start(options().flag("kv-pages", 16)).await;
    for _ in 0..20 {
        let answer = cluster.client.post(PATH, &completion("mock", "big", 4000)).await;
        assert_eq!((answer.status, answer.code()), (400, "too_large"), "{answer:?}");
    }
    let prefill = cluster.metrics_of("prefill-0").await;
    let rooms = prefill.sum("innkeeper_rooms_ended_total", &[]);
    assert!(rooms.abs() < 0.5, "nothing of it came to a worker");
    assert_eq!(
        tally(many(&cluster, 1, &completion("mock", "ok", 4))).await,
        all_done(1)
    );
    oracle(&cluster).await;
}

/// Ten long prefills are given up before their first token; the short request behind them does not wait for them.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_request_after_long_ones_that_were_given_up() {
    let cluster = Cluster::start(
        options()
            .flag("mock-prefill-us-per-token", 1_000)
            .flag("prefix-cache-percent", 0),
    )
    .await;
    let short = completion("mock", "s", 2);
    let idle = Instant::now();
    cluster.client.complete(&short).await;
    let idle = idle.elapsed();
    let mut long = many(&cluster, 10, &completion("mock", "l".repeat(4000), 2));
    until(SOON, "long prefills compute", || async {
        let rooms = cluster.router_rooms().await?;
        let computing = rooms.iter().filter(|room| room.phase == "waiting_for_input").count();
        if computing >= 4 {
            Ok(())
        } else {
            Err(format!("{rooms:?}"))
        }
    })
    .await;
    long.abort_all();
    while long.join_next().await.is_some() {}
    let behind = Instant::now();
    cluster.client.complete(&short).await;
    let behind = behind.elapsed();
    eprintln!("a short request: {idle:?} idle, {behind:?} behind ten that were given up");
    // Four chunks may be in hand, each of a tenth of the TTL at most; what was given up would have taken ten seconds more.
    assert!(
        behind < idle + Duration::from_secs(3),
        "{idle:?} idle, {behind:?} behind"
    );
    for _ in 0..20 {
        cluster.client.complete(&short).await;
    }
    oracle(&cluster).await;
}

/// One decode worker after the other is killed under load, and a new life of each takes its place at the same address.
#[tokio::test(flavor = "multi_thread")]
async fn all_decode_workers_are_killed_one_after_the_other_under_load() {
    let flags = options().workers(2, 2).etcd().flag("mock-decode-us-per-token", 5_000);
    let cluster = Cluster::start(flags).await;
    let body = completion("mock", "load", 50);
    let expected = cluster.client.complete(&body).await.token_ids();
    let mut asked = JoinSet::new();
    for worker in 0..8 {
        let (client, body, expected) = (cluster.client.clone(), body.clone(), expected.clone());
        asked.spawn(async move {
            let mut codes = vec![];
            for _ in 0..20 {
                let answer = client.post(PATH, &body).await;
                if answer.status == 200 {
                    assert_eq!(
                        answer.token_ids(),
                        expected,
                        "worker {worker}: never a wrong or cut answer"
                    );
                }
                codes.push((answer.status, answer.code().to_owned()));
            }
            codes
        });
    }
    for name in ["decode-0", "decode-1"] {
        let before = cluster.node(name).await["incarnation"].clone();
        cluster.kill(name).await;
        until(SOON, "another life of it is known", || async {
            let nodes = cluster.try_ps().await?;
            let lives = nodes
                .iter()
                .any(|node| node["name"] == name && node["incarnation"] != before);
            if lives { Ok(()) } else { Err(format!("{nodes:?}")) }
        })
        .await;
        cluster.wait_whole().await;
    }
    let codes: Vec<(u16, String)> = asked.join_all().await.into_iter().flatten().collect();
    let done = codes.iter().filter(|(status, _)| *status == 200).count();
    assert!(
        codes.iter().all(|(status, code)| *status == 200 || !code.is_empty()),
        "{codes:?}"
    );
    assert!(done >= 150, "{done} of 160: {codes:?}");
    assert_eq!(
        tally(many(&cluster, 8, &body)).await,
        all_done(8),
        "no error is left behind"
    );
    oracle(&cluster).await;
}

/// SIGTERM with transfers open: they are finished, and no request fails.
#[tokio::test(flavor = "multi_thread")]
async fn workers_are_asked_to_end_under_load() {
    let flags = options()
        .workers(2, 2)
        .etcd()
        .flag("mock-decode-us-per-token", 5_000)
        .flag("mock-kv-bytes-per-token", 4_096)
        .flag("transfer-max-bytes-per-second", 1_000_000);
    let cluster = Cluster::start(flags).await;
    let body = completion("mock", "drain".repeat(10), 50);
    for name in ["prefill-0", "decode-0"] {
        let asked = many(&cluster, 12, &body);
        cluster.wait_phase("transferring", SOON).await;
        signal(cluster.pid(name).await, Signal::TERM);
        assert_eq!(tally(asked).await, all_done(12), "while {name} ends");
        cluster.wait_whole().await;
    }
    oracle(&cluster).await;
}

/// Without any prefill worker nothing is run in its place in silence.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_prefill_worker_the_answer_says_so() {
    let cluster = Cluster::start(options().etcd()).await;
    let stopped = cluster.stop("prefill-0").await;
    let answer = until(SOON, "the router has missed it", || async {
        let answer = cluster.client.post(PATH, &completion("mock", "x", 2)).await;
        if answer.code() == "no_prefill_worker" {
            Ok(answer)
        } else {
            Err(answer)
        }
    })
    .await;
    assert_eq!(answer.status, 503);
    stopped.cont();
    cluster.wait_whole().await;
    assert_eq!(tally(many(&cluster, 1, &completion("mock", "x", 2))).await, all_done(1));
    oracle(&cluster).await;
}
