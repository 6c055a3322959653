//! The handles of one room on a prefill worker: what the engine sealed, the sessions that carry it, and the counters that
//! the ledger looks at. Shared by the room's actor, its transfers and the engine's thread; outlives the actor.
//!
//! Once the part is over its fences are executed at once, past the actor's queue, and may overtake the orders that wait
//! there. So each fence is remembered, and what it was to end does not begin any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use innkeeper_engine::{Engine, EngineError, KeepJob, KeepSink, PrefillSink};
use innkeeper_room::ledger::prefill::Event;
use innkeeper_room::{
    BlockHash, Counters, Epoch, Manifest, Millis, RoomId, SlabError, SlabId, SlabMeta, SlabSource, Ticket,
};
use innkeeper_transfer::SendSession;

use crate::ports::OpenRoom;
use crate::worker::craft::Report;

/// The handles.
pub struct PrefillRoom {
    /// What R asked.
    pub open: OpenRoom,
    report: Report<Event>,
    source: OnceLock<Arc<dyn SlabSource>>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    sealed: Vec<SlabMeta>,
    manifest: Option<Manifest>,
    /// Sessions that are not over, the newest last.
    sessions: BTreeMap<Epoch, Arc<dyn SendSession>>,
    /// Sessions of this epoch and earlier ones were destroyed, also those that are not made yet.
    fenced: Epoch,
    /// Sessions that may still read, those that are not made yet included.
    live: BTreeSet<Epoch>,
    pages: bool,
    /// The pages were given back, also if they were not taken yet.
    closed: bool,
    /// The engine's job was cancelled, also if it was not submitted yet.
    cancelled: bool,
    counters: Counters,
}

impl PrefillRoom {
    /// A room without pages or sessions.
    pub fn new(open: OpenRoom, report: Report<Event>) -> Self {
        Self {
            open,
            report,
            source: OnceLock::new(),
            inner: Mutex::default(),
        }
    }

    /// The room's id.
    pub fn id(&self) -> RoomId {
        self.open.spec.room
    }

    /// Tells the ledger. A ledger that is gone ends the process; there is nobody else to tell.
    pub fn tell(&self, event: Event) {
        (self.report)(event);
    }

    /// Takes pages, beside those of the prefix cache that are reused, and starts the engine's job.
    pub fn compute(self: &Arc<Self>, engine: &Arc<dyn Engine>, tokens: u32, reuse: &[BlockHash]) {
        let room = self.id();
        let opened = {
            let mut inner = self.lock();
            // The cancel was answered: nobody waits for a word of this job.
            if inner.is_over() {
                return;
            }
            // Under the lock: pages that were given back meanwhile are another room's, and are not taken for a moment either.
            let opened = engine.open_reusing(room, tokens, reuse);
            inner.pages = opened.is_ok();
            opened
        };
        let started = opened.and_then(|()| {
            if let Some(source) = engine.source(room) {
                // Set once: a room computes once.
                drop(self.source.set(source));
            }
            self.submit(&**engine)
        });
        if let Err(error) = started {
            tracing::error!(%room, %error, "the engine refused a prefill that the ledger had reserved");
            self.engine_failed(&error);
        }
        let (cancelled, closed) = {
            let inner = self.lock();
            (inner.cancelled, inner.closed)
        };
        if cancelled {
            engine.cancel(room);
        }
        if closed {
            self.close_pages(engine, &[]);
        }
    }

    fn submit(self: &Arc<Self>, engine: &dyn Engine) -> Result<(), EngineError> {
        let room = self.id();
        let work = Arc::clone(&self.open.work);
        match engine.tickets() {
            Some(tickets) => {
                let attempt = self.open.spec.attempt;
                tickets.keep(room, KeepJob { work, attempt }, Arc::clone(self) as Arc<dyn KeepSink>)
            }
            None => engine.prefill(room, work, Arc::clone(self) as Arc<dyn PrefillSink>),
        }
    }

    fn engine_failed(&self, error: &EngineError) {
        let room = self.id();
        self.tell(match error {
            EngineError::Remote { reason, .. } => Event::EngineEnded { room, reason: *reason },
            _ => Event::EngineFailed { room },
        });
    }

    /// Nobody will read what the engine keeps for D's: answered once it has its pages back.
    pub fn give_back(self: &Arc<Self>, engine: &dyn Engine) {
        let room = Arc::clone(self);
        let done = Box::new(move || {
            room.tell(Event::Quiesced {
                room: room.id(),
                epoch: Epoch::TICKET,
            });
        });
        match engine.tickets() {
            Some(tickets) => tickets.give_back(self.id(), done),
            None => done(),
        }
    }

    /// Asks the engine to stop; a job that is not there any more is answered as stopped.
    pub fn cancel(&self, engine: &Arc<dyn Engine>) {
        self.lock().cancelled = true;
        if !engine.cancel(self.id()) {
            self.tell(Event::EngineStopped { room: self.id() });
        }
    }

    /// Gives the pages back, but for those that are kept in the prefix cache.
    pub fn close_pages(&self, engine: &Arc<dyn Engine>, keep: &[(u32, BlockHash)]) {
        self.lock().closed = true;
        engine.close_keeping(self.id(), keep);
        self.lock().pages = false;
    }

    /// A session is about to be made. False if its epoch was fenced meanwhile: then it must not be.
    pub fn session_begins(&self, epoch: Epoch) -> bool {
        let mut inner = self.lock();
        let begins = epoch > inner.fenced;
        if begins {
            inner.live.insert(epoch);
        }
        begins
    }

    /// A session was made: it gets all that is sealed so far. Destroyed at once if its epoch was fenced meanwhile.
    pub fn attach(&self, epoch: Epoch, session: Arc<dyn SendSession>) {
        let mut inner = self.lock();
        if epoch <= inner.fenced {
            session.kill();
            return;
        }
        for slab in &inner.sealed {
            session.submit(*slab);
        }
        if let Some(manifest) = &inner.manifest {
            session.manifest(manifest.clone());
        }
        inner.sessions.insert(epoch, session);
    }

    /// A session is over and reads nothing any more.
    pub fn session_over(&self, epoch: Epoch) {
        let mut inner = self.lock();
        inner.live.remove(&epoch);
        inner.sessions.remove(&epoch);
    }

    /// The session of an epoch, if it is not over.
    pub fn session(&self, epoch: Epoch) -> Option<Arc<dyn SendSession>> {
        self.lock().sessions.get(&epoch).cloned()
    }

    /// The newest session.
    pub fn current(&self) -> Option<Arc<dyn SendSession>> {
        self.lock().sessions.values().next_back().cloned()
    }

    /// Destroys the session of this epoch, made or not. Whether one has begun and is not over: then its end will be told.
    pub fn kill(&self, epoch: Epoch) -> bool {
        let mut inner = self.lock();
        inner.fenced = inner.fenced.max(epoch);
        for session in inner.sessions.range(..=epoch).map(|(_, session)| session) {
            session.kill();
        }
        inner.live.contains(&epoch)
    }

    /// Destroys every session, made or not.
    pub fn kill_all(&self) {
        self.kill(Epoch(u32::MAX));
    }

    /// Whether this epoch was fenced.
    pub fn is_fenced(&self, epoch: Epoch) -> bool {
        epoch <= self.lock().fenced
    }

    /// Bytes handed to the connection, and bytes that D has verified.
    pub fn moved(&self, sent: u64, verified: u64) {
        self.lock().counters.raise(Counters {
            bytes_sent: sent,
            bytes_verified: verified,
            ..Counters::default()
        });
    }

    /// The newest counters.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// Whether nothing is left that could touch a page.
    pub fn idle(&self) -> bool {
        let inner = self.lock();
        inner.live.is_empty() && !inner.pages
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete before anything under the lock can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn is_over(&self) -> bool {
        self.cancelled || self.closed
    }
}

impl SlabSource for PrefillRoom {
    /// The session is made before the room has pages; nothing is submitted, and so nothing read, before it has.
    fn read(&self, slab: SlabId, offset: u32, out: &mut [u8]) -> Result<(), SlabError> {
        self.source.get().ok_or(SlabError::Closed)?.read(slab, offset, out)
    }
}

impl PrefillSink for PrefillRoom {
    fn sealed(&self, slab: SlabMeta) {
        let mut inner = self.lock();
        inner.sealed.push(slab);
        inner.counters.bytes_sealed += u64::from(slab.len);
        if let Some(session) = inner.sessions.values().next_back() {
            session.submit(slab);
        }
    }

    fn computed(&self, tokens: u32) {
        self.lock().counters.raise(Counters {
            tokens_computed: tokens,
            ..Counters::default()
        });
    }

    fn finished(&self, manifest: Manifest) {
        let bytes = manifest.bytes();
        let mut inner = self.lock();
        if let Some(session) = inner.sessions.values().next_back() {
            session.manifest(manifest.clone());
        }
        inner.manifest = Some(manifest);
        drop(inner);
        self.tell(Event::Sealed { room: self.id(), bytes });
    }

    fn failed(&self, error: EngineError) {
        tracing::error!(room = %self.id(), %error, "prefill failed");
        self.engine_failed(&error);
    }

    fn stopped(&self) {
        self.tell(Event::EngineStopped { room: self.id() });
    }
}

impl KeepSink for PrefillRoom {
    fn kept(&self, ticket: Ticket, read_within: Millis) {
        // No slab, and no first token either: D's engine samples it.
        let manifest = Manifest {
            token_count: self.open.spec.prompt_tokens,
            ticket: Some(ticket),
            ..Manifest::default()
        };
        let mut inner = self.lock();
        if let Some(session) = inner.sessions.values().next_back() {
            session.manifest(manifest.clone());
        }
        inner.manifest = Some(manifest);
        drop(inner);
        self.tell(Event::Kept {
            room: self.id(),
            read_within,
        });
    }
}
