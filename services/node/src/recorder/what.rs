//! What can happen to a part, what a verdict follows from, and what a client gets.

use innkeeper_room::{Incarnation, Role, RoomId};
use serde::{Deserialize, Serialize};

/// What can happen to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// It began.
    Began,
    /// R asked a worker to open it.
    Asked,
    /// The part exists.
    Admitted,
    /// A worker refuses it.
    Refused,
    /// It is in another phase.
    Phase,
    /// P tries again to send KV.
    Restart,
    /// P has its turn.
    Started,
    /// D has committed.
    Committed,
    /// The first token passed.
    FirstToken,
    /// The store confirmed the lease.
    LeaseGranted,
    /// It did not.
    LeaseFailed,
    /// A renewal failed.
    RenewFailed,
    /// The lease's key was deleted.
    DoorGone,
    /// The lease's key was absent from a fresh list.
    DoorAbsent,
    /// R gave the lease back.
    LeaseRevoked,
    /// The data connection broke.
    ConnectionBroke,
    /// The control stream broke.
    StreamBroke,
    /// The control stream ended.
    StreamEnded,
    /// The control connection to a worker of the room broke.
    NodeDown,
    /// A worker asks its router whether the room lives.
    AskedRouter,
    /// R vouches for the room.
    Vouched,
    /// R does not know the room.
    UnknownToRouter,
    /// R ends a part.
    Abort,
    /// A part ended.
    PartEnded,
    /// R asks what a worker saw.
    EvidenceAsked,
    /// It says so.
    EvidenceHeard,
    /// The room's actor died.
    ActorDied,
    /// The client left, stalled, or asked for an abort.
    Client,
    /// An operator evicts it.
    Evicted,
    /// The node was itself stopped.
    Stopped,
    /// The verdict.
    Verdict,
    /// The next attempt begins.
    NextAttempt,
    /// The request was answered.
    Answered,
    /// Something that this version does not know.
    #[serde(other)]
    Other,
}

/// What a router's verdict followed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "by", content = "side")]
pub enum Cause {
    /// A timer of the router's own.
    Timer,
    /// The word of a worker.
    Worker(Role),
    /// The control connection to a worker broke.
    Connection(Role),
    /// A worker was replaced, or is gone.
    Member(Role),
    /// The room's lease ended.
    Lease,
    /// An operator.
    Operator,
    /// The client.
    Client,
    /// Somebody asked for an abort of the request.
    Abort,
    /// The answer was complete.
    Satisfied,
    /// The router drains.
    Drain,
    /// The room's actor died.
    Actor,
    /// Something that this version does not know.
    #[serde(other)]
    Other,
}

/// What the client got.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "got")]
pub enum Client {
    /// Nobody knows: only the router could.
    #[default]
    Unknown,
    /// Nothing yet: the request waits for another pair.
    Waits,
    /// All that it asked for.
    Done,
    /// An error.
    Failed {
        /// `error.code`.
        code: String,
        /// The HTTP status, if nothing had been sent before it.
        status: u16,
        /// Tokens had passed: the error was an event in the stream.
        after_tokens: bool,
    },
    /// Another attempt carried on.
    NextAttempt {
        /// In this room.
        room: RoomId,
        /// Which try it is.
        attempt: u8,
        /// On this prefill worker.
        prefill: Incarnation,
        /// Its name.
        prefill_name: Option<String>,
        /// On this decode worker.
        decode: Incarnation,
        /// Its name.
        decode_name: Option<String>,
    },
}
