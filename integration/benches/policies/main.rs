//! `make bench-policies`: where prompts go under each policy. For each, a cluster of its own (a router, four prefill workers and
//! a decode worker, a mock engine that takes 20 µs for a prompt token) is asked the same, first chats that grow turn by turn,
//! then prompts that have nothing in common. Printed is how much of the prompts went to a prefill worker that had been sent
//! the same beginning before, how evenly the work was shared, and the time to the first token.
//!
//! Workers compute every prompt from its first token: what was sent before is what a cache that forgets nothing would save,
//! and not what was saved.
//!
//! `BENCH_CHATS` (96 by default) of four turns each, and as many prompts that are alike in nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench fails as tests do")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use innkeeper_integration::{Cluster, Options, completion};
use serde_json::Value;

const PREFILL: u32 = 4;
const TURNS: usize = 4;
/// Bytes, which are the mock engine's tokens, that each turn adds to its chat.
const TURN: usize = 384;
/// Enough that all workers are busy, few enough that nothing waits for long.
const CLIENTS: usize = 12;

const POLICIES: [&str; 6] = [
    "least_loaded",
    "round_robin",
    "random",
    "power_of_two",
    "prefix_hash",
    "cache_aware",
];

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(bench());
}

async fn bench() {
    for (title, prompts) in [
        ("Chats that grow by four turns", chats()),
        ("Prompts that have nothing in common", strangers()),
    ] {
        println!("\n{title}, {} requests, {PREFILL} prefill workers:\n", prompts.len());
        println!("| policy | sent there before | busiest worker to mean | p50 ms | p99 ms |");
        println!("|---|---|---|---|---|");
        for policy in POLICIES {
            println!("{}", row(policy, &prompts).await);
        }
    }
}

/// One policy, in a cluster that nobody has asked for anything.
async fn row(policy: &str, prompts: &Arc<Vec<String>>) -> String {
    let options = Options::mock()
        .workers(PREFILL, 1)
        .flag("prefill-policy", policy)
        .flag("mock-decode-us-per-token", 0)
        .flag("kv-pages", 16_384)
        .flag("log", "warn");
    let mut cluster = Cluster::start(options).await;
    let took = ask(&cluster, prompts).await;
    let router = cluster.router_metrics().await;
    let of = |sent: &str| router.sum("innkeeper_placed_prompt_tokens_total", &[("sent_before", sent)]);
    let share = of("yes") / (of("yes") + of("no"));
    let placed = router.sum("innkeeper_placements_total", &[("role", "prefill"), ("policy", policy)]);
    assert!(
        placed >= prompts.len() as f64,
        "every room was placed by {policy}: {placed}"
    );
    let mut computed = vec![];
    for number in 0..PREFILL {
        let metrics = cluster.metrics_of(&format!("prefill-{number}")).await;
        computed.push(metrics.sum("innkeeper_engine_prompt_tokens_total", &[]));
    }
    let mean = computed.iter().sum::<f64>() / f64::from(PREFILL);
    let busiest = computed.iter().copied().fold(0.0, f64::max) / mean;
    assert!(cluster.end().is_some_and(|status| status.success()));
    let at = |percent: usize| took[took.len() * percent / 100].as_secs_f64() * 1000.0;
    format!(
        "| `{policy}` | {:.0} % | {busiest:.2} | {:.1} | {:.1} |",
        share * 100.0,
        at(50),
        at(99)
    )
}

/// Asks all, in their order, for one token each; how long each took, sorted.
async fn ask(cluster: &Cluster, prompts: &Arc<Vec<String>>) -> Vec<Duration> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let (client, prompts, next) = (cluster.client.clone(), Arc::clone(prompts), Arc::clone(&next));
        clients.spawn(async move {
            let mut took = vec![];
            while let Some(prompt) = prompts.get(next.fetch_add(1, Ordering::Relaxed)) {
                let began = Instant::now();
                let body: Value = completion("mock", prompt.as_str(), 1);
                client.complete(&body).await;
                took.push(began.elapsed());
            }
            took
        });
    }
    let mut took = clients.join_all().await.concat();
    took.sort_unstable();
    took
}

/// Every chat's first turn, then every chat's second one behind its first, and so on, the chats in another order each time.
fn chats() -> Arc<Vec<String>> {
    let chats = number_of_chats();
    let mut prompts = vec![];
    for turn in 1..=TURNS {
        let mut order: Vec<usize> = (0..chats).collect();
        order.sort_by_key(|chat| scattered(chat * TURNS + turn));
        prompts.extend(order.into_iter().map(|chat| text(chat, turn * TURN)));
    }
    Arc::new(prompts)
}

fn strangers() -> Arc<Vec<String>> {
    let all = number_of_chats() * TURNS;
    Arc::new(
        (0..all)
            .map(|one| text(one + 1_000_000, TURN * (1 + one % TURNS)))
            .collect(),
    )
}

/// Text of so many bytes that begins like no other one's, and whose beginnings are those of the shorter ones.
fn text(which: usize, bytes: usize) -> String {
    let words = (0..).map(|at| format!("{:016x}", scattered(which * 100_003 + at)));
    let mut text = String::new();
    words
        .take_while(|word| {
            text.push_str(word);
            text.len() < bytes
        })
        .for_each(drop);
    text
}

/// A number that looks like chance and is the same in every run.
fn scattered(number: usize) -> u64 {
    let word = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word ^ (word >> 27)
}

fn number_of_chats() -> usize {
    let asked = std::env::var("BENCH_CHATS").ok().and_then(|value| value.parse().ok());
    asked.unwrap_or(96).max(1)
}
