//! A link that goes bad while nobody uses it.

use innkeeper_integration::{Cluster, completion, oracle, until};
use serde_json::Value;

use crate::scene::{SOON, Scene, TTL, options};

async fn canaries(cluster: &Cluster, outcome: &str) -> f64 {
    let metrics = cluster.metrics_of("router").await;
    metrics.sum("innkeeper_canaries_total", &[("outcome", outcome)])
}

async fn avoided_peers(cluster: &Cluster, name: &str) -> Value {
    cluster.node(name).await["avoided_peers"].clone()
}

#[tokio::test]
async fn an_idle_link_is_kept_honest_by_canaries() {
    let options = options().workers(1, 2).canaries_ms(1000).flag("breaker-failures", 2);
    let Some(scene) = Scene::start(options).await else {
        return;
    };
    let cluster = &scene.cluster;
    until(SOON, "canaries come through", || async {
        let done = canaries(cluster, "done").await;
        if done >= 4.0 { Ok(()) } else { Err(done) }
    })
    .await;
    for name in ["decode-0", "decode-1"] {
        let ended = cluster.metrics_of(name).await;
        let done = ended.sum("innkeeper_rooms_ended_total", &[("reason", "done")]);
        assert!(done >= 1.0, "{name} was looked at");
    }
    // No node is worse for it: only who sends KV there can know.
    cluster.link("prefill-0", "decode-0").black_hole();
    let prefill = cluster.node("prefill-0").await["incarnation"].clone();
    until(8 * TTL + SOON, "the link is avoided", || async {
        let peers = avoided_peers(cluster, "decode-0").await;
        if peers == Value::Array(vec![prefill.clone()]) {
            Ok(())
        } else {
            Err(peers)
        }
    })
    .await;
    for name in ["prefill-0", "decode-0", "decode-1"] {
        assert_eq!(cluster.node(name).await["breaker"], "closed", "{name} is not to blame");
    }
    assert_eq!(avoided_peers(cluster, "decode-1").await, Value::Array(vec![]));
    let body = completion("mock", "elsewhere", 8);
    for _ in 0..4 {
        cluster.client.complete(&body).await;
    }
    assert_eq!(cluster.failures().await, [], "no client's room was opened over it");
    cluster.link("prefill-0", "decode-0").heal();
    until(32 * TTL + SOON, "a canary came through", || async {
        let peers = avoided_peers(cluster, "decode-0").await;
        if peers == Value::Array(vec![]) {
            Ok(())
        } else {
            Err(peers)
        }
    })
    .await;
    let requests = cluster.router_metrics().await.sum("innkeeper_requests_total", &[]);
    assert_eq!(requests, 4.0, "canaries are no clients");
    oracle(cluster).await;
}
