//! What the front door is built from.

use std::sync::Arc;
use std::time::Duration;

use innkeeper_actors::ports::RouterPort;
use innkeeper_engine::text::Tokenizer;
use innkeeper_node::config::OnFailureRoutes;
use innkeeper_node::security::Keys;
use innkeeper_room::Settings;

use super::auth::NoKey;
use super::limits::RateLimits;

/// Everything the front door needs. Cheap to clone.
#[derive(Clone)]
pub struct FrontState {
    /// The router's tree.
    pub port: Arc<dyn RouterPort>,
    /// The model's tokenizer and chat template.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// The model that is served.
    pub model: Model,
    /// What a request may ask for.
    pub limits: Limits,
    /// The protocol's bounds; the front uses `client_stall`, `request_timeout`, `grace` and the TTL.
    pub settings: Settings,
    /// Prompts are compared in blocks of so many tokens: the pages of the model's KV.
    pub block_tokens: u32,
    /// What becomes of a stream whose room is lost.
    pub on_failure: OnFailureRoutes,
    /// What each tenant may ask for in a minute.
    pub rates: Arc<RateLimits>,
    /// Clients must show one of these; `None`: everybody may ask.
    pub keys: Option<Arc<Keys>>,
    /// How often a silent stream is looked at: a comment is sent only if tokens came since the last look.
    pub keep_alive: Duration,
    /// Whether at least one prefill and one decode worker serve.
    pub ready: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Where counts and times go.
    pub metrics: Arc<dyn Metrics>,
}

/// The served model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name in `/v1/models` and in answers; what the router's tree gets as the model.
    pub id: String,
    /// Other names that clients may use for it.
    pub aliases: Vec<String>,
    /// When it was made, in seconds since 1970; clients only show it.
    pub created: u64,
}

impl Model {
    /// Whether a client means this model by `name`.
    #[must_use]
    pub fn answers_to(&self, name: &str) -> bool {
        self.id == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// What a request may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest prompt and answer together, in tokens.
    pub context: u32,
    /// Token ids are below this.
    pub vocabulary: u32,
    /// Tokens of a chat answer whose request names no maximum (fewer if the context ends before).
    pub default_chat_tokens: u32,
    /// The same for completions; OpenAI's own default is 16.
    pub default_completion_tokens: u32,
    /// Largest body, in bytes.
    pub max_body_bytes: usize,
    /// Largest `n`.
    pub max_n: u32,
    /// Largest number of prompts × `n`: each is a room of its own.
    pub max_choices: u32,
}

impl Limits {
    /// The limits for a model, everything else at its default: bodies of 4 MiB, `n` of 8, 64 choices.
    #[must_use]
    pub const fn new(context: u32, vocabulary: u32, default_max_tokens: u32) -> Self {
        Self {
            context,
            vocabulary,
            default_chat_tokens: default_max_tokens,
            default_completion_tokens: 16,
            max_body_bytes: 4 << 20,
            max_n: 8,
            max_choices: 64,
        }
    }
}

/// Which kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

impl Route {
    /// The bounded label of metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
        }
    }
}

/// How one HTTP request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestEnd {
    /// Which kind.
    pub route: Route,
    /// `done`, `refused` (never got as far as a room), or the code of a typed reason; `aborted` if the client left.
    pub outcome: &'static str,
    /// From the body's arrival to the last token.
    pub took: Duration,
    /// Tokens of the prompts.
    pub prompt_tokens: u64,
    /// Tokens produced for it.
    pub completion_tokens: u64,
}

/// The span of one HTTP request, for whoever traces it. It ends when its last holder drops it.
pub trait ServerSpan: Send + Sync {
    /// The W3C trace context of all that is done for the request.
    fn traceparent(&self) -> String;
    /// The HTTP status of the answer.
    fn status(&self, status: u16);
    /// How the request ended.
    fn ended(&self, end: &RequestEnd);
}

/// Hears what the front door measures. Called on request paths: return at once.
pub trait Metrics: Send + Sync + 'static {
    /// A request ended; exactly once for each that reached its route.
    fn ended(&self, end: &RequestEnd);
    /// The first token of a choice came `waited` after the request's arrival.
    fn first_token(&self, route: Route, waited: Duration);
    /// Further `tokens` of a choice came `gap` after the ones before.
    fn next_tokens(&self, route: Route, gap: Duration, tokens: usize);
    /// A tenant's limit refused a request, by its label; so many tenants are remembered.
    fn rate_limited(&self, _which: &'static str, _tenants: usize) {}
    /// A request was refused because of its key, or for want of one.
    fn unauthenticated(&self, _why: NoKey) {}
    /// A request reached its route, under this id, for this model, with the trace context that its caller sent: its span,
    /// if there are spans.
    fn span(&self, _route: Route, _rid: &str, _model: &str, _caller: Option<&str>) -> Option<Arc<dyn ServerSpan>> {
        None
    }
}

/// Measures nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMetrics;

impl Metrics for NoMetrics {
    fn ended(&self, _end: &RequestEnd) {}
    fn first_token(&self, _route: Route, _waited: Duration) {}
    fn next_tokens(&self, _route: Route, _gap: Duration, _tokens: usize) {}
}
