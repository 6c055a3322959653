//! Innkeeper in front of a pair of engines that other people run: the same scenarios on engines that stand in for them, and,
//! where `INNKEEPER_ENGINES` names a file that says where a real pair is, on that (`make engines`).

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod folder;
mod pair;

use std::time::{Duration, Instant};

use innkeeper_integration::{Cluster, Options, completion, oracle, until};
use pair::{Engines, MODEL, Which};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";
/// A phase is seen within a report period of a change; the rest is for a starved machine.
const SOON: Duration = Duration::from_secs(60);

fn in_front(engines: &Engines) -> Options {
    Options::vllm(&engines.urls(), engines.folder())
        .ttl_ms(engines.ttl_ms())
        .flag("served-model-name", MODEL)
        .flag("engine-kv-lease", engines.lease_seconds())
}

fn prompt(number: u64, tokens: u64) -> Vec<u64> {
    (0..tokens).map(|at| 300 + (at * 7 + number * 31) % 600).collect()
}

/// As long as nothing of Innkeeper's and nothing of a client's is in an engine.
async fn engines_are_empty(engines: &Engines, limit: Duration) {
    until(limit, "the engines have all pages back", || async {
        // Gauges move with steps alone.
        let used = [engines.used(Which::Prefill).await, engines.used(Which::Decode).await];
        if used == [0.0, 0.0] {
            Ok(())
        } else {
            Err(format!("{used:?}"))
        }
    })
    .await;
}

async fn external(engines: &Engines) -> u64 {
    engines.look(Which::Decode).await.external_tokens
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_the_engine_alone_and_no_prompt_is_computed_again() {
    let engines = Engines::start().await;
    let asked: Vec<_> = (1..=engines.many())
        // No other test asks for these: engines remember what they have read.
        .map(|number| {
            (
                prompt(100 + number, 40 + number * 59 % engines.longest()),
                1 + number % 12,
            )
        })
        .collect();
    let mut alone = vec![];
    for (prompt, most) in &asked {
        alone.push(engines.alone(prompt, *most).await);
    }
    let cluster = Cluster::start(in_front(&engines)).await;
    for ((prompt, most), right) in asked.iter().zip(&alone) {
        let before = external(&engines).await;
        let answer = cluster
            .client
            .complete(&completion(MODEL, json!(prompt), u32::try_from(*most).unwrap()))
            .await;
        assert_eq!((answer.status, answer.token_ids()), (200, right.clone()), "{answer:?}");
        let tokens = prompt.len() as u64;
        assert_eq!(answer.body["usage"]["prompt_tokens"], tokens);
        let blocks = tokens / engines.page_tokens();
        if blocks > 0 {
            let read = external(&engines).await - before;
            assert!(
                read > 0,
                "the decode engine computed a prompt of {tokens} tokens itself"
            );
        }
    }
    oracle(&cluster).await;
    engines_are_empty(&engines, engines.bound(Duration::from_secs(2))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_takes_its_room_and_the_engines_pages_with_it() {
    let engines = Engines::slow().await;
    let cluster = Cluster::start(in_front(&engines)).await;
    for phase in ["waiting_for_input", "transferring", "decoding"] {
        let tokens = if phase == "decoding" { 64 } else { engines.longest() };
        let body = completion(MODEL, json!(prompt(1, tokens)), 400);
        let client = cluster.client.clone();
        let request = tokio::spawn(async move { client.post_as("leaving", PATH, &body).await });
        cluster.wait_phase(phase, SOON).await;
        // Its connection breaks: that is the abort that always arrives.
        request.abort();
        oracle(&cluster).await;
        engines_are_empty(&engines, engines.bound(Duration::from_secs(3))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_stands_still_ends_its_rooms_with_a_reason_and_is_used_again_when_it_moves() {
    let engines = Engines::slow().await;
    let cluster = Cluster::start(in_front(&engines)).await;
    for (which, phase) in [(Which::Prefill, "waiting_for_input"), (Which::Decode, "decoding")] {
        let tokens = if phase == "decoding" { 64 } else { engines.longest() };
        let body = completion(MODEL, json!(prompt(2, tokens)), 400);
        let client = cluster.client.clone();
        let request = tokio::spawn(async move { client.post_as("standing", PATH, &body).await });
        cluster.wait_phase(phase, SOON).await;
        let began = Instant::now();
        engines.stop(which);
        let answer = request.await.unwrap();
        assert_eq!(answer.status / 100, 5, "{answer:?}");
        assert!(
            [
                "engine_wedged",
                "engine_stalled",
                "prefill_stalled",
                "decode_stalled",
                "transfer_stalled",
                "no_prefill_worker",
                "no_decode_worker"
            ]
            .contains(&answer.code()),
            "{which:?}: {answer:?}"
        );
        let bound = 2 * (Duration::from_millis(engines.ttl_ms()) + Duration::from_secs(1));
        assert!(
            began.elapsed() < engines.bound(bound),
            "{which:?}: {:?}",
            began.elapsed()
        );
        engines.cont(which);
        oracle(&cluster).await;
        until(SOON, "the pair is used again", || async {
            let answer = cluster
                .client
                .complete(&completion(MODEL, json!(prompt(3, 64)), 2))
                .await;
            if answer.status == 200 {
                Ok(())
            } else {
                Err(answer.body.to_string())
            }
        })
        .await;
    }
    oracle(&cluster).await;
}

/// What a client says about KV reaches no engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_parameters_of_clients_are_refused_by_name() {
    let engines = Engines::start().await;
    let cluster = Cluster::start(in_front(&engines)).await;
    let before = engines.look(Which::Prefill).await.work.finished;
    for (field, value) in [
        (
            "kv_transfer_params",
            json!({"do_remote_prefill": true, "remote_host": "127.0.0.1", "remote_port": 1}),
        ),
        ("bootstrap_host", json!("127.0.0.1")),
        ("bootstrap_port", json!(8998)),
        ("bootstrap_room", json!(7)),
        ("rid", json!("ik-0000000000000007-1")),
    ] {
        let mut body = completion(MODEL, json!(prompt(1, 20)), 2);
        body[field] = value;
        let answer = cluster.client.post(PATH, &body).await;
        assert_eq!(answer.status, 400, "{field}: {answer:?}");
        assert_eq!(answer.body["error"]["param"], Value::from(field));
    }
    assert_eq!(
        engines.look(Which::Prefill).await.work.finished,
        before,
        "nothing was asked of the engine"
    );
    oracle(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engines_are_shown_in_metrics_and_doctor_has_nothing_to_say_against_them() {
    let engines = Engines::start().await;
    let cluster = Cluster::start(in_front(&engines)).await;
    let answer = cluster
        .client
        .complete(&completion(MODEL, json!(prompt(1, 64)), 3))
        .await;
    assert_eq!(answer.status, 200, "{answer:?}");
    for name in ["prefill-0", "decode-0"] {
        let metrics = cluster.metrics_of(name).await;
        for shown in [
            "innkeeper_engine_step_age_seconds",
            "innkeeper_engine_canary_seconds",
            "innkeeper_engine_pages",
            "innkeeper_engine_restarts_total",
            "innkeeper_engine_orphan_tickets_total",
            "innkeeper_engine_unproven_total",
        ] {
            assert!(metrics.has(shown, &[]), "{name} shows no {shown}");
        }
        assert_eq!(metrics.sum("innkeeper_engine_given_up", &[]).to_bits(), 0f64.to_bits());
    }
    oracle(&cluster).await;
}
