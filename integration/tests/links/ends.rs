//! What is at the ends: connections that live through a short fault, and processes that are replaced.

use innkeeper_integration::{oracle, until, within};
use serde_json::Value;

use crate::scene::{Act, Between, SIGNAL, SOON, STARVED, Scene, TTL, body, options, transfer};

#[tokio::test]
async fn a_short_black_hole_costs_nothing() {
    let Some(scene) = Scene::start(options()).await else {
        return;
    };
    let cluster = &scene.cluster;
    for (phase, between) in [
        ("transferring", Between::Pair),
        ("waiting_for_input", Between::RouterAndPrefill),
        ("decoding", Between::RouterAndDecode),
    ] {
        let undisturbed = scene.undisturbed(&body(phase)).await;
        let asked = cluster.submit(&body(phase));
        let room = cluster.wait_phase(phase, SOON).await;
        let link = scene.strike(between, Act::BlackHole, &room);
        // Less than any layer waits: the kernels send again what was lost.
        tokio::time::sleep(TTL / 6).await;
        link.heal();
        let answer = within(SOON, phase, asked).await.unwrap();
        assert_eq!(answer.token_ids(), undisturbed, "{between:?} while {phase}");
        assert_eq!(cluster.failures().await, [], "{between:?} while {phase}");
    }
    oracle(cluster).await;
}

#[tokio::test]
async fn a_worker_is_replaced_behind_the_same_address() {
    let Some(mut scene) = Scene::start(options()).await else {
        return;
    };
    let undisturbed = scene.undisturbed(&transfer()).await;
    let asked = scene.cluster.submit(&transfer());
    let room = scene.cluster.wait_phase("transferring", SOON).await;
    let victim = scene.names[&room.decode].clone();
    scene.cluster.replace(&victim);
    let verdict = scene.cluster.verdict(&[], SIGNAL + STARVED).await;
    assert_eq!(verdict, ("decode_lost".to_owned(), "decode".to_owned()));
    assert_eq!(
        within(SOON, "the answer", asked).await.unwrap().token_ids(),
        undisturbed
    );
    oracle(&scene.cluster).await;

    // Nobody tells of the new life: it is found at the old one's address.
    let cluster = &mut scene.cluster;
    cluster.etcd().stop();
    let failed = cluster.failures().await;
    let (old, old_prefill) = (cluster.node("decode-0").await, cluster.node("prefill-0").await);
    cluster.replace("decode-0");
    cluster.replace("prefill-0");
    for _ in 0..2 {
        assert_eq!(cluster.client.complete(&transfer()).await.token_ids(), undisturbed);
    }
    assert_eq!(cluster.failures().await, failed, "no room went to a life that is over");
    cluster.etcd().cont();
    let cluster = &scene.cluster;
    until(SOON, "the new lives are there, and only they", || async {
        let nodes = cluster.try_ps().await?;
        let gone = |row: &Value| nodes.iter().all(|node| node["incarnation"] != row["incarnation"]);
        let whole = nodes.len() == 5 && nodes.iter().all(|node| node["state"] == "serving");
        (whole && gone(&old) && gone(&old_prefill))
            .then_some(())
            .ok_or(format!("{nodes:?}"))
    })
    .await;
    assert_eq!(cluster.client.complete(&transfer()).await.token_ids(), undisturbed);
    oracle(cluster).await;
}
