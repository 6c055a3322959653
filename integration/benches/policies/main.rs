//! `make bench-policies`: what each policy makes of the prefix cache. For each, a cluster of its own (a router, four prefill
//! workers and a decode worker, a mock engine that takes 100 µs for each prompt token that it computes, and none for one that it
//! reuses) is asked the same, first chats that grow turn by turn, then prompts that have nothing in common. Printed is how much of
//! the prompts went to a prefill worker that had been sent the same beginning before, how much was reused, how evenly the computing
//! was shared, and the time to the first token, also against `round_robin` in the same run. Last comes `round_robin` with nothing
//! kept: what is the cache's, and what is the policy's.
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
/// Of a prompt token that is computed: so much that it is what is measured, and not the path.
const MICROS_PER_TOKEN: u32 = 100;

/// What the others are compared with.
const PLAIN: &str = "round_robin";

/// A policy, and how much of the pages may be kept, in percent.
const CASES: [(&str, u32); 7] = [
    (PLAIN, 100),
    ("least_loaded", 100),
    ("random", 100),
    ("power_of_two", 100),
    ("prefix_hash", 100),
    ("cache_aware", 100),
    (PLAIN, 0),
];

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(bench());
}

async fn bench() {
    let seen = table("Chats that grow by four turns", &chats()).await;
    let saved = |name: &str, kept: u32| {
        let found = seen.iter().find(|(case, _)| *case == (name, kept));
        found.expect("every case was run").1.saved()
    };
    assert!(
        saved("cache_aware", 100) > saved(PLAIN, 100),
        "a policy that looks at prompts saves more of them"
    );
    assert!(saved(PLAIN, 0) == 0.0, "nothing was to be kept");
    for ((policy, kept), seen) in table("Prompts that have nothing in common", &strangers()).await {
        assert!(
            seen.saved() == 0.0,
            "{policy}, {kept} % kept: there is nothing to be saved"
        );
    }
}

/// What was seen of each case.
async fn table(title: &str, prompts: &Arc<Vec<String>>) -> Vec<((&'static str, u32), Seen)> {
    println!("\n{title}, {} requests, {PREFILL} prefill workers:\n", prompts.len());
    println!(
        "| policy | sent there before | prompt tokens reused | busiest worker to mean | first token p50 ms | p99 ms | mean ms | p50 to `{PLAIN}` | mean to `{PLAIN}` |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut all: Vec<((&'static str, u32), Seen)> = vec![];
    for (policy, kept) in CASES {
        let seen = Seen::of(policy, kept, prompts).await;
        let plain = all.first().map_or(&seen, |(_, first)| first);
        println!("{}", seen.row(policy, kept, plain));
        all.push(((policy, kept), seen));
    }
    all
}

/// What was seen of one policy.
struct Seen {
    /// How long each first token took, in milliseconds, sorted.
    took: Vec<f64>,
    /// Prompt tokens of all requests.
    prompts: f64,
    /// How many of these went where they had been sent before, as a part of what the router looks at.
    sent_before: f64,
    /// Tokens that each prefill worker has computed.
    computed: Vec<f64>,
    /// Those that they have found, together.
    reused: f64,
}

impl Seen {
    /// In a cluster that nobody has asked for anything.
    async fn of(policy: &str, kept: u32, prompts: &Arc<Vec<String>>) -> Self {
        let options = Options::mock()
            .workers(PREFILL, 1)
            .flag("prefill-policy", policy)
            .flag("prefix-cache-percent", kept)
            .flag("mock-prefill-us-per-token", MICROS_PER_TOKEN)
            .flag("mock-decode-us-per-token", 0)
            .flag("kv-pages", 16_384)
            .flag("log", "warn");
        let mut cluster = Cluster::start(options).await;
        let answers = ask(&cluster, prompts).await;
        let router = cluster.router_metrics().await;
        let of = |sent: &str| router.sum("innkeeper_placed_prompt_tokens_total", &[("sent_before", sent)]);
        let placed = router.sum("innkeeper_placements_total", &[("role", "prefill"), ("policy", policy)]);
        assert!(
            placed >= prompts.len() as f64,
            "every room was placed by {policy}: {placed}"
        );
        let (mut computed, mut reused) = (vec![], 0.0);
        for number in 0..PREFILL {
            let metrics = cluster.metrics_of(&format!("prefill-{number}")).await;
            computed.push(metrics.sum("innkeeper_engine_prompt_tokens_total", &[]));
            reused += metrics.sum("innkeeper_prefix_cache_hits_total", &[]);
        }
        assert!(cluster.end().is_some_and(|status| status.success()));
        let mut took: Vec<f64> = answers
            .iter()
            .map(|answer| answer.took.as_secs_f64() * 1000.0)
            .collect();
        took.sort_by(f64::total_cmp);
        let seen = Self {
            took,
            prompts: answers.iter().map(|answer| answer.prompt).sum(),
            sent_before: of("yes") / (of("yes") + of("no")),
            computed,
            reused,
        };
        seen.check(&answers);
        seen
    }

    /// What clients were told is what the workers did, and what was not reused was computed. (A client is not told where a worker's
    /// word comes behind the answer; a room that is tried again computes again.)
    fn check(&self, answers: &[Answer]) {
        let told: f64 = answers.iter().map(|answer| answer.cached).sum();
        assert!(
            told <= self.reused && told >= 0.98 * self.reused,
            "clients were told of {told} tokens, the workers reused {}",
            self.reused
        );
        let all = self.computed.iter().sum::<f64>() + self.reused;
        assert!(
            all >= self.prompts && all <= 1.02 * self.prompts,
            "{all} tokens were computed or reused, {} were asked",
            self.prompts
        );
    }

    /// Which part of all prompt tokens was not computed.
    fn saved(&self) -> f64 {
        self.reused / self.prompts
    }

    fn mean(&self) -> f64 {
        self.took.iter().sum::<f64>() / self.took.len() as f64
    }

    fn at(&self, percent: usize) -> f64 {
        self.took[(self.took.len() - 1) * percent / 100]
    }

    fn row(&self, policy: &str, kept: u32, plain: &Self) -> String {
        let mean = self.computed.iter().sum::<f64>() / f64::from(PREFILL);
        let busiest = self.computed.iter().copied().fold(0.0, f64::max) / mean;
        let without = if kept == 0 { ", nothing kept" } else { "" };
        format!(
            "| `{policy}`{without} | {:.0} % | {:.0} of {:.0} ({:.0} %) | {busiest:.2} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} |",
            self.sent_before * 100.0,
            self.reused,
            self.prompts,
            self.saved() * 100.0,
            self.at(50),
            self.at(99),
            self.mean(),
            self.at(50) / plain.at(50),
            self.mean() / plain.mean(),
        )
    }
}

/// One answer, of one token: it is there when its first token is.
struct Answer {
    took: Duration,
    /// Tokens of the prompt, and those that were not computed, as usage says.
    prompt: f64,
    cached: f64,
}

/// Asks all, in their order, for one token each.
async fn ask(cluster: &Cluster, prompts: &Arc<Vec<String>>) -> Vec<Answer> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let (client, prompts, next) = (cluster.client.clone(), Arc::clone(prompts), Arc::clone(&next));
        clients.spawn(async move {
            let mut answers = vec![];
            while let Some(prompt) = prompts.get(next.fetch_add(1, Ordering::Relaxed)) {
                let began = Instant::now();
                let answer = client.complete(&completion("mock", prompt.as_str(), 1)).await;
                let took = began.elapsed();
                let usage = &answer.body["usage"];
                let number = |value: &Value| value.as_f64().expect("usage has numbers");
                answers.push(Answer {
                    took,
                    prompt: number(&usage["prompt_tokens"]),
                    cached: number(&usage["prompt_tokens_details"]["cached_tokens"]),
                });
            }
            answers
        });
    }
    clients.join_all().await.into_iter().flatten().collect()
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
