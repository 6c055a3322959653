//! Who owns the tasks: every task of a node is spawned here, counted by kind, refused after closing, and ended at shutdown.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long tasks that were dropped at the end of a shutdown's limit may take to be gone. Only a task that blocks its
/// thread takes longer, and for that one nothing helps but the end of the process.
const DROP_GRACE: Duration = Duration::from_millis(250);

/// The owner of tasks. Clones share one set.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    tracker: TaskTracker,
    /// Asks all tasks to end.
    stop: CancellationToken,
    /// Drops those that did not.
    kill: CancellationToken,
    /// Held for reading while a task is added, for writing while closing: no task slips in between.
    closed: RwLock<bool>,
    counts: Mutex<BTreeMap<&'static str, Arc<AtomicU64>>>,
}

/// The set was closed; nothing was spawned, and the future was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {0} task was started: the node is shutting down")]
pub struct Closed(pub &'static str);

/// Counts one live task; counts down when the task's future is dropped, whether it ran or not.
struct Live(Arc<AtomicU64>);

impl Live {
    fn new(count: Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tasks {
    /// An empty, open set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancelled when the set shuts down. Children of it may be cancelled earlier.
    #[must_use]
    pub fn token(&self) -> &CancellationToken {
        &self.inner.stop
    }

    /// Spawns a task that is simply dropped, at its next await, when the set shuts down.
    ///
    /// # Errors
    /// [`Closed`] after [`Tasks::close`]. Must be called within a tokio runtime.
    pub fn spawn<F>(&self, kind: &'static str, future: F) -> Result<(), Closed>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.inner.stop.clone();
        self.spawn_watching(kind, async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = future => {}
            }
        })
    }

    /// Spawns a task that watches [`Tasks::token`] (or a child of it) itself and cleans up; it is dropped only if it is
    /// still there at the end of the shutdown's limit.
    ///
    /// # Errors
    /// As [`Tasks::spawn`].
    pub fn spawn_watching<F>(&self, kind: &'static str, future: F) -> Result<(), Closed>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let closed = self.inner.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(Closed(kind));
        }
        let live = Live::new(self.count(kind));
        let kill = self.inner.kill.clone();
        self.inner.tracker.spawn(async move {
            let _live = live;
            tokio::select! {
                biased;
                () = kill.cancelled() => {}
                () = future => {}
            }
        });
        Ok(())
    }

    /// Live tasks by kind; kinds that were ever used stay, with 0.
    #[must_use]
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = self.inner.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts
            .iter()
            .map(|(kind, count)| (*kind, count.load(Ordering::Relaxed)))
            .collect()
    }

    /// Live tasks of one kind.
    #[must_use]
    pub fn live(&self, kind: &'static str) -> u64 {
        self.count(kind).load(Ordering::Relaxed)
    }

    /// Refuses tasks from now on; those there are go on.
    pub fn close(&self) {
        *self.inner.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        self.inner.tracker.close();
    }

    /// Closes, asks all tasks to end, and waits for them at most `limit`; then drops the rest. How many were left even
    /// then: they block their threads, and only the end of the process ends them.
    pub async fn shutdown(&self, limit: Duration) -> usize {
        self.close();
        self.inner.stop.cancel();
        if tokio::time::timeout(limit, self.inner.tracker.wait()).await.is_err() {
            self.inner.kill.cancel();
            // The limit is over; what is left needs one poll to be dropped.
            let _ = tokio::time::timeout(DROP_GRACE, self.inner.tracker.wait()).await;
        }
        self.inner.tracker.len()
    }

    fn count(&self, kind: &'static str) -> Arc<AtomicU64> {
        let mut counts = self.inner.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.entry(kind).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tasks_are_counted_and_ended_at_shutdown() {
        let tasks = Tasks::new();
        tasks.spawn("sleeper", std::future::pending()).unwrap();
        tasks.spawn("sleeper", std::future::pending()).unwrap();
        tasks.spawn("quick", async {}).unwrap();
        tokio::task::yield_now().await;
        assert_eq!(tasks.counts(), [("quick", 0), ("sleeper", 2)]);
        assert_eq!(tasks.shutdown(Duration::from_secs(1)).await, 0);
        assert_eq!(tasks.live("sleeper"), 0);
        assert_eq!(tasks.spawn("late", async {}), Err(Closed("late")));
        assert_eq!(tasks.live("late"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ignores_the_request_is_dropped_at_the_limit() {
        let tasks = Tasks::new();
        tasks.spawn_watching("deaf", std::future::pending()).unwrap();
        let began = tokio::time::Instant::now();
        assert_eq!(tasks.shutdown(Duration::from_secs(1)).await, 0);
        assert_eq!(began.elapsed(), Duration::from_secs(1));
        assert_eq!(tasks.live("deaf"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_counted_down() {
        let tasks = Tasks::new();
        tasks
            .spawn("broken", async { panic!("expected by this test") })
            .unwrap();
        tasks.close();
        assert_eq!(tasks.shutdown(Duration::from_secs(1)).await, 0);
        assert_eq!(tasks.live("broken"), 0);
    }
}
