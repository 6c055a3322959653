//! Clients that ask without a pause, each on a connection of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use innkeeper_integration::completion;
use serde_json::{Value, json};

use crate::cpu;

/// Tokens of a stream.
pub const TOKENS: usize = 64;

/// How many requests are measured.
pub fn requests() -> usize {
    let asked = std::env::var("BENCH_REQUESTS")
        .ok()
        .and_then(|value| value.parse().ok());
    asked.unwrap_or(1000)
}

/// What is asked for.
#[derive(Clone, Copy)]
pub enum Kind {
    Unary,
    Stream,
}

impl Kind {
    pub fn says(self) -> String {
        match self {
            Self::Unary => "Unary requests of 16 tokens:".to_owned(),
            Self::Stream => format!("Streams of {TOKENS} tokens:"),
        }
    }

    fn body(self) -> Value {
        let prompt = "a prompt of thirty-two characters";
        let mut body = match self {
            Self::Unary => completion("mock", prompt, 16),
            Self::Stream => completion("mock", prompt, u32::try_from(TOKENS).unwrap()),
        };
        body["return_token_ids"] = json!(false);
        body["stream"] = json!(matches!(self, Self::Stream));
        body
    }
}

/// Who is asked, and whose CPU time counts.
pub struct Target {
    pub name: &'static str,
    url: String,
    pids: Vec<u32>,
}

impl Target {
    pub fn new(name: &'static str, address: &str, pids: &[u32]) -> Self {
        Self {
            name,
            url: format!("http://{address}/v1/completions"),
            pids: pids.to_vec(),
        }
    }
}

/// Latencies in milliseconds, and the CPU time of 1,000 requests in each process, in milliseconds.
pub struct Measured {
    pub name: &'static str,
    pub p50: f64,
    pub p99: f64,
    pub cpu: Vec<f64>,
}

pub async fn run(target: &Target, kind: Kind, connections: usize, requests: usize) -> Measured {
    let body = Arc::new(kind.body().to_string());
    let left = Arc::new(AtomicUsize::new(requests));
    let before: Vec<Duration> = target.pids.iter().map(|pid| cpu::used(*pid)).collect();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..connections {
        let (url, body, left) = (target.url.clone(), Arc::clone(&body), Arc::clone(&left));
        clients.spawn(async move {
            let http = reqwest::Client::builder()
                .no_proxy()
                .tcp_nodelay(true)
                .pool_max_idle_per_host(1);
            let http = http.build().unwrap();
            let mut took = vec![];
            let take = |left: usize| left.checked_sub(1);
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
                let began = Instant::now();
                let request = http.post(&url).header("content-type", "application/json");
                let response = request.body(body.as_str().to_owned()).send().await.unwrap();
                assert_eq!(response.status(), 200);
                let bytes = response.bytes().await.unwrap();
                took.push(began.elapsed());
                assert!(bytes.len() > 100);
            }
            took
        });
    }
    let mut took: Vec<Duration> = clients.join_all().await.concat();
    took.sort_unstable();
    let spent = target
        .pids
        .iter()
        .zip(before)
        .map(|(pid, before)| cpu::used(*pid) - before);
    let of = took.len() as f64 / 1000.0;
    Measured {
        name: target.name,
        p50: millis(took[took.len() / 2]),
        p99: millis(took[took.len() * 99 / 100]),
        cpu: spent.map(|spent| millis(spent) / of).collect(),
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
