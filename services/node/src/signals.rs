//! SIGTERM and SIGINT become a request to drain; a second one ends the drain.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::tasks::Tasks;

/// What the signals asked for.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// Cancelled by the first signal: stop admitting, finish what there is.
    pub drain: CancellationToken,
    /// Cancelled by the second one: end what is left now.
    pub force: CancellationToken,
}

impl Signals {
    /// Listens from now on, in a task of `tasks`.
    ///
    /// # Errors
    /// If the handlers cannot be installed. Nothing happens if `tasks` is closed: the node is shutting down already.
    pub fn listen(tasks: &Tasks) -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let signals = Self::default();
        let told = signals.clone();
        let spawned = tasks.spawn("signals", async move {
            either(&mut terminate, &mut interrupt).await;
            tracing::info!("asked to stop: draining (a second signal stops at once)");
            told.drain.cancel();
            either(&mut terminate, &mut interrupt).await;
            tracing::info!("asked to stop again: ending what is left");
            told.force.cancel();
        });
        if spawned.is_err() {
            signals.drain.cancel();
            signals.force.cancel();
        }
        Ok(signals)
    }
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[tokio::test]
    async fn the_first_drains_and_the_second_forces() {
        let tasks = Tasks::new();
        let signals = Signals::listen(&tasks).unwrap();
        kill_process(getpid(), Signal::TERM).unwrap();
        tokio::time::timeout(Duration::from_secs(5), signals.drain.cancelled())
            .await
            .unwrap();
        assert!(!signals.force.is_cancelled());
        kill_process(getpid(), Signal::INT).unwrap();
        tokio::time::timeout(Duration::from_secs(5), signals.force.cancelled())
            .await
            .unwrap();
        assert_eq!(tasks.shutdown(Duration::from_secs(1)).await, 0);
    }
}
