//! Keeping one engine's process: ends it when the fence says so, has another one started, and says so.

use std::sync::Arc;
use std::time::{Duration, Instant};

use innkeeper_room::{Millis, Moment};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::watcher::{Probe, Watcher};
use crate::fence::{Accused, Budget, Cause, Fence, Order};
use crate::hook::{Backoff, Hook, HookError, Process, exec};

/// Pages of rooms that are over and still out: since when the oldest, and whom its room accused. The ledger's words: `since`
/// and `accused` of [`innkeeper_room::ledger::Pinned`], by the clock that both use.
pub type Pinned = Option<(Moment, Accused)>;

/// How its process is started and ended.
#[derive(Clone, Debug)]
pub struct Care {
    /// Who starts it anew.
    pub hook: Hook,
    /// What starts it, if the worker does.
    pub command: Vec<String>,
    /// Where it listens.
    pub url: String,
    /// The progress TTL.
    pub ttl: Millis,
    /// How often it may be restarted.
    pub budget: Budget,
    /// How long a hook, or a kill, may take.
    pub limit: Duration,
}

/// What has become of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Condition {
    /// Restarts that were ordered here.
    pub restarts: u64,
    /// It is to be ended, or is being ended, for this: `/engine/livez` says no as long as this is here.
    pub ending: Option<Cause>,
    /// Nobody will start it anew: the worker takes no rooms, and somebody is to look.
    pub given_up: bool,
}

/// Keeps an engine.
pub struct Keeper<P> {
    care: Care,
    watcher: Arc<Watcher<P>>,
    fence: Fence,
    pinned: watch::Receiver<Pinned>,
    condition: watch::Sender<Condition>,
    child: Option<Process>,
    born: Instant,
    backoff: Backoff,
}

/// What woke the keeper.
enum Woke {
    Looked,
    Pinned,
    AnotherLife,
    ChildEnded,
    Stop,
}

impl<P: Probe> Keeper<P> {
    /// Of the engine that `watcher` watches.
    #[must_use]
    pub fn new(care: Care, watcher: Arc<Watcher<P>>, pinned: watch::Receiver<Pinned>) -> Self {
        let fence = Fence::new(care.ttl, care.budget);
        Self {
            care,
            watcher,
            fence,
            pinned,
            condition: watch::Sender::default(),
            child: None,
            born: Instant::now(),
            backoff: Backoff::default(),
        }
    }

    /// The engine runs already, as this child.
    #[must_use]
    pub fn adopting(mut self, child: Option<Process>) -> Self {
        self.child = child;
        self
    }

    /// What has become of the engine, for whoever wants to know.
    #[must_use]
    pub fn condition(&self) -> watch::Receiver<Condition> {
        self.condition.subscribe()
    }

    /// Starts the engine if it is the worker's child, and keeps it until it is told to stop; a child ends with this.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut lives = self.watcher.lives();
        if self.care.hook == Hook::Child && self.child.is_none() {
            self.start();
        }
        // A quarter of what the fence waits after a verdict.
        let period = self.care.ttl.scale(1, 8).duration();
        loop {
            let woke = tokio::select! {
                biased;
                () = stop.cancelled() => Woke::Stop,
                Ok(()) = lives.changed() => Woke::AnotherLife,
                () = ended(&mut self.child) => Woke::ChildEnded,
                Ok(()) = self.pinned.changed() => Woke::Pinned,
                () = tokio::time::sleep(period) => Woke::Looked,
            };
            match woke {
                Woke::Stop => return self.leave().await,
                Woke::AnotherLife => self.another_life(),
                Woke::ChildEnded => self.start_again(&stop).await,
                Woke::Pinned => {
                    let pinned = *self.pinned.borrow_and_update();
                    self.fence.pinned(pinned);
                }
                Woke::Looked => {}
            }
            self.decide().await;
        }
    }

    async fn decide(&mut self) {
        let now = self.watcher.now();
        let silent = self.watcher.status().in_hand;
        let wedged = silent.is_some_and(|age| age >= self.care.ttl);
        self.fence.wedged(wedged, now);
        match self.fence.decide(now) {
            Order::Wait(_) => self.forgive(wedged),
            Order::GiveUp => self.give_up("it was restarted too often"),
            Order::Restart(cause) => self.restart(cause).await,
        }
    }

    /// Nobody restarts it, and yet it moves again and holds nothing any more: it ran on, or somebody looked after it.
    fn forgive(&mut self, wedged: bool) {
        let is_well = !wedged && self.pinned.borrow().is_none();
        if self.care.hook == Hook::None && is_well && self.condition.borrow().given_up {
            tracing::info!("the engine moves again: the worker takes rooms");
            self.condition.send_modify(|condition| condition.given_up = false);
            self.fence.restarted();
        }
    }

    async fn restart(&mut self, cause: Cause) {
        if self.care.hook == Hook::None {
            return self.give_up("nobody is named who could restart it");
        }
        tracing::error!(
            ?cause,
            "the engine must be started anew: its pages cannot be got back otherwise"
        );
        self.condition.send_modify(|condition| {
            condition.restarts += 1;
            condition.ending = Some(cause);
        });
        let done = match &self.care.hook {
            Hook::Child => self.replace().await,
            Hook::Exec(command) => exec(command, &self.care.url, self.care.limit).await,
            // The platform looks at `/engine/livez`.
            Hook::Probe | Hook::None => Ok(()),
        };
        if let Err(error) = done {
            tracing::error!(%error, "the engine could not be restarted; it is tried again");
        }
    }

    /// Kills the child, and starts another.
    async fn replace(&mut self) -> Result<(), HookError> {
        if let Some(child) = self.child.take() {
            let swept = child.kill(self.care.limit).await?;
            tracing::info!(swept, "the engine's process group was killed");
        }
        self.start();
        Ok(())
    }

    fn start(&mut self) {
        self.born = Instant::now();
        match Process::spawn(&self.care.command, &[]) {
            Ok(child) => self.child = Some(child),
            Err(error) => {
                tracing::error!(%error, "the engine could not be started");
                self.give_up("its command cannot be started");
            }
        }
    }

    /// The child has ended by itself.
    async fn start_again(&mut self, stop: &CancellationToken) {
        self.child = None;
        let pause = self.backoff.ended(self.born.elapsed());
        tracing::warn!(?pause, "the engine's process has ended; another one follows");
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => self.start(),
        }
    }

    fn another_life(&mut self) {
        self.fence.restarted();
        self.condition.send_modify(|condition| {
            condition.ending = None;
            condition.given_up = false;
        });
    }

    fn give_up(&self, why: &str) {
        let before = self
            .condition
            .send_if_modified(|condition| !std::mem::replace(&mut condition.given_up, true));
        if before {
            tracing::error!(
                why,
                "the engine is given up: the worker takes no rooms until it is another process"
            );
        }
    }

    async fn leave(mut self) {
        if let Some(child) = self.child.take()
            && let Err(error) = child.kill(self.care.limit).await
        {
            tracing::error!(%error, "the engine's process could not be ended");
        }
    }
}

/// Returns when the child ends; never without one.
async fn ended(child: &mut Option<Process>) {
    match child {
        Some(child) => {
            child.ended().await;
        }
        None => std::future::pending().await,
    }
}
