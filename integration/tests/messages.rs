//! One message between the router and a worker is lost, doubled, or late: the request is answered, rightly, and if a room had
//! to fail for it, within the bound and with somebody named.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::time::{Duration, Instant};

use innkeeper_integration::{Cluster, Options, completion, oracle, until, within};
use serde_json::Value;

const TTL: Duration = Duration::from_millis(2000);
/// What a machine with two busy processors adds to a bound.
const STARVED: Duration = Duration::from_secs(1);

/// Half a second of everything.
fn body() -> Value {
    completion("mock", "m".repeat(60), 20)
}

async fn start() -> (Cluster, Vec<u64>, Duration) {
    let options = Options::mock()
        .workers(2, 2)
        .etcd()
        .ttl_ms(2000)
        // Most of these would empty the fleet's retry bucket otherwise.
        .flag("retry-bucket", 1000)
        .flag("mock-prefill-us-per-token", 1_000)
        .flag("prefix-cache-percent", 0)
        .flag("mock-decode-us-per-token", 10_000)
        .flag("mock-kv-bytes-per-token", 4_096)
        .flag("transfer-max-bytes-per-second", 1_000_000)
        .fault("on");
    let cluster = Cluster::start(options).await;
    let began = Instant::now();
    let right = cluster.client.complete(&body()).await.token_ids();
    let took = began.elapsed();
    (cluster, right, took)
}

/// The request is answered although this happens; at most one room failed, and how.
async fn survives(cluster: &Cluster, fault: &str, right: &[u64], usual: Duration) -> Option<(String, String)> {
    let before = cluster.failures().await;
    cluster.order("router", fault).await;
    let began = Instant::now();
    let bound = TTL + Duration::from_millis(1250) + 2 * usual + STARVED;
    let answer = within(bound, fault, cluster.submit(&body())).await.unwrap();
    let took = began.elapsed();
    assert_eq!(answer.status, 200, "{fault}: {answer:?}");
    assert_eq!(answer.token_ids(), right, "{fault}");
    let failed = if cluster.failures().await == before {
        None
    } else {
        Some(cluster.verdict(&before, Duration::ZERO).await)
    };
    eprintln!("{fault}: {} ms, {failed:?}", took.as_millis());
    failed
}

fn struck(cluster: &Cluster) -> usize {
    cluster.log("up").matches("a message meets its fault").count()
}

/// That the fault met its message, which may be among the last: none is left over for the next request.
async fn met(cluster: &Cluster, count: usize) {
    until(STARVED, "each fault strikes once", || async {
        let seen = struck(cluster);
        if seen == count { Ok(()) } else { Err(seen) }
    })
    .await;
}

/// The same, of a message that not every room has: prefill hears of the commit from decode, mostly, before the router would
/// tell it. Rooms follow until one has it.
async fn met_by_some_room(cluster: &Cluster, count: usize, right: &[u64]) {
    for _ in 0..30 {
        let end = Instant::now() + STARVED / 2;
        while Instant::now() < end {
            if struck(cluster) >= count {
                return met(cluster, count).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(cluster.client.complete(&body()).await.token_ids(), right);
    }
    met(cluster, count).await;
}

#[tokio::test]
async fn one_message_is_lost() {
    let (cluster, right, usual) = start().await;
    // A loss is silence; whose, the connect deadline, a timer or the last word on the stream tells. Nobody, where
    // another message says as much: absolute counters, and tokens that imply a commit.
    let losses: &[(&str, &[&str])] = &[
        ("to-decode.open", &["decode"]),
        ("to-prefill.open", &["prefill"]),
        ("from-decode.admitted", &["decode"]),
        ("from-prefill.admitted", &["none"]),
        ("from-prefill.started", &["none"]),
        ("from-prefill.state", &["none"]),
        ("from-decode.state", &["none"]),
        ("from-decode.committed", &["none"]),
        ("to-prefill.committed", &["none"]),
        ("to-decode.taken", &["none"]),
        ("from-decode.tokens#2", &["decode", "router"]),
        ("from-prefill.ended", &["none"]),
        ("to-decode.verdict", &["none"]),
    ];
    abort_is_lost(&cluster).await;
    for (at, (message, blames)) in losses.iter().enumerate() {
        let fault = format!("drop={message}");
        let failed = survives(&cluster, &fault, &right, usual).await;
        let blame = failed.as_ref().map_or("none", |(_, blame)| blame.as_str());
        assert!(
            blames.contains(&blame),
            "{fault}: {failed:?}, expected one of {blames:?}"
        );
        // The first one was the abort.
        met_by_some_room(&cluster, at + 2, &right).await;
    }
    oracle(&cluster).await;
}

/// The end of the stream is an abort, too.
async fn abort_is_lost(cluster: &Cluster) {
    cluster.order("router", "drop=to-decode.abort").await;
    let client = cluster.client.clone();
    let body = completion("mock", "abort", 400);
    let asked = tokio::spawn(async move { client.post_as("lost", "/v1/completions", &body).await });
    cluster.wait_phase("decoding", Duration::from_secs(20)).await;
    assert_eq!(cluster.client.abort("lost").await, "aborted");
    assert_eq!(within(STARVED, "the answer", asked).await.unwrap().code(), "aborted");
    met(cluster, 1).await;
    oracle(cluster).await;
}

#[tokio::test]
async fn one_message_comes_twice_or_late() {
    let (cluster, right, usual) = start().await;
    let doubled = [
        "from-decode.admitted",
        "from-prefill.admitted",
        "from-prefill.started",
        "from-prefill.state",
        "from-decode.committed",
        "to-prefill.committed",
        "from-decode.tokens",
        "from-decode.tokens#2",
        "to-decode.taken",
        "from-prefill.ended",
    ];
    let late = [
        "to-decode.open",
        "from-decode.admitted",
        "to-prefill.open",
        "from-prefill.started",
        "from-decode.committed",
        "from-decode.tokens#3",
        "to-decode.taken",
    ];
    let faults = doubled
        .iter()
        .map(|message| format!("duplicate={message}"))
        .chain(late.iter().map(|message| format!("delay={message}@400")));
    for (at, fault) in faults.enumerate() {
        let failed = survives(&cluster, &fault, &right, usual).await;
        assert_eq!(failed, None, "{fault}");
        met_by_some_room(&cluster, at + 1, &right).await;
    }
    oracle(&cluster).await;
}

#[tokio::test]
async fn a_message_that_is_too_late_or_wrong_fails_the_room_and_not_the_request() {
    let (cluster, right, usual) = start().await;
    let losses: &[(&str, &[(&str, &str)])] = &[
        // A second Open on a stream: the worker ends the stream.
        ("duplicate=to-decode.open", &[("decode_lost", "decode")]),
        ("delay=from-decode.admitted@1500", &[("decode_lost", "decode")]),
        (
            "delay=from-decode.tokens#2@4000",
            &[("decode_stalled", "decode"), ("router_stalled", "decode")],
        ),
    ];
    for (fault, expected) in losses {
        let failed = survives(&cluster, fault, &right, usual).await;
        let (reason, blame) = failed.unwrap_or_default();
        assert!(
            expected.contains(&(reason.as_str(), blame.as_str())),
            "{fault}: {reason}, blame {blame}"
        );
    }
    oracle(&cluster).await;
}

#[tokio::test]
async fn nobody_gets_faults_who_did_not_ask_for_them() {
    let cluster = Cluster::start(Options::mock()).await;
    for node in cluster.ps().await {
        let http = node["http"].as_str().unwrap();
        let answer = cluster.ask(http, "/innkeeper/test/faults").await.unwrap();
        assert_eq!(answer.status, 404, "{}: {answer:?}", node["name"]);
    }
    let refused = cluster
        .run(&["up", "--listen=127.0.0.1:0", "--test-faults=no-pings"])
        .await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(64), "a real engine: {said}");
    assert!(said.contains("--test-faults = no-pings is wrong"), "{said}");
    let help = cluster.run(&["up", "--help"]).await;
    assert!(
        !String::from_utf8_lossy(&help.stdout).contains("test-faults"),
        "it is for nobody else"
    );
    oracle(&cluster).await;
}

#[tokio::test]
async fn a_write_on_the_data_connection_fails() {
    let (cluster, right, _) = start().await;
    for node in ["prefill-0", "prefill-1", "decode-0", "decode-1"] {
        // The hello, a frame in the middle; an answer of decode's.
        for nth in [1, 4] {
            cluster.order(node, &format!("fail-write={nth}")).await;
        }
        let answer = within(TTL + STARVED, node, cluster.submit(&body())).await.unwrap();
        assert_eq!(answer.token_ids(), right, "{node}");
    }
    assert_eq!(cluster.failures().await, [], "the next epoch goes on within the room");
    oracle(&cluster).await;
}
