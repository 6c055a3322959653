//! A process's way to the lease store: calls take time, wait while the process is stopped, and end with it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use innkeeper_leases::{Doors, Member, MemberLease, MemoryStore, Store, StoreError, WatchEvent};
use innkeeper_room::{Incarnation, RoomId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::net::{Net, spawn};

/// The store, from one process.
pub(crate) struct NodeStore {
    pub(crate) inner: Arc<MemoryStore>,
    pub(crate) net: Arc<Net>,
    pub(crate) slot: usize,
    pub(crate) dead: CancellationToken,
}

impl NodeStore {
    async fn pass(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.net.running(self.slot).await;
        if self.dead.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }

    async fn call<T>(&self, call: impl Future<Output = T> + Send) -> T {
        self.pass().await;
        let answer = call.await;
        self.pass().await;
        answer
    }
}

#[async_trait]
impl Store for NodeStore {
    async fn open_room(&self, doors: &Doors, ttl: Duration) -> Result<(), StoreError> {
        self.call(self.inner.open_room(doors, ttl)).await
    }

    async fn renew_room(&self, room: RoomId) -> Result<(), StoreError> {
        self.call(self.inner.renew_room(room)).await
    }

    async fn revoke_room(&self, room: RoomId) -> Result<(), StoreError> {
        self.call(self.inner.revoke_room(room)).await
    }

    async fn register(&self, member: &Member, ttl: Duration) -> Result<MemberLease, StoreError> {
        self.call(self.inner.register(member, ttl)).await
    }

    async fn renew_member(&self, lease: MemberLease) -> Result<(), StoreError> {
        self.call(self.inner.renew_member(lease)).await
    }

    async fn deregister(&self, lease: MemberLease) -> Result<(), StoreError> {
        self.call(self.inner.deregister(lease)).await
    }

    fn watch(&self, own: Incarnation) -> mpsc::Receiver<WatchEvent> {
        let mut inner = self.inner.watch(own);
        let (tell, told) = mpsc::channel(1);
        let (net, slot, dead) = (Arc::clone(&self.net), self.slot, self.dead.clone());
        let pump = async move {
            while let Some(event) = inner.recv().await {
                tokio::time::sleep(Duration::from_millis(1)).await;
                net.running(slot).await;
                if tell.send(event).await.is_err() {
                    return;
                }
            }
        };
        spawn(&self.net.tasks, "store watch", async move {
            dead.run_until_cancelled(pump).await;
        });
        told
    }

    async fn keys(&self) -> Result<Vec<(String, i64)>, StoreError> {
        self.inner.keys().await
    }
}
