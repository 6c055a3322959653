//! The store of the embedded deployment: in this process, shared by all its nodes, with the semantics of the etcd store.
//!
//! Time is tokio's, so tests may pause it. A lease ends when its time is over *and somebody looks*: every call and every
//! watch looks first, and a watch sleeps no longer than until the next end.

mod state;
mod watcher;

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use innkeeper_room::{Incarnation, RoomId};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::keys::Key;
use crate::port::{Doors, Member, MemberLease, Store, StoreError, WatchEvent};
use state::State;

/// Bounds of the in-process store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// A call to a paused store is answered `Unreachable` after this long. As the etcd store's default: 2 s.
    pub call_timeout: Duration,
    /// A watch of a paused store says `Lost` after this long. As the etcd store's default: 3 s.
    pub silence: Duration,
    /// Changes kept for slow watches; one that falls further behind gets `Lost`, then `Listed`. 4096 covers every room
    /// of a full table ending at once.
    pub history: usize,
    /// Events that a watch hands out ahead of its reader.
    pub channel: usize,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            call_timeout: Duration::from_secs(2),
            silence: Duration::from_secs(3),
            history: 4096,
            channel: 256,
        }
    }
}

/// Leases, doors and members in this process.
#[derive(Debug)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    cancel: CancellationToken,
    /// Ends the watches' tasks with the store.
    _cancels: DropGuard,
}

/// What the store and the tasks of its watches share.
#[derive(Debug)]
struct Shared {
    config: MemoryConfig,
    state: Mutex<State>,
    /// Rung whenever a watch should look. A `Notify` and no `watch` channel, which wakes its readers in an order drawn by lot:
    /// a run could not be repeated.
    look: Notify,
    paused: AtomicBool,
    /// Rung when `paused` changed.
    turned: Notify,
    grant_delay: Mutex<Duration>,
    /// Numbers for members' leases, in order so that a run can be repeated: from 2^62 on, which a room's 63 random bits do
    /// not meet. Not of the state: a wiped store must not give a number again that a keeper still renews.
    member_leases: AtomicI64,
}

impl Shared {
    /// Ends what is over, then does `f`; wakes the watches if any key changed.
    fn with<R>(&self, f: impl FnOnce(&mut State, Instant) -> R) -> R {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = (state.generation, state.changes);
        let now = Instant::now();
        state.expire(now);
        let result = f(&mut state, now);
        let changed = before != (state.generation, state.changes);
        drop(state);
        if changed {
            self.look.notify_waiters();
        }
        result
    }

    /// Waits while the store is paused, at most for the call timeout: a call never hangs.
    async fn answering(&self) -> Result<(), StoreError> {
        tokio::time::timeout(self.config.call_timeout, self.resumed())
            .await
            .map_err(|_| StoreError::Unreachable("the in-process store is paused".to_owned()))
    }

    /// Without a deadline: comes when the store is not paused.
    async fn resumed(&self) {
        loop {
            let mut turned = pin!(self.turned.notified());
            // Before the look, so that no turn is missed after it.
            turned.as_mut().enable();
            if !self.paused.load(Ordering::Acquire) {
                return;
            }
            turned.await;
        }
    }

    fn turn(&self, paused: bool) {
        self.paused.store(paused, Ordering::Release);
        self.turned.notify_waiters();
        self.look.notify_waiters();
    }

    /// A test's delay between a grant and its answer.
    async fn delay_of_grant(&self) {
        let delay = *self.grant_delay.lock().unwrap_or_else(PoisonError::into_inner);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(MemoryConfig::default())
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new(config: MemoryConfig) -> Self {
        let shared = Shared {
            config,
            state: Mutex::new(State::new(config.history)),
            look: Notify::new(),
            paused: AtomicBool::new(false),
            turned: Notify::new(),
            grant_delay: Mutex::new(Duration::ZERO),
            member_leases: AtomicI64::new(1 << 62),
        };
        let cancel = CancellationToken::new();
        Self {
            shared: Arc::new(shared),
            _cancels: cancel.clone().drop_guard(),
            cancel,
        }
    }

    /// Stops answering, as a stopped etcd does: calls are `Unreachable` after their timeout, watches fall silent, then say
    /// `Lost`. Leases go on expiring, which shows at [`MemoryStore::resume`].
    pub fn pause(&self) {
        self.shared.turn(true);
    }

    /// Answers again.
    pub fn resume(&self) {
        self.shared.turn(false);
    }

    /// Loses everything, as an etcd that comes back on an empty disk. No key is *deleted*: watches say `Lost`, then
    /// `Listed` with nothing.
    pub fn wipe(&self) {
        self.shared.with(|state, _| state.wipe());
    }

    /// Forgets the history: a watch that has not read all of it has a gap.
    pub fn compact(&self) {
        self.shared.with(|state, _| state.compact());
        self.shared.look.notify_waiters();
    }

    /// Ends any lease by its id, as an operator would; false if there is none.
    pub fn revoke_by_hand(&self, lease: i64) -> bool {
        self.shared.with(|state, _| state.revoke(lease))
    }

    /// From now on a room's lease and doors appear at once, but the answer to the caller comes this much later.
    pub fn delay_grants(&self, delay: Duration) {
        *self.shared.grant_delay.lock().unwrap_or_else(PoisonError::into_inner) = delay;
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn open_room(&self, doors: &Doors, ttl: Duration) -> Result<(), StoreError> {
        self.shared.answering().await?;
        let lease = doors.room.lease_id();
        let nodes = BTreeSet::from([doors.router, doors.prefill, doors.decode]);
        let keys: Vec<Key> = nodes.into_iter().map(|node| Key::Door(node, doors.room)).collect();
        self.shared.with(|state, now| {
            if keys.iter().any(|key| state.has(key)) || !state.grant(lease, ttl, now) {
                return Err(StoreError::Exists);
            }
            state.put(lease, keys.iter().map(|key| (*key, None)));
            Ok(())
        })?;
        self.shared.delay_of_grant().await;
        Ok(())
    }

    async fn renew_room(&self, room: RoomId) -> Result<(), StoreError> {
        self.shared.answering().await?;
        let found = self.shared.with(|state, now| state.renew(room.lease_id(), now));
        if found { Ok(()) } else { Err(StoreError::NotFound) }
    }

    async fn revoke_room(&self, room: RoomId) -> Result<(), StoreError> {
        self.shared.answering().await?;
        self.shared.with(|state, _| state.revoke(room.lease_id()));
        Ok(())
    }

    async fn register(&self, member: &Member, ttl: Duration) -> Result<MemberLease, StoreError> {
        self.shared.answering().await?;
        let lease = MemberLease {
            id: self.shared.member_leases.fetch_add(1, Ordering::Relaxed),
            incarnation: member.incarnation,
        };
        let record = Arc::new(member.clone());
        self.shared.with(|state, now| {
            if !state.grant(lease.id, ttl, now) {
                return Err(StoreError::Exists);
            }
            state.put(lease.id, [(Key::Member(member.incarnation), Some(record))]);
            Ok(lease)
        })
    }

    async fn renew_member(&self, lease: MemberLease) -> Result<(), StoreError> {
        self.shared.answering().await?;
        let found = self.shared.with(|state, now| state.renew(lease.id, now));
        if found { Ok(()) } else { Err(StoreError::NotFound) }
    }

    async fn deregister(&self, lease: MemberLease) -> Result<(), StoreError> {
        self.shared.answering().await?;
        self.shared.with(|state, _| state.revoke(lease.id));
        Ok(())
    }

    fn watch(&self, own: Incarnation) -> mpsc::Receiver<WatchEvent> {
        watcher::start(Arc::clone(&self.shared), own, self.cancel.clone())
    }

    async fn keys(&self) -> Result<Vec<(String, i64)>, StoreError> {
        self.shared.answering().await?;
        Ok(self.shared.with(|state, _| state.all()))
    }
}
