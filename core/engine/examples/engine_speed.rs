//! Prints how fast the embedded engine is here: `cargo run --release -p innkeeper-engine --example engine_speed [threads]`
//!
//! Beside tokens per second it prints tokens per second of processor time (Linux): on a busy machine only that says
//! anything about the engine.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use innkeeper_engine::{
    DecodeJob, DecodeSink, EmbeddedConfig, EmbeddedEngine, Engine, EngineError, PrefillSink, Weights, fetch,
};
use innkeeper_room::{Manifest, RoomId, SlabMeta, Token, Work};

struct Over(Mutex<Sender<u32>>);

impl Over {
    fn say(&self, first: u32) {
        if let Ok(sender) = self.0.lock() {
            let _ = sender.send(first);
        }
    }
}

impl PrefillSink for Over {
    fn sealed(&self, _slab: SlabMeta) {}
    fn computed(&self, _tokens: u32) {}
    fn finished(&self, manifest: Manifest) {
        self.say(manifest.first_token.id);
    }
    fn failed(&self, _error: EngineError) {}
    fn stopped(&self) {}
}

impl DecodeSink for Over {
    fn token(&self, _position: u32, _token: Token) {}
    fn finished(&self) {
        self.say(0);
    }
    fn failed(&self, _error: EngineError) {}
    fn stopped(&self) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args()
        .nth(1)
        .and_then(|threads| threads.parse().ok())
        .unwrap_or(0);
    let files = fetch::resolve(fetch::DEFAULT_MODEL, &fetch::default_cache_dir(), &|_| ())?;
    let began = Instant::now();
    let weights = Weights::load(&files.gguf, &|_| ())?;
    println!("loading      {:8.2} s", began.elapsed().as_secs_f64());
    let config = EmbeddedConfig {
        threads,
        total_pages: 2_048,
        chunk_target: Duration::from_millis(500),
        ..Default::default()
    };
    let engine = EmbeddedEngine::new(weights, config);
    for tokens in [16, 128, 512, 1024] {
        let (rate, per_cpu) = prefill(&*engine, tokens)?;
        println!("prefill {tokens:4} {rate:8.0} tokens/s {per_cpu:8.0} per processor second");
    }
    for rooms in [1, 2, 4, 8, 16] {
        let (rate, per_cpu) = decode(&*engine, rooms)?;
        println!("decode x{rooms:3} {rate:8.1} tokens/s {per_cpu:8.1} per processor second");
    }
    Ok(())
}

fn work(tokens: u32) -> Arc<Work> {
    Arc::new(Work {
        prompt: (0..tokens).map(|at| 100 + at * 37 % 40_000).collect(),
        ..Work::default()
    })
}

fn prefill(engine: &dyn Engine, tokens: u32) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let (sender, over) = channel();
    let mut best = (0.0f64, 0.0f64);
    for round in 0..2 {
        let room = RoomId::from_random(1 + round);
        engine.open(room, tokens)?;
        let began = (Instant::now(), cpu_seconds());
        engine.prefill(room, work(tokens), Arc::new(Over(Mutex::new(sender.clone()))))?;
        over.recv_timeout(Duration::from_secs(300))?;
        let (wall, cpu) = rates(f64::from(tokens), began);
        best = (best.0.max(wall), best.1.max(cpu));
        engine.close(room);
    }
    Ok(best)
}

fn decode(engine: &dyn Engine, rooms: u64) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let (sender, over) = channel();
    let steps = 25;
    let mut firsts = Vec::new();
    for number in 0..rooms {
        let room = RoomId::from_random(100 + number);
        engine.open(room, 128 + steps)?;
        engine.prefill(room, work(128), Arc::new(Over(Mutex::new(sender.clone()))))?;
        firsts.push((room, over.recv_timeout(Duration::from_secs(300))?));
    }
    let began = (Instant::now(), cpu_seconds());
    for (room, first) in &firsts {
        let first = Token {
            id: *first,
            ..Token::default()
        };
        let job = DecodeJob {
            work: work(128),
            first,
            max_tokens: steps,
        };
        engine.decode(*room, job, Arc::new(Over(Mutex::new(sender.clone()))))?;
    }
    for _ in &firsts {
        over.recv_timeout(Duration::from_secs(300))?;
    }
    let result = rates(rooms as f64 * f64::from(steps - 1), began);
    for (room, _) in &firsts {
        engine.close(*room);
    }
    Ok(result)
}

/// Tokens per second, and per second of processor time.
fn rates(tokens: f64, (began, cpu): (Instant, f64)) -> (f64, f64) {
    (
        tokens / began.elapsed().as_secs_f64(),
        tokens / (cpu_seconds() - cpu).max(0.01),
    )
}

/// User and system time of this process so far, in seconds; 0 where there is no `/proc`.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the command's closing parenthesis: state is the first field, utime and stime the 12th and 13th.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| {
        fields
            .get(at)
            .and_then(|field| field.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    (ticks(11) + ticks(12)) / 100.0
}
