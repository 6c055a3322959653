//! etcd that is away, empty, compacted, flapping, or out of one node's sight: no request is hurt, new ones run unleased, the
//! same nodes register again by themselves, and no process exits.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use innkeeper_integration::{
    Answer, Cluster, ETCD, Options, completion, enough_of, oracle, until, verify_everything, within,
};
use serde_json::Value;

/// What a machine with two busy processors adds to a bound.
const STARVED: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(20);
/// Of rooms and members at the TTL of these tests.
const LEASE: Duration = Duration::from_secs(3);

fn options() -> Options {
    Options::mock()
        .workers(2, 2)
        .etcd()
        .ttl_ms(2000)
        // Also a short room asks for its lease.
        .flag("lease-after-ms", 0)
        .flag("mock-decode-us-per-token", 20_000)
        .flag("mock-kv-bytes-per-token", 4_096)
        .flag("transfer-max-bytes-per-second", 400_000)
}

/// How long etcd is away: three leases, or a minute where everything is verified.
fn away() -> Duration {
    Duration::from_secs(if verify_everything() { 60 } else { 10 })
}

/// Prompt, transfer and answer take about half a second each.
fn short() -> Value {
    completion("mock", "s".repeat(50), 25)
}

/// Tokens of an answer that takes longer than this.
fn tokens_for(time: Duration) -> u32 {
    u32::try_from(time.as_millis() / 20).unwrap() + 50
}

/// An answer of so many tokens, which begin as those of [`short`] do.
fn long(tokens: u32) -> Value {
    completion("mock", "s".repeat(50), tokens)
}

/// An answer that was in flight all the time is whole and right: each token follows from all KV before it.
fn is_right(answer: &Answer, tokens: u32, right: &[u64]) {
    assert_eq!(answer.status, 200, "{answer:?}");
    let ids = answer.token_ids();
    assert_eq!((ids.len(), &ids[..right.len()]), (tokens as usize, right));
}

/// The lives of all nodes. They must stay the same: nobody exits because of etcd.
async fn lives(cluster: &Cluster) -> BTreeSet<String> {
    let nodes = cluster.ps().await;
    nodes
        .iter()
        .map(|node| node["incarnation"].as_str().unwrap().to_owned())
        .collect()
}

/// Nothing failed, nobody was replaced, and nothing is left.
async fn unhurt(cluster: &Cluster, lives_before: &BTreeSet<String>) {
    oracle(cluster).await;
    assert_eq!(cluster.failures().await, [], "no room failed");
    assert_eq!(&lives(cluster).await, lives_before, "no process exited");
    // Registered by themselves, as the same: the oracle has counted the keys.
    let keys = cluster.keys().await.unwrap();
    for life in lives_before {
        assert!(
            keys.iter().any(|key| key.ends_with(life)),
            "{life} did not register again: {keys:?}"
        );
    }
}

/// Short requests, one after the other, until the time is over.
async fn keep_asking(cluster: &Cluster, time: Duration, right: &[u64]) -> u32 {
    let end = Instant::now() + time;
    let mut asked = 0;
    while Instant::now() < end {
        assert_eq!(cluster.client.complete(&short()).await.token_ids(), right);
        asked += 1;
    }
    asked
}

#[tokio::test]
async fn etcd_is_stopped_for_long() {
    let mut cluster = Cluster::start(options()).await;
    let before = lives(&cluster).await;
    let right = cluster.client.complete(&short()).await.token_ids();
    let tokens = tokens_for(away());
    let asked = cluster.submit(&long(tokens));
    let leased = until(SOON, "a leased room decodes", || async {
        let rooms = cluster.router_rooms().await?;
        let found = rooms.iter().find(|room| room.phase == "decoding" && room.leased);
        found.cloned().ok_or(format!("{rooms:?}"))
    })
    .await;
    cluster.etcd().stop();
    let unleased = cluster.submit(&long(tokens));
    let count = keep_asking(&cluster, away(), &right).await;
    let rooms = cluster.router_rooms().await.unwrap();
    let begun = rooms.iter().find(|room| room.room != leased.room);
    assert!(begun.is_some_and(|room| !room.leased), "begun without etcd: {rooms:?}");
    assert!(cluster.router_metrics().await.sum("innkeeper_unleased_rooms", &[]) >= 1.0);
    cluster.etcd().cont();
    // Its lease ended while etcd was away, and it moved all the time: the room goes on.
    is_right(&within(SOON, "in flight", asked).await.unwrap(), tokens, &right);
    is_right(
        &within(SOON, "begun meanwhile", unleased).await.unwrap(),
        tokens,
        &right,
    );
    eprintln!("etcd stopped for {} s: {count} requests meanwhile", away().as_secs());
    unhurt(&cluster, &before).await;
}

#[tokio::test]
async fn etcd_is_killed_and_comes_back_empty() {
    let mut cluster = Cluster::start(options()).await;
    let before = lives(&cluster).await;
    let right = cluster.client.complete(&short()).await.token_ids();
    let tokens = tokens_for(LEASE + Duration::from_secs(4));
    let asked = cluster.submit(&long(tokens));
    cluster.wait_phase("decoding", SOON).await;
    cluster.etcd().restart_empty();
    keep_asking(&cluster, Duration::from_secs(1), &right).await;
    cluster.etcd().kill();
    keep_asking(&cluster, LEASE, &right).await;
    cluster.etcd().up();
    keep_asking(&cluster, Duration::from_secs(1), &right).await;
    is_right(&within(SOON, "in flight", asked).await.unwrap(), tokens, &right);
    unhurt(&cluster, &before).await;
}

#[tokio::test]
async fn etcd_is_compacted_under_the_watches() {
    let Some(cluster) = Cluster::start_apart(options()).await else {
        return;
    };
    let before = lives(&cluster).await;
    let right = cluster.client.complete(&short()).await.token_ids();
    let asked = cluster.submit(&short());
    cluster.compact().await;
    assert_eq!(
        asked.await.unwrap().token_ids(),
        right,
        "in flight when etcd was compacted"
    );
    // What these have not seen is gone when they look again.
    for node in ["router", "decode-0", "prefill-0"] {
        cluster.link(node, ETCD).black_hole();
    }
    // Long enough that each of them has lost its watch; and history goes on.
    keep_asking(&cluster, LEASE + Duration::from_secs(1), &right).await;
    for number in 0..20 {
        cluster
            .etcdctl(&["put", "/elsewhere", &number.to_string()])
            .await
            .unwrap();
    }
    let revision = cluster.compact().await;
    for node in ["router", "decode-0", "prefill-0"] {
        cluster.link(node, ETCD).heal();
    }
    for _ in 0..2 {
        assert_eq!(cluster.client.complete(&short()).await.token_ids(), right);
    }
    eprintln!("compacted up to revision {revision}");
    unhurt(&cluster, &before).await;
    leased_again(&cluster).await;
}

/// Rooms have leases again: what etcd's return is for.
async fn leased_again(cluster: &Cluster) {
    until(SOON, "a new room is leased", || async {
        let asked = cluster.submit(&short());
        let room = cluster.wait_phase("decoding", SOON).await;
        assert_eq!(asked.await.unwrap().status, 200);
        room.leased.then_some(()).ok_or("unleased")
    })
    .await;
}

#[tokio::test]
async fn the_way_to_etcd_flaps() {
    let Some(cluster) = Cluster::start_apart(options()).await else {
        return;
    };
    let before = lives(&cluster).await;
    let right = cluster.client.complete(&short()).await.token_ids();
    let tokens = tokens_for(2 * LEASE);
    let asked = cluster.submit(&long(tokens));
    let nodes = ["router", "decode-0", "decode-1", "prefill-0"];
    for round in 0..3 {
        for node in nodes {
            let link = cluster.link(node, ETCD);
            if round % 2 == 0 { link.cut() } else { link.black_hole() }
        }
        // About when a renewal is due.
        keep_asking(&cluster, LEASE / 3, &right).await;
        for node in nodes {
            cluster.link(node, ETCD).heal();
        }
        keep_asking(&cluster, LEASE / 3, &right).await;
    }
    is_right(&within(SOON, "in flight", asked).await.unwrap(), tokens, &right);
    unhurt(&cluster, &before).await;
    leased_again(&cluster).await;
}

#[tokio::test]
async fn etcd_is_out_of_one_nodes_sight() {
    let Some(cluster) = Cluster::start_apart(options()).await else {
        return;
    };
    let before = lives(&cluster).await;
    let right = cluster.client.complete(&short()).await.token_ids();
    let all = ["router", "decode-0", "prefill-0"];
    for node in enough_of(&all, 2) {
        let link = cluster.link(node, ETCD);
        link.black_hole();
        let asked = cluster.submit(&completion("mock", "in flight", 200));
        // Its member key ends meanwhile, and so do leases that it alone could renew.
        keep_asking(&cluster, LEASE + Duration::from_secs(2), &right).await;
        let keys = cluster.keys().await.unwrap();
        let own = cluster.node(node).await["incarnation"].as_str().unwrap().to_owned();
        assert!(
            !keys.iter().any(|key| key.ends_with(&own)),
            "the test waited long enough: {keys:?}"
        );
        assert_eq!(within(SOON, node, asked).await.unwrap().status, 200);
        link.heal();
        unhurt(&cluster, &before).await;
    }
}

#[tokio::test]
async fn etcd_comes_after_the_services() {
    let mut cluster = Cluster::start(options().etcd_later()).await;
    for _ in 0..2 {
        let refused = cluster.client.post("/v1/completions", &short()).await;
        assert_eq!(
            (refused.status, refused.code()),
            (503, "no_prefill_worker"),
            "{refused:?}"
        );
        assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
    }
    let pids: Vec<_> = cluster.try_ps().await.unwrap_or_default();
    // Its backoff has reached its longest by then.
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.etcd().up();
    let there = Instant::now();
    let answer = until(Duration::from_secs(2) + STARVED, "it serves", || async {
        let answer = cluster.client.post("/v1/completions", &short()).await;
        if answer.status == 200 { Ok(answer) } else { Err(answer) }
    })
    .await;
    eprintln!("the first answer came {} ms after etcd", there.elapsed().as_millis());
    assert_eq!(answer.token_ids().len(), 25);
    oracle(&cluster).await;
    let now = cluster.ps().await;
    for node in pids {
        let same = now.iter().any(|other| other["incarnation"] == node["incarnation"]);
        assert!(same, "{node} exited: {now:?}");
    }
}

#[tokio::test]
async fn a_room_that_moves_is_evicted_by_hand() {
    let cluster = Cluster::start(options()).await;
    let body = completion("mock", "p".repeat(200), 5);
    let right = cluster.client.complete(&body).await.token_ids();
    let asked = cluster.submit(&body);
    let room = until(SOON, "a leased room transfers", || async {
        let rooms = cluster.router_rooms().await?;
        let found = rooms.iter().find(|room| room.phase == "transferring" && room.leased);
        found.cloned().ok_or(format!("{rooms:?}"))
    })
    .await;
    cluster.revoke(&room).await;
    let revoked = Instant::now();
    let verdict = cluster.verdict(&[], Duration::from_millis(500) + STARVED).await;
    eprintln!("revoked: {} ms", revoked.elapsed().as_millis());
    assert_eq!(verdict, ("lease_revoked".to_owned(), "nobody".to_owned()));
    assert_eq!(within(SOON, "the answer", asked).await.unwrap().token_ids(), right);
    oracle(&cluster).await;
}
