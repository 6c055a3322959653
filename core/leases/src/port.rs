//! The lease store as the rest of Innkeeper sees it. Every answer can be late or missing: callers give a deadline, and
//! treat an error as a state, never as a failure of their own.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use innkeeper_room::{Incarnation, Layout, Role, RoomId};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

/// A store of leases, doors and members.
///
/// Keys are `/innkeeper/v1/members/<incarnation>` (under the node's own lease) and
/// `/innkeeper/v1/doors/<incarnation>/<room>` (all three doors of a room under the room's lease, whose id is the room's).
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Grants the room's lease and writes its three doors in one transaction. Tried once.
    ///
    /// # Errors
    /// [`StoreError::Exists`] if the lease id is taken, else as [`StoreError`] says.
    async fn open_room(&self, doors: &Doors, ttl: Duration) -> Result<(), StoreError>;

    /// Renews a room's lease once.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if it is gone; a normal answer.
    async fn renew_room(&self, room: RoomId) -> Result<(), StoreError>;

    /// Revokes a room's lease; its doors go with it. `NotFound` counts as success.
    ///
    /// # Errors
    /// As [`StoreError`] says; not to be repeated, the TTL does it.
    async fn revoke_room(&self, room: RoomId) -> Result<(), StoreError>;

    /// Registers a member under a lease of its own, or replaces its record.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    async fn register(&self, member: &Member, ttl: Duration) -> Result<MemberLease, StoreError>;

    /// Renews a member's lease once.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if it is gone: register again, with the same incarnation.
    async fn renew_member(&self, lease: MemberLease) -> Result<(), StoreError>;

    /// Ends a member's lease; its key goes with it.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    async fn deregister(&self, lease: MemberLease) -> Result<(), StoreError>;

    /// Lists members and this node's doors, then watches them. Never ends by itself: a lost connection, a compaction or
    /// a store that came back empty is told as [`WatchEvent::Lost`], then a fresh [`WatchEvent::Listed`]. Stalls are found by
    /// requested progress notifications. The watch ends when the receiver or the store is dropped. The channel is bounded: a slow
    /// reader delays the watch, and nothing is lost.
    fn watch(&self, own: Incarnation) -> mpsc::Receiver<WatchEvent>;

    /// Everything under the prefix: `(key, lease id)`. For tools and tests.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    async fn keys(&self) -> Result<Vec<(String, i64)>, StoreError>;
}

/// The three doors of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doors {
    /// The room, and its lease.
    pub room: RoomId,
    /// The owner.
    pub router: Incarnation,
    /// The prefill worker.
    pub prefill: Incarnation,
    /// The decode worker.
    pub decode: Incarnation,
}

/// The lease under which a member is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemberLease {
    /// The lease's id.
    pub id: i64,
    /// Whose it is.
    pub incarnation: Incarnation,
}

impl MemberLease {
    /// A lease id of 63 random bits from the OS, as a room's: the two never meet.
    pub(crate) fn random(incarnation: Incarnation) -> Result<Self, StoreError> {
        let bits = getrandom::u64().map_err(|error| StoreError::Refused(format!("no random lease id: {error}")))?;
        Ok(Self {
            id: RoomId::from_random(bits).lease_id(),
            incarnation,
        })
    }
}

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its life.
    pub incarnation: Incarnation,
    /// What it is.
    pub role: Role,
    /// Its name for people; the same over restarts.
    pub name: String,
    /// Its OS process.
    pub pid: u32,
    /// `host:port` of `/metrics` and `/health`.
    pub http: String,
    /// `host:port` of its gRPC control plane.
    pub control: String,
    /// `host:port` of its data plane; empty if it has none.
    pub data: String,
    /// The model as clients name it.
    pub model: String,
    /// The shape of its KV.
    pub layout: Layout,
    /// Deployment revision; only equal ones pair.
    pub revision: String,
    /// KV pages in its pool; 0 for a router.
    pub pages: u32,
    /// Longest prompt and answer together, in tokens.
    pub context: u32,
    /// Places in its room table.
    pub permits: u32,
    /// Whether it takes new rooms.
    pub state: MemberState,
}

/// Whether a member takes new rooms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It does.
    Serving,
    /// It finishes what it has. Its key goes only at exit.
    Draining,
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// The full list, at the start and after every gap. Absence from it is no DELETE: for R only a lapse, for P and D a question to R.
    Listed {
        /// All members.
        members: Vec<Member>,
        /// The rooms whose door for this node exists.
        doors: Vec<RoomId>,
    },
    /// A member appeared or changed.
    MemberUp(Box<Member>),
    /// A member's key went, on an unbroken history.
    MemberGone(Incarnation),
    /// This node's door of a room appeared.
    DoorSeen(RoomId),
    /// This node's door of a room went, on an unbroken history (the watch was resumed from the last revision seen).
    DoorGone(RoomId),
    /// The store cannot be reached, or the history has a gap; a `Listed` follows when it is back.
    Lost(String),
}

/// What a store answers when it does not do what it was asked. None of these is a failure of the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The lease id exists already.
    #[error("a lease with this id exists already")]
    Exists,
    /// The lease is gone.
    #[error("the lease is gone: it expired or was revoked")]
    NotFound,
    /// The store cannot be reached.
    #[error("the lease store cannot be reached: {0}")]
    Unreachable(String),
    /// The store refused.
    #[error("the lease store refused: {0}")]
    Refused(String),
    /// A key holds what it should not.
    #[error("the lease store holds something unreadable: {0}")]
    Malformed(String),
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serving => "serving",
            Self::Draining => "draining",
        })
    }
}
