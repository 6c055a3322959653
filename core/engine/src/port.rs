//! The engine as the rest of Innkeeper sees it: token ids in, KV slabs and token ids out.
//!
//! An engine works on threads of its own; no method here waits for a chunk or a step. Results come back through sinks,
//! called on the engine's threads: a sink must return at once. Everything a room has is found by its id, so that an
//! engine which runs elsewhere and moves the KV itself can stand behind the same trait.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use innkeeper_room::ledger::Pinned;
use innkeeper_room::{
    Attempt, BlockHash, Layout, Manifest, Millis, Reason, RoomId, SlabMeta, SlabSink, SlabSource, Ticket, Token, Work,
};

/// An engine: computes prompts, imports KV, produces tokens, and owns the pool of KV pages by their ids.
pub trait Engine: Send + Sync + 'static {
    /// The shape of its KV; two workers pair only if theirs are equal.
    fn layout(&self) -> &Layout;

    /// What it can hold.
    fn limits(&self) -> Limits;

    /// Takes pages for `tokens` tokens out of the pool for a room. The ledger counts first; this executes.
    ///
    /// # Errors
    /// [`EngineError::NoPages`] if the pool has too few, [`EngineError::Exists`] if the room has pages already.
    fn open(&self, room: RoomId, tokens: u32) -> Result<(), EngineError> {
        self.open_reusing(room, tokens, &[])
    }

    /// As [`Engine::open`], but that the first pages are those of the prefix cache with these names: a prefill begins behind
    /// them and writes none of them. What follows is the same, bit for bit.
    ///
    /// # Errors
    /// As [`Engine::open`]; [`EngineError::NotCached`] if one of them is not there, or if nothing would be left to compute.
    fn open_reusing(&self, room: RoomId, tokens: u32, reuse: &[BlockHash]) -> Result<(), EngineError>;

    /// Computes the prompt in chunks, sealing each page's slabs as they become final, samples the first token and
    /// seals the manifest. Chunks are sized by the measured rate so that one takes about `chunk_target`.
    ///
    /// # Errors
    /// [`EngineError::Unknown`] if the room was not opened, [`EngineError::Input`] for ids outside the vocabulary or a
    /// prompt that is empty or too long.
    fn prefill(&self, room: RoomId, work: Arc<Work>, sink: Arc<dyn PrefillSink>) -> Result<(), EngineError>;

    /// Produces tokens from the imported KV, beginning after `first` (which the caller has already got). Decode steps
    /// are batched over rooms. Ends after `max_tokens` in all (the first one counts) or with a stop id.
    ///
    /// # Errors
    /// As [`Engine::prefill`].
    fn decode(&self, room: RoomId, job: DecodeJob, sink: Arc<dyn DecodeSink>) -> Result<(), EngineError>;

    /// Asks the room's job to stop at the next chunk or step boundary; then the sink hears `stopped`, once. A room
    /// without a job is not touched, and `false` comes back: nobody will call the sink.
    fn cancel(&self, room: RoomId) -> bool;

    /// Gives the room's pages back to the pool; how many. Idempotent. Only for a room that nobody touches any more:
    /// sources and sinks that are still held answer `Closed` from now on.
    fn close(&self, room: RoomId) -> u32 {
        self.close_keeping(room, &[])
    }

    /// As [`Engine::close`], but that these pages, by their place in the prompt, stay in the prefix cache under these names,
    /// with the checksums that were made when they were sealed. Only for a room whose prefill has finished.
    fn close_keeping(&self, room: RoomId, keep: &[(u32, BlockHash)]) -> u32;

    /// These pages of the prefix cache are free from now on, or as soon as the last room that reuses them is closed; how many
    /// there were.
    fn evict(&self, names: &[BlockHash]) -> u32;

    /// Read access to the room's sealed slabs, for the sender. `None` if the room has no pages.
    fn source(&self, room: RoomId) -> Option<Arc<dyn SlabSource>>;

    /// Write access to the room's pages, for the reader of decode. `tokens` is the prompt's length: the KV that comes.
    /// `None` if the room has no pages. Every call makes an independent handle that can be closed on its own.
    fn importer(&self, room: RoomId, tokens: u32) -> Option<Arc<dyn ClosableSink>>;

    /// How its KV moves if the workers do not move it. Such an engine has no slabs: a layout of no groups, and handles that
    /// refuse every byte.
    fn tickets(&self) -> Option<&dyn Tickets> {
        None
    }

    /// What it is doing right now. Cheap; called every report period.
    fn status(&self) -> EngineStatus;

    /// Stops all jobs and ends its threads; waits for them at most `limit`. Whether they ended.
    fn shutdown(&self, limit: Duration) -> bool;
}

/// An engine that is a process of its own, moves the KV itself, and tells decode's engine by a ticket where it is. Such an engine
/// computes and decodes through these methods, not through [`Engine::prefill`] and [`Engine::decode`].
pub trait Tickets: Send + Sync {
    /// P: computes the prompt and keeps its KV for whoever has the ticket.
    ///
    /// # Errors
    /// As [`Engine::prefill`].
    fn keep(&self, room: RoomId, job: KeepJob, sink: Arc<dyn KeepSink>) -> Result<(), EngineError>;

    /// P: how old the lease under which the room's KV is kept is at the most; `None`: none is kept.
    fn lease_age(&self, room: RoomId) -> Option<Millis>;

    /// P: nobody will read the room's KV. `done` is called once the engine has its pages back, also if there was nothing to give
    /// back; once, however often this is called meanwhile.
    fn give_back(&self, room: RoomId, done: Box<dyn FnOnce() + Send>);

    /// D: it says Ready to P now. No lease of this room is older.
    fn ready(&self, room: RoomId);

    /// How long a read of so many tokens' KV may take: while it lasts nothing can be seen to move.
    fn read_within(&self, prompt_tokens: u32) -> Millis;

    /// D: reads the KV by its ticket, and produces tokens from position 0 on.
    ///
    /// # Errors
    /// As [`Engine::decode`]; [`EngineError::Input`] if the ticket is none, or another room's.
    fn pull(&self, room: RoomId, job: PullJob, sink: Arc<dyn PullSink>) -> Result<(), EngineError>;

    /// Whether the engine is another process than when this was last asked; then nothing of what was asked of the former one is left:
    /// no leg, and nothing that is kept.
    fn reborn(&self) -> bool;

    /// What the ledger knows that only the end of the engine's process gets back. Said again every report period.
    fn pinned(&self, pinned: Option<Pinned>);

    /// What it shows of itself.
    fn seen(&self) -> Seen;

    /// What it is, for people.
    fn about(&self) -> About;

    /// D: gives P's engine back what nobody will read. Tried once: P's lease is what is left else.
    fn release(&self, room: RoomId, ticket: &Ticket);
}

/// What an engine that is a process of its own shows of itself. For metrics, and for whether its worker takes rooms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Seen {
    /// How long nothing has been seen to move, owed or not.
    pub step_age: Millis,
    /// What the last canary took that was answered.
    pub canary: Option<Millis>,
    /// Pages that its gauge shows in use, whoever uses them.
    pub used_pages: u32,
    /// Lives that were seen to begin after the first.
    pub lives: u64,
    /// Restarts that were ordered from here.
    pub restarts: u64,
    /// Prompts that it has computed and kept: it can prefill.
    pub kept: u64,
    /// Reads from another engine that were proven: it can decode.
    pub reads: u64,
    /// Tokens of prompts that it says came from another engine.
    pub external_tokens: u64,
    /// Tickets that nobody read by and that were given back from here.
    pub orphan_tickets: u64,
    /// Reads that were not proven to lie within their lease.
    pub unproven: u64,
    /// It is to be ended: whoever starts it anew may do so now.
    pub ending: bool,
    /// Its pages cannot be got back and nobody starts it anew: its worker takes no rooms, and somebody is to look.
    pub given_up: bool,
}

/// What an engine that is a process of its own is, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Kind and release.
    pub engine: String,
    /// Where it listens.
    pub url: String,
    /// Its model, as it names it.
    pub model: String,
    /// Pages of its own pool.
    pub pages: u32,
    /// How long prefill's engine is said to keep KV that nobody reads.
    pub lease: Millis,
    /// Who starts it anew.
    pub restart: String,
    /// How KV moves.
    pub transport: &'static str,
    /// What of the guarantee it does not let hold.
    pub partial: &'static [&'static str],
}

/// A prompt to compute and to keep.
#[derive(Clone, Debug)]
pub struct KeepJob {
    /// The prompt.
    pub work: Arc<Work>,
    /// Which try at the request it is.
    pub attempt: Attempt,
}

/// Asks P's worker for [`Tickets::lease_age`]; `None`: nobody knows. Its wait ends with the read's deadline. Before the read, if
/// decode alone cannot say that it may begin, and after it likewise: at most twice.
pub type AskLeaseAge = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Option<Millis>> + Send>> + Send + Sync>;

/// KV to read, and a request to decode.
pub struct PullJob {
    /// The prompt, the sampling and the stop ids.
    pub work: Arc<Work>,
    /// Which try at the request it is.
    pub attempt: Attempt,
    /// Tokens to produce in this room.
    pub max_tokens: u32,
    /// Where the KV is.
    pub ticket: Ticket,
    /// Asks for the age of its lease, once its first token is there.
    pub ask: AskLeaseAge,
}

/// Hears of a prompt that is kept. Exactly one of `kept`, `failed` and `stopped` comes last.
pub trait KeepSink: PrefillSink {
    /// It is computed and kept; a read of it may take so long.
    fn kept(&self, ticket: Ticket, read_within: Millis);
}

/// Hears of a read, and then of the tokens.
pub trait PullSink: DecodeSink {
    /// The KV is read, certainly while P's engine still kept it. Before the first token.
    fn pulled(&self);
}

/// A sink whose write permit can be taken back.
pub trait ClosableSink: SlabSink {
    /// Takes the permit back: once this returns no write is in hand, and later ones answer `Closed`.
    fn close(&self);
}

/// What an engine can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pages in the pool.
    pub total_pages: u32,
    /// Longest prompt and answer together, in tokens.
    pub context: u32,
    /// Ids are below this.
    pub vocabulary: u32,
}

/// A request to decode.
#[derive(Clone, Debug)]
pub struct DecodeJob {
    /// The prompt, the sampling and the stop ids.
    pub work: Arc<Work>,
    /// The first token, from the manifest. It is the token at position 0 of this room.
    pub first: Token,
    /// Tokens to produce in this room, the first one included.
    pub max_tokens: u32,
}

/// What an engine is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct EngineStatus {
    /// Chunks and steps finished since the start. The only thing that counts as an engine's progress.
    pub progress: u64,
    /// How long the chunk or step in hand has been in hand; `None` if it owes none.
    pub in_hand: Option<Duration>,
    /// Rooms with a job.
    pub jobs: u32,
    /// Pages in the pool that no room and no prefix has.
    pub free_pages: u32,
    /// Pages in the prefix cache.
    pub cached_pages: u32,
    /// Tokens computed by prefill since the start.
    pub prompt_tokens: u64,
    /// Tokens produced since the start.
    pub output_tokens: u64,
}

/// Hears of a prefill job. Exactly one of `finished`, `failed` and `stopped` comes last.
pub trait PrefillSink: Send + Sync {
    /// A slab is final. Its checksum was made now; or, of a page that is reused, when that was sealed.
    fn sealed(&self, slab: SlabMeta);
    /// Prompt tokens computed so far, those that are reused left out.
    fn computed(&self, tokens: u32);
    /// All is sealed; the job is over.
    fn finished(&self, manifest: Manifest);
    /// The job is over; nothing will be read or written for it any more.
    fn failed(&self, error: EngineError);
    /// The job was cancelled and is over.
    fn stopped(&self);
}

/// Hears of a decode job. Exactly one of `finished`, `failed` and `stopped` comes last.
pub trait DecodeSink: Send + Sync {
    /// The token at `position` of this room (the first one, position 0, is not repeated).
    fn token(&self, position: u32, token: Token);
    /// The last token was given; the job is over.
    fn finished(&self);
    /// The job is over.
    fn failed(&self, error: EngineError);
    /// The job was cancelled and is over.
    fn stopped(&self);
}

/// What an engine refuses, or what went wrong inside it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The pool has too few free pages.
    #[error("{wanted} KV pages were asked for but only {free} are free")]
    NoPages {
        /// Pages asked for.
        wanted: u32,
        /// Pages free.
        free: u32,
    },
    /// A page that was to be reused is not in the prefix cache.
    #[error("a page that was to be reused is not in the prefix cache, or nothing would be left to compute")]
    NotCached,
    /// The room has pages or a job already.
    #[error("room {0} exists in the engine already")]
    Exists(RoomId),
    /// The room has no pages here.
    #[error("room {0} has no pages in the engine")]
    Unknown(RoomId),
    /// The request cannot be computed.
    #[error("{0}")]
    Input(String),
    /// An engine that is a process of its own did not do what it was asked to.
    #[error("{why}")]
    Remote {
        /// What the room says of it.
        reason: Reason,
        /// What happened, for people.
        why: String,
    },
    /// The engine broke.
    #[error("the engine failed: {0}")]
    Broken(String),
}
