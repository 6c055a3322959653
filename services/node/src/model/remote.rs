//! Engines that run next to their workers: what each says that it is, and the text of its model.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use innkeeper_engine::Engine;
use innkeeper_engine::text::{self, Message, ModelFolder, TextError, Tokenizer};
use innkeeper_remote::driver::{Care, Watcher};
use innkeeper_remote::engine::{Shape, VllmEngine};
use innkeeper_remote::fence::Budget;
use innkeeper_remote::hook::Process;
use innkeeper_remote::http::Target;
use innkeeper_remote::lease::Lease;
use innkeeper_remote::look::PoolSize;
use innkeeper_remote::vllm::{Identity, Vllm};
use innkeeper_remote::{RemoteError, Times};
use innkeeper_room::Settings;

use super::ModelError;
use crate::clock::Clock;
use crate::config::{EngineConfig, RemoteConfig};

/// Engines load their weights for minutes before they answer.
const STARTS_WITHIN: Duration = Duration::from_secs(900);
/// Between two questions to one that does not answer yet.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Between two words about it.
const SAY_AGAIN: Duration = Duration::from_secs(15);
/// Starting an engine anew, by command.
const HOOK_LIMIT: Duration = Duration::from_secs(120);
/// For the first questions: no room waits for them yet.
const FIRST_TTL: Duration = Duration::from_secs(5);

/// Engines next door, in the order of the configuration.
pub(super) struct Remotes {
    config: RemoteConfig,
    engines: Vec<(Target, Identity)>,
    /// The engine, if this process has started it.
    child: Mutex<Option<Process>>,
}

/// What is known of their model.
pub(super) struct Known {
    pub(super) remotes: Remotes,
    pub(super) name: String,
    pub(super) context: u32,
    pub(super) page_tokens: Option<u32>,
    pub(super) tokenizer: Arc<dyn Tokenizer>,
}

/// Asks all engines what they are, and reads the text of their model. A worker does without text; `up` and a router do not.
///
/// # Errors
/// [`ModelError::Engine`] says which engine is wrong, and what to do.
pub(super) fn load(config: &EngineConfig, remote: &RemoteConfig, worker: bool) -> Result<Known, ModelError> {
    let mut child = start(remote)?;
    let engines = ask_all(&remote.urls, child.as_mut())?;
    let first = engines.first().map(|(_, identity)| identity);
    same_model(&engines)?;
    let folder = config
        .model
        .as_deref()
        .or_else(|| first?.root.as_deref())
        .and_then(|path| ModelFolder::at(Path::new(path)));
    let tokenizer: Arc<dyn Tokenizer> = match &folder {
        Some(folder) => text::load_tokenizer(folder.path())?,
        None if worker && remote.urls.len() == 1 => Arc::new(NoText),
        None => return Err(no_folder(config, first)),
    };
    let name = first
        .map(|identity| identity.model.clone())
        .or_else(|| folder.as_ref().map(ModelFolder::name))
        .unwrap_or_default();
    let longest = [
        config.context,
        first.and_then(|identity| identity.context),
        folder.as_ref().map(ModelFolder::context).transpose()?.flatten(),
    ];
    Ok(Known {
        name,
        context: longest.into_iter().flatten().min().unwrap_or(u32::MAX),
        page_tokens: first.and_then(|identity| identity.pool).map(|pool| pool.page_tokens),
        tokenizer,
        remotes: Remotes {
            config: remote.clone(),
            engines,
            child: Mutex::new(child),
        },
    })
}

fn no_folder(config: &EngineConfig, first: Option<&Identity>) -> ModelError {
    let said = config.model.as_deref().or_else(|| first?.root.as_deref());
    ModelError::Engine(format!(
        "the tokenizer of the engine's model is not at `{}`: give --model the folder with its tokenizer.json",
        said.unwrap_or("(the engine does not say where)")
    ))
}

fn same_model(engines: &[(Target, Identity)]) -> Result<(), ModelError> {
    let mut engines = engines.iter();
    let Some((one, first)) = engines.next() else {
        return Ok(());
    };
    match engines.find(|(_, identity)| (&identity.model, &identity.version) != (&first.model, &first.version)) {
        Some((other, identity)) => Err(ModelError::Engine(format!(
            "the engine at {one} serves `{}` with release {}, the one at {other} serves `{}` with release {}: start all with one model \
             and one release",
            first.model, first.version, identity.model, identity.version
        ))),
        None => Ok(()),
    }
}

/// Starts the engine, if this process is to.
fn start(remote: &RemoteConfig) -> Result<Option<Process>, ModelError> {
    let Some(command) = &remote.command else {
        return Ok(None);
    };
    let shell = command_line(command);
    let started = Process::spawn(&shell, &[]);
    started.map(Some).map_err(|error| ModelError::Engine(error.to_string()))
}

fn command_line(command: &str) -> Vec<String> {
    ["sh", "-c", command].map(str::to_owned).to_vec()
}

/// Blocks: called where that is allowed, with or without a runtime around.
fn ask_all(urls: &[Target], mut child: Option<&mut Process>) -> Result<Vec<(Target, Identity)>, ModelError> {
    if urls.is_empty() {
        return Ok(vec![]);
    }
    let mut is_over = move || child.as_mut().is_some_and(|child| child.is_over());
    // A runtime of its own, on a thread of its own: there may be one around this.
    let asking = std::thread::scope(|scope| scope.spawn(|| asked_here(urls, &mut is_over)).join());
    asking.unwrap_or_else(|_| {
        Err(ModelError::Engine(
            "the engines could not be asked what they are".to_owned(),
        ))
    })
}

fn asked_here(
    urls: &[Target],
    is_over: &mut (dyn FnMut() -> bool + Send),
) -> Result<Vec<(Target, Identity)>, ModelError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| ModelError::Engine(format!("the engines could not be asked: {error}")))?;
    let mut engines = vec![];
    for url in urls {
        let identity = runtime.block_on(identity(url, is_over))?;
        engines.push((url.clone(), identity));
    }
    Ok(engines)
}

/// Waits for an engine that is starting.
async fn identity(url: &Target, is_over: &mut (dyn FnMut() -> bool + Send)) -> Result<Identity, ModelError> {
    let times = Times::from_ttl(FIRST_TTL);
    let (began, mut said) = (Instant::now(), None::<Instant>);
    loop {
        let error = match Vllm::identity(url, &times).await {
            Ok(identity) => return Ok(identity),
            // It answers, and is another thing than it should be.
            Err(error @ (RemoteError::Unreadable { .. } | RemoteError::Status { status: 404, .. })) => {
                return Err(ModelError::Engine(format!("at {url} is no vLLM: {error}")));
            }
            Err(error) => error,
        };
        if is_over() {
            return Err(ModelError::Engine(
                "the engine has ended before it answered; its own words are above".to_owned(),
            ));
        }
        if began.elapsed() > STARTS_WITHIN {
            return Err(ModelError::Engine(format!(
                "the engine at {url} did not start within {STARTS_WITHIN:?}: {error}"
            )));
        }
        if said.is_none_or(|at| at.elapsed() > SAY_AGAIN) {
            tracing::info!(%url, %error, "waiting for the engine to start");
            said = Some(Instant::now());
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

impl Remotes {
    /// The `nth` engine behind the worker's port; `None` if there are not so many.
    pub(super) fn engine(
        &self,
        nth: usize,
        settings: &Settings,
        context: u32,
        vocabulary: u32,
    ) -> Option<Arc<dyn Engine>> {
        let (target, identity) = self.engines.get(nth)?;
        let ttl = settings.progress_ttl;
        let vllm = Vllm::new(target.clone(), identity.model.clone(), Times::from_ttl(ttl.duration()));
        let boot = Clock::boot();
        let clock = Arc::new(move || innkeeper_actors::clock::Clock::now(&boot));
        let watcher = Watcher::new(vllm, ttl, settings.report_period.duration(), clock);
        // Without its own word for its pool: one page, in which nothing fits, and `doctor` says why.
        let pool = identity.pool.unwrap_or(PoolSize {
            pages: 1,
            page_tokens: 1,
        });
        let kind = format!("vllm-{}", identity.version);
        let shape = Shape::new(&identity.model, &kind, pool, context, vocabulary);
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        let care = Care {
            hook: self.config.restart.clone(),
            command: self.config.command.as_deref().map(command_line).unwrap_or_default(),
            url: format!("http://{target}"),
            ttl,
            budget: Budget::default(),
            limit: HOOK_LIMIT,
        };
        Some(VllmEngine::new(
            watcher,
            shape,
            Lease(self.config.kv_lease),
            care,
            child,
        ))
    }
}

/// A worker next to an engine whose model's folder it does not see: it has to do with token ids alone.
struct NoText;

impl NoText {
    fn refused() -> TextError {
        TextError::Model(
            "this worker knows token ids alone; give --model the folder with the model's tokenizer.json".to_owned(),
        )
    }
}

impl Tokenizer for NoText {
    fn encode(&self, _text: &str, _allow_special: bool) -> Result<Vec<u32>, TextError> {
        Err(Self::refused())
    }

    fn token_bytes(&self, _id: u32) -> &[u8] {
        &[]
    }

    fn special(&self, _id: u32) -> Option<&str> {
        None
    }

    fn eos_ids(&self) -> &[u32] {
        &[]
    }

    fn vocabulary(&self) -> u32 {
        u32::MAX
    }

    fn chat(&self, _messages: &[Message]) -> Result<Vec<u32>, TextError> {
        Err(Self::refused())
    }
}
