//! The engine port on the runtime's own (paused) clock: one task instead of a thread, the same rules as the production
//! driver: chunks in turn, batched steps, cancel at the next boundary, one last word per job.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use innkeeper_engine::{ClosableSink, DecodeJob, DecodeSink, Engine, EngineError, EngineStatus, Limits, PrefillSink};
use innkeeper_room::{BlockHash, Layout, RoomId, SlabMeta, SlabSource, Work};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::answers::{Digest, Prefix, VOCABULARY, layout};
use crate::pages::{Importer, Pool, RoomPages, Source};
use crate::story::{Story, lock, wrong};

/// Longest prompt and answer together.
pub(crate) const CONTEXT: u32 = 2048;

/// The engine.
pub(crate) struct SimEngine {
    layout: Layout,
    total: u32,
    shared: Arc<Shared>,
    task: AbortHandle,
}

/// What the engine and its task share.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) story: Arc<Story>,
    pool: Arc<Pool>,
    pub(crate) state: Mutex<State>,
    pub(crate) wake: Notify,
}

/// Times and troubles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Per prompt token.
    pub(crate) prefill: Duration,
    /// Per step.
    pub(crate) step: Duration,
    /// All of it takes this much longer.
    pub(crate) slow: u32,
}

pub(crate) struct State {
    pub(crate) pace: Pace,
    pub(crate) stalled: bool,
    /// Its node is stopped.
    pub(crate) frozen: bool,
    pub(crate) fail_next: bool,
    pub(crate) rooms: BTreeMap<RoomId, Arc<RoomPages>>,
    pub(crate) jobs: BTreeMap<RoomId, Job>,
    pub(crate) prefills: VecDeque<RoomId>,
    pub(crate) progress: u64,
    pub(crate) began: Option<Instant>,
}

pub(crate) enum Kind {
    Prefill(Arc<dyn PrefillSink>, Vec<SlabMeta>),
    Decode(Arc<dyn DecodeSink>, Vec<u32>, u32),
}

pub(crate) struct Job {
    pub(crate) work: Arc<Work>,
    pub(crate) pages: Arc<RoomPages>,
    pub(crate) kind: Kind,
    pub(crate) prefix: Prefix,
    pub(crate) digest: Digest,
    pub(crate) cancelled: bool,
}

impl SimEngine {
    /// Starts an engine.
    pub(crate) fn start(name: String, story: Arc<Story>, total: u32, pace: Pace) -> Arc<Self> {
        let shared = Arc::new(Shared {
            pool: Pool::new(name.clone(), Arc::clone(&story), total),
            name,
            story,
            state: Mutex::new(State {
                pace,
                stalled: false,
                frozen: false,
                fail_next: false,
                rooms: BTreeMap::new(),
                jobs: BTreeMap::new(),
                prefills: VecDeque::new(),
                progress: 0,
                began: None,
            }),
            wake: Notify::new(),
        });
        let task = tokio::spawn(Arc::clone(&shared).run()).abort_handle();
        Arc::new(Self {
            layout: layout(),
            total,
            shared,
            task,
        })
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.shared.state));
        self.shared.wake.notify_one();
    }

    /// The chunk or step in hand does not end while stalled.
    pub(crate) fn stall(&self, stalled: bool) {
        self.change(|state| state.stalled = stalled);
    }

    /// Its node is stopped, or goes on.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.change(|state| state.frozen = frozen);
    }

    /// The next chunk or step fails.
    pub(crate) fn fail_next(&self, fail: bool) {
        self.change(|state| state.fail_next = fail);
    }

    /// Everything takes `slow` times as long.
    pub(crate) fn slow(&self, slow: u32) {
        self.change(|state| state.pace.slow = slow);
    }

    /// Free pages, rooms with pages, and jobs.
    pub(crate) fn left(&self) -> (u32, usize, usize) {
        let state = lock(&self.shared.state);
        (self.shared.pool.free(), state.rooms.len(), state.jobs.len())
    }

    /// Its process is gone.
    pub(crate) fn kill(&self) {
        self.task.abort();
    }
}

impl Engine for SimEngine {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn limits(&self) -> Limits {
        Limits {
            total_pages: self.total,
            context: CONTEXT,
            vocabulary: VOCABULARY,
        }
    }

    fn open_reusing(&self, room: RoomId, tokens: u32, reuse: &[BlockHash]) -> Result<(), EngineError> {
        let mut state = lock(&self.shared.state);
        if state.rooms.contains_key(&room) {
            return Err(EngineError::Exists(room));
        }
        let pages = self.shared.pool.take(room, tokens, reuse)?;
        state.rooms.insert(room, pages);
        Ok(())
    }

    fn prefill(&self, room: RoomId, work: Arc<Work>, sink: Arc<dyn PrefillSink>) -> Result<(), EngineError> {
        let tokens = u32::try_from(work.prompt.len()).unwrap_or(u32::MAX);
        self.shared
            .enter(room, work, Kind::Prefill(sink, vec![]), |pages| pages.unseal(tokens))?;
        self.shared.reuse(room);
        lock(&self.shared.state).prefills.push_back(room);
        self.shared.wake.notify_one();
        Ok(())
    }

    fn decode(&self, room: RoomId, job: DecodeJob, sink: Arc<dyn DecodeSink>) -> Result<(), EngineError> {
        let kind = Kind::Decode(sink, vec![job.first.id], job.max_tokens);
        self.shared.enter(room, job.work, kind, |_| {})?;
        self.shared.wake.notify_one();
        Ok(())
    }

    fn cancel(&self, room: RoomId) -> bool {
        let mut state = lock(&self.shared.state);
        let Some(job) = state.jobs.get_mut(&room) else {
            return false;
        };
        job.cancelled = true;
        drop(state);
        self.shared.wake.notify_one();
        true
    }

    fn close_keeping(&self, room: RoomId, keep: &[(u32, BlockHash)]) -> u32 {
        let mut state = lock(&self.shared.state);
        if state.jobs.contains_key(&room) {
            wrong!(
                self.shared.story,
                "I6: {} closes room {room} under its job",
                self.shared.name
            );
        }
        let pages = state.rooms.remove(&room);
        drop(state);
        pages.map_or(0, |pages| pages.close(keep))
    }

    fn evict(&self, names: &[BlockHash]) -> u32 {
        self.shared.pool.evict(names)
    }

    fn source(&self, room: RoomId) -> Option<Arc<dyn SlabSource>> {
        let pages = lock(&self.shared.state).rooms.get(&room).cloned()?;
        Some(Arc::new(Source(pages)))
    }

    fn importer(&self, room: RoomId, tokens: u32) -> Option<Arc<dyn ClosableSink>> {
        let pages = lock(&self.shared.state).rooms.get(&room).cloned()?;
        Some(Arc::new(Importer::new(pages, tokens)))
    }

    fn status(&self) -> EngineStatus {
        let state = lock(&self.shared.state);
        EngineStatus {
            progress: state.progress,
            in_hand: state.began.map(|began| began.elapsed()),
            jobs: u32::try_from(state.jobs.len()).unwrap_or(u32::MAX),
            free_pages: self.shared.pool.free(),
            ..EngineStatus::default()
        }
    }

    fn shutdown(&self, _limit: Duration) -> bool {
        self.kill();
        true
    }
}
