//! The ledger's alarm clock: an owned task that ticks every report period, and whenever the ledger's next deadline is due.

use std::sync::Arc;

use innkeeper_room::{Millis, Moment};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::tasks::Tasks;

/// The end of the alarm clock that the ledger sets.
#[derive(Debug)]
pub struct Alarm {
    due: watch::Sender<Option<Moment>>,
}

/// What rang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// A report period is over.
    Period,
    /// The deadline that was set is due.
    Due,
}

impl Alarm {
    /// Starts the clock. `ring` must not block; it says whether anybody still listens.
    pub fn start(
        tasks: &Tasks,
        clock: Arc<dyn Clock>,
        period: Millis,
        ring: impl Fn(Ring) -> bool + Send + 'static,
    ) -> Self {
        let (due, watch) = watch::channel(None);
        if let Err(closed) = tasks.spawn("alarm", run(clock, period, watch, ring)) {
            tracing::debug!(%closed, "no alarm clock");
        }
        Self { due }
    }

    /// Sets the next deadline.
    pub fn set(&self, due: Option<Moment>) {
        self.due.send_if_modified(|old| {
            let changed = *old != due;
            *old = due;
            changed
        });
    }
}

async fn run(
    clock: Arc<dyn Clock>,
    period: Millis,
    mut due: watch::Receiver<Option<Moment>>,
    ring: impl Fn(Ring) -> bool,
) {
    let mut periods = tokio::time::interval(period.duration());
    // A node that was stopped must not be rung once for each period that it missed.
    periods.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let next = *due.borrow_and_update();
        // At most an hour: the clocks of tokio and of the machine may drift apart while it sleeps.
        let wait = next.map_or(Millis(3_600_000), |at| Millis(at.since(clock.now()).0.min(3_600_000)));
        // In this order none starves: a period is due once in a while, a deadline rings once.
        let heard = tokio::select! {
            biased;
            _ = periods.tick() => ring(Ring::Period),
            () = tokio::time::sleep(wait.duration()), if next.is_some() => {
                let still = next.is_none_or(|at| clock.now() < at) || ring(Ring::Due);
                if still && *due.borrow() == next {
                    // The ledger may leave a deadline as it is (it is late by less than a millisecond): do not spin.
                    tokio::time::sleep(Millis(1).duration()).await;
                }
                still
            }
            changed = due.changed() => changed.is_ok(),
        };
        if !heard {
            return;
        }
    }
}
