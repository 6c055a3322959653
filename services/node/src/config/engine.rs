//! Which engine a worker runs, and how large.

use clap::ValueEnum;
use innkeeper_room::Settings;

use super::{ConfigError, RemoteConfig, flag, wrong};

/// Which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum)]
pub enum EngineKind {
    /// The real one, on this machine's CPU.
    #[default]
    Embedded,
    /// A deterministic one without a model, for tests.
    Mock,
    /// vLLM, unmodified, next to the worker (--engine-url). It moves the KV itself, with NIXL.
    Vllm,
}

/// The engine, as far as it is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// Which engine computes. [default: embedded]
    #[arg(long, value_enum, value_name = "KIND")]
    pub engine: Option<EngineKind>,
    /// A GGUF file, or the id of a model: what the embedded engine runs. Or the folder of a model with its tokenizer.json: what
    /// text is read by in front of other engines. [default: SmolLM2-135M-Instruct; with vLLM where the engine has its model from]
    #[arg(long, value_name = "PATH|ID")]
    pub model: Option<String>,
    /// Threads of the embedded engine. [default: one per core]
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// KV pages in a worker's pool. [default: 1024, 4096 for the mock engine]
    #[arg(long, value_name = "PAGES")]
    pub kv_pages: Option<u32>,
    /// Tokens in one KV page. [default: 16]
    #[arg(long, value_name = "TOKENS")]
    pub page_tokens: Option<u32>,
    /// Longest prompt and answer together, in tokens. [default: the model's, 8192 for the mock engine]
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<u32>,
    /// Where the engine listens that runs next to the worker, as http://host:port. `innkeeper up` takes one for each worker,
    /// those of prefill first, with commas between them. [default: none]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub engine_url: Vec<String>,
    /// What starts that engine, if the worker is to start it, and to end it: a shell's command line. [default: nothing, it runs already]
    #[arg(long, value_name = "COMMAND")]
    pub engine_cmd: Option<String>,
    /// Who starts that engine anew when its pages cannot be got back otherwise: child (the worker, with --engine-cmd), exec:COMMAND, probe
    /// (the platform, which looks at /engine/livez of the worker), or none (the worker takes no rooms, and somebody is to look).
    /// [default: child with --engine-cmd, else none]
    #[arg(long, value_name = "HOW")]
    pub engine_restart: Option<String>,
    /// How long prefill's engine keeps KV that nobody reads, in seconds: what its kv_lease_duration is. [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub engine_kv_lease: Option<u32>,
    /// The model as clients name it. [default: what it is called where it comes from]
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// Simulated time per prompt token of the mock engine, in microseconds. [default: 20]
    #[arg(long, value_name = "US")]
    pub mock_prefill_us_per_token: Option<u64>,
    /// Simulated time per decode step of the mock engine, in which each room gets one token, in microseconds. [default:
    /// 1000]
    #[arg(long, value_name = "US")]
    pub mock_decode_us_per_token: Option<u64>,
    /// KV of one token of the mock engine, in bytes; an even number. [default: 64]
    #[arg(long, value_name = "BYTES")]
    pub mock_kv_bytes_per_token: Option<u32>,
}

/// Which engine, and how large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Which engine.
    pub kind: EngineKind,
    /// What the embedded one runs, or the folder of the model that another one computes; `None`: the default model.
    pub model: Option<String>,
    /// As clients name it; `None`: what it is called where it comes from.
    pub served_model_name: Option<String>,
    /// Its threads, at least 1.
    pub threads: u32,
    /// KV pages in the pool, at least 1.
    pub kv_pages: u32,
    /// Tokens in one page, at least 1.
    pub page_tokens: u32,
    /// Longest prompt and answer together, in tokens; `None`: the model's (8192 for the mock engine).
    pub context: Option<u32>,
    /// The mock engine's simulated times and sizes.
    pub mock: MockTiming,
    /// Engines that run next to their workers.
    pub remote: Option<RemoteConfig>,
}

/// The mock engine's simulated times and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MockTiming {
    /// Microseconds per prompt token.
    pub prefill_us_per_token: u64,
    /// Microseconds per decode step.
    pub decode_us_per_token: u64,
    /// Bytes of KV per token, all layer groups together; even.
    pub kv_bytes_per_token: u32,
}

impl Default for MockTiming {
    fn default() -> Self {
        Self {
            prefill_us_per_token: 20,
            decode_us_per_token: 1000,
            kv_bytes_per_token: 64,
        }
    }
}

impl EngineArgs {
    /// The engine's configuration.
    ///
    /// # Errors
    /// [`ConfigError::Wrong`] for a size that cannot work.
    pub fn resolve(&self) -> Result<EngineConfig, ConfigError> {
        let kind = self.engine.unwrap_or_default();
        let default_pages = match kind {
            // vLLM's own pool counts.
            EngineKind::Embedded | EngineKind::Vllm => 1024,
            EngineKind::Mock => 4096,
        };
        let cores = std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1));
        let mock = MockTiming::default();
        let kv_bytes = self.mock_kv_bytes_per_token.unwrap_or(mock.kv_bytes_per_token);
        if kv_bytes == 0 || !kv_bytes.is_multiple_of(2) || kv_bytes > 16 << 20 {
            return Err(wrong(
                "mock-kv-bytes-per-token",
                kv_bytes,
                "an even number from 2 to 16777216",
            ));
        }
        Ok(EngineConfig {
            kind,
            model: self.model.clone(),
            served_model_name: self.served_model_name.clone(),
            threads: within("threads", self.threads.unwrap_or(cores), 1024, "1 to 1024")?,
            kv_pages: within(
                "kv-pages",
                self.kv_pages.unwrap_or(default_pages),
                1 << 24,
                "1 to 16777216",
            )?,
            page_tokens: within("page-tokens", self.page_tokens.unwrap_or(16), 4096, "1 to 4096")?,
            context: self
                .context
                .map(|context| within("context", context, 1 << 24, "1 to 16777216"))
                .transpose()?,
            mock: MockTiming {
                prefill_us_per_token: self.mock_prefill_us_per_token.unwrap_or(mock.prefill_us_per_token),
                decode_us_per_token: self.mock_decode_us_per_token.unwrap_or(mock.decode_us_per_token),
                kv_bytes_per_token: kv_bytes,
            },
            remote: RemoteConfig::resolve(self, kind)?,
        })
    }
}

impl EngineConfig {
    /// What a worker is told that is the `nth` of several; engines that are part of the worker are all alike.
    #[must_use]
    pub fn of_worker(&self, nth: usize) -> Self {
        Self {
            remote: self.remote.as_ref().map(|remote| remote.of(nth)),
            ..self.clone()
        }
    }

    /// What an engine next door has of its own is not kept by the worker: the prefix cache.
    pub const fn fit(&self, settings: &mut Settings) {
        if self.remote.is_some() {
            settings.prefix_cache_percent = 0;
        }
    }

    /// Refuses another number of engines next door than there are workers.
    ///
    /// # Errors
    /// [`ConfigError::Wrong`].
    pub fn check_workers(&self, workers: u32) -> Result<(), ConfigError> {
        match &self.remote {
            Some(remote) if remote.urls.len() != workers as usize => Err(wrong(
                "engine-url",
                remote.urls.len(),
                &format!("{workers}: one engine for each worker, those of prefill first"),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Refuses to start one engine for several workers.
    ///
    /// # Errors
    /// [`ConfigError::Wrong`].
    pub fn check_no_command(&self) -> Result<(), ConfigError> {
        match self.remote.as_ref().and_then(|remote| remote.command.as_ref()) {
            Some(command) => Err(wrong(
                "engine-cmd",
                command,
                "left out: a worker's own process (innkeeper node prefill, innkeeper node decode) starts its engine",
            )),
            None => Ok(()),
        }
    }

    /// The arguments that give exactly this configuration.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let name = |value: Option<clap::builder::PossibleValue>| {
            value.map(|value| value.get_name().to_owned()).unwrap_or_default()
        };
        let mut args = vec![
            flag("engine", name(self.kind.to_possible_value())),
            flag("threads", self.threads),
            flag("kv-pages", self.kv_pages),
            flag("page-tokens", self.page_tokens),
            flag("mock-prefill-us-per-token", self.mock.prefill_us_per_token),
            flag("mock-decode-us-per-token", self.mock.decode_us_per_token),
            flag("mock-kv-bytes-per-token", self.mock.kv_bytes_per_token),
        ];
        args.extend(self.model.iter().map(|model| flag("model", model)));
        let served = self.served_model_name.iter();
        args.extend(served.map(|name| flag("served-model-name", name)));
        args.extend(self.remote.iter().flat_map(RemoteConfig::to_args));
        args.extend(self.context.iter().map(|context| flag("context", context)));
        args
    }
}

fn within(name: &str, value: u32, most: u32, right: &str) -> Result<u32, ConfigError> {
    if (1..=most).contains(&value) {
        Ok(value)
    } else {
        Err(wrong(name, value, right))
    }
}
