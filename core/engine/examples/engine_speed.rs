//! Prints how fast the embedded engine is here: `cargo run --release -p innkeeper-engine --example engine_speed [threads]`

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
    for tokens in [16, 128, 512, 1024, 2048] {
        let rate = prefill(&*engine, tokens)?;
        println!("prefill {tokens:4} {rate:8.0} tokens/s");
    }
    for rooms in [1, 2, 4, 8, 16] {
        let rate = decode(&*engine, rooms)?;
        println!("decode x{rooms:3} {rate:8.1} tokens/s");
    }
    Ok(())
}

fn work(tokens: u32) -> Arc<Work> {
    Arc::new(Work {
        prompt: (0..tokens).map(|at| 100 + at * 37 % 40_000).collect(),
        ..Work::default()
    })
}

fn prefill(engine: &dyn Engine, tokens: u32) -> Result<f64, Box<dyn std::error::Error>> {
    let (sender, over) = channel();
    let mut best = 0.0f64;
    for round in 0..3 {
        let room = RoomId::from_random(1 + round);
        engine.open(room, tokens)?;
        let began = Instant::now();
        engine.prefill(room, work(tokens), Arc::new(Over(Mutex::new(sender.clone()))))?;
        over.recv_timeout(Duration::from_secs(300))?;
        best = best.max(f64::from(tokens) / began.elapsed().as_secs_f64());
        engine.close(room);
    }
    Ok(best)
}

fn decode(engine: &dyn Engine, rooms: u64) -> Result<f64, Box<dyn std::error::Error>> {
    let (sender, over) = channel();
    let steps = 40;
    let mut firsts = Vec::new();
    for number in 0..rooms {
        let room = RoomId::from_random(100 + number);
        engine.open(room, 128 + steps)?;
        engine.prefill(room, work(128), Arc::new(Over(Mutex::new(sender.clone()))))?;
        firsts.push((room, over.recv_timeout(Duration::from_secs(300))?));
    }
    let began = Instant::now();
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
    let took = began.elapsed().as_secs_f64();
    for (room, _) in &firsts {
        engine.close(*room);
    }
    Ok(rooms as f64 * f64::from(steps - 1) / took)
}
