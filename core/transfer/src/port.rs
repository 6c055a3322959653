//! Moving KV pages as the rest of Innkeeper sees it. One connection carries one (room, epoch) at a time, pushed by P.
//!
//! Two separate events: *terminal* (the session will deliver nothing more; the room may go on or fail) and *quiesced*
//! (nothing of this session can touch a page any more: the sender's reads and the reader's writes are over, so the pages
//! may be reused). Between the two, pages are in quarantine.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use innkeeper_room::{
    Epoch, Evidence, HelloReply, Incarnation, Manifest, Millis, Reason, RoomId, SlabMeta, SlabSink, SlabSource,
};
use tokio::sync::mpsc;

use crate::coverage::Coverage;
use crate::stats::Stats;

/// D's questions for a lease's age in one session: before its engine reads, and when it has.
pub const MOST_ASKS: u32 = 2;

/// A way to move KV. `mem` and `tcp` are the backends of today.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// P: connects to D and says hello. Returns at once; an owned task does the work and tells it through the receiver,
    /// whose last event is always [`SendEvent::Quiesced`].
    fn dial(&self, dial: Dial, source: Arc<dyn SlabSource>) -> (Arc<dyn SendSession>, mpsc::Receiver<SendEvent>);

    /// D: listens. Every hello that can be read is given to the acceptor.
    ///
    /// # Errors
    /// The address cannot be bound.
    async fn listen(&self, addr: &str, acceptor: Arc<dyn Acceptor>) -> Result<Box<dyn Listener>, ListenError>;

    /// What this backend has counted, for metrics.
    fn stats(&self) -> Arc<Stats>;
}

/// What P needs to reach D for one epoch of a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// `host:port` of D's data plane.
    pub addr: String,
    /// The room.
    pub room: RoomId,
    /// This try.
    pub epoch: Epoch,
    /// The room's secret, from D's Admitted.
    pub token: u64,
    /// Who says hello.
    pub prefill: Incarnation,
    /// Who is meant.
    pub decode: Incarnation,
}

/// P's end of a session. No method waits; all are idempotent and harmless after the end.
pub trait SendSession: Send + Sync {
    /// P has its turn and its pages.
    fn started(&self);
    /// A sealed slab may be sent. Slabs that D's coverage has are skipped. May be called before Ready: nothing is sent until then.
    fn submit(&self, slab: SlabMeta);
    /// All slabs were submitted; the manifest follows the last of them.
    fn manifest(&self, manifest: Manifest);
    /// P's engine has finished this many chunks and steps; D learns that the engine it waits for moves.
    fn progress(&self, engine: u64);
    /// The answer to [`SendEvent::AsksLeaseAge`]; `None`: this node cannot say.
    fn lease_age(&self, age: Option<Millis>);
    /// Says Fail as a last word, half-closes, and drains until EOF or the grace ends.
    fn fail(&self, reason: Reason, evidence: Evidence);
    /// Ends the session quietly (committed, or superseded): half-close, drain, close.
    fn finish(&self);
    /// Destroys the session at once: the socket is closed and no read is in hand when `Quiesced` comes.
    fn kill(&self);
    /// Whether bytes are unacknowledged by the peer's kernel for a while (TCP_INFO), or were when the session ended. A
    /// backend that cannot tell says no.
    fn unacked(&self) -> bool {
        false
    }
}

/// What P hears of a session. After `Broken`, `Reply(..)` other than Ready and Wait, `PeerFailed` or `Committed` the session
/// is terminal; `Quiesced` always comes last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendEvent {
    /// D's answer to the hello. Wait may be followed by Ready.
    Reply(HelloReply),
    /// Bytes handed to the connection so far in this session, coverage included, each slab counted once.
    Sent(u64),
    /// Bytes that D has verified so far, over all epochs.
    Verified(u64),
    /// D's engine has read the KV, and asks how old its lease is at the most. At most [`MOST_ASKS`] times in a session.
    AsksLeaseAge,
    /// D has committed.
    Committed,
    /// D's part has failed.
    PeerFailed(Reason, Evidence),
    /// The connection could not be made or broke. `unacked`: bytes were unacknowledged by the peer's kernel at that time.
    Broken {
        /// What happened, for people.
        why: String,
        /// TCP_INFO showed unacknowledged bytes.
        unacked: bool,
        /// It was never established, or the peer does not let us in.
        refused: bool,
    },
    /// The source could not be read: the permit was taken back.
    SourceClosed,
    /// Nothing of this session can read a page any more.
    Quiesced,
}

/// D's side of listening: gets every hello. Must not block.
pub trait Acceptor: Send + Sync + 'static {
    /// A peer said hello. The session waits for [`RecvSession::reply`] for at most the handshake's time and is then closed.
    fn hello(&self, hello: Hello, session: Arc<dyn RecvSession>, events: mpsc::Receiver<RecvEvent>);
}

/// P's first word on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The room.
    pub room: RoomId,
    /// P's try.
    pub epoch: Epoch,
    /// The room's secret.
    pub token: u64,
    /// Who says it.
    pub prefill: Incarnation,
    /// Who is meant.
    pub decode: Incarnation,
    /// Where from, for people.
    pub peer: String,
}

/// D's write permit for one epoch.
#[derive(Clone)]
pub struct Grant {
    /// The room's pages.
    pub sink: Arc<dyn SlabSink>,
    /// What earlier epochs have verified; outlives sessions.
    pub coverage: Arc<Coverage>,
}

/// D's end of a session. No method waits; all are idempotent and harmless after the end.
pub trait RecvSession: Send + Sync {
    /// Answers the hello. `Ready` must come with a grant. `Wait` may be followed by another reply; all others are last words.
    fn reply(&self, reply: HelloReply, grant: Option<Grant>);
    /// Asks P how old the lease of the room's KV is at the most; answered by [`RecvEvent::LeaseAge`]. One at a
    /// time, and at most [`MOST_ASKS`] in a session: more are not asked.
    fn ask_lease_age(&self);
    /// Says Committed as a last word, half-closes, and drains until EOF or the grace ends.
    fn committed(&self);
    /// Says Fail as a last word, likewise.
    fn fail(&self, reason: Reason, evidence: Evidence);
    /// Destroys the session at once: no write is in hand when `Quiesced` comes.
    fn kill(&self);
}

/// What D hears of a session. `Quiesced` always comes last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecvEvent {
    /// P has its turn and pages.
    Started,
    /// Bytes newly verified so far, over all epochs (the coverage's count).
    Verified(u64),
    /// P's engine has finished this many chunks and steps.
    PeerProgress(u64),
    /// The manifest came and every slab in the pages matches it exactly: D may commit. No byte will be written any more.
    Complete(Manifest),
    /// The manifest contradicts what arrived and was verified: the content is wrong, not the connection.
    Corrupt(String),
    /// The most that the lease of the room's KV is old, on P's clock and as of P's answer; `None`: P cannot say.
    LeaseAge(Option<Millis>),
    /// P's part has failed.
    PeerFailed(Reason, Evidence),
    /// The connection broke, or a frame was bad (wrong checksum, wrong room or epoch, lying length).
    Broken {
        /// What happened, for people.
        why: String,
    },
    /// Nothing of this session can write a page any more.
    Quiesced,
}

/// A listening data plane.
pub trait Listener: Send + Sync {
    /// Where it listens.
    fn local_addr(&self) -> SocketAddr;
    /// Stops accepting and destroys all sessions.
    fn shutdown(&self);
}

/// The data plane's address cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("the data plane cannot listen on {addr}: {source}; choose another address or port")]
pub struct ListenError {
    /// The address.
    pub addr: String,
    /// What the system said.
    #[source]
    pub source: std::io::Error,
}
