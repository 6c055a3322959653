//! A cluster in front of a pair of engines that stand in for vLLM.

use std::sync::Arc;
use std::time::{Duration, Instant};

use innkeeper_actors::ports::RequestStream;
use innkeeper_engine::Engine;
use innkeeper_remote::Times;
use innkeeper_remote::driver::{Care, Clock, Watcher};
use innkeeper_remote::engine::{Shape, VllmEngine};
use innkeeper_remote::fence::Budget;
use innkeeper_remote::hook::Hook;
use innkeeper_remote::lease::Lease;
use innkeeper_remote::look::PoolSize;
use innkeeper_remote::standin::{Config, Fabric, Kind, Standin, VOCABULARY};
use innkeeper_remote::vllm::Vllm;
use innkeeper_room::{Millis, Moment, Settings, Work};

use crate::direct::{Direct, LIMIT};

/// The progress TTL of these tests: canaries have half of it, on a machine that does other things too.
pub const TTL: Duration = Duration::from_millis(1500);

/// The cluster.
pub struct Pair {
    pub direct: Direct,
    pub prefill_engine: Arc<VllmEngine>,
    pub decode_engine: Arc<VllmEngine>,
    pub prefill_standin: Standin,
    pub decode_standin: Standin,
}

fn millis(duration: Duration) -> Millis {
    Millis(u64::try_from(duration.as_millis()).unwrap())
}

fn engine(standin: &Standin, config: &Config) -> Arc<VllmEngine> {
    let target = standin.url().parse().unwrap();
    let vllm = Vllm::new(target, "tiny".to_owned(), Times::from_ttl(TTL));
    let began = Instant::now();
    let clock: Clock = Arc::new(move || Moment(3_600_000 + u64::try_from(began.elapsed().as_millis()).unwrap()));
    let watcher = Watcher::new(vllm, millis(TTL), TTL / 20, clock);
    let pool = PoolSize {
        pages: config.pages,
        page_tokens: config.page_tokens,
    };
    let shape = Shape::new("tiny", "vllm-0", pool, 1400, VOCABULARY);
    let care = Care {
        hook: Hook::None,
        command: vec![],
        url: standin.url(),
        ttl: millis(TTL),
        budget: Budget::default(),
        limit: TTL,
    };
    VllmEngine::new(watcher, shape, Lease(millis(config.lease)), care, None)
}

impl Pair {
    /// Engines as they were measured, but for `change`.
    pub async fn start(change: impl FnOnce(&mut Config)) -> Self {
        let fabric = Fabric::default();
        let mut config = Config::new(Kind::Vllm);
        config.pages = 402;
        change(&mut config);
        let prefill_standin = Standin::start(config.clone(), fabric.clone()).await.unwrap();
        let decode_standin = Standin::start(config.clone(), fabric).await.unwrap();
        let prefill_engine = engine(&prefill_standin, &config);
        let decode_engine = engine(&decode_standin, &config);
        let settings = Settings {
            prefix_cache_percent: 0,
            ..Settings::from_ttl(millis(TTL))
        };
        let (p, d) = (Arc::clone(&prefill_engine), Arc::clone(&decode_engine));
        Self {
            direct: Direct::start(settings, p as Arc<dyn Engine>, d as Arc<dyn Engine>).await,
            prefill_engine,
            decode_engine,
            prefill_standin,
            decode_standin,
        }
    }

    pub fn submit(&self, rid: &str, work: Work, max_tokens: u32) -> RequestStream {
        self.direct.submit(rid, work, max_tokens)
    }

    pub fn decode_engine_tokens(&self) -> u64 {
        self.decode_engine.status().output_tokens
    }

    /// Nothing is left, neither in the ledgers nor in the engines.
    pub async fn clean(&self) {
        self.direct.clean().await;
        until("the engines have all pages back", async || {
            self.prefill_standin.held() + self.decode_standin.held() == 0
        })
        .await;
        for engine in [&self.prefill_engine, &self.decode_engine] {
            let status = engine.status();
            assert_eq!((status.free_pages, status.jobs), (engine.limits().total_pages, 0));
        }
    }
}

pub fn prompt(number: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| (at * 7 + number * 31) % VOCABULARY).collect()
}

pub fn work(number: u32, tokens: u32) -> Work {
    Work {
        prompt: prompt(number, tokens).into(),
        ..Work::default()
    }
}

/// Waits until it is so; fails with its name if it never is.
pub async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is().await {
        assert!(began.elapsed() < LIMIT, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
