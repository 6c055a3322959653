//! A lease store whose ends are not seen: for tests in which another layer must do the work alone.

use std::sync::Arc;
use std::time::Duration;

use innkeeper_leases::{Doors, Member, MemberLease, Store, StoreError, WatchEvent};
use innkeeper_room::{Incarnation, RoomId};
use tokio::sync::mpsc;

/// Events ahead of the reader, as the real stores have it.
const AHEAD: usize = 256;

/// The store, and what is not seen of it.
pub(super) struct Blind {
    pub(super) store: Arc<dyn Store>,
    /// The ends of rooms' leases.
    pub(super) doors: bool,
    /// The ends of members' leases.
    pub(super) members: bool,
}

#[tonic::async_trait]
impl Store for Blind {
    async fn open_room(&self, doors: &Doors, ttl: Duration) -> Result<(), StoreError> {
        self.store.open_room(doors, ttl).await
    }

    async fn renew_room(&self, room: RoomId) -> Result<(), StoreError> {
        self.store.renew_room(room).await
    }

    async fn revoke_room(&self, room: RoomId) -> Result<(), StoreError> {
        self.store.revoke_room(room).await
    }

    async fn register(&self, member: &Member, ttl: Duration) -> Result<MemberLease, StoreError> {
        self.store.register(member, ttl).await
    }

    async fn renew_member(&self, lease: MemberLease) -> Result<(), StoreError> {
        self.store.renew_member(lease).await
    }

    async fn deregister(&self, lease: MemberLease) -> Result<(), StoreError> {
        self.store.deregister(lease).await
    }

    fn watch(&self, own: Incarnation) -> mpsc::Receiver<WatchEvent> {
        let mut events = self.store.watch(own);
        let (seen, reader) = mpsc::channel(AHEAD);
        let (doors, members) = (self.doors, self.members);
        // Ends with its reader or with the store's own watch.
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                let seen_event = match event {
                    WatchEvent::DoorGone(_) | WatchEvent::DoorSeen(_) if doors => continue,
                    WatchEvent::MemberGone(_) if members => continue,
                    WatchEvent::Listed { members, .. } if doors => WatchEvent::Listed { members, doors: vec![] },
                    other => other,
                };
                if seen.send(seen_event).await.is_err() {
                    return;
                }
            }
        });
        reader
    }

    async fn keys(&self) -> Result<Vec<(String, i64)>, StoreError> {
        self.store.keys().await
    }
}
