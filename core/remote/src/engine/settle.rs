//! When does an engine have the pages back of a room that was given up? It says so nowhere. But its gauge, after a step that began
//! later, shows no more pages in use than the engine may use by now for the rooms that are not over: then none is missing.
//!
//! One task per engine asks for all rooms at once: a canary makes the step, a look reads the gauge. Engines that keep pages
//! until their peer runs or dies are waited for as long as that takes: the ledger's fence restarts the engine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use innkeeper_room::RoomId;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::book::Book;
use crate::driver::{Probe, Watcher};
use crate::look::PoolSize;

/// The canary's own page may still be in the gauge, and a gauge is rounded.
const SLACK: u32 = 1;

/// Asks for rooms that are over.
pub(super) struct Settler<P, T> {
    watcher: Arc<Watcher<P>>,
    book: Arc<Mutex<Book<T>>>,
    pool: PoolSize,
    period: Duration,
    waiting: Mutex<Vec<oneshot::Sender<()>>>,
    wake: Notify,
}

impl<P: Probe, T: Default + Send + 'static> Settler<P, T> {
    pub(super) fn new(
        watcher: Arc<Watcher<P>>,
        book: Arc<Mutex<Book<T>>>,
        pool: PoolSize,
        period: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            watcher,
            book,
            pool,
            period,
            waiting: Mutex::default(),
            wake: Notify::new(),
        })
    }

    /// The room is over. Resolves once the engine has its pages back, or is another process, or is not looked after any more.
    pub(super) async fn settled(&self, room: RoomId) {
        self.book.lock().unwrap_or_else(PoisonError::into_inner).settles(room);
        let (sender, receiver) = oneshot::channel();
        self.waiting().push(sender);
        self.wake.notify_one();
        // A sender that is gone says that nobody looks any more.
        drop(receiver.await);
    }

    /// One task per engine, spawned by whoever owns the engine.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut lives = self.watcher.lives();
        loop {
            let asked = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                // Nothing of the former life has a page.
                Ok(()) = lives.changed() => self.waiting().len(),
                asked = self.look() => asked,
            };
            // Who came later was not in the look.
            let back: Vec<_> = self.waiting().drain(..asked).collect();
            for sender in back {
                // Who does not wait any more has ended otherwise.
                let _ = sender.send(());
            }
        }
        self.waiting().clear();
    }

    /// Waits for a room, makes a step, and looks; how many rooms, from the first, are settled by that.
    async fn look(&self) -> usize {
        let asked = loop {
            let asked = self.waiting().len();
            if asked > 0 {
                break asked;
            }
            self.wake.notified().await;
        };
        let before = self.in_use();
        let used = self.used_after_a_step().await;
        // Rooms that came or went meanwhile explain nothing; then it is asked again.
        let explained = before.min(self.in_use()).saturating_add(SLACK);
        if used.is_some_and(|used| used <= explained) {
            return asked;
        }
        tokio::time::sleep(self.period).await;
        0
    }

    fn in_use(&self) -> u32 {
        self.book.lock().unwrap_or_else(PoisonError::into_inner).in_use()
    }

    /// Pages in use after a step that began now.
    async fn used_after_a_step(&self) -> Option<u32> {
        let engine = self.watcher.engine();
        {
            let _aside = self.watcher.aside();
            engine.canary().await.ok()?;
            self.watcher.answered();
        }
        let look = engine.look().await.ok()?;
        Some(self.pool.pages_of(look.load.used))
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<oneshot::Sender<()>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
