//! What callers and the engine's thread share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use innkeeper_room::RoomId;

use super::backend::Backend;
use super::jobs::Job;
use crate::pool::{Pool, RoomPages};
use crate::port::{EngineError, EngineStatus};
use crate::sync::lock;

/// An idle thread looks up this often even if nobody woke it: a lost wake-up costs this much, not a room.
const IDLE_LOOK: Duration = Duration::from_millis(500);

pub(crate) struct Shared<B: Backend> {
    pub(crate) pool: Arc<Pool>,
    pub(crate) rooms: Mutex<HashMap<RoomId, Arc<RoomPages>>>,
    tickets: Mutex<HashMap<RoomId, Arc<Ticket>>>,
    /// New jobs. At most one per room, and rooms are bounded by the pool.
    inbox: Mutex<Inbox<B::State>>,
    wake: Condvar,
    ended: Mutex<bool>,
    ending: Condvar,
    started: Instant,
    /// Nanoseconds after `started` at which the chunk or step in hand began, plus 1; 0 is none.
    in_hand: AtomicU64,
    pub(crate) counters: Counters,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) progress: AtomicU64,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) output_tokens: AtomicU64,
}

struct Inbox<S> {
    jobs: Vec<Job<S>>,
    stop: bool,
    broken: Option<String>,
}

/// A job as callers see it: something that can be cancelled.
pub(crate) struct Ticket {
    pub(crate) room: RoomId,
    cancelled: AtomicBool,
    /// Its last word is being said; the engine does not touch its pages any more.
    ending: AtomicBool,
}

impl Ticket {
    pub(crate) fn new(room: RoomId) -> Self {
        Self {
            room,
            cancelled: AtomicBool::new(false),
            ending: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

/// What the thread found in its inbox.
pub(crate) struct Taken<S> {
    pub(crate) jobs: Vec<Job<S>>,
    pub(crate) stop: bool,
}

impl<B: Backend> Shared<B> {
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        Self {
            pool,
            rooms: Mutex::default(),
            tickets: Mutex::default(),
            inbox: Mutex::new(Inbox {
                jobs: Vec::new(),
                stop: false,
                broken: None,
            }),
            wake: Condvar::new(),
            ended: Mutex::new(false),
            ending: Condvar::new(),
            started: Instant::now(),
            in_hand: AtomicU64::new(0),
            counters: Counters::default(),
        }
    }

    pub(crate) fn pages(&self, room: RoomId) -> Option<Arc<RoomPages>> {
        lock(&self.rooms).get(&room).cloned()
    }

    pub(crate) fn submit(
        &self,
        ticket: Arc<Ticket>,
        job: impl FnOnce(Arc<Ticket>) -> Job<B::State>,
    ) -> Result<(), EngineError> {
        let mut inbox = lock(&self.inbox);
        if inbox.stop {
            let why = inbox.broken.clone().unwrap_or_else(|| "it was shut down".to_owned());
            return Err(EngineError::Broken(why));
        }
        let mut tickets = lock(&self.tickets);
        let room = ticket.room;
        if tickets
            .get(&room)
            .is_some_and(|known| !known.ending.load(Ordering::Acquire))
        {
            return Err(EngineError::Exists(room));
        }
        tickets.insert(room, Arc::clone(&ticket));
        inbox.jobs.push(job(ticket));
        self.wake.notify_all();
        Ok(())
    }

    pub(crate) fn cancel(&self, room: RoomId) -> bool {
        let Some(ticket) = lock(&self.tickets).get(&room).cloned() else {
            return false;
        };
        ticket.cancelled.store(true, Ordering::Release);
        self.wake.notify_all();
        true
    }

    /// Says a job's last word. While it is said, `cancel` still answers that somebody will call, and a new job for
    /// the room is accepted: the sink may submit it.
    pub(crate) fn end(&self, ticket: &Arc<Ticket>, last_word: impl FnOnce()) {
        ticket.ending.store(true, Ordering::Release);
        let _ = guarded(last_word);
        let mut tickets = lock(&self.tickets);
        if tickets
            .get(&ticket.room)
            .is_some_and(|known| Arc::ptr_eq(known, ticket))
        {
            tickets.remove(&ticket.room);
        }
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_all();
    }

    pub(crate) fn stop(&self) {
        lock(&self.inbox).stop = true;
        self.wake.notify_all();
    }

    pub(crate) fn broke(&self, why: String) {
        let mut inbox = lock(&self.inbox);
        inbox.stop = true;
        inbox.broken = Some(why);
        *lock(&self.ended) = true;
        self.ending.notify_all();
    }

    /// New jobs; waits for some if the thread is idle.
    pub(crate) fn take(&self, idle: bool) -> Taken<B::State> {
        let mut inbox = lock(&self.inbox);
        if idle && inbox.jobs.is_empty() && !inbox.stop {
            inbox = self
                .wake
                .wait_timeout(inbox, IDLE_LOOK)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        Taken {
            jobs: std::mem::take(&mut inbox.jobs),
            stop: inbox.stop,
        }
    }

    pub(crate) fn thread_ended(&self) {
        *lock(&self.ended) = true;
        self.ending.notify_all();
    }

    pub(crate) fn wait_ended(&self, limit: Duration) -> bool {
        let ended = lock(&self.ended);
        let waited = self.ending.wait_timeout_while(ended, limit, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    pub(crate) fn begin(&self) -> Instant {
        let now = Instant::now();
        let nanos = now.duration_since(self.started).as_nanos();
        self.in_hand
            .store(u64::try_from(nanos).unwrap_or(u64::MAX - 1) + 1, Ordering::Release);
        now
    }

    pub(crate) fn finish(&self, prompt_tokens: u64, output_tokens: u64) {
        self.counters.progress.fetch_add(1, Ordering::Relaxed);
        self.counters.prompt_tokens.fetch_add(prompt_tokens, Ordering::Relaxed);
        self.counters.output_tokens.fetch_add(output_tokens, Ordering::Relaxed);
        self.in_hand.store(0, Ordering::Release);
    }

    pub(crate) fn status(&self) -> EngineStatus {
        let in_hand = self.in_hand.load(Ordering::Acquire);
        let began = in_hand.checked_sub(1).map(Duration::from_nanos);
        EngineStatus {
            progress: self.counters.progress.load(Ordering::Relaxed),
            in_hand: began.map(|began| self.started.elapsed().saturating_sub(began)),
            jobs: u32::try_from(lock(&self.tickets).len()).unwrap_or(u32::MAX),
            free_pages: self.pool.free(),
            cached_pages: self.pool.cached(),
            prompt_tokens: self.counters.prompt_tokens.load(Ordering::Relaxed),
            output_tokens: self.counters.output_tokens.load(Ordering::Relaxed),
        }
    }
}

/// Runs what may panic; the panic's message if it did. The engine's thread must outlive both sinks and backends.
pub(crate) fn guarded<T>(what: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "?".to_owned());
        tracing::error!(panic = %text, "the engine's thread caught a panic");
        text
    })
}
