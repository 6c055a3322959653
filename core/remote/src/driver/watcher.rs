//! Watching one engine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use innkeeper_room::{Millis, Moment};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::evidence::{Seen, Status, StepWatch};
use crate::failure::RemoteError;
use crate::lease::PrefillSide;
use crate::look::Look;
use crate::sglang::Sglang;
use crate::vllm::Vllm;

/// What time it is on this node. The node's own clock, which does not stand still while the machine sleeps.
pub type Clock = Arc<dyn Fn() -> Moment + Send + Sync>;

/// What is asked of an engine to see whether it moves. Each question has a deadline of its own.
pub trait Probe: Send + Sync + 'static {
    /// A look at its gauges.
    fn look(&self) -> impl Future<Output = Result<Look, RemoteError>> + Send;
    /// A request of one token.
    fn canary(&self) -> impl Future<Output = Result<(), RemoteError>> + Send;
}

impl Probe for Vllm {
    fn look(&self) -> impl Future<Output = Result<Look, RemoteError>> + Send {
        Self::look(self)
    }

    fn canary(&self) -> impl Future<Output = Result<(), RemoteError>> + Send {
        Self::canary(self)
    }
}

impl Probe for Sglang {
    fn look(&self) -> impl Future<Output = Result<Look, RemoteError>> + Send {
        Self::look(self)
    }

    fn canary(&self) -> impl Future<Output = Result<(), RemoteError>> + Send {
        Self::canary(self)
    }
}

/// Watches one engine for all its rooms.
pub struct Watcher<P> {
    probe: P,
    clock: Clock,
    period: Duration,
    state: Mutex<State>,
    lives: watch::Sender<u64>,
}

struct State {
    steps: StepWatch,
    prefill: PrefillSide,
    /// Requests and tickets that are out.
    open: u64,
    /// All that ever were, canaries included.
    begun: u64,
    /// Requests that are out and of no room: the canary of the moment, and questions like it.
    aside: u64,
    last_canary: Option<Millis>,
}

impl<P: Probe> Watcher<P> {
    /// With this progress TTL, looking every `period`.
    #[must_use]
    pub fn new(probe: P, ttl: Millis, period: Duration, clock: Clock) -> Arc<Self> {
        let steps = StepWatch::new(ttl, clock());
        Arc::new(Self {
            probe,
            clock,
            period,
            state: Mutex::new(State {
                steps,
                prefill: PrefillSide::new(ttl),
                open: 0,
                begun: 0,
                aside: 0,
                last_canary: None,
            }),
            lives: watch::Sender::new(0),
        })
    }

    /// The engine.
    #[must_use]
    pub const fn engine(&self) -> &P {
        &self.probe
    }

    /// What time it is.
    #[must_use]
    pub fn now(&self) -> Moment {
        (self.clock)()
    }

    /// Looks and sends canaries until it is told to stop. One task per engine, spawned by whoever owns the engine.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let watching = async { tokio::join!(self.looks(), self.canaries()) };
        tokio::select! {
            () = stop.cancelled() => {}
            _ = watching => {}
        }
    }

    async fn looks(&self) {
        let mut ticks = tokio::time::interval(self.period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (sent, answers, begun, idle) = {
                let state = self.state();
                let idle = state.open == 0 && state.aside == 0;
                (self.now(), state.prefill.answers(), state.begun, idle)
            };
            match self.probe.look().await {
                Ok(look) => self.looked(look, sent, answers, idle.then_some(begun)),
                // A look that fails says nothing: canaries do.
                Err(error) => tracing::debug!(%error, "the engine could not be looked at"),
            }
        }
    }

    fn looked(&self, look: Look, sent: Moment, answers: u64, idle: Option<u64>) {
        let now = self.now();
        let finished = look.work.finished;
        let mut state = self.state();
        if state.steps.look(look, now) == Seen::Restarted {
            state.prefill.restarted();
            drop(state);
            tracing::warn!("the engine is another process than before");
            self.lives.send_modify(|lives| *lives += 1);
            return;
        }
        let idle = idle == Some(state.begun);
        state.prefill.look(sent, answers, now, finished, idle);
    }

    async fn canaries(&self) {
        loop {
            let due = self.state().steps.canary_due();
            let wait = due.map_or(self.period, |due| due.since(self.now()).duration());
            if wait > Duration::ZERO {
                // What is owed may change meanwhile: looked at again every period.
                tokio::time::sleep(wait.min(self.period)).await;
                continue;
            }
            let sent = self.now();
            {
                let mut state = self.state();
                state.steps.canary_sent(sent);
                state.aside += 1;
                state.begun += 1;
            }
            let answered = self.probe.canary().await;
            let now = self.now();
            let mut state = self.state();
            state.aside = state.aside.saturating_sub(1);
            match answered {
                Ok(()) => {
                    state.prefill.answered();
                    state.last_canary = Some(now.since(sent));
                    state.steps.canary_answered(now);
                }
                Err(error) => {
                    tracing::info!(%error, "the engine did not answer a canary");
                    state.steps.canary_failed(now);
                }
            }
        }
    }

    /// A request or a ticket is out from now until the guard is dropped: the engine owes.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> Open<P> {
        let now = self.now();
        let mut state = self.state();
        state.open += 1;
        state.begun += 1;
        state.steps.owes(true, now);
        drop(state);
        Open(Arc::clone(self))
    }

    /// A request is out that is no room's, until the guard is dropped: the engine is not idle, and what it owes is as before. Only the
    /// watcher's own canaries say that it is silent.
    #[must_use]
    pub fn aside(self: &Arc<Self>) -> Aside<P> {
        let mut state = self.state();
        state.aside += 1;
        state.begun += 1;
        drop(state);
        Aside(Arc::clone(self))
    }

    /// Something came out of the engine.
    pub fn evidence(&self) {
        let now = self.now();
        self.state().steps.evidence(now);
    }

    /// A request was answered as finished: evidence, and one of those that the engine counts. Until when a leg without an
    /// answer was certainly unfinished.
    pub fn answered(&self) -> Option<Moment> {
        let now = self.now();
        let mut state = self.state();
        let kept = state.prefill.unfinished_at();
        state.prefill.answered();
        state.steps.evidence(now);
        kept
    }

    /// What the ledger's watch is told.
    #[must_use]
    pub fn status(&self) -> Status {
        let now = self.now();
        self.state().steps.status(now)
    }

    /// The last look.
    #[must_use]
    pub fn last(&self) -> Option<Look> {
        self.state().steps.last().cloned()
    }

    /// How long nothing has been seen to move.
    #[must_use]
    pub fn age(&self) -> Millis {
        let now = self.now();
        self.state().steps.age(now)
    }

    /// How long the last answered canary took.
    #[must_use]
    pub fn last_canary(&self) -> Option<Millis> {
        self.state().last_canary
    }

    /// Counts the engine's lives beyond the first that were seen to begin.
    #[must_use]
    pub fn lives(&self) -> watch::Receiver<u64> {
        self.lives.subscribe()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete before anything under the lock can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request or a ticket that is out.
pub struct Open<P: Probe>(Arc<Watcher<P>>);

impl<P: Probe> Drop for Open<P> {
    fn drop(&mut self) {
        let now = self.0.now();
        let mut state = self.0.state();
        state.open = state.open.saturating_sub(1);
        let owes = state.open > 0;
        state.steps.owes(owes, now);
    }
}

/// A request that is out and of no room.
pub struct Aside<P: Probe>(Arc<Watcher<P>>);

impl<P: Probe> Drop for Aside<P> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.aside = state.aside.saturating_sub(1);
    }
}
