//! A deterministic engine without a model. Its KV is a pseudo-random function of the prompt, and its output a function
//! of every byte of KV in the room's pages: one wrong, missing or foreign byte changes every token from there on.

mod backend;
mod clock;
mod kv;

use std::sync::Arc;
use std::time::Duration;

use innkeeper_room::{BlockHash, Layout};

use crate::driver::{Driver, Tuning, drive};
use crate::pool::Pool;
use crate::port::Limits;
use backend::MockBackend;
use clock::Clock;

/// How a mock engine behaves.
#[derive(Clone, Debug)]
pub struct MockConfig {
    /// Simulated time per prompt token, microseconds.
    pub prefill_micros: u64,
    /// Simulated time per decode step (each room gets one token in it), microseconds.
    pub decode_micros: u64,
    /// KV bytes per token and layer group.
    pub group_token_bytes: u32,
    /// Layer groups: slabs per page.
    pub groups: u32,
    /// Tokens in one KV page.
    pub page_tokens: u32,
    /// Pages in the pool.
    pub total_pages: u32,
    /// Longest prompt and answer together, in tokens.
    pub context: u32,
    /// Ids are below this; at least [`crate::text::ByteTokenizer`]'s 260.
    pub vocabulary: u32,
    /// How long a prefill chunk should take: a tenth of the progress TTL.
    pub chunk_target: Duration,
    /// Most rooms in one decode step.
    pub largest_batch: usize,
    /// The absolute position (in the request) from which every token is the end-of-sequence token; `None`: never.
    pub eos_at: Option<u64>,
}

impl Default for MockConfig {
    /// A fast engine: 64 bytes of KV per token, 4,096 pages, 20 µs per prompt token, 1 ms per step.
    fn default() -> Self {
        Self {
            prefill_micros: 20,
            decode_micros: 1_000,
            group_token_bytes: 32,
            groups: 2,
            page_tokens: 16,
            total_pages: 4_096,
            context: 8_192,
            vocabulary: 260,
            chunk_target: Duration::from_millis(500),
            largest_batch: 256,
            eos_at: None,
        }
    }
}

/// The mock engine.
pub struct MockEngine {
    driver: Driver<MockBackend>,
    clock: Arc<Clock>,
}

impl MockEngine {
    /// Starts a mock engine and its thread.
    #[must_use]
    pub fn new(config: MockConfig) -> Arc<Self> {
        let layout = Layout {
            model: format!("mock/{}x{}", config.groups, config.group_token_bytes),
            page_tokens: config.page_tokens,
            groups: config.groups,
            group_token_bytes: config.group_token_bytes,
        };
        let limits = Limits {
            total_pages: config.total_pages,
            context: config.context,
            vocabulary: config.vocabulary,
        };
        // Always scrubbed: a slab that never arrived must not be mistaken for an earlier room's equal one.
        let pool = Pool::new(layout, config.total_pages, true);
        let tuning = Tuning {
            name: "mock-engine",
            chunk_target: config.chunk_target,
            largest_chunk: 4_096,
            largest_batch: config.largest_batch,
        };
        let clock = Arc::new(Clock::new(config.prefill_micros, config.decode_micros));
        let backend = MockBackend::new(Arc::clone(&clock), config.eos_at);
        Arc::new(Self {
            driver: Driver::start(pool, limits, tuning, backend),
            clock,
        })
    }

    /// Wedges the engine: the chunk or step in hand, or else the next one, does not end until [`Self::resume`].
    pub fn stall(&self) {
        self.clock.stall();
    }

    /// Ends [`Self::stall`].
    pub fn resume(&self) {
        self.clock.resume();
    }

    /// Whether it is wedged by [`Self::stall`].
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.clock.is_stalled()
    }

    /// The next chunk or step fails.
    pub fn fail_next(&self) {
        self.clock.fail_next();
    }

    /// Changes the simulated speed from the next chunk or step on.
    pub fn set_speed(&self, prefill_micros: u64, decode_micros: u64) {
        self.clock.set_speed(prefill_micros, decode_micros);
    }

    /// Damages a page of the prefix cache; whether there is one of that name.
    #[must_use]
    pub fn damage(&self, name: BlockHash) -> bool {
        self.driver.pool().damage(name)
    }

    /// The pages, for tests that look at owners and violations.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        self.driver.pool()
    }
}

impl Drop for MockEngine {
    /// A wedged thread is let go: it belongs to nobody any more.
    fn drop(&mut self) {
        self.clock.abandon();
    }
}

drive!(MockEngine);
