//! The links between the router and the workers.

use std::time::Instant;

use innkeeper_integration::{completion, enough_of, oracle, until, within};

use crate::scene::{Act, Between, INPUT, SIGNAL, SOON, STARVED, Scene, options, transfer};

const DECODE_LOST: &[(&str, &str)] = &[("decode_lost", "decode")];
const PREFILL_LOST: &[(&str, &str)] = &[("prefill_lost", "prefill")];
const ALL: [&str; 3] = ["transferring", "decoding", "waiting_for_input"];

#[tokio::test]
async fn the_control_link_to_decode_is_cut() {
    let Some(scene) = Scene::start(options()).await else {
        return;
    };
    for phase in enough_of(&ALL, 2) {
        scene
            .fails(phase, Between::RouterAndDecode, Act::Cut, DECODE_LOST)
            .await;
    }
}

#[tokio::test]
async fn the_control_link_to_decode_swallows_everything() {
    let Some(scene) = Scene::start(options()).await else {
        return;
    };
    for phase in enough_of(&ALL, 2) {
        scene
            .fails(phase, Between::RouterAndDecode, Act::BlackHole, DECODE_LOST)
            .await;
    }
}

#[tokio::test]
async fn the_control_link_to_decode_swallows_one_direction() {
    let Some(scene) = Scene::start(options()).await else {
        return;
    };
    let all = [("transferring", Act::TowardWorker), ("decoding", Act::FromWorker)];
    for (phase, act) in enough_of(&all, 1) {
        scene.fails(phase, Between::RouterAndDecode, *act, DECODE_LOST).await;
    }
}

#[tokio::test]
async fn the_control_link_to_prefill_is_cut() {
    let Some(scene) = Scene::start(options()).await else {
        return;
    };
    for phase in enough_of(&INPUT, 1) {
        scene
            .fails(phase, Between::RouterAndPrefill, Act::Cut, PREFILL_LOST)
            .await;
    }
    // After the commit no failure of prefill counts.
    scene.goes_on("decoding", Between::RouterAndPrefill, Act::Cut).await;
}

#[tokio::test]
async fn the_control_link_to_prefill_swallows() {
    let Some(scene) = Scene::start(options()).await else {
        return;
    };
    let all = [
        ("waiting_for_input", Act::BlackHole),
        ("transferring", Act::TowardWorker),
        ("waiting_for_input", Act::FromWorker),
    ];
    for (phase, act) in enough_of(&all, 2) {
        scene.fails(phase, Between::RouterAndPrefill, *act, PREFILL_LOST).await;
    }
}

#[tokio::test]
async fn a_slow_control_link_ends_nothing() {
    let Some(scene) = Scene::start(options()).await else {
        return;
    };
    // A few reports and pings a second need less.
    let slow = Act::Drip(20_000);
    let all = [
        ("transferring", Between::RouterAndDecode),
        ("waiting_for_input", Between::RouterAndPrefill),
    ];
    for (phase, between) in enough_of(&all, 1) {
        scene.goes_on(phase, *between, slow).await;
    }
}

#[tokio::test]
async fn the_control_link_to_decode_is_cut_while_a_room_queues() {
    // 512 tokens: one long answer holds nearly all pages of a decode worker, and what waits for them is to wait there.
    let options = options().flag("kv-pages", 32).flag("page-booking-percent", 0);
    let Some(scene) = Scene::start(options).await else {
        return;
    };
    let cluster = &scene.cluster;
    let undisturbed = scene.undisturbed(&transfer()).await;
    let holders = ["one", "two"].map(|rid| {
        let client = cluster.client.clone();
        let body = completion("mock", "h", 480);
        tokio::spawn(async move { client.post_as(rid, "/v1/completions", &body).await })
    });
    until(SOON, "both decode workers are full", || async {
        let rooms = cluster.router_rooms().await?;
        let decoding: Vec<_> = rooms.iter().filter(|room| room.phase == "decoding").collect();
        let apart = decoding.len() == 2 && decoding[0].decode != decoding[1].decode;
        apart.then_some(()).ok_or(format!("{rooms:?}"))
    })
    .await;
    let asked = cluster.submit(&transfer());
    let room = cluster.wait_phase("queued", SOON).await;
    let link = scene.strike(Between::RouterAndDecode, Act::Cut, &room);
    let struck = Instant::now();
    // The room that queued, and the one that held the pages.
    let lost = [("decode_lost".to_owned(), "decode".to_owned(), 2)];
    until(SIGNAL + STARVED, "both rooms fail", || async {
        let failures = cluster.failures().await;
        if failures == lost { Ok(()) } else { Err(failures) }
    })
    .await;
    eprintln!("RouterAndDecode Cut while queued: {} ms", struck.elapsed().as_millis());
    link.heal();
    for rid in ["one", "two"] {
        assert_eq!(cluster.client.abort(rid).await, "aborted");
    }
    for holder in holders {
        assert_eq!(holder.await.unwrap().code(), "aborted");
    }
    let answer = within(SOON, "the answer", asked).await.unwrap();
    assert_eq!(answer.token_ids(), undisturbed);
    oracle(cluster).await;
}
