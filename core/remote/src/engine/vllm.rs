//! vLLM behind the worker's engine port.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use innkeeper_engine::{
    About, ClosableSink, DecodeJob, DecodeSink, Engine, EngineError, EngineStatus, KeepJob, KeepSink, Limits,
    PrefillSink, PullJob, PullSink, Seen, Tickets,
};
use innkeeper_room::ledger::Pinned;
use innkeeper_room::{BlockHash, Layout, Millis, RoomId, SlabSource, Ticket, Work};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::book::Book;
use super::jobs::Jobs;
use super::settle::Settler;
use super::slabs::NoSlabs;
use super::{Counted, Shape};
use crate::driver::{self, Care, Condition, Keeper, Kept, VllmDriver, Watcher};
use crate::hook::Process;
use crate::lease::{DecodeSide, Lease};
use crate::pull::PullRate;
use crate::ticket::VllmTicket;
use crate::vllm::Vllm;

/// One vLLM that runs next to the worker. Its tasks live on the runtime that it was made on.
pub struct VllmEngine {
    shared: Arc<Shared>,
}

/// What the engine's tasks share.
pub(super) struct Shared {
    pub(super) driver: VllmDriver,
    pub(super) jobs: Jobs,
    pub(super) settler: Arc<Settler<Vllm, Side>>,
    pub(super) counted: Counted,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
    shape: Shape,
    ttl: Millis,
    lease: Lease,
    restart: String,
    runtime: Handle,
    book: Arc<Mutex<Book<Side>>>,
    rate: Mutex<PullRate>,
    condition: watch::Receiver<Condition>,
    pinned: watch::Sender<driver::Pinned>,
    /// Those that the ledger was told of.
    lives: AtomicU64,
}

/// What is known of a room beside its pages.
#[derive(Default)]
pub(super) struct Side {
    /// D: since when P may have a lease for it.
    ready: Option<DecodeSide>,
    /// P: what is kept.
    kept: Option<Kept>,
    /// P: since when nobody will read it, and who wants to know when it is back.
    giving_back: bool,
}

impl VllmEngine {
    /// The engine that `watcher` watches. It looks at it, and settles, until [`Engine::shutdown`]. Must be called on a tokio runtime.
    ///
    /// `lease` is how long prefill's engines keep KV that nobody reads; it is a setting of *theirs*. `care` says who starts this one anew;
    /// `child` is its process, if this worker has started it.
    #[must_use]
    pub fn new(
        watcher: Arc<Watcher<Vllm>>,
        shape: Shape,
        lease: Lease,
        care: Care,
        child: Option<Process>,
    ) -> Arc<Self> {
        let (ttl, restart) = (care.ttl, care.hook.to_string());
        let book = Arc::new(Mutex::new(Book::new(shape.usable_pages())));
        let period = ttl.scale(1, 20).duration();
        let settler = Settler::new(Arc::clone(&watcher), Arc::clone(&book), shape.pool, period);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        tasks.spawn(Arc::clone(&watcher).run(stop.clone()));
        tasks.spawn(Arc::clone(&settler).run(stop.clone()));
        let pinned = watch::Sender::new(None);
        let keeper = Keeper::new(care, Arc::clone(&watcher), pinned.subscribe()).adopting(child);
        let condition = keeper.condition();
        tasks.spawn(keeper.run(stop.clone()));
        Arc::new(Self {
            shared: Arc::new(Shared {
                driver: VllmDriver::new(watcher, lease),
                jobs: Jobs::default(),
                settler,
                counted: Counted::default(),
                tasks,
                stop,
                shape,
                ttl,
                lease,
                restart,
                runtime: Handle::current(),
                book,
                rate: Mutex::default(),
                condition,
                pinned,
                lives: AtomicU64::new(0),
            }),
        })
    }

    /// Who watches it.
    #[must_use]
    pub fn watcher(&self) -> &Arc<Watcher<Vllm>> {
        self.shared.driver.watcher()
    }
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book<Side>> {
        // Every change is complete before anything under the lock can panic.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rate(&self) -> MutexGuard<'_, PullRate> {
        self.rate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A read of so many tokens took this long.
    pub(super) fn measured(&self, tokens: u32, took: Duration) {
        let took = Millis(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        self.rate().measured(u64::from(tokens), took);
    }

    /// How long a read may take of which so much of the lease is left.
    pub(super) fn budget(&self, tokens: u32, left: Millis) -> Millis {
        self.rate().budget(tokens, self.ttl, left)
    }

    pub(super) const fn lease(&self) -> Millis {
        self.lease.0
    }

    pub(super) const fn ttl(&self) -> Millis {
        self.ttl
    }

    /// Keeps what was kept, for as long as the room is open here; else it is the caller's again.
    pub(super) fn keep(&self, room: RoomId, kept: Kept) -> Result<(), Box<Kept>> {
        match self.book().side(room) {
            Some(side) => {
                side.kept = Some(kept);
                Ok(())
            }
            None => Err(Box::new(kept)),
        }
    }

    /// The engine holds so many tokens of a room from now on, and a place for the next.
    pub(super) fn holds(&self, room: RoomId, tokens: u32) {
        let pages = self.shape.layout.pages(tokens.saturating_add(1));
        self.book().uses(room, pages);
    }

    fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Ids outside of the vocabulary, a prompt that is empty or too long: refused here, with words.
    fn check(&self, work: &Work, more: u32) -> Result<(), EngineError> {
        let limits = self.shape.limits();
        let whole = work.prompt.len() as u64 + u64::from(more);
        if work.prompt.is_empty() || whole > u64::from(limits.context) {
            return Err(EngineError::Input(format!(
                "a prompt of {} tokens and {more} more are not within 1 to {} tokens",
                work.prompt.len(),
                limits.context
            )));
        }
        match work.prompt.iter().find(|id| **id >= limits.vocabulary) {
            Some(id) => Err(EngineError::Input(format!("the model has no token {id}"))),
            None => Ok(()),
        }
    }
}

impl Engine for VllmEngine {
    fn layout(&self) -> &Layout {
        &self.shared.shape.layout
    }

    fn limits(&self) -> Limits {
        self.shared.shape.limits()
    }

    fn open_reusing(&self, room: RoomId, tokens: u32, reuse: &[BlockHash]) -> Result<(), EngineError> {
        if !reuse.is_empty() {
            // It has a prefix cache of its own.
            return Err(EngineError::NotCached);
        }
        let pages = self.shared.shape.layout.pages(tokens);
        self.shared.book().open(room, pages)
    }

    fn prefill(&self, _room: RoomId, _work: Arc<Work>, _sink: Arc<dyn PrefillSink>) -> Result<(), EngineError> {
        Err(by_tickets())
    }

    fn decode(&self, _room: RoomId, _job: DecodeJob, _sink: Arc<dyn DecodeSink>) -> Result<(), EngineError> {
        Err(by_tickets())
    }

    fn cancel(&self, room: RoomId) -> bool {
        self.shared.jobs.cancel(room)
    }

    fn close_keeping(&self, room: RoomId, _keep: &[(u32, BlockHash)]) -> u32 {
        self.shared.book().close(room)
    }

    fn evict(&self, _names: &[BlockHash]) -> u32 {
        0
    }

    fn source(&self, _room: RoomId) -> Option<Arc<dyn SlabSource>> {
        Some(Arc::new(NoSlabs))
    }

    fn importer(&self, _room: RoomId, _tokens: u32) -> Option<Arc<dyn ClosableSink>> {
        Some(Arc::new(NoSlabs))
    }

    fn tickets(&self) -> Option<&dyn Tickets> {
        Some(self)
    }

    fn status(&self) -> EngineStatus {
        let shared = &self.shared;
        let seen = shared.driver.watcher().status();
        EngineStatus {
            progress: seen.progress,
            in_hand: seen.in_hand.map(Millis::duration),
            jobs: shared.jobs.count(),
            free_pages: shared.book().free(),
            cached_pages: 0,
            prompt_tokens: shared.counted.prompt_tokens(),
            output_tokens: shared.counted.output_tokens(),
        }
    }

    fn shutdown(&self, limit: Duration) -> bool {
        super::shutdown(&self.shared.tasks, &self.shared.stop, limit)
    }
}

impl Drop for VllmEngine {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl Tickets for VllmEngine {
    fn keep(&self, room: RoomId, job: KeepJob, sink: Arc<dyn KeepSink>) -> Result<(), EngineError> {
        let shared = &self.shared;
        shared.check(&job.work, 1)?;
        if shared.book().side(room).is_none() {
            return Err(EngineError::Unknown(room));
        }
        let cancel = shared.jobs.begin(room, &shared.stop)?;
        shared.spawn(super::legs::keep(Arc::clone(shared), room, job, sink, cancel));
        Ok(())
    }

    fn lease_age(&self, room: RoomId) -> Option<Millis> {
        self.shared.book().side(room)?.kept.as_ref().map(Kept::lease_age)
    }

    fn give_back(&self, room: RoomId, done: Box<dyn FnOnce() + Send>) {
        let (kept, again) = match self.shared.book().side(room) {
            Some(side) => {
                let again = std::mem::replace(&mut side.giving_back, true);
                (side.kept.take(), again)
            }
            None => (None, false),
        };
        match kept {
            Some(kept) => self
                .shared
                .spawn(super::legs::given_back(Arc::clone(&self.shared), room, kept, done)),
            // Somebody waits for it already, and tells.
            None if again => {}
            None => done(),
        }
    }

    fn ready(&self, room: RoomId) {
        let side = self.shared.driver.ready();
        if let Some(known) = self.shared.book().side(room) {
            // P may have begun at the first Ready that it heard.
            known.ready.get_or_insert(side);
        }
    }

    fn read_within(&self, prompt_tokens: u32) -> Millis {
        // Whether it lies within the lease is proven by its end; longer than a whole one none does.
        self.shared.budget(prompt_tokens, self.shared.lease())
    }

    fn pull(&self, room: RoomId, job: PullJob, sink: Arc<dyn PullSink>) -> Result<(), EngineError> {
        let shared = &self.shared;
        shared.check(&job.work, job.max_tokens)?;
        let ticket = ticket_of(room, &job.ticket)?;
        let ready = match shared.book().side(room) {
            Some(side) => side.ready,
            None => return Err(EngineError::Unknown(room)),
        };
        let ready = ready.ok_or_else(|| EngineError::Input("a ticket came before Ready was said".to_owned()))?;
        let cancel = shared.jobs.begin(room, &shared.stop)?;
        let read = super::legs::Read { job, ticket, ready };
        shared.spawn(super::legs::pull(Arc::clone(shared), room, read, sink, cancel));
        Ok(())
    }

    fn reborn(&self) -> bool {
        let shared = &self.shared;
        let lives = *shared.driver.watcher().lives().borrow();
        if shared.lives.swap(lives, Ordering::Relaxed) == lives {
            return false;
        }
        shared.jobs.cancel_all();
        shared.book().each(|side| side.kept = None);
        true
    }

    fn pinned(&self, pinned: Option<Pinned>) {
        let told = pinned.map(|pinned| (pinned.since, pinned.accused));
        self.shared
            .pinned
            .send_if_modified(|known| std::mem::replace(known, told) != told);
    }

    fn seen(&self) -> Seen {
        let shared = &self.shared;
        let watcher = shared.driver.watcher();
        let last = watcher.last().unwrap_or_default();
        let (kept, reads) = shared.counted.good();
        let (orphan_tickets, unproven) = shared.counted.lost();
        let condition = *shared.condition.borrow();
        let lives = *watcher.lives().borrow();
        Seen {
            step_age: watcher.age(),
            canary: watcher.last_canary(),
            used_pages: shared.shape.pool.pages_of(last.load.used),
            kept,
            reads,
            external_tokens: last.external_tokens,
            lives,
            restarts: condition.restarts,
            orphan_tickets,
            unproven,
            ending: condition.ending.is_some(),
            given_up: condition.given_up,
        }
    }

    fn about(&self) -> About {
        let shared = &self.shared;
        let engine = shared.driver.watcher().engine();
        let layout = &shared.shape.layout;
        About {
            engine: layout.model.rsplit('/').next().unwrap_or_default().to_owned(),
            url: format!("http://{}", engine.target()),
            model: engine.model().to_owned(),
            pages: shared.shape.pool.pages,
            lease: shared.lease.0,
            restart: shared.restart.clone(),
            transport: "NIXL, read by decode's engine",
            partial: PARTIAL,
        }
    }

    fn release(&self, room: RoomId, ticket: &Ticket) {
        match ticket_of(room, ticket) {
            Ok(ticket) => self
                .shared
                .spawn(super::legs::release(Arc::clone(&self.shared), room, ticket)),
            Err(error) => tracing::warn!(%room, %error, "a ticket cannot be given back"),
        }
    }
}

/// What of the guarantee vLLM does not let hold.
const PARTIAL: &[&str] = &[
    "no checksum over the KV: a read is known to have ended inside of its lease, and nothing else",
    "pages of a read that was given up stay with decode's engine until prefill's runs on or dies",
    "a link that crawls is found by the read's deadline alone",
    "seeded sampling is carried on after a migration, and not with the same tokens",
];

fn by_tickets() -> EngineError {
    EngineError::Input("this engine moves its KV itself: it is asked to keep and to pull, by tickets".to_owned())
}

fn ticket_of(room: RoomId, ticket: &Ticket) -> Result<VllmTicket, EngineError> {
    match crate::ticket::Ticket::decode(ticket.bytes()) {
        Ok(crate::ticket::Ticket::Vllm(ticket)) if ticket.is_of(room) => Ok(ticket),
        Ok(_) => Err(EngineError::Input(format!(
            "the ticket is not one of vLLM's for room {room}"
        ))),
        Err(error) => Err(EngineError::Input(error.to_string())),
    }
}
