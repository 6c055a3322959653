//! Keeps a node's member record in the store for as long as the node lives.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::backoff::Backoff;
use crate::port::{Member, MemberLease, MemberState, Store, StoreError};

/// First wait after a failure: short, because most are over at once.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// Longest wait after a failure: a node is back within 2 s of its store.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How the registration stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeeperStatus {
    /// The record is in the store, as far as is known.
    pub registered: bool,
    /// The lease that it is under.
    pub lease: Option<MemberLease>,
    /// When the store last confirmed it.
    pub last_ok: Option<Instant>,
    /// The last call failed; the keeper goes on trying. `None` when all is well.
    pub degraded: Option<StoreError>,
}

impl KeeperStatus {
    /// How long ago the store last confirmed the record.
    #[must_use]
    pub fn last_ok_age(&self) -> Option<Duration> {
        self.last_ok.map(|at| at.elapsed())
    }
}

/// Registers the node, renews every third of the TTL, and registers again, as the same incarnation, whenever the record
/// is gone. An error is a state, never a failure: the keeper ends only by [`MemberKeeper::stop`] (which takes the record
/// out) or by its token or drop (which leave it to its TTL, as a crash would).
#[derive(Debug)]
pub struct MemberKeeper {
    wanted: watch::Sender<Wanted>,
    status: watch::Receiver<KeeperStatus>,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
    /// Ends the task with the keeper.
    _cancels: DropGuard,
}

/// What the record should say. The newest wish counts, so there is no queue.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    state: MemberState,
    /// Counts the wishes to register again.
    again: u64,
}

impl MemberKeeper {
    /// Starts keeping `member`. Must be called within a tokio runtime.
    #[must_use]
    pub fn start(store: Arc<dyn Store>, member: Member, ttl: Duration, cancel: &CancellationToken) -> Self {
        let wanted = watch::Sender::new(Wanted {
            state: member.state,
            again: 0,
        });
        let (status_in, status) = watch::channel(KeeperStatus::default());
        let (cancel, stop) = (cancel.child_token(), CancellationToken::new());
        let third = ttl / 3;
        let task = Task {
            store,
            member,
            ttl,
            renew_every: third,
            backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT.min(third.max(FIRST_WAIT))),
            wanted: wanted.subscribe(),
            status: status_in,
            lease: None,
        };
        let (cancelled, stopped) = (cancel.clone(), stop.clone());
        let task = tokio::spawn(async move {
            cancelled.run_until_cancelled(task.run(stopped)).await;
        });
        Self {
            wanted,
            status,
            stop,
            task: Some(task),
            _cancels: cancel.drop_guard(),
        }
    }

    /// The status, now and whenever it changes.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<KeeperStatus> {
        self.status.clone()
    }

    /// Registers again, as the same incarnation: somebody saw the record go.
    pub fn reregister(&self) {
        self.wanted.send_modify(|wanted| wanted.again += 1);
    }

    /// Says whether the node takes new rooms; the record follows.
    pub fn set_state(&self, state: MemberState) {
        self.wanted.send_modify(|wanted| {
            wanted.state = state;
            wanted.again += 1;
        });
    }

    /// Takes the record out of the store, trying for at most `limit`; false if that could not be confirmed (the lease's
    /// TTL does it then).
    pub async fn stop(mut self, limit: Duration) -> bool {
        self.stop.cancel();
        let Some(task) = self.task.take() else { return true };
        let ended = timeout(limit, task).await.is_ok();
        ended && !self.status.borrow().registered
    }
}

struct Task {
    store: Arc<dyn Store>,
    member: Member,
    ttl: Duration,
    renew_every: Duration,
    backoff: Backoff,
    wanted: watch::Receiver<Wanted>,
    status: watch::Sender<KeeperStatus>,
    lease: Option<MemberLease>,
}

impl Task {
    async fn run(mut self, stop: CancellationToken) {
        loop {
            let wait = self.keep().await;
            // The wish before the wait: a wait of nothing would hide it.
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = self.wanted.changed() => match changed {
                    Ok(()) => self.lease = None,
                    Err(_) => return,
                },
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.deregister().await;
    }

    /// Registers or renews once; answers how long to wait before the next time.
    async fn keep(&mut self) -> Duration {
        let started = Instant::now();
        let kept = match self.lease {
            Some(lease) => self.limited(self.store.renew_member(lease)).await.map(|()| lease),
            None => {
                self.member.state = self.wanted.borrow_and_update().state;
                self.limited(self.store.register(&self.member, self.ttl)).await
            }
        };
        match kept {
            Ok(lease) => {
                self.backoff.reset();
                self.lease = Some(lease);
                let (registered, degraded) = (true, None);
                // From when it was sent: the store's clock for the lease cannot have begun earlier.
                let last_ok = Some(started);
                self.status.send_replace(KeeperStatus {
                    registered,
                    lease: Some(lease),
                    last_ok,
                    degraded,
                });
                self.renew_every.saturating_sub(started.elapsed())
            }
            Err(error) => self.failed(error),
        }
    }

    fn failed(&mut self, error: StoreError) -> Duration {
        // Only a renewal's answer: `not found` while registering is a failure like any other, and must not be retried at once.
        let gone = error == StoreError::NotFound && self.lease.take().is_some();
        let ttl = self.ttl;
        self.status.send_modify(|status| {
            // A renewal that failed does not end the lease; its time does.
            let over = status.last_ok_age().is_none_or(|age| age >= ttl);
            status.registered = status.registered && !gone && !over;
            // Kept otherwise: the record may still be under it, and `stop` must find it.
            status.lease = status.lease.filter(|_| !gone);
            status.degraded = Some(error);
        });
        if gone { Duration::ZERO } else { self.backoff.next() }
    }

    /// The store's calls have deadlines of their own; this one is for a store that breaks that promise. Three thirds
    /// would be the lease's end, so a call gets one.
    async fn limited<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let limit = self.renew_every.max(LONGEST_WAIT);
        match timeout(limit, call).await {
            Ok(answer) => answer,
            Err(_) => Err(StoreError::Unreachable(format!(
                "no answer within {} ms",
                limit.as_millis()
            ))),
        }
    }

    async fn deregister(&self) {
        // Not `self.lease`: a wish to register again forgets it before the new one is there.
        let Some(lease) = self.status.borrow().lease else {
            return;
        };
        match self.limited(self.store.deregister(lease)).await {
            Ok(()) => {
                self.status
                    .send_modify(|status| (status.registered, status.lease) = (false, None));
            }
            Err(error) => {
                tracing::debug!(%error, "left the member's key to its TTL");
                self.status.send_modify(|status| status.degraded = Some(error));
            }
        }
    }
}
