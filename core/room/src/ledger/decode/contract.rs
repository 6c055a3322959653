//! What a decode worker's ledger is told and what it orders. All decisions are in [`super::Ledger::step`].

use crate::evidence::Evidence;
use crate::ids::{Epoch, Incarnation, RoomId};
use crate::ledger::EngineView;
use crate::message::{FromWorker, HelloReply, ToWorker};
use crate::reason::Reason;
use crate::spec::RoomSpec;
use crate::time::Millis;

/// The executor's number of a data connection, so that a hello can be answered before it belongs to a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// What happened. Data-plane events name their epoch: those of an epoch that is over are fenced and counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// R opens a room here. `token` is a fresh secret from the OS.
    Open {
        /// The room.
        spec: RoomSpec,
        /// What P must show in its hello.
        token: u64,
    },
    /// R says something about a room.
    FromRouter {
        /// Which room.
        room: RoomId,
        /// What.
        message: ToWorker,
    },
    /// The room's stream to R ended without an Abort.
    StreamEnded {
        /// Which room.
        room: RoomId,
    },
    /// A peer said hello on a data connection.
    Hello {
        /// Which room it names.
        room: RoomId,
        /// With which epoch.
        epoch: Epoch,
        /// The secret it shows.
        token: u64,
        /// Who it says it is.
        prefill: Incarnation,
        /// Who it means.
        decode: Incarnation,
        /// The connection, to answer on.
        session: SessionId,
    },
    /// P said Started.
    Started {
        /// Which room.
        room: RoomId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// Bytes newly verified so far, over all epochs.
    Verified {
        /// Which room.
        room: RoomId,
        /// In which epoch.
        epoch: Epoch,
        /// The absolute count.
        bytes: u64,
    },
    /// P's engine has finished this many chunks and steps (absolute, per incarnation).
    PeerProgress {
        /// Which room.
        room: RoomId,
        /// In which epoch.
        epoch: Epoch,
        /// The absolute count.
        progress: u64,
    },
    /// The manifest matches the pages exactly; no byte will be written any more.
    Complete {
        /// Which room.
        room: RoomId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// The manifest has a ticket instead of slabs: D's engine is to read the KV itself. Said again by each new connection.
    Ticket {
        /// Which room.
        room: RoomId,
        /// In which epoch.
        epoch: Epoch,
        /// How long the read may take: while it lasts nothing can be seen to move.
        read_within: Millis,
    },
    /// The engine has read the KV, certainly while P's engine still kept it, and has the first token. Before `Made`.
    Pulled {
        /// Which room.
        room: RoomId,
    },
    /// What arrived contradicts the manifest.
    Corrupt {
        /// Which room.
        room: RoomId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// P said Fail.
    PeerFailed {
        /// Which room.
        room: RoomId,
        /// In which epoch.
        epoch: Epoch,
        /// Why.
        reason: Reason,
        /// What P saw.
        evidence: Evidence,
    },
    /// The data connection broke.
    Broken {
        /// Which room.
        room: RoomId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// Nothing of this epoch's reader can write a page any more: its permit is back.
    Quiesced {
        /// Which room.
        room: RoomId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// The engine has produced this many tokens of the room, the first one (from the manifest) included.
    Made {
        /// Which room.
        room: RoomId,
        /// The absolute count.
        tokens: u32,
    },
    /// The engine gave the last token; its permit is back.
    EngineFinished {
        /// Which room.
        room: RoomId,
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
        /// What (`Admitted` has an empty address: the executor fills in its own).
        message: FromWorker,
    },
    /// Begin a room: its actor is spawned. Always before any other effect for the room.
    Begin {
        /// Which room.
        room: RoomId,
    },
    /// Take pages for the prompt and all tokens out of the engine's pool. Always before the first Ready.
    OpenPages {
        /// Which room.
        room: RoomId,
        /// Tokens to reserve pages for.
        tokens: u32,
    },
    /// Answer a hello. `Ready` gives the session a write permit from now to `Quiesced`, under this room and epoch; with
    /// `Wait` the session is kept, for a later answer; every other answer is its last word.
    Reply {
        /// The connection.
        session: SessionId,
        /// Which room it named.
        room: RoomId,
        /// The epoch it named.
        epoch: Epoch,
        /// The answer.
        reply: HelloReply,
    },
    /// Destroy the data connection of this epoch now. Answered by `Quiesced` if it held a permit.
    KillSession {
        /// Which room.
        room: RoomId,
        /// Which epoch.
        epoch: Epoch,
    },
    /// Say Committed on the data connection as a last word.
    SayCommitted {
        /// Which room.
        room: RoomId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// Say Fail on the data connection as a last word.
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
    /// Start decoding from the imported pages and speak, beginning with the manifest's first token. The engine holds a
    /// permit from now until `EngineFinished`, `EngineFailed` or `EngineStopped`.
    Decode {
        /// Which room.
        room: RoomId,
    },
    /// Have the engine read the KV by its ticket, and decode. It holds a permit from now until `EngineFinished`, `EngineEnded`,
    /// `EngineFailed` or `EngineStopped`; it says `Pulled` before its first token.
    Pull {
        /// Which room.
        room: RoomId,
    },
    /// Ask the engine to stop the room's job at the next step boundary. Answered by `EngineStopped` (or what came first).
    CancelEngine {
        /// Which room.
        room: RoomId,
    },
    /// All permits are back: give the pages to the engine's pool.
    ClosePages {
        /// Which room.
        room: RoomId,
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
