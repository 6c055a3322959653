//! The embedded engine: a model of the Llama architecture on the CPU.
//!
//! Weights are f32, KV is f16 in the page pool. For the same prompt and sampling the tokens and their logprobs are the
//! same bits for any chunking, batching, number of threads, and whether KV was computed here or imported.

mod attention;
mod kernel;
mod model;
mod weights;

use std::sync::Arc;
use std::time::Duration;

use innkeeper_room::{Layout, Token};
use rayon::ThreadPool;

use crate::driver::{Backend, Chunk, Driver, Item, Tuning, closed, drive};
use crate::pool::Pool;
use crate::port::{EngineError, Limits};
use crate::sample::choose;
use attention::Segment;
use model::Model;
pub use weights::{Shape, Weights, WeightsError};

/// How an embedded engine is set up.
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// KV pages in the pool. A page of SmolLM2-135M is 16 × 23,040 bytes; memory is used once a page is.
    pub total_pages: u32,
    /// Tokens in one KV page.
    pub page_tokens: u32,
    /// Threads that compute; 0 is one per processor.
    pub threads: usize,
    /// How long a prefill chunk should take: a tenth of the progress TTL.
    pub chunk_target: Duration,
    /// Largest chunk in tokens: it bounds scratch memory (about 50 KB per token).
    pub largest_chunk: u32,
    /// Most rooms in one decode step; more rooms take turns.
    pub largest_batch: usize,
    /// Overwrite pages when they are handed out.
    pub scrub: bool,
}

impl Default for EmbeddedConfig {
    /// 1,024 pages of 16 tokens (16,384 tokens, 377 MB at most), all processors, chunks of half a second.
    fn default() -> Self {
        Self {
            total_pages: 1_024,
            page_tokens: 16,
            threads: 0,
            chunk_target: Duration::from_millis(500),
            largest_chunk: 512,
            largest_batch: 64,
            scrub: cfg!(debug_assertions),
        }
    }
}

/// The embedded engine.
pub struct EmbeddedEngine {
    driver: Driver<Llama>,
}

impl EmbeddedEngine {
    /// Starts an engine over shared weights.
    #[must_use]
    pub fn new(weights: Arc<Weights>, config: EmbeddedConfig) -> Arc<Self> {
        let shape = weights.shape();
        let layout = Layout {
            model: format!("{}/f32", shape.name),
            page_tokens: config.page_tokens.max(1),
            groups: to_u32(shape.groups()),
            group_token_bytes: to_u32(shape.group_layers() * 2 * shape.kv_width() * size_of::<half::f16>()),
        };
        let limits = Limits {
            total_pages: config.total_pages,
            context: to_u32(shape.context),
            vocabulary: to_u32(shape.vocabulary),
        };
        let tuning = Tuning {
            name: "llama-engine",
            chunk_target: config.chunk_target,
            largest_chunk: config.largest_chunk,
            largest_batch: config.largest_batch,
        };
        let pool = Pool::new(layout, config.total_pages, config.scrub);
        let backend = Llama {
            model: Model::new(weights),
            threads: config.threads,
            pool: None,
        };
        Arc::new(Self {
            driver: Driver::start(pool, limits, tuning, backend),
        })
    }

    /// The pages, for tests that look at owners and violations.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        self.driver.pool()
    }
}

drive!(EmbeddedEngine);

fn to_u32(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// What runs on the engine's thread.
struct Llama {
    model: Model,
    threads: usize,
    /// Started with the first chunk or step.
    pool: Option<ThreadPool>,
}

impl Llama {
    /// The model and the threads to run it on.
    fn ready(&mut self) -> Result<(&ThreadPool, &mut Model), EngineError> {
        if self.pool.is_none() {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(self.threads);
            let built = builder.thread_name(|at| format!("llama-{at}")).build();
            self.pool =
                Some(built.map_err(|error| EngineError::Broken(format!("it could not start threads: {error}")))?);
        }
        match &self.pool {
            Some(pool) => Ok((pool, &mut self.model)),
            None => Err(EngineError::Broken("it has no threads".to_owned())),
        }
    }
}

impl Backend for Llama {
    type State = ();

    fn prefill(&mut self, chunk: Chunk<'_>, _state: &mut ()) -> Result<Option<Token>, EngineError> {
        let (from, to) = (chunk.from as usize, chunk.to as usize);
        let segment = Segment {
            pages: chunk.pages,
            from,
            len: to - from,
        };
        let ids = &chunk.work.prompt[from..to];
        let (pool, model) = self.ready()?;
        let mut results = pool.install(|| model.forward(&[segment], ids, chunk.is_last()));
        let logits = results.pop().unwrap_or_else(|| Ok(Vec::new())).map_err(closed)?;
        let sampling = &chunk.work.sampling;
        Ok(chunk
            .is_last()
            .then(|| choose(&logits, sampling, u64::from(chunk.work.start_position))))
    }

    fn step(&mut self, items: &mut [Item<'_, ()>]) -> Vec<Result<Token, EngineError>> {
        let segments: Vec<_> = items
            .iter()
            .map(|item| Segment {
                pages: item.pages,
                from: item.fed_at() as usize,
                len: 1,
            })
            .collect();
        let ids: Vec<u32> = items
            .iter()
            .map(|item| item.produced.last().copied().unwrap_or_default())
            .collect();
        let results = match self.ready() {
            Ok((pool, model)) => pool.install(|| model.forward(&segments, &ids, true)),
            Err(error) => return vec![Err(error); items.len()],
        };
        let sample = |(item, logits): (&Item<'_, ()>, Result<Vec<f32>, _>)| {
            Ok(choose(&logits.map_err(closed)?, &item.work.sampling, item.samples_at()))
        };
        items.iter().zip(results).map(sample).collect()
    }
}
