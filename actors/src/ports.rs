//! What the supervision tree needs of the network, and what the network needs of the tree. The tree knows no tonic; the
//! services wire both together.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use innkeeper_room::ledger::router::{AbortAnswer, Load, OnFailure, Outcome};
use innkeeper_room::prefix::Blocks;
use innkeeper_room::{
    Attempt, Class, Evidence, FromWorker, Incarnation, RequestKey, RoomId, RoomSpec, ToWorker, Token, Work,
};
use tokio::sync::{mpsc, watch};

/// A boxed future, where a trait object must be asked something.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Everything in an Open.
#[derive(Clone, Debug)]
pub struct OpenRoom {
    /// What the ledgers look at.
    pub spec: RoomSpec,
    /// What the engines look at.
    pub work: Arc<Work>,
    /// To P: D's data address. Empty to D.
    pub decode_addr: String,
    /// To P: the room's secret. 0 to D.
    pub token: u64,
}

/// A worker's message with what travels beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerSays {
    /// The message.
    pub message: FromWorker,
    /// The tokens of a `Tokens` message; else empty.
    pub tokens: Vec<Token>,
}

// ---- Router side

/// Where a worker is, and which life of it is meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The life that is meant.
    pub incarnation: Incarnation,
    /// `host:port` of its control plane.
    pub control: String,
}

/// R's links to workers. Returns at once; owned tasks connect and tell.
pub trait Links: Send + Sync + 'static {
    /// Opens a room at a worker on a new stream. The connection is shared by all rooms and the node stream of the worker.
    fn open(&self, target: &Target, open: OpenRoom) -> RoomLink;

    /// Opens the node stream to a worker and keeps it: reconnects with backoff until the receiver is dropped.
    fn node(&self, target: &Target) -> NodeLink;

    /// Forgets the connection to a worker; streams on it end.
    fn forget(&self, incarnation: Incarnation);
}

/// A room's stream to one worker, seen from R.
#[derive(Debug)]
pub struct RoomLink {
    /// What R says. Few messages per room; a full channel means a dead link, and the link ends itself. Dropping it
    /// half-closes the stream, which is reset after the grace.
    pub to: mpsc::Sender<ToWorker>,
    /// What the worker says, in order; [`LinkItem::Ended`] is the last.
    pub from: mpsc::Receiver<LinkItem>,
}

/// What comes out of a room's stream.
#[derive(Clone, Debug, PartialEq)]
pub enum LinkItem {
    /// The worker says.
    Says(WorkerSays),
    /// The stream ended. `broken`: the connection did (reset, refused, ping timeout), and not just the stream.
    Ended {
        /// The connection broke.
        broken: bool,
        /// What happened, for people.
        why: String,
    },
}

/// The node stream to one worker, seen from R.
#[derive(Debug)]
pub struct NodeLink {
    /// What R asks. A full channel means a dead link: questions then get no answer, which is one.
    pub ask: mpsc::Sender<NodeQuestion>,
    /// What the worker says.
    pub events: mpsc::Receiver<NodeEvent>,
}

/// R asks a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeQuestion {
    /// Who it is.
    Who,
    /// What it sees of a room.
    Evidence(RoomId),
}

/// What the node stream tells R.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// The worker reports itself; `incarnation` may be another one than was meant.
    Load {
        /// Who reports.
        incarnation: Incarnation,
        /// What.
        load: Load,
    },
    /// The answer to Who.
    Identity {
        /// Who answered.
        incarnation: Incarnation,
    },
    /// The answer to Evidence; `None`: it does not know the room.
    Evidence {
        /// Which room.
        room: RoomId,
        /// What it sees.
        evidence: Option<Evidence>,
    },
    /// The stream broke; another try follows by itself.
    Down {
        /// What happened, for people.
        why: String,
    },
}

// ---- Worker side

/// A worker's tree, as its gRPC service sees it.
pub trait WorkerPort: Send + Sync + 'static {
    /// Its life.
    fn incarnation(&self) -> Incarnation;

    /// A router opens a room.
    fn open(&self, open: OpenRoom) -> RoomPort;

    /// The worker's report of itself, sent anew every report period by the ledger itself, changed or not.
    fn loads(&self) -> watch::Receiver<Load>;

    /// What the ledger sees of a room; `None` if it knows none, or did not answer within the blame wait.
    fn evidence(&self, room: RoomId) -> Answer<'_, Option<Evidence>>;
}

/// A room's stream, seen from the worker.
pub struct RoomPort {
    /// Where R's messages go. Dropping it without an `Abort` before is the end of the stream: the owner is gone.
    pub to_room: Box<dyn RoomInlet>,
    /// What the room says, in order; `None` is the end of the stream: half-close. The queue behind it is bounded: unread
    /// State messages are coalesced into the newest, tokens are bounded by the room's max tokens.
    pub from_room: Box<dyn RoomOutlet>,
}

/// R's messages go in here.
pub trait RoomInlet: Send {
    /// R says something. Never waits.
    fn say(&self, message: ToWorker);
    /// The stream ended or its connection broke.
    fn ended(&self);
}

/// The room's messages come out here.
pub trait RoomOutlet: Send {
    /// The next message; `None` is the end.
    fn next(&mut self) -> Answer<'_, Option<WorkerSays>>;
}

// ---- The router's front

/// A request as the front door hands it over.
#[derive(Clone, Debug)]
pub struct NewRequest {
    /// The client's id (`x-request-id`), or one that was made.
    pub rid: String,
    /// Whose quota it counts for.
    pub client: String,
    /// The model as the client names it.
    pub model: Option<String>,
    /// The prompt, the sampling and the stop ids (`start_position` is 0).
    pub work: Work,
    /// The prompt's beginnings, for the choice of its workers; without any they are chosen by load.
    pub blocks: Blocks,
    /// Tokens that may be produced.
    pub max_tokens: u32,
    /// How urgent it is.
    pub class: Class,
    /// What follows when its room is lost after the first token.
    pub on_failure: OnFailure,
}

/// The router's tree, as the front door sees it.
pub trait RouterPort: Send + Sync + 'static {
    /// Submits a request. Dropping the stream before its answer is the client's abort.
    fn submit(&self, request: NewRequest) -> RequestStream;

    /// Aborts every request that lives under the id, or will arrive under it. `None`: the ledger did not answer in time.
    fn abort(&self, rid: String, client: String) -> Answer<'_, Option<AbortAnswer>>;
}

/// What a request gets.
pub struct RequestStream {
    /// The router's number of it.
    pub request: RequestKey,
    /// Tokens as they pass the gate, then the answer. The channel holds all tokens: a slow client never holds a page.
    pub events: mpsc::Receiver<RequestEvent>,
    /// Says that a stop string was found, or that the client's socket stalled. Its drop is the client's abort.
    pub control: Box<dyn RequestControl>,
}

/// What the front door tells the request.
pub trait RequestControl: Send + Sync {
    /// It has what it asked for.
    fn satisfied(&self);
    /// The client's socket took no byte for too long.
    fn stalled(&self);
}

/// What a request hears.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestEvent {
    /// So many tokens of the prompt are not computed: the request's first room that began found their KV at its prefill worker. At
    /// most once, and never for none. Mostly before the first token, but another worker says it than the one that speaks: it may
    /// come between tokens, and what comes after the answer is not heard.
    Reused(u32),
    /// Tokens passed the gate.
    Tokens(Vec<Token>),
    /// The answer; the last event.
    Answered {
        /// How.
        outcome: Outcome,
        /// The last room it was tried in.
        room: Option<RoomId>,
        /// How many tries it took.
        attempts: Attempt,
    },
}
