//! What every engine here has in common: one thread, its jobs, and who hears what when.
//!
//! Callers talk to [`Driver`], which only touches maps and flags. The thread ([`run`]) owns the backend and takes
//! turns: one prefill chunk (round robin over rooms), then one decode step (all rooms at once). Between two of these
//! is the boundary at which cancelled jobs stop.

mod backend;
mod chunk;
mod jobs;
mod run;
mod shared;

use std::sync::Arc;
use std::time::Duration;

use innkeeper_room::{BlockHash, Layout, RoomId, SlabSource, Work};

pub(crate) use backend::{Backend, Chunk, Item};
use jobs::{DecodeRun, Job, PrefillRun};
pub(crate) use run::closed;
use shared::Shared;
use shared::Ticket;

use crate::pool::{Importer, Pool, Source};
use crate::port::{ClosableSink, DecodeJob, DecodeSink, EngineError, EngineStatus, Limits, PrefillSink};
use crate::sync::lock;

/// How the thread shares out its time.
#[derive(Clone, Debug)]
pub(crate) struct Tuning {
    /// The thread's name.
    pub(crate) name: &'static str,
    /// How long a prefill chunk should take: a tenth of the progress TTL.
    pub(crate) chunk_target: Duration,
    /// Largest chunk in tokens: it bounds the backend's scratch memory.
    pub(crate) largest_chunk: u32,
    /// Most rooms in one decode step; more rooms take turns.
    pub(crate) largest_batch: usize,
}

/// The caller's side of an engine.
pub(crate) struct Driver<B: Backend> {
    shared: Arc<Shared<B>>,
    limits: Limits,
}

impl<B: Backend> Driver<B> {
    pub(crate) fn start(pool: Arc<Pool>, limits: Limits, tuning: Tuning, backend: B) -> Self {
        let shared = Arc::new(Shared::new(pool));
        let thread = std::thread::Builder::new().name(tuning.name.to_owned());
        let runner = run::Runner::new(Arc::clone(&shared), tuning, backend);
        if let Err(error) = thread.spawn(move || runner.run()) {
            shared.broke(format!("its thread could not be started: {error}"));
        }
        Self { shared, limits }
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    pub(crate) fn layout(&self) -> &Layout {
        self.shared.pool.layout()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn open(&self, room: RoomId, tokens: u32, reuse: &[BlockHash]) -> Result<(), EngineError> {
        if tokens == 0 || tokens > self.limits.context {
            let context = self.limits.context;
            return Err(EngineError::Input(format!(
                "a room needs 1 to {context} tokens, not {tokens}"
            )));
        }
        let mut rooms = lock(&self.shared.rooms);
        if rooms.contains_key(&room) {
            return Err(EngineError::Exists(room));
        }
        rooms.insert(room, self.shared.pool.take(room, tokens, reuse)?);
        Ok(())
    }

    pub(crate) fn prefill(&self, room: RoomId, work: Arc<Work>, sink: Arc<dyn PrefillSink>) -> Result<(), EngineError> {
        let pages = self.shared.pages(room).ok_or(EngineError::Unknown(room))?;
        self.check(&work, 1, pages.capacity())?;
        if pages.reused_tokens() as usize >= work.prompt.len() {
            let why = "the prompt is no longer than what is reused of it: nothing would be computed";
            return Err(EngineError::Input(why.to_owned()));
        }
        let reused = pages.unseal(u32::try_from(work.prompt.len()).unwrap_or(u32::MAX));
        let ticket = Arc::new(Ticket::new(room));
        self.shared.submit(ticket, |ticket| {
            Job::Prefill(PrefillRun::new(ticket, pages, work, sink, reused))
        })
    }

    pub(crate) fn decode(&self, room: RoomId, job: DecodeJob, sink: Arc<dyn DecodeSink>) -> Result<(), EngineError> {
        let pages = self.shared.pages(room).ok_or(EngineError::Unknown(room))?;
        self.check(&job.work, job.max_tokens, pages.capacity())?;
        if job.first.id >= self.limits.vocabulary {
            return Err(self.outside(job.first.id));
        }
        let ticket = Arc::new(Ticket::new(room));
        self.shared
            .submit(ticket, |ticket| Job::Decode(DecodeRun::new(ticket, pages, job, sink)))
    }

    /// The prompt and all but the last of `max_tokens` tokens have KV.
    fn check(&self, work: &Work, max_tokens: u32, capacity: u32) -> Result<(), EngineError> {
        if work.prompt.is_empty() || max_tokens == 0 {
            return Err(EngineError::Input("the prompt or the answer has no tokens".to_owned()));
        }
        let held = work.prompt.len() as u64 + u64::from(max_tokens) - 1;
        let room_for = capacity.min(self.limits.context);
        if held > u64::from(room_for) {
            return Err(EngineError::Input(format!(
                "{held} tokens do not fit into the room's {room_for}"
            )));
        }
        match work.prompt.iter().find(|&&id| id >= self.limits.vocabulary) {
            Some(&id) => Err(self.outside(id)),
            None => Ok(()),
        }
    }

    fn outside(&self, id: u32) -> EngineError {
        EngineError::Input(format!(
            "token id {id} is outside the vocabulary of {}",
            self.limits.vocabulary
        ))
    }

    pub(crate) fn cancel(&self, room: RoomId) -> bool {
        self.shared.cancel(room)
    }

    pub(crate) fn close(&self, room: RoomId, keep: &[(u32, BlockHash)]) -> u32 {
        let Some(pages) = lock(&self.shared.rooms).remove(&room) else {
            return 0;
        };
        // By contract no job is left. If one is, it finds the pages closed and is told so at its next boundary.
        self.shared.cancel(room);
        let count = pages.close(keep);
        self.shared.wake();
        count
    }

    pub(crate) fn source(&self, room: RoomId) -> Option<Arc<dyn SlabSource>> {
        Some(Arc::new(Source::new(self.shared.pages(room)?)))
    }

    pub(crate) fn importer(&self, room: RoomId, tokens: u32) -> Option<Arc<dyn ClosableSink>> {
        Some(Arc::new(Importer::new(self.shared.pages(room)?, tokens)))
    }

    pub(crate) fn status(&self) -> EngineStatus {
        self.shared.status()
    }

    pub(crate) fn shutdown(&self, limit: Duration) -> bool {
        self.shared.stop();
        self.shared.wait_ended(limit)
    }
}

impl<B: Backend> Drop for Driver<B> {
    /// The thread ends at its next boundary. Nobody waits for it: a wedged chunk must not wedge its owner.
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// Implements [`crate::port::Engine`] for a type with a field `driver`.
macro_rules! drive {
    ($engine:ty) => {
        impl $crate::port::Engine for $engine {
            fn layout(&self) -> &innkeeper_room::Layout {
                self.driver.layout()
            }
            fn limits(&self) -> $crate::port::Limits {
                self.driver.limits()
            }
            fn open_reusing(
                &self,
                room: innkeeper_room::RoomId,
                tokens: u32,
                reuse: &[innkeeper_room::BlockHash],
            ) -> Result<(), $crate::port::EngineError> {
                self.driver.open(room, tokens, reuse)
            }
            fn prefill(
                &self,
                room: innkeeper_room::RoomId,
                work: std::sync::Arc<innkeeper_room::Work>,
                sink: std::sync::Arc<dyn $crate::port::PrefillSink>,
            ) -> Result<(), $crate::port::EngineError> {
                self.driver.prefill(room, work, sink)
            }
            fn decode(
                &self,
                room: innkeeper_room::RoomId,
                job: $crate::port::DecodeJob,
                sink: std::sync::Arc<dyn $crate::port::DecodeSink>,
            ) -> Result<(), $crate::port::EngineError> {
                self.driver.decode(room, job, sink)
            }
            fn cancel(&self, room: innkeeper_room::RoomId) -> bool {
                self.driver.cancel(room)
            }
            fn close_keeping(&self, room: innkeeper_room::RoomId, keep: &[(u32, innkeeper_room::BlockHash)]) -> u32 {
                self.driver.close(room, keep)
            }
            fn evict(&self, names: &[innkeeper_room::BlockHash]) -> u32 {
                self.driver.pool().evict(names)
            }
            fn source(&self, room: innkeeper_room::RoomId) -> Option<std::sync::Arc<dyn innkeeper_room::SlabSource>> {
                self.driver.source(room)
            }
            fn importer(
                &self,
                room: innkeeper_room::RoomId,
                tokens: u32,
            ) -> Option<std::sync::Arc<dyn $crate::port::ClosableSink>> {
                self.driver.importer(room, tokens)
            }
            fn status(&self) -> $crate::port::EngineStatus {
                self.driver.status()
            }
            fn shutdown(&self, limit: std::time::Duration) -> bool {
                self.driver.shutdown(limit)
            }
        }
    };
}
pub(crate) use drive;
