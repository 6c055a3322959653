//! The model of a process: fetched and loaded once, shared by all engines and the tokenizer in it.

mod remote;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use innkeeper_engine::embedded::{Shape, WeightsError};
use innkeeper_engine::fetch::{self, FetchError, Progress};
use innkeeper_engine::text::{self, ByteTokenizer, ModelFolder, TextError, Tokenizer};
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
    /// The embedded engine is to run a folder.
    #[error(
        "{0} is a model's folder, and the embedded engine runs GGUF files: name one with --model, or another engine with \
         --engine"
    )]
    Folder(PathBuf),
    /// Nobody says how long prompts may be.
    #[error("{0} does not say how long the context is: give its tokens with --context")]
    Context(PathBuf),
}

impl Model {
    /// Fetches and loads the model. Blocks for as long as that takes: call it where blocking is allowed. `weights`: an
    /// engine will be made of it; a router wants the tokenizer alone.
    ///
    /// # Errors
    /// [`ModelError`] says what is missing and what to do.
    pub fn load(config: &EngineConfig, weights: bool, progress: &dyn Fn(Loading)) -> Result<Arc<Self>, ModelError> {
        if let Some(remote) = &config.remote {
            return remote::load(config, remote, weights).map(|known| Arc::new(Self::known(config, known)));
        }
        let named = config.model.as_deref().map(Path::new);
        if let Some(folder) = named.and_then(ModelFolder::at) {
            if weights && config.kind == EngineKind::Embedded {
                return Err(ModelError::Folder(folder.path().to_owned()));
            }
            return Self::of_folder(config, &folder);
        }
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

    /// The text side of a model that another engine computes.
    fn of_folder(config: &EngineConfig, folder: &ModelFolder) -> Result<Arc<Self>, ModelError> {
        let own = folder.context()?;
        let engine = match config.kind {
            EngineKind::Embedded | EngineKind::Vllm => None,
            EngineKind::Mock => Some(MockConfig::default().context),
        };
        let context = match (config.context, engine) {
            (Some(asked), _) => own.map_or(asked, |own| own.min(asked)),
            (None, Some(engine)) => own.map_or(engine, |own| own.min(engine)),
            (None, None) => own.ok_or_else(|| ModelError::Context(folder.path().join("config.json")))?,
        };
        Ok(Arc::new(Self {
            config: config.clone(),
            name: folder.name(),
            context,
            page_tokens: config.page_tokens,
            weights: None,
            remotes: None,
            tokenizer: text::load_tokenizer(folder.path())?,
        }))
    }

    /// The model as clients name it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.config.served_model_name.as_deref().unwrap_or(&self.name)
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
                context: self.context,
                vocabulary: self.tokenizer.vocabulary().max(default.vocabulary),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineArgs;

    /// A tokenizer of two letters; what else it takes is tested where it is read.
    const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [{"id": 999, "content": "</s>", "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
        "decoder": {"type": "ByteLevel"}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": true}, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}"#;

    fn folder(config: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a directory");
        let files = [
            ("tokenizer.json", TOKENIZER),
            ("generation_config.json", "{\"eos_token_id\": 999}"),
            ("config.json", config),
        ];
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content).expect("writes");
        }
        folder
    }

    fn config(kind: EngineKind, model: &Path, context: Option<u32>) -> EngineConfig {
        let args = EngineArgs {
            engine: Some(kind),
            model: Some(model.display().to_string()),
            context,
            ..EngineArgs::default()
        };
        args.resolve().expect("a configuration")
    }

    fn load(kind: EngineKind, model: &Path, context: Option<u32>, weights: bool) -> Result<Arc<Model>, ModelError> {
        Model::load(&config(kind, model, context), weights, &|_| {})
    }

    #[test]
    fn a_folder_gives_its_text_to_routers_and_to_engines_that_bring_no_text_of_their_own() {
        let folder = folder("{\"max_position_embeddings\": 777}");
        for (kind, weights) in [
            (EngineKind::Embedded, false),
            (EngineKind::Mock, false),
            (EngineKind::Mock, true),
        ] {
            let model = load(kind, folder.path(), None, weights).unwrap_or_else(|error| panic!("{error}"));
            let own = folder
                .path()
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            assert_eq!((Some(model.name()), model.context()), (own.as_deref(), 777));
            assert_eq!(model.tokenizer().encode("ab</s>", true), Ok(vec![0, 1, 999]));
            assert_eq!(model.tokenizer().eos_ids(), [999]);
        }
    }

    #[test]
    fn a_mock_engine_takes_all_ids_of_the_folder_and_no_longer_prompt() {
        let folder = folder("{\"max_position_embeddings\": 777}");
        let model = load(EngineKind::Mock, folder.path(), None, true).unwrap_or_else(|error| panic!("{error}"));
        let engine = model
            .engine(0, &Settings::default(), &Faults::default())
            .expect("an engine");
        assert_eq!((engine.limits().vocabulary, engine.limits().context), (1000, 777));
    }

    #[test]
    fn the_embedded_engine_refuses_a_folder_and_says_what_it_takes() {
        let folder = folder("{}");
        let refused = load(EngineKind::Embedded, folder.path(), None, true)
            .err()
            .map(|error| error.to_string());
        let refused = refused.unwrap_or_default();
        assert!(refused.contains("GGUF") && refused.contains("--model"), "{refused}");
    }

    #[test]
    fn a_context_that_nobody_says_is_asked_for() {
        let folder = folder("{}");
        let asked = load(EngineKind::Embedded, folder.path(), None, false)
            .err()
            .map(|error| error.to_string());
        assert!(asked.unwrap_or_default().contains("--context"));
        let said = load(EngineKind::Embedded, folder.path(), Some(99), false).map(|model| model.context());
        assert!(matches!(said, Ok(99)), "{said:?}");
        let mock = load(EngineKind::Mock, folder.path(), None, false).map(|model| model.context());
        assert!(matches!(mock, Ok(8192)), "{mock:?}");
    }
}
