//! Tasks that end legs, and what they have seen.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::sglang::Sglang;

/// Why a leg is ended by its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Nobody wants it any more.
    Left,
    /// It took longer than it was given.
    Late,
    /// Prefill's: decode had committed, and it did not end by itself.
    Overdue,
}

/// What has become of legs that did not end by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tasks of the moment: prefill's legs that are out, and legs of decode that are being aborted.
    pub tasks: usize,
    /// Legs that were aborted, for whatever reason.
    pub aborted: u64,
    /// Of these, prefill's that should have ended by themselves after decode's commit.
    pub overdue: u64,
    /// Of these, those that did not end in time for all aborts. Their connection was closed; their pages may still be out.
    pub unended: u64,
}

/// The tasks of one driver. They outlive it by [`crate::Times::ending`] at the most.
#[derive(Debug, Default)]
pub(super) struct Ends {
    tasks: TaskTracker,
    stop: CancellationToken,
    aborted: AtomicU64,
    overdue: AtomicU64,
    unended: AtomicU64,
}

impl Ends {
    /// Runs a task on the runtime that `on` is of, from wherever it is started: handles are dropped anywhere.
    pub(super) fn spawn(&self, on: &Handle, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, on);
    }

    /// Returns once the driver stops.
    pub(super) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Aborts the leg `rid` until it has ended. What it said at last; `None` if it did not end in time: its connection is
    /// closed then.
    pub(super) async fn end<T>(&self, engine: &Sglang, rid: &str, why: Why, leg: impl Future<Output = T>) -> Option<T> {
        self.aborted.fetch_add(1, Ordering::Relaxed);
        if why == Why::Overdue {
            self.overdue.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                rid,
                after = ?engine.times().after_commit,
                "prefill's leg did not end by itself after decode's commit; it is aborted"
            );
        }
        let limit = engine.times().ending;
        let said = engine.end(rid, leg, limit).await;
        if said.is_none() {
            self.unended.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(rid, after = ?limit, ?why, "a leg did not end for all aborts; its connection is closed");
        }
        said
    }

    pub(super) fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            tasks: self.tasks.len(),
            aborted: read(&self.aborted),
            overdue: read(&self.overdue),
            unended: read(&self.unended),
        }
    }

    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    pub(super) async fn shutdown(&self) {
        self.stop();
        self.tasks.close();
        // Every task has a deadline of its own.
        self.tasks.wait().await;
    }
}
