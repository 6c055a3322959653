//! What a prefill worker's ledger is told and what it orders. All decisions are in [`super::Ledger::step`].

use std::sync::Arc;

use crate::cache::BlockHash;
use crate::evidence::Evidence;
use crate::ids::{Epoch, Incarnation, RoomId};
use crate::ledger::EngineView;
use crate::message::{Counters, FromWorker, HelloReply, ToWorker};
use crate::reason::Reason;
use crate::spec::RoomSpec;
use crate::time::Millis;

/// What happened. Data-plane events name their epoch: those of an epoch that is over are fenced and counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// R opens a room here. `decode_addr` and `token` are from D's Admitted.
    Open {
        /// The room.
        spec: RoomSpec,
        /// `host:port` of D's data plane.
        decode_addr: String,
        /// The room's secret for the hello.
        token: u64,
        /// The names of the prompt's whole pages, the first one first; none, if its KV is neither reused nor kept.
        blocks: Arc<[BlockHash]>,
    },
    /// R says something about a room.
    FromRouter {
        /// Which room.
        room: RoomId,
        /// What.
        message: ToWorker,
    },
    /// The room's stream to R ended without an Abort: the owner or the link to it is gone.
    StreamEnded {
        /// Which room.
        room: RoomId,
    },
    /// D answered the hello.
    Reply {
        /// Which room.
        room: RoomId,
        /// Of which epoch.
        epoch: Epoch,
        /// How.
        reply: HelloReply,
    },
    /// D said Committed on the data connection.
    Committed {
        /// Which room.
        room: RoomId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// D said Fail on the data connection.
    PeerFailed {
        /// Which room.
        room: RoomId,
        /// In which epoch.
        epoch: Epoch,
        /// Why.
        reason: Reason,
        /// What D saw.
        evidence: Evidence,
    },
    /// The data connection broke or could not be made.
    Broken {
        /// Which room.
        room: RoomId,
        /// Which epoch.
        epoch: Epoch,
        /// Bytes were unacknowledged by the peer's kernel.
        unacked: bool,
        /// It was never established.
        refused: bool,
    },
    /// Nothing of this epoch's sender can read a page any more: its permit is back.
    Quiesced {
        /// Which room.
        room: RoomId,
        /// Which epoch.
        epoch: Epoch,
    },
    /// The newest counters, looked at every report period: computed, sealed, sent, and (as D told P) verified.
    Sample {
        /// Which room.
        room: RoomId,
        /// Absolute counters.
        counters: Counters,
        /// The kernel has sent bytes of this room that the peer has not acknowledged.
        unacked: bool,
    },
    /// The engine sealed the last slab and the manifest; its permit is back.
    Sealed {
        /// Which room.
        room: RoomId,
        /// Bytes of all slabs.
        bytes: u64,
    },
    /// The prompt is computed, by an engine that does not hand its KV over itself but keeps it for D's engine to read. Its
    /// own permit is back, and D's engine has one, under [`Epoch::TICKET`], until `Quiesced` says that nobody will read.
    Kept {
        /// Which room.
        room: RoomId,
        /// How long the read may take: while it lasts nothing can be seen to move.
        read_within: Millis,
    },
    /// The engine's job has ended for this reason; its permit is back.
    EngineEnded {
        /// Which room.
        room: RoomId,
        /// Why.
        reason: Reason,
    },
    /// The engine's job failed; its permit is back.
    EngineFailed {
        /// Which room.
        room: RoomId,
    },
    /// The engine's job stopped as asked; its permit is back.
    EngineStopped {
        /// Which room.
        room: RoomId,
    },
    /// What the engine is doing, every report period.
    Engine(EngineView),
    /// The engine's process is another one, and whatever the former one held is gone. Only of an engine that is a process of its
    /// own; said when nothing that was ordered before is left in either of them, and before anything of the new one.
    EngineRestarted,
    /// This node's door of the room is gone, or absent from a list: a question to R.
    DoorGone {
        /// Which room.
        room: RoomId,
    },
    /// A member's key is gone: a question to R for every room with it.
    MemberGone {
        /// Whose.
        incarnation: Incarnation,
    },
    /// The room's actor died, for whatever reason.
    ActorDied {
        /// Which room.
        room: RoomId,
    },
    /// Stop taking rooms; finish those there are.
    Drain,
    /// End every room that is left with `Draining`: the drain's time is over.
    DrainOver,
    /// Only time has passed.
    Tick,
}

/// What is to be done. Effects are executed in order; none of them is waited for.
#[must_use = "an effect that is not executed is a silent no-op"]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Say this to R on the room's stream. If there is no such stream any more it is dropped.
    Tell {
        /// Which room.
        room: RoomId,
        /// What.
        message: FromWorker,
    },
    /// Begin a room: its actor is spawned. Always before any other effect for the room.
    Begin {
        /// Which room.
        room: RoomId,
    },
    /// Connect to D after a pause and say hello with this epoch. The sender holds a read permit from now to `Quiesced`.
    Connect {
        /// Which room.
        room: RoomId,
        /// The epoch to say.
        epoch: Epoch,
        /// Backoff before it.
        after: Millis,
    },
    /// Say Started on the data connection.
    SayStarted {
        /// Which room.
        room: RoomId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// Take pages for the prompt out of the engine's pool, and start computing what follows those that are reused. The engine
    /// holds a permit from now until `Sealed`, `EngineFailed` or `EngineStopped`.
    Compute {
        /// Which room.
        room: RoomId,
        /// Tokens to reserve pages for.
        tokens: u32,
        /// The prompt's first pages, which are in the prefix cache: the room reads them until `ClosePages`, and writes none.
        reuse: Vec<BlockHash>,
    },
    /// Ask the engine to stop the room's job at the next chunk boundary. Answered by `EngineStopped` (or what came first).
    CancelEngine {
        /// Which room.
        room: RoomId,
    },
    /// Say Fail on the data connection as a last word and half-close it.
    SayFail {
        /// Which room.
        room: RoomId,
        /// In which epoch.
        epoch: Epoch,
        /// Why.
        reason: Reason,
        /// What this node saw.
        evidence: Evidence,
    },
    /// End the data connection quietly: half-close, drain, close.
    FinishSession {
        /// Which room.
        room: RoomId,
        /// Which epoch.
        epoch: Epoch,
    },
    /// Destroy the data connection now. Answered by `Quiesced`.
    KillSession {
        /// Which room.
        room: RoomId,
        /// Which epoch.
        epoch: Epoch,
    },
    /// All permits are back: give the pages to the engine's pool. Executed before any order that follows.
    ClosePages {
        /// Which room.
        room: RoomId,
        /// Those that become pages of the prefix cache, by their place in the prompt; with the checksums of their seal.
        keep: Vec<(u32, BlockHash)>,
    },
    /// These pages of the prefix cache are free from now on. Executed before any order that follows.
    Evict {
        /// Their names.
        blocks: Vec<BlockHash>,
    },
    /// The part has ended: end the room's stream after what was told, and its actor: cancel, grace, kill.
    End {
        /// Which room.
        room: RoomId,
    },
    /// Whether this node takes new rooms (health, member key).
    Serving(bool),
    /// The last fence: end the process non-zero without joining threads.
    Exit {
        /// Why, for people.
        why: &'static str,
    },
}

impl From<EngineView> for Event {
    fn from(view: EngineView) -> Self {
        Self::Engine(view)
    }
}
