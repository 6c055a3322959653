//! What a prefill worker has computed for a client it does not compute for that client again: the answers stay the same, usage
//! says how much it was, and another client finds nothing of it. (`faults.rs`: when rooms end badly that read what is kept.)

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod faults;

use std::time::Duration;

use innkeeper_integration::rpc::{gather, generate_text};
use innkeeper_integration::{Answer, Client, Cluster, Options, completion, oracle, until};
use innkeeper_node::security::{key_line, new_key};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(20);
const PAGE: u32 = 16;

/// What usage says of the prompt: its tokens, and those that were not computed.
fn prompt(usage: &Value) -> (u32, u32) {
    let number = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap();
    let details = &usage["prompt_tokens_details"];
    (number(&usage["prompt_tokens"]), number(&details["cached_tokens"]))
}

/// The most that can be reused: one token is computed, and pages are whole.
const fn reusable(tokens: u32) -> u32 {
    (tokens - 1) / PAGE * PAGE
}

fn chat(words: &str) -> Value {
    json!({
        "model": "mock", "messages": [{"role": "user", "content": words.repeat(40)}], "max_tokens": 8, "temperature": 0,
        "ignore_eos": true, "return_token_ids": true, "logprobs": true,
    })
}

async fn ask(client: &Client, body: &Value) -> Answer {
    let answer = client.post("/v1/chat/completions", body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer
}

/// Tokens that P has computed, and found.
async fn computed_and_found(cluster: &Cluster) -> (f64, f64) {
    let metrics = cluster.metrics_of("prefill-0").await;
    for name in ["vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"] {
        assert_eq!(
            metrics.sum(name, &[]),
            metrics.sum("innkeeper_prefix_cache_hits_total", &[])
        );
    }
    let sum = |name| metrics.sum(name, &[]);
    (
        sum("innkeeper_engine_prompt_tokens_total"),
        sum("innkeeper_prefix_cache_hits_total"),
    )
}

/// A room's pages are published when everybody has let go of them, a moment after the client has its answer.
async fn until_kept(cluster: &Cluster, pages: f64) {
    until(SOON, "the pages are kept", || async {
        let metrics = cluster.metrics_of("prefill-0").await;
        let cached = metrics.sum("innkeeper_pages", &[("state", "cached")]);
        if cached < pages { Err(cached) } else { Ok(()) }
    })
    .await;
}

#[tokio::test]
async fn a_client_finds_its_own_prompts_and_nobody_elses() {
    let dir = tempfile::tempdir().unwrap();
    let keys = [new_key().unwrap(), new_key().unwrap()];
    let lines = ["tenant-a", "tenant-b"]
        .iter()
        .zip(&keys)
        .map(|(name, key)| key_line(name, key).unwrap());
    std::fs::write(dir.path().join("keys"), lines.collect::<Vec<_>>().join("\n")).unwrap();
    let options = Options::mock().key(&keys[0]);
    let cluster = Cluster::start(options.flag("api-keys-file", dir.path().join("keys").display())).await;
    let other = Client::of_key(cluster.client.base(), &keys[1]);
    let body = chat("the same beginning ");

    let first = ask(&cluster.client, &body).await;
    let (tokens, cached) = prompt(&first.body["usage"]);
    assert_eq!(cached, 0, "{first:?}");
    until_kept(&cluster, f64::from(tokens / PAGE)).await;
    let before = computed_and_found(&cluster).await;
    let again = ask(&cluster.client, &body).await;
    assert_eq!(prompt(&again.body["usage"]), (tokens, reusable(tokens)));
    assert_eq!(
        again.body["choices"], first.body["choices"],
        "the same tokens with the same logprobs"
    );
    let after = computed_and_found(&cluster).await;
    assert_eq!(
        after.0 - before.0,
        f64::from(tokens - reusable(tokens)),
        "P computes as much less"
    );
    assert_eq!(after.1 - before.1, f64::from(reusable(tokens)));

    // A longer prompt that begins alike, as the next turn of a conversation does; the usage of a stream is its last chunk.
    let mut longer = chat("the same beginning ");
    let content = format!("{}and another end", longer["messages"][0]["content"].as_str().unwrap());
    longer["messages"][0]["content"] = json!(content);
    longer["stream_options"] = json!({ "include_usage": true });
    let mut stream = cluster
        .client
        .stream("/v1/chat/completions", None, &longer)
        .await
        .unwrap();
    let events = stream.rest().await.unwrap();
    let (tokens_of_longer, cached) = prompt(&events.last().unwrap()["usage"]);
    assert!(
        tokens_of_longer > tokens && cached > reusable(tokens) / 2,
        "{cached} of {tokens_of_longer}"
    );

    let theirs = ask(&other, &body).await;
    assert_eq!(prompt(&theirs.body["usage"]), (tokens, 0), "another client's key");
    assert_eq!(theirs.body["choices"], first.body["choices"]);
    oracle(&cluster).await;
}

#[tokio::test]
async fn answers_are_those_without_a_cache_and_grpc_counts_the_same() {
    let kept = Cluster::start(Options::mock()).await;
    let off = Cluster::start(Options::mock().flag("prefix-cache-percent", 0)).await;
    // More than fits: what is unused longest goes, and no request waits for that.
    let small = Cluster::start(Options::mock().flag("kv-pages", 64)).await;
    let bodies: Vec<Value> = (0..12)
        .map(|number| {
            completion(
                "mock",
                format!("{}{}", "alike ".repeat(30), "x".repeat(number % 5 * 40)),
                6,
            )
        })
        .collect();
    for body in &bodies {
        let right = off.client.complete(body).await;
        assert_eq!(prompt(&right.body["usage"]).1, 0);
        for cluster in [&kept, &small] {
            let answer = cluster.client.complete(body).await;
            assert_eq!(answer.token_ids(), right.token_ids());
        }
    }
    assert_eq!(computed_and_found(&off).await.1, 0.0);
    assert!(computed_and_found(&kept).await.1 > 0.0);
    let text = "alike ".repeat(30);
    let stream = kept.inference().await.generate(generate_text(text, 6)).await.unwrap();
    let usage = gather(stream.into_inner()).await.unwrap().usage.unwrap();
    let tokens = u32::try_from(usage.prompt_tokens).unwrap();
    assert_eq!(usage.cached_tokens, u64::from(reusable(tokens)));
    for cluster in [&kept, &off, &small] {
        oracle(cluster).await;
    }
}
