//! KV pages that somebody might still touch: a receiver or a sender that was stopped in the middle of a transfer goes on
//! after its peer's pages have gone to another request, and no byte of anybody else ever shows. And pages that nobody gives
//! back: the fences, to the last.
//!
//! The mock engine writes KV that follows from the prompt, answers with tokens that follow from every byte of it, and looks
//! at all of it again at the end (a foreign write is `engine_failed`); the manifest's checksums were made when the pages
//! were sealed (a foreign read is `kv_corrupt`).

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::time::{Duration, Instant};

use innkeeper_integration::{Cluster, Options, Room, completion, oracle, until, verify_everything, within};
use serde_json::Value;

const TTL: Duration = Duration::from_millis(2000);
/// The bound of a silent fault, of the wait for blame, and what a machine with two busy processors adds.
const SILENT: Duration = Duration::from_millis(2000 + 1000 + 250 + 1000);
const SOON: Duration = Duration::from_secs(20);
/// Of each worker; a prompt of [`prompt`] takes 13 of them, so whoever comes next takes the same ones.
const PAGES: u32 = 16;

fn options(pages: u32) -> Options {
    Options::mock()
        .etcd()
        .ttl_ms(2000)
        .flag("kv-pages", pages)
        // What waits for pages is to wait at the worker here.
        .flag("page-booking-percent", 0)
        .flag("mock-decode-us-per-token", 10_000)
        .flag("mock-kv-bytes-per-token", 4_096)
        .flag("transfer-max-bytes-per-second", 400_000)
        .fault("on")
}

/// How often pages are given to others under a stopped process.
fn rounds() -> u32 {
    if verify_everything() { 5 } else { 1 }
}

/// 200 tokens that nobody else has: 800 kB, a transfer of two seconds.
fn prompt(whose: char) -> Value {
    completion("mock", String::from(whose).repeat(200), 8)
}

/// What each prompt is answered when nothing happens.
async fn right_answers(cluster: &Cluster, whose: &[char]) -> Vec<Vec<u64>> {
    let mut right = vec![];
    for letter in whose {
        right.push(cluster.client.complete(&prompt(*letter)).await.token_ids());
    }
    assert!(
        right.windows(2).all(|pair| pair[0] != pair[1]),
        "different KV, different answers: {right:?}"
    );
    right
}

/// No worker and no room has seen a byte that was not its own.
async fn no_foreign_byte(cluster: &Cluster) {
    for node in cluster.ps().await {
        let metrics = cluster.metrics(node["http"].as_str().unwrap()).await.unwrap();
        for (reason, _, count) in metrics.ended() {
            assert!(
                !["kv_corrupt", "engine_failed", "protocol_error", "internal_error"].contains(&reason.as_str()),
                "{}: {count} × {reason}",
                node["name"]
            );
        }
    }
}

async fn pages(cluster: &Cluster, node: &str, state: &str) -> f64 {
    cluster
        .metrics_of(node)
        .await
        .sum("innkeeper_pages", &[("state", state)])
}

#[tokio::test]
async fn a_stopped_receiver_goes_on_after_the_senders_pages_went_to_others() {
    let cluster = Cluster::start(options(PAGES).flag("max-attempts", 1).workers(1, 2)).await;
    let right = right_answers(&cluster, &['b', 'c']).await;
    for round in 0..rounds() {
        let before = cluster.failures().await;
        let asked = cluster.submit(&prompt('a'));
        let room = cluster.wait_phase("transferring", SOON).await;
        let receiver = cluster.stop(&cluster.name_of(&room.decode).await).await;
        // What was sent waits in the receiver's kernel; the room fails at the sender.
        let (reason, blame) = cluster.verdict(&before, SILENT).await;
        eprintln!("round {round}, a stopped receiver: {reason}, blame {blame}");
        assert_eq!(blame, "decode");
        assert_eq!(asked.await.unwrap().code(), reason);
        // The same pages, while the receiver is still stopped, and while it goes on.
        let first = within(SOON, "b", cluster.submit(&prompt('b'))).await.unwrap();
        assert_eq!(first.token_ids(), right[0]);
        let second = cluster.submit(&prompt('c'));
        cluster.wait_phase("transferring", SOON).await;
        receiver.cont();
        assert_eq!(within(SOON, "c", second).await.unwrap().token_ids(), right[1]);
        oracle(&cluster).await;
        no_foreign_byte(&cluster).await;
    }
}

#[tokio::test]
async fn a_stopped_sender_never_writes_into_pages_of_a_new_room() {
    let cluster = Cluster::start(options(PAGES).flag("max-attempts", 1).workers(2, 1)).await;
    let right = right_answers(&cluster, &['b', 'c']).await;
    for round in 0..rounds() {
        let before = cluster.failures().await;
        let asked = cluster.submit(&prompt('a'));
        let room = cluster.wait_phase("transferring", SOON).await;
        let sender = cluster.stop(&cluster.name_of(&room.prefill).await).await;
        let (reason, blame) = cluster.verdict(&before, SILENT).await;
        eprintln!("round {round}, a stopped sender: {reason}, blame {blame}");
        assert_eq!(blame, "prefill");
        assert_eq!(asked.await.unwrap().code(), reason);
        // The receiver's only pages, while the late writer is still stopped, and while it goes on.
        let first = within(SOON, "b", cluster.submit(&prompt('b'))).await.unwrap();
        assert_eq!(first.token_ids(), right[0]);
        let second = cluster.submit(&prompt('c'));
        cluster.wait_phase("transferring", SOON).await;
        sender.cont();
        assert_eq!(within(SOON, "c", second).await.unwrap().token_ids(), right[1]);
        oracle(&cluster).await;
        no_foreign_byte(&cluster).await;
    }
}

/// The session itself goes on after its room's end, as if nobody could end it: its peer is stopped in the middle of the
/// transfer and is late. Until it is over its pages go to nobody.
async fn a_deaf_session_keeps_its_pages(cluster: &Cluster, node: &str, peer: fn(&Room) -> &str) {
    let right = right_answers(cluster, &['b']).await;
    cluster.order(node, "deaf-sessions").await;
    let asked = cluster.submit(&prompt('a'));
    let room = cluster.wait_phase("transferring", SOON).await;
    let peer = cluster.name_of(peer(&room)).await;
    let late = cluster.stop(&peer).await;
    let (reason, blame) = cluster.verdict(&[], SILENT).await;
    eprintln!("{node} is deaf, {peer} was stopped: {reason}, blame {blame}");
    assert_eq!(within(SOON, "a", asked).await.unwrap().code(), reason);
    let next = cluster.submit(&prompt('b'));
    let room = cluster.wait_phase("queued", SOON).await;
    // The router has its verdict before the node has heard of it.
    until(TTL / 4, "its pages are in quarantine", || async {
        let kept = pages(cluster, node, "quarantined").await;
        if kept == 13.0 { Ok(()) } else { Err(kept) }
    })
    .await;
    // Well before the fence, which would end the process.
    for _ in 0..5 {
        tokio::time::sleep(TTL / 20).await;
        let states = ["held", "quarantined"];
        let metrics = cluster.metrics_of(node).await;
        let counts = states.map(|state| metrics.sum("innkeeper_pages", &[("state", state)]));
        assert_eq!(counts, [0.0, 13.0], "its pages wait for the session and go to nobody");
        let rooms = cluster.router_rooms().await.unwrap();
        assert!(
            rooms.iter().any(|row| row.room == room.room && row.phase == "queued"),
            "{rooms:?}"
        );
    }
    late.cont();
    assert_eq!(within(SOON, "b", next).await.unwrap().token_ids(), right[0]);
    cluster.order(node, "hearing-sessions").await;
    oracle(cluster).await;
    no_foreign_byte(cluster).await;
}

#[tokio::test]
async fn pages_that_a_late_writer_may_touch_go_to_nobody() {
    let cluster = Cluster::start(options(PAGES).flag("max-attempts", 1).workers(2, 1)).await;
    a_deaf_session_keeps_its_pages(&cluster, "decode-0", |room| &room.prefill).await;
}

#[tokio::test]
async fn pages_that_a_late_reader_may_touch_go_to_nobody() {
    let cluster = Cluster::start(options(PAGES).flag("max-attempts", 1).workers(1, 2)).await;
    a_deaf_session_keeps_its_pages(&cluster, "prefill-0", |room| &room.decode).await;
}

#[tokio::test]
async fn a_short_stop_within_a_transfer_costs_nothing() {
    let cluster = Cluster::start(options(PAGES)).await;
    let right = right_answers(&cluster, &['b', 'c']).await;
    for (letter, node) in [(0, "decode-0"), (1, "prefill-0")] {
        let asked = cluster.submit(&prompt(['b', 'c'][letter]));
        cluster.wait_phase("transferring", SOON).await;
        let stopped = cluster.stop(node).await;
        // Less than any layer waits; what the kernels hold meanwhile is taken up again.
        tokio::time::sleep(TTL / 8).await;
        stopped.cont();
        assert_eq!(within(SOON, node, asked).await.unwrap().token_ids(), right[letter]);
    }
    assert_eq!(cluster.failures().await, []);
    oracle(&cluster).await;
    no_foreign_byte(&cluster).await;
}

#[tokio::test]
async fn a_session_that_lets_go_late_keeps_its_pages_and_no_other() {
    let cluster = Cluster::start(options(PAGES).flag("max-attempts", 1).workers(1, 2)).await;
    let right = right_answers(&cluster, &['b']).await;
    for node in ["prefill-0", "decode-0", "decode-1"] {
        cluster.order(node, "hold-sessions").await;
    }
    let lives = cluster.ps().await;
    let answer = within(SOON, "b", cluster.submit(&prompt('b'))).await.unwrap();
    assert_eq!(answer.token_ids(), right[0], "the client never waits for it");
    until(TTL, "its pages are in quarantine", || async {
        let kept = pages(&cluster, "prefill-0", "quarantined").await;
        if kept == 13.0 { Ok(()) } else { Err(kept) }
    })
    .await;
    for node in ["prefill-0", "decode-0", "decode-1"] {
        cluster.order(node, "release-sessions").await;
    }
    oracle(&cluster).await;
    let same = cluster
        .ps()
        .await
        .iter()
        .all(|node| lives.iter().any(|old| old["incarnation"] == node["incarnation"]));
    assert!(same, "it let go in time: nobody has to exit");
}

/// A worker whose pages never come back takes no rooms, ends its process, and is another one afterwards.
async fn is_fenced(options: Options, node: &'static str, fault: &str, limit: Duration) {
    let cluster = Cluster::start(options.workers(2, 2)).await;
    let right = right_answers(&cluster, &['b', 'c']).await;
    let before = cluster.node(node).await;
    cluster.order(node, fault).await;
    // Until one of its rooms has ended.
    until(SOON, "its pages are in quarantine", || async {
        assert_eq!(cluster.client.complete(&prompt('b')).await.token_ids(), right[0]);
        let kept = pages(&cluster, node, "quarantined").await;
        if kept > 0.0 { Ok(()) } else { Err(kept) }
    })
    .await;
    let began = Instant::now();
    let after = until(limit, "another process is in its place", || async {
        let nodes = cluster.try_ps().await?;
        let new = nodes
            .iter()
            .find(|row| row["name"] == node && row["incarnation"] != before["incarnation"]);
        new.cloned().ok_or(format!("{nodes:?}"))
    })
    .await;
    eprintln!(
        "{node}, {fault}: fenced and back after {} ms",
        began.elapsed().as_millis()
    );
    assert_ne!(after["pid"], before["pid"]);
    let log = cluster.log("up");
    assert!(log.contains(&format!("{node} died (exit status: 70)")), "{log}");
    assert_eq!(cluster.client.complete(&prompt('c')).await.token_ids(), right[1]);
    oracle(&cluster).await;
    // No request noticed; of rooms only those that waited for the engine.
    let failures = cluster.failures().await;
    assert!(
        failures
            .iter()
            .all(|(reason, blame, _)| (reason.as_str(), blame.as_str()) == ("engine_stalled", "decode")),
        "{failures:?}"
    );
    assert_eq!(failures.is_empty(), fault == "hold-sessions", "{failures:?}");
    no_foreign_byte(&cluster).await;
}

#[tokio::test]
async fn the_last_fence_of_sessions_is_the_process_of_a_decode_worker() {
    // A quarter of the pool and more: 2 TTL, and what a restart takes.
    is_fenced(options(PAGES), "decode-0", "hold-sessions", 2 * TTL + SOON).await;
}

#[tokio::test]
async fn the_last_fence_of_sessions_is_the_process_of_a_prefill_worker() {
    // Less than a quarter of the pool: the fence's time.
    let options = options(128).flag("fence-after-ms", 5_000);
    is_fenced(options, "prefill-0", "hold-sessions", Duration::from_secs(5) + SOON).await;
}

#[tokio::test]
async fn the_last_fence_of_an_engine_is_the_process() {
    let options = options(PAGES);
    is_fenced(options, "decode-0", "stall-engine", 2 * TTL + SOON).await;
}
