//! The store in etcd: a room is one lease with its id, and three doors under it.
//!
//! ```text
//! EtcdStore ── Connection   one endpoint at a time, remade when it looks dead
//!     ├─ renewals           one task, one keepalive stream for all leases
//!     ├─ watch              one task and one connection per watch
//!     └─ clean-up           one short task per revoke after a failed transaction
//! ```
//! Every task ends with the store (cancel token). The store can be made while etcd is away.

mod config;
mod connection;
mod error;
mod renewals;
mod session;
mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, GetOptions, LeaseGrantOptions, PutOptions, Txn, TxnOp};
use innkeeper_room::{Incarnation, RoomId};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use config::{EtcdConfig, EtcdConfigError, EtcdTls};

use crate::keys::{Key, PREFIX};
use crate::port::{Doors, Member, MemberLease, Store, StoreError, WatchEvent};
use connection::Connection;
use renewals::Renewals;

/// Keys fetched at a time by [`Store::keys`]: far below the 4 MB that a message may have.
const PAGE: i64 = 1000;

/// Lists are one message: far above 10,000 members or 100,000 doors of one node.
const LARGEST_MESSAGE: usize = 64 << 20;

/// Leases, doors and members in etcd.
#[derive(Debug)]
pub struct EtcdStore {
    connection: Arc<Connection>,
    renewals: Renewals,
    config: Arc<EtcdConfig>,
    malformed: Arc<AtomicU64>,
    cancel: CancellationToken,
    /// Ends every task of the store with it.
    _cancels: DropGuard,
}

impl EtcdStore {
    /// A store that connects when it is first used. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`EtcdConfigError`] says what in the configuration cannot work. That etcd is away is no error.
    pub fn new(config: EtcdConfig) -> Result<Self, EtcdConfigError> {
        config.validate()?;
        let config = Arc::new(config);
        let cancel = CancellationToken::new();
        let connection = Arc::new(Connection::new(Arc::clone(&config)));
        let renewals = Renewals::start(Arc::clone(&connection), config.call_timeout, cancel.clone());
        let malformed = Arc::default();
        Ok(Self {
            connection,
            renewals,
            config,
            malformed,
            _cancels: cancel.clone().drop_guard(),
            cancel,
        })
    }

    /// How many unreadable records the watches have skipped.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }

    async fn grant(&self, deadline: Instant, id: i64, ttl: Duration) -> Result<(), StoreError> {
        let seconds = whole_seconds(ttl);
        let grant = |mut client: etcd_client::Client| async move {
            client
                .lease_grant(seconds, Some(LeaseGrantOptions::new().with_id(id)))
                .await
        };
        let granted = self.connection.run(deadline, grant).await?;
        match granted.error() {
            "" => Ok(()),
            refused => Err(StoreError::Refused(refused.to_owned())),
        }
    }

    async fn transact(&self, deadline: Instant, txn: Txn) -> Result<bool, StoreError> {
        let transact = |mut client: etcd_client::Client| async move { client.txn(txn).await };
        Ok(self.connection.run(deadline, transact).await?.succeeded())
    }

    async fn revoke(&self, id: i64) -> Result<(), StoreError> {
        revoke(&self.connection, id).await
    }

    /// Revokes once, without holding up the caller: the lease was granted, but what should be under it is not.
    fn revoke_aside(&self, id: i64) {
        let (connection, cancel) = (Arc::clone(&self.connection), self.cancel.clone());
        tokio::spawn(async move {
            if let Some(Err(error)) = cancel.run_until_cancelled(revoke(&connection, id)).await {
                tracing::debug!(%error, lease = id, "left a lease to its TTL");
            }
        });
    }

    async fn page(&self, from: Vec<u8>, end: Vec<u8>) -> Result<(Vec<(String, i64)>, bool), StoreError> {
        let get = |mut client: etcd_client::Client| async move {
            let options = GetOptions::new().with_range(end).with_limit(PAGE).with_keys_only();
            client.get(from, Some(options)).await
        };
        let got = self.connection.run(self.connection.deadline(), get).await?;
        let found = got
            .kvs()
            .iter()
            .map(|kv| (String::from_utf8_lossy(kv.key()).into_owned(), kv.lease()));
        Ok((found.collect(), got.more()))
    }
}

async fn revoke(connection: &Connection, id: i64) -> Result<(), StoreError> {
    let revoke = |mut client: etcd_client::Client| async move { client.lease_revoke(id).await };
    match connection.run(connection.deadline(), revoke).await {
        Ok(_) | Err(StoreError::NotFound) => Ok(()),
        Err(error) => Err(error),
    }
}

/// etcd counts in seconds; a lease that is too short would end a healthy room, so it is rounded up.
fn whole_seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1)
}

#[async_trait]
impl Store for EtcdStore {
    async fn open_room(&self, doors: &Doors, ttl: Duration) -> Result<(), StoreError> {
        let (deadline, lease) = (self.connection.deadline(), doors.room.lease_id());
        self.grant(deadline, lease, ttl).await?;
        // A set, because etcd refuses a transaction that writes a key twice.
        let nodes = BTreeSet::from([doors.router, doors.prefill, doors.decode]);
        let keys: Vec<String> = nodes
            .into_iter()
            .map(|node| Key::Door(node, doors.room).to_string())
            .collect();
        let absent = |key: &String| Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
        let under_lease = Some(PutOptions::new().with_lease(lease));
        let put = |key: &String| TxnOp::put(key.as_str(), doors.room.to_string(), under_lease.clone());
        let compares: Vec<Compare> = keys.iter().map(absent).collect();
        let puts: Vec<TxnOp> = keys.iter().map(put).collect();
        let wrote = self.transact(deadline, Txn::new().when(compares).and_then(puts)).await;
        match wrote {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.revoke_aside(lease);
                Err(StoreError::Refused(
                    "a door of this room exists under another lease".to_owned(),
                ))
            }
            Err(error) => {
                self.revoke_aside(lease);
                Err(error)
            }
        }
    }

    async fn renew_room(&self, room: RoomId) -> Result<(), StoreError> {
        self.renewals.renew(room.lease_id()).await
    }

    async fn revoke_room(&self, room: RoomId) -> Result<(), StoreError> {
        self.revoke(room.lease_id()).await
    }

    async fn register(&self, member: &Member, ttl: Duration) -> Result<MemberLease, StoreError> {
        let record = serde_json::to_vec(member).map_err(|error| StoreError::Malformed(error.to_string()))?;
        let (deadline, lease) = (self.connection.deadline(), MemberLease::random(member.incarnation)?);
        self.grant(deadline, lease.id, ttl).await?;
        let key = Key::Member(member.incarnation).to_string();
        let put = |mut client: etcd_client::Client| async move {
            client
                .put(key, record, Some(PutOptions::new().with_lease(lease.id)))
                .await
        };
        match self.connection.run(deadline, put).await {
            Ok(_) => Ok(lease),
            Err(error) => {
                self.revoke_aside(lease.id);
                Err(error)
            }
        }
    }

    async fn renew_member(&self, lease: MemberLease) -> Result<(), StoreError> {
        self.renewals.renew(lease.id).await
    }

    async fn deregister(&self, lease: MemberLease) -> Result<(), StoreError> {
        self.revoke(lease.id).await
    }

    fn watch(&self, own: Incarnation) -> mpsc::Receiver<WatchEvent> {
        let (config, connection) = (Arc::clone(&self.config), Arc::clone(&self.connection));
        watch::start(
            config,
            connection,
            own,
            Arc::clone(&self.malformed),
            self.cancel.clone(),
        )
    }

    async fn keys(&self) -> Result<Vec<(String, i64)>, StoreError> {
        // The first key after the prefix: `/` and `0` are neighbours.
        let end = PREFIX.trim_end_matches('/').bytes().chain([b'0']).collect::<Vec<u8>>();
        let (mut from, mut all) = (PREFIX.as_bytes().to_vec(), Vec::new());
        loop {
            let (page, more) = self.page(from, end.clone()).await?;
            let Some((last, _)) = page.last() else { return Ok(all) };
            from = last.bytes().chain([0]).collect();
            all.extend(page);
            if !more {
                return Ok(all);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_never_shorter_than_asked() {
        assert_eq!(whole_seconds(Duration::from_millis(6667)), 7);
        assert_eq!(whole_seconds(Duration::from_secs(7)), 7);
        assert_eq!(whole_seconds(Duration::ZERO), 1);
    }
}
