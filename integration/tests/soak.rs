//! A cluster under load with a random fault every five seconds: memory stays flat, and every request is counted once, by
//! what it was answered. `SOAK_SECONDS` is for how long (40 by default, 1800 in `make verify`), `SOAK_SEED` decides the
//! faults.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use innkeeper_integration::{Client, Cluster, Options, completion, oracle};

const BETWEEN_FAULTS: Duration = Duration::from_secs(5);
/// Clients that ask without a pause; two pairs would serve about ten at this length and speed.
const CLIENTS: u64 = 8;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

/// A small generator (xorshift): the same seed, the same faults.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Resident memory of a process, in KiB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .unwrap_or(0)
}

/// Answers by what they said, from clients that ask until the time is over.
async fn load(cluster: &Cluster, until: Instant) -> tokio::task::JoinSet<BTreeMap<String, u64>> {
    let mut clients = tokio::task::JoinSet::new();
    let asked = Arc::new(AtomicU64::new(0));
    for client in 0..CLIENTS {
        let (http, asked) = (cluster.client.clone(), Arc::clone(&asked));
        clients.spawn(async move {
            let mut answers = BTreeMap::new();
            while Instant::now() < until {
                let number = asked.fetch_add(1, Ordering::Relaxed);
                let body = completion("mock", "s".repeat(10 + usize::try_from(number % 90).unwrap()), 20);
                let (rid, leaves) = (format!("soak-{client}-{number}"), number % 50 == 17);
                let answer = http.post_as(&rid, "/v1/completions", &body);
                if leaves {
                    // Some abort themselves while they wait.
                    let (answer, ()) = tokio::join!(answer, abort(&http, &rid));
                    count(&mut answers, &answer);
                } else {
                    count(&mut answers, &answer.await);
                }
            }
            answers
        });
    }
    clients
}

/// An abort that comes before its request is remembered for long, and in half an hour there are more of them than one client
/// may have remembered: that is an answer as well.
async fn abort(http: &Client, rid: &str) {
    let answer = http.post("/abort_request", &serde_json::json!({ "rid": rid })).await;
    assert!(
        answer.status == 200 || answer.code() == "abort_refused",
        "an abort: {answer:?}"
    );
}

fn count(answers: &mut BTreeMap<String, u64>, answer: &innkeeper_integration::Answer) {
    let said = if answer.status == 200 { "done" } else { answer.code() };
    assert!(!said.is_empty(), "an answer without a code: {answer:?}");
    *answers.entry(said.to_owned()).or_default() += 1;
}

async fn strike(cluster: &mut Cluster, dice: &mut Dice) {
    let name = ["prefill-0", "prefill-1", "decode-0", "decode-1"][usize::try_from(dice.roll(4)).unwrap()];
    match dice.roll(5) {
        0 => cluster.kill(name).await,
        1 => {
            let stopped = cluster.stop(name).await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            stopped.cont();
        }
        2 => {
            cluster.order(name, "stall-engine").await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            cluster.order(name, "resume-engine").await;
        }
        3 => {
            if let Some(room) = cluster.router_rooms().await.unwrap_or_default().first() {
                // It may be over by now.
                drop(cluster.etcdctl(&["lease", "revoke", &room.room]).await);
            }
        }
        _ => {
            cluster.etcd().stop();
            tokio::time::sleep(Duration::from_secs(3)).await;
            cluster.etcd().cont();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_under_load_and_faults_keeps_its_memory_and_its_counts() {
    let (seconds, seed) = (number("SOAK_SECONDS", 40), number("SOAK_SEED", 1));
    let options = Options::mock()
        .workers(2, 2)
        .etcd()
        .ttl_ms(2000)
        .canaries_ms(2000)
        .flag("mock-decode-us-per-token", 5_000)
        .flag("retry-bucket", 1000)
        .fault("on");
    let mut cluster = Cluster::start(options).await;
    let router = cluster.pid("router").await;
    let (began, mut dice) = (Instant::now(), Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
    let clients = load(&cluster, began + Duration::from_secs(seconds)).await;
    let mut memory = vec![];
    while began.elapsed() < Duration::from_secs(seconds) {
        tokio::time::sleep(BETWEEN_FAULTS).await;
        memory.push(resident(router));
        strike(&mut cluster, &mut dice).await;
        cluster.wait_whole().await;
    }
    let mut answers: BTreeMap<String, u64> = BTreeMap::new();
    for of_one in clients.join_all().await {
        for (said, count) in of_one {
            *answers.entry(said).or_default() += count;
        }
    }
    cluster.wait_whole().await;
    oracle(&cluster).await;
    let metrics = cluster.router_metrics().await;
    for (said, count) in &answers {
        let counted = metrics.sum("innkeeper_requests_total", &[("outcome", said)]);
        assert!(
            (counted - *count as f64).abs() < 0.5,
            "{said}: {count} answers, {counted} counted; {answers:?}"
        );
    }
    let (all, counted) = (
        answers.values().sum::<u64>(),
        metrics.sum("innkeeper_requests_total", &[]),
    );
    assert!(
        (counted - all as f64).abs() < 0.5,
        "{all} answers, {counted} counted: {answers:?}"
    );
    let done = answers.get("done").copied().unwrap_or_default();
    assert!(done * 10 >= all * 8, "most are answered: {answers:?}");
    let half = memory.len() / 2;
    let mean = |part: &[u64]| part.iter().sum::<u64>() / part.len().max(1) as u64;
    let (early, late) = (mean(&memory[half / 2..half.max(1)]), mean(&memory[half..]));
    eprintln!("{seconds} s: {answers:?}; the router's memory: {early} KiB, later {late} KiB");
    // What a node remembers of ended rooms fills up at first: it is bounded, and small.
    assert!(late < early + early / 5 + 16 * 1024, "memory grows: {memory:?}");
}
