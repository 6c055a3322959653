//! Faults inside sessions that tests ask for. All are off until somebody asks; nothing in production does.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::watch;

/// Faults of one backend's sessions. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Sabotage(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Writes until the one that fails; 0: none will.
    writes_left: AtomicU64,
    /// Sessions that are over keep their permit.
    held: watch::Sender<bool>,
    /// Sessions hear no order to end.
    deaf: AtomicBool,
    /// Connections are accepted, and nobody reads their hello.
    mute: watch::Sender<bool>,
}

impl Sabotage {
    /// The nth write from now on, over all connections of the backend, fails as if the peer had reset the connection.
    pub fn fail_write(&self, nth: u64) {
        self.0.writes_left.store(nth, Ordering::Relaxed);
    }

    /// While held, no session gives its permit back, however it ended.
    pub fn hold(&self, held: bool) {
        self.0.held.send_replace(held);
    }

    /// While deaf, sessions go on reading or writing although their owner asks them to end, or destroys them.
    pub fn deafen(&self, deaf: bool) {
        self.0.deaf.store(deaf, Ordering::Relaxed);
    }

    /// While mute, connections are accepted and their hellos are not read.
    pub fn mute(&self, mute: bool) {
        self.0.mute.send_replace(mute);
    }

    pub(crate) fn is_deaf(&self) -> bool {
        self.0.deaf.load(Ordering::Relaxed)
    }

    pub(crate) fn write(&self) -> io::Result<()> {
        let left = &self.0.writes_left;
        let last = left.load(Ordering::Relaxed) > 0 && left.fetch_sub(1, Ordering::Relaxed) == 1;
        if last {
            Err(io::Error::new(
                io::ErrorKind::ConnectionReset,
                "this write was told to fail",
            ))
        } else {
            Ok(())
        }
    }

    /// Awaited by a connection that has said nothing yet.
    pub(crate) async fn let_speak(&self) {
        // Fails only if the sender is gone, which this holds.
        let _ = self.0.mute.subscribe().wait_for(|mute| !*mute).await;
    }

    /// Awaited by a session that is over, before it says so.
    pub(crate) async fn let_go(&self) {
        // Fails only if the sender is gone, which this holds.
        let _ = self.0.held.subscribe().wait_for(|held| !*held).await;
    }
}

/// Two configurations with the same bounds are equal, whatever a test does to one of them.
impl PartialEq for Sabotage {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Sabotage {}
