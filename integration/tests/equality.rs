//! What travelled is what was computed: a disaggregated answer of the real model equals that of one engine alone, token
//! for token.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::sync::Arc;

use innkeeper_engine::fetch::{self, DEFAULT_MODEL};
use innkeeper_engine::text::{Message, load_tokenizer};
use innkeeper_engine::{EmbeddedConfig, EmbeddedEngine, Weights, monolithic};
use innkeeper_integration::{Client, Cluster, Options, completion, oracle};
use innkeeper_room::{RoomId, Work};
use serde_json::json;
use tokio::sync::Mutex;

/// Tokens of each answer.
const ANSWER: u32 = 12;
/// Tokens of each prompt: around the edges of pages (16) and chunks, and few long ones, which take the time.
const LENGTHS: [usize; 20] = [
    1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 129, 200, 511, 1000, 1500,
];

/// The model takes both processors: one cluster at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// Prompts of ordinary and of arbitrary tokens: the shape of the numbers matters, not the sense.
fn prompt(length: usize) -> Vec<u32> {
    let mut state = u32::try_from(length).unwrap();
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Not the special tokens at the beginning of the vocabulary.
        100 + (state >> 8) % 40_000
    };
    (0..length).map(|_| next()).collect()
}

/// The answers of one engine alone.
fn alone(prompts: &[Vec<u32>]) -> Vec<Vec<u64>> {
    let files = fetch::resolve(DEFAULT_MODEL, &fetch::default_cache_dir(), &|_| {}).unwrap();
    let weights = Weights::load(&files.gguf, &|_| {}).unwrap();
    let engine = EmbeddedEngine::new(weights, EmbeddedConfig::default());
    let answer = |(number, prompt): (usize, &Vec<u32>)| {
        let work = Arc::new(Work {
            prompt: prompt.clone().into(),
            ..Work::default()
        });
        let room = RoomId::from_random(1 + number as u64);
        let tokens = monolithic::generate(&*engine, room, &work, ANSWER, &mut |_, _| {}).unwrap();
        tokens.iter().map(|token| u64::from(token.id)).collect()
    };
    prompts.iter().enumerate().map(answer).collect()
}

async fn through(client: &Client, model: &str, prompt: &[u32]) -> Vec<u64> {
    client
        .complete(&completion(model, json!(prompt), ANSWER))
        .await
        .token_ids()
}

#[tokio::test]
async fn twenty_prompts_answer_as_one_engine_alone_in_order_and_eight_at_once() {
    let _one = ONE_AT_A_TIME.lock().await;
    let prompts: Vec<_> = LENGTHS.map(prompt).into();
    let expected = alone(&prompts);
    assert!(
        expected.iter().all(|tokens| tokens.len() == ANSWER as usize),
        "{expected:?}"
    );
    let distinct: std::collections::BTreeSet<_> = expected.iter().collect();
    assert!(
        distinct.len() > 10,
        "the answers hardly depend on the prompts: {expected:?}"
    );

    let cluster = Cluster::start(Options::embedded().workers(2, 2)).await;
    for (prompt, expected) in prompts.iter().zip(&expected) {
        let got = through(&cluster.client, cluster.model(), prompt).await;
        assert_eq!(&got, expected, "a prompt of {} tokens", prompt.len());
    }
    oracle(&cluster).await;

    let eight = tokio::sync::Semaphore::new(8);
    let at_once = prompts.iter().map(|prompt| async {
        let _place = eight.acquire().await.unwrap();
        through(&cluster.client, cluster.model(), prompt).await
    });
    assert_eq!(futures::future::join_all(at_once).await, expected, "eight at once");
    oracle(&cluster).await;
}

#[tokio::test]
async fn separate_processes_with_etcd_answer_as_one_engine_alone() {
    let _one = ONE_AT_A_TIME.lock().await;
    let prompts: Vec<_> = [1, 17, 90, 300].map(prompt).into();
    let expected = alone(&prompts);
    let cluster = Cluster::start(Options::embedded().etcd()).await;
    let at_once = prompts
        .iter()
        .map(|prompt| through(&cluster.client, cluster.model(), prompt));
    assert_eq!(futures::future::join_all(at_once).await, expected);
    oracle(&cluster).await;
}

#[tokio::test]
async fn a_question_gets_a_sensible_answer_that_one_engine_alone_gives_as_well() {
    let _one = ONE_AT_A_TIME.lock().await;
    let question = "What is the capital of France?";
    let files = fetch::resolve(DEFAULT_MODEL, &fetch::default_cache_dir(), &|_| {}).unwrap();
    let tokenizer = load_tokenizer(&files.gguf).unwrap();
    let expected = alone(&[tokenizer.chat(&[Message::new("user", question)]).unwrap()]).remove(0);

    let cluster = Cluster::start(Options::embedded()).await;
    let mut body = json!({
        "model": cluster.model(), "messages": [{ "role": "user", "content": question }], "max_tokens": 30,
        "temperature": 0, "return_token_ids": true,
    });
    let answer = cluster.client.post("/v1/chat/completions", &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let text = answer.body["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.contains("Paris"), "{text}");
    let got = answer.token_ids();
    let same = got.len().min(expected.len());
    assert_eq!(got[..same], expected[..same]);

    body.as_object_mut().unwrap().remove("return_token_ids");
    let mut stream = cluster
        .client
        .stream("/v1/chat/completions", None, &body)
        .await
        .unwrap();
    let events = stream.rest().await.unwrap();
    let pieces = events
        .iter()
        .map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
    assert_eq!(pieces.collect::<String>(), text);
    oracle(&cluster).await;
}
