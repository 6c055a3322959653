//! The link between the pair.

use std::time::{Duration, Instant};

use innkeeper_integration::{Options, enough_of, oracle, within};

use crate::scene::{Act, Between, INPUT, SILENT, SOON, STARVED, Scene, TTL, decode, options, transfer};

#[tokio::test]
async fn the_data_link_swallows() {
    let Some(scene) = Scene::start(options()).await else {
        return;
    };
    // Both ends see it: whose end comes first is a race, what they blame is not.
    let link = &[
        ("transfer_lost", "link"),
        ("decode_lost", "link"),
        ("prefill_lost", "link"),
        // What is not handed over is prefill's debt.
        ("prefill_stalled", "link"),
    ];
    let all = [
        ("transferring", Act::BlackHole),
        ("waiting_for_input", Act::FromWorker),
        ("transferring", Act::TowardWorker),
    ];
    for (phase, act) in enough_of(&all, 2) {
        scene.fails(phase, Between::Pair, *act, link).await;
    }
    let logs = ["prefill-0", "prefill-1"].map(|name| scene.cluster.log(name)).concat();
    assert!(
        logs.contains("unacked=true"),
        "bytes that were not acknowledged are the evidence:\n{logs}"
    );
}

#[tokio::test]
async fn the_data_link_is_cut() {
    let Some(scene) = Scene::start(options()).await else {
        return;
    };
    let link = &[("transfer_lost", "link"), ("decode_lost", "link")];
    for phase in enough_of(&INPUT, 1) {
        scene.fails(phase, Between::Pair, Act::Cut, link).await;
    }
    // After the commit the pair has nothing to say to each other.
    scene.goes_on("decoding", Between::Pair, Act::Cut).await;
}

/// All pairs of workers.
fn pairs() -> Vec<(String, String)> {
    let pair = |prefill, decode| (format!("prefill-{prefill}"), format!("decode-{decode}"));
    (0..2)
        .flat_map(|prefill| (0..2).map(move |decode| pair(prefill, decode)))
        .collect()
}

#[tokio::test]
async fn a_data_link_that_was_never_there_is_found_by_the_handshake() {
    let Some(scene) = Scene::start(options()).await else {
        return;
    };
    let cluster = &scene.cluster;
    let undisturbed = scene.undisturbed(&decode()).await;
    for act in [Act::Cut, Act::BlackHole] {
        for (prefill, decode) in pairs() {
            let link = cluster.link(&prefill, &decode);
            if matches!(act, Act::Cut) {
                link.cut()
            } else {
                link.black_hole()
            }
        }
        let began = Instant::now();
        // Each attempt tries another pair.
        let answer = within(2 * SILENT + STARVED, "an error", cluster.submit(&decode()))
            .await
            .unwrap();
        eprintln!(
            "Pair {act:?} before the hello: {}, {} ms",
            answer.code(),
            began.elapsed().as_millis()
        );
        assert!(
            ["decode_lost", "handshake_timeout"].contains(&answer.code()),
            "{answer:?}"
        );
        for (prefill, decode) in pairs() {
            cluster.link(&prefill, &decode).heal();
        }
        assert_eq!(cluster.client.complete(&decode()).await.token_ids(), undisturbed);
        oracle(cluster).await;
    }
    let failures = cluster.failures().await;
    assert_eq!(
        failures.iter().map(|(_, _, count)| count).sum::<u64>(),
        4,
        "{failures:?}"
    );
    assert!(failures.iter().all(|(_, blame, _)| blame == "link"), "{failures:?}");
}

#[tokio::test]
async fn a_slow_data_link_fails_below_the_floor_only() {
    // 123 kB: 1.2 s at the floor, and 2 TTL beyond that.
    let options = Options::mock()
        .workers(2, 2)
        .etcd()
        .ttl_ms(2000)
        .flag("mock-kv-bytes-per-token", 1_024)
        .flag("transfer-floor-bytes-per-second", 100_000);
    let Some(scene) = Scene::start(options).await else {
        return;
    };
    let body = transfer();
    let cluster = &scene.cluster;
    let undisturbed = cluster.client.complete(&body).await.token_ids();
    let pairs = pairs();
    let drip = |rate| {
        pairs
            .iter()
            .for_each(|(prefill, decode)| cluster.link(prefill, decode).drip(rate))
    };
    let heal = || {
        pairs
            .iter()
            .for_each(|(prefill, decode)| cluster.link(prefill, decode).heal())
    };

    drip(60_000);
    assert_eq!(cluster.client.complete(&body).await.token_ids(), undisturbed);
    assert_eq!(cluster.failures().await, [], "slow, but above the floor");

    // Every slab still comes within a progress TTL: no progress timer fires.
    drip(12_000);
    let began = Instant::now();
    let asked = cluster.submit(&body);
    let (reason, blame) = cluster.verdict(&[], SOON).await;
    let took = began.elapsed();
    eprintln!("below the floor: {reason}, blame {blame}, {} ms", took.as_millis());
    heal();
    assert_eq!((reason.as_str(), blame.as_str()), ("transfer_stalled", "link"));
    let budget = Duration::from_millis(1_200) + 2 * TTL;
    assert!(
        took >= budget,
        "bytes moved all the time: only the absolute deadline may end it"
    );
    assert!(took <= budget + TTL + STARVED, "{} ms", took.as_millis());
    assert_eq!(
        within(SOON, "the answer", asked).await.unwrap().token_ids(),
        undisturbed
    );
    oracle(cluster).await;
}
