//! The model of a process: fetched and loaded once, shared by all engines and the tokenizer in it.

mod remote;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use innkeeper_engine::embedded::{Shape, WeightsError};
use innkeeper_engine::fetch::{self, FetchError, Progress};
use innkeeper_engine::text::{self, ByteTokenizer, TextError, Tokenizer};
use innkeeper_engine::{EmbeddedConfig, EmbeddedEngine, Engine, MockConfig, MockEngine, Weights};
use innkeeper_room::Settings;

use crate::config::{EngineConfig, EngineKind};
use crate::faults::Faults;
use remote::{Known, Remotes};

/// Tokens in one KV page of a mock's layer group: two groups, so that a page has more than one slab.
const MOCK_GROUPS: u32 = 2;
/// A prefill chunk takes a tenth of the progress TTL: a starved engine is slow, not wedged.
const CHUNKS_PER_TTL: u32 = 10;

/// A model that is ready to run.
pub struct Model {
    config: EngineConfig,
    name: String,
    context: u32,
    weights: Option<Arc<Weights>>,
    tokenizer: Arc<dyn Tokenizer>,
    page_tokens: u32,
    remotes: Option<Remotes>,
}

/// What is told while a model is made ready.
#[derive(Clone, Debug, PartialEq)]
pub enum Loading {
    /// It is on its way to this machine.
    Fetching(Progress),
    /// It is being loaded: done so far, 0 to 1.
    Weights(f32),
}

/// The model cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// It could not be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// It could not be loaded.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// An engine next door cannot be used.
    #[error("{0}")]
    Engine(String),
    /// Its tokenizer could not be made.
    #[error(transparent)]
    Text(#[from] TextError),
}

impl Model {
    /// Fetches and loads the model. Blocks for as long as that takes: call it where blocking is allowed. `weights`: an
    /// engine will be made of it; a router wants the tokenizer alone.
    ///
    /// # Errors
    /// [`ModelError`] says what is missing and what to do.
    pub fn load(config: &EngineConfig, weights: bool, progress: &dyn Fn(Loading)) -> Result<Arc<Self>, ModelError> {
        if config.kind == EngineKind::Mock {
            return Ok(Arc::new(Self {
                name: config.model.clone().unwrap_or_else(|| "mock".to_owned()),
                context: config.context.unwrap_or(MockConfig::default().context),
                config: config.clone(),
                page_tokens: config.page_tokens,
                weights: None,
                remotes: None,
                tokenizer: Arc::new(ByteTokenizer::new()),
            }));
        }
        if let Some(remote) = &config.remote {
            return remote::load(config, remote, weights).map(|known| Arc::new(Self::known(config, known)));
        }
        let wanted = config.model.as_deref().unwrap_or(fetch::DEFAULT_MODEL);
        let cache = fetch::default_cache_dir();
        let files = fetch::resolve(wanted, &cache, &|told| progress(Loading::Fetching(told)))?;
        let tokenizer = text::load_tokenizer(&files.gguf)?;
        let gguf: PathBuf = files.gguf;
        let shape = Shape::read(&gguf)?;
        let weights = weights
            .then(|| Weights::load(&gguf, &|done| progress(Loading::Weights(done))))
            .transpose()?;
        Ok(Arc::new(Self {
            config: config.clone(),
            name: files.name,
            context: config
                .context
                .unwrap_or(u32::MAX)
                .min(u32::try_from(shape.context).unwrap_or(u32::MAX)),
            page_tokens: config.page_tokens,
            weights,
            remotes: None,
            tokenizer,
        }))
    }

    fn known(config: &EngineConfig, known: Known) -> Self {
        Self {
            config: config.clone(),
            name: known.name,
            context: known.context,
            page_tokens: known.page_tokens.unwrap_or(config.page_tokens),
            weights: None,
            tokenizer: known.tokenizer,
            remotes: Some(known.remotes),
        }
    }

    /// The model as clients name it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Longest prompt and answer together, in tokens.
    #[must_use]
    pub fn context(&self) -> u32 {
        self.context
    }

    /// Tokens in a page of its KV.
    #[must_use]
    pub fn page_tokens(&self) -> u32 {
        self.page_tokens
    }

    /// Its tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> Arc<dyn Tokenizer> {
        Arc::clone(&self.tokenizer)
    }

    /// The engine of the `nth` worker: a new one over the shared weights, at the mercy of `faults` if it is a mock; or the one next
    /// door. `None` if the model was loaded without weights, or if there are not so many engines.
    #[must_use]
    pub fn engine(&self, nth: usize, settings: &Settings, faults: &Faults) -> Option<Arc<dyn Engine>> {
        if let Some(remotes) = &self.remotes {
            return remotes.engine(nth, settings, self.context, self.tokenizer.vocabulary());
        }
        let chunk_target: Duration = settings.progress_ttl.duration() / CHUNKS_PER_TTL;
        let EngineConfig {
            kv_pages,
            page_tokens,
            threads,
            context,
            mock,
            ..
        } = &self.config;
        if self.config.kind == EngineKind::Mock {
            let default = MockConfig::default();
            let engine = MockEngine::new(MockConfig {
                prefill_micros: mock.prefill_us_per_token,
                decode_micros: mock.decode_us_per_token,
                group_token_bytes: (mock.kv_bytes_per_token / MOCK_GROUPS).max(1),
                groups: MOCK_GROUPS,
                page_tokens: *page_tokens,
                total_pages: *kv_pages,
                context: context.unwrap_or(default.context),
                chunk_target,
                ..default
            });
            faults.mock(&engine);
            return Some(engine);
        }
        let weights = self.weights.as_ref()?;
        let config = EmbeddedConfig {
            total_pages: *kv_pages,
            page_tokens: *page_tokens,
            threads: usize::try_from(*threads).unwrap_or(0),
            chunk_target,
            ..EmbeddedConfig::default()
        };
        Some(EmbeddedEngine::new(Arc::clone(weights), config))
    }
}
