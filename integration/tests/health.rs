//! Health is progress: a worker whose engine is wedged says so although its process answers, is given no new rooms, and
//! comes back by itself when it moves again; its old rooms stay dead.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::time::Duration;

use innkeeper_integration::{Cluster, Options, completion, oracle, until};
use serde_json::Value;

const TTL: Duration = Duration::from_millis(2000);
const SOON: Duration = Duration::from_secs(20);

async fn state(cluster: &Cluster, name: &str) -> String {
    let node = cluster.node(name).await;
    node["state"].as_str().unwrap_or_default().to_owned()
}

async fn ready_status(cluster: &Cluster, node: &Value) -> u16 {
    let http = node["http"].as_str().unwrap_or_default();
    cluster.ask(http, "/ready").await.map_or(0, |answer| answer.status)
}

async fn a_wedged_engine(name: &'static str, body: Value) {
    let options = Options::mock()
        .workers(2, 2)
        .etcd()
        .ttl_ms(2000)
        .flag("mock-prefill-us-per-token", 2_000)
        .flag("prefix-cache-percent", 0)
        .flag("mock-decode-us-per-token", 20_000)
        .fault("on");
    let cluster = Cluster::start(options).await;
    let expected = cluster.client.complete(&body).await.token_ids();
    let node = cluster.node(name).await;
    cluster.order(name, "stall-engine").await;
    // Rooms on both pairs: one of them waits for the wedged engine.
    let asked: Vec<_> = (0..4).map(|_| cluster.submit(&body)).collect();
    for asked in asked {
        let answer = asked.await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.token_ids(), expected, "the next attempt's answer");
    }
    until(2 * TTL + SOON, "the node says that it does not serve", || async {
        let (state, ready) = (state(&cluster, name).await, ready_status(&cluster, &node).await);
        if state != "serving" && ready == 503 {
            Ok(())
        } else {
            Err((state, ready))
        }
    })
    .await;
    let blamed = cluster.failures().await;
    let role = if name.starts_with("prefill") {
        "prefill"
    } else {
        "decode"
    };
    assert!(
        !blamed.is_empty() && blamed.iter().all(|(_, blame, _)| blame == role),
        "{blamed:?}"
    );
    // It is given nothing: whatever is asked now is answered at the first try.
    for _ in 0..8 {
        cluster.client.complete(&body).await;
    }
    assert_eq!(
        cluster.failures().await,
        blamed,
        "no room was opened at the wedged engine"
    );
    cluster.order(name, "resume-engine").await;
    cluster.wait_whole().await;
    oracle(&cluster).await;
    for _ in 0..8 {
        assert_eq!(cluster.client.complete(&body).await.token_ids(), expected);
    }
    oracle(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_with_a_wedged_engine_says_so_and_comes_back() {
    a_wedged_engine("prefill-0", completion("mock", "p".repeat(100), 5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_with_a_wedged_engine_says_so_and_comes_back() {
    a_wedged_engine("decode-0", completion("mock", "decode", 30)).await;
}

/// A data plane that accepts connections and answers nothing, with nobody using it: the worker finds out by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_with_a_mute_data_plane_says_so_and_comes_back() {
    let options = Options::mock().workers(1, 2).etcd().ttl_ms(2000).fault("on");
    let cluster = Cluster::start(options).await;
    let node = cluster.node("decode-0").await;
    cluster.order("decode-0", "mute-data").await;
    until(2 * TTL + SOON, "the node says that it does not serve", || async {
        let (state, ready) = (state(&cluster, "decode-0").await, ready_status(&cluster, &node).await);
        if state == "not_serving" && ready == 503 {
            Ok(())
        } else {
            Err((state, ready))
        }
    })
    .await;
    let body = completion("mock", "elsewhere", 8);
    for _ in 0..8 {
        cluster.client.complete(&body).await;
    }
    assert_eq!(cluster.failures().await, [], "no room was opened there");
    cluster.order("decode-0", "speak-data").await;
    cluster.wait_whole().await;
    oracle(&cluster).await;
    for _ in 0..8 {
        cluster.client.complete(&body).await;
    }
    assert_eq!(cluster.failures().await, []);
    oracle(&cluster).await;
}
