//! The engine as the rest of Innkeeper sees it: token ids in, KV slabs and token ids out.
//!
//! An engine works on threads of its own; no method here waits for a chunk or a step. Results come back through sinks,
//! called on the engine's threads: a sink must return at once. Everything a room has is found by its id, so that an
//! engine which runs elsewhere and moves the KV itself can stand behind the same trait.

use std::sync::Arc;
use std::time::Duration;

use innkeeper_room::{BlockHash, Layout, Manifest, RoomId, SlabMeta, SlabSink, SlabSource, Token, Work};

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

    /// What it is doing right now. Cheap; called every report period.
    fn status(&self) -> EngineStatus;

    /// Stops all jobs and ends its threads; waits for them at most `limit`. Whether they ended.
    fn shutdown(&self, limit: Duration) -> bool;
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
    /// The engine broke.
    #[error("the engine failed: {0}")]
    Broken(String),
}
