//! What a router's ledger is told and what it orders. All decisions are in [`super::Ledger::step`].

use super::policy::{Chosen, Policies};
use crate::class::Class;
use crate::evidence::Evidence;
use crate::ids::{Attempt, Incarnation, RequestKey, Role, RoomId};
use crate::ledger::EngineKind;
use crate::message::{FromWorker, ToWorker};
use crate::prefix::Blocks;
use crate::reason::{Blame, Reason, Verdict};
use crate::spec::RoomSpec;
use crate::time::{Millis, Moment};

/// Which of a room's two workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The prefill worker.
    Prefill,
    /// The decode worker.
    Decode,
}

/// What follows when a request's room is lost after its first token has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// The answer is carried on elsewhere: prompt and passed tokens are computed again, and the next token follows.
    #[default]
    Migrate,
    /// The request fails with the room's reason.
    Fail,
}

impl OnFailure {
    /// As configuration has it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Migrate => "migrate",
            Self::Fail => "fail",
        }
    }
}

/// A request at the door.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Arrival {
    /// The router's own number of it, never used before.
    pub request: RequestKey,
    /// The client's id of it (`x-request-id`), under which aborts come.
    pub rid: String,
    /// Whose quota it counts for (an API key or an address).
    pub client: String,
    /// Its model, as a compatibility class: see [`MemberInfo::class`]. `None`: any.
    pub model: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// The prompt's beginnings, for policies that look at them; without any they go by load.
    pub blocks: Blocks,
    /// Tokens that may be produced.
    pub max_tokens: u32,
    /// How urgent it is.
    pub class: Class,
    /// What follows when its room is lost after the first token.
    pub on_failure: OnFailure,
    /// A canary: it goes to this pair (prefill, decode), is tried once, and is no client's.
    pub pair: Option<(Incarnation, Incarnation)>,
}

/// What the ledger knows of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemberInfo {
    /// Its life.
    pub incarnation: Incarnation,
    /// What it is.
    pub role: Role,
    /// Where it is controlled: a new incarnation at an old address replaces the old one at once.
    pub control: String,
    /// The model as clients name it.
    pub model: String,
    /// Equal for workers that may form a pair: a hash over model, KV layout and revision.
    pub class: u64,
    /// Pages in its pool.
    pub pages: u32,
    /// Tokens in a page.
    pub page_tokens: u32,
    /// Whose process its engine is: one that is not the worker's shows nothing of a prompt, or of a read, before its end.
    pub engine: EngineKind,
    /// Longest prompt and answer together.
    pub context: u32,
    /// Places in its table.
    pub permits: u32,
    /// Whether it takes new rooms.
    pub serving: bool,
}

/// A worker's report of itself, every report period, from its ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Load {
    /// Chunks and steps its engine has finished.
    pub engine_progress: u64,
    /// How long the step in hand has been in hand; 0 if it owes none.
    pub engine_owes: Millis,
    /// Free and cached pages.
    pub free_pages: u32,
    /// Rooms in its table.
    pub rooms: u32,
    /// Whether it takes new rooms.
    pub serving: bool,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A request arrived.
    Arrive(Arrival),
    /// Somebody asks to abort every request that lives under this id, or will arrive under it.
    Abort {
        /// The client's id of the request.
        rid: String,
        /// Whose quota a tombstone counts for.
        client: String,
        /// The executor's number of the question, for the answer.
        ticket: u64,
    },
    /// The client closed the connection: the abort that always arrives.
    ClientGone {
        /// Which request.
        request: RequestKey,
    },
    /// The client's socket took no byte for too long.
    ClientStalled {
        /// Which request.
        request: RequestKey,
    },
    /// A stop string or id was found at the gate: the request has what it asked for.
    Satisfied {
        /// Which request.
        request: RequestKey,
    },
    /// A member appeared or changed.
    MemberUp(MemberInfo),
    /// A member's key went, on an unbroken history: it is asked who it is.
    MemberGone {
        /// Whose.
        incarnation: Incarnation,
    },
    /// The node stream to a worker stands (its first Load came).
    NodeUp {
        /// Whose.
        incarnation: Incarnation,
    },
    /// The node stream broke (reset, refused, ping timeout), or another incarnation answered there.
    NodeDown {
        /// Whose.
        incarnation: Incarnation,
    },
    /// A worker reports itself.
    Load {
        /// Whose.
        incarnation: Incarnation,
        /// What.
        load: Load,
    },
    /// A worker answered Who.
    WhoAnswered {
        /// Who was asked.
        asked: Incarnation,
        /// Who answered.
        answered: Incarnation,
    },
    /// A worker says something about a room.
    FromWorker {
        /// Which room.
        room: RoomId,
        /// Which worker.
        side: Side,
        /// What.
        message: FromWorker,
    },
    /// The room's stream to a worker ended.
    StreamEnded {
        /// Which room.
        room: RoomId,
        /// Which worker.
        side: Side,
        /// The connection broke (reset, refused, ping timeout), and not just the stream.
        broken: bool,
    },
    /// The store confirmed lease and doors.
    LeaseGranted {
        /// Which room.
        room: RoomId,
        /// When the grant was sent.
        sent: Moment,
    },
    /// It did not, for whatever reason, `Exists` included: the room runs unleased. `exists`: the lease is not ours to revoke.
    LeaseFailed {
        /// Which room.
        room: RoomId,
        /// The id was taken.
        exists: bool,
    },
    /// The store confirmed a renewal.
    LeaseRenewed {
        /// Which room.
        room: RoomId,
        /// When the renewal was sent.
        sent: Moment,
    },
    /// It did not.
    RenewFailed {
        /// Which room.
        room: RoomId,
        /// The store says that the lease is gone (the watch first gets 1 s to show the DELETE).
        not_found: bool,
    },
    /// R's door of the room was deleted, on an unbroken history.
    DoorGone {
        /// Which room.
        room: RoomId,
    },
    /// R's door of the room is absent from a fresh list, after a gap: only a lapse.
    DoorAbsent {
        /// Which room.
        room: RoomId,
    },
    /// An operator evicts the room: it ends as if its lease had been revoked, whether or not it has one.
    Evict {
        /// Which room.
        room: RoomId,
    },
    /// The room's actor died, for whatever reason.
    ActorDied {
        /// Which room.
        room: RoomId,
    },
    /// Workers are chosen like this from now on. Rooms that live stay where they are.
    Policies(Policies),
    /// Stop admitting; finish what there is.
    Drain,
    /// End every request that is left: the drain's time is over.
    DrainOver,
    /// Only time has passed.
    Tick,
}

impl Event {
    /// The room that the event is about, if it is one.
    #[must_use]
    pub const fn room(&self) -> Option<RoomId> {
        match self {
            Self::FromWorker { room, .. }
            | Self::StreamEnded { room, .. }
            | Self::LeaseGranted { room, .. }
            | Self::LeaseFailed { room, .. }
            | Self::LeaseRenewed { room, .. }
            | Self::RenewFailed { room, .. }
            | Self::DoorGone { room }
            | Self::DoorAbsent { room }
            | Self::Evict { room }
            | Self::ActorDied { room } => Some(*room),
            Self::Arrive(_)
            | Self::Abort { .. }
            | Self::ClientGone { .. }
            | Self::ClientStalled { .. }
            | Self::Satisfied { .. }
            | Self::MemberUp(_)
            | Self::MemberGone { .. }
            | Self::NodeUp { .. }
            | Self::NodeDown { .. }
            | Self::Load { .. }
            | Self::WhoAnswered { .. }
            | Self::Policies(_)
            | Self::Drain
            | Self::DrainOver
            | Self::Tick => None,
        }
    }
}

/// The answer to an abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AbortAnswer {
    /// Every request that lived under the id has ended.
    Aborted,
    /// None lives or ended lately under it: a tombstone waits for it.
    Accepted,
    /// The last one under it has ended.
    AlreadyEnded,
    /// No place for another tombstone; nothing was accepted.
    Refused,
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// All tokens.
    Done,
    /// A typed error. `retry_after` for the client, if waiting helps.
    Failed {
        /// Why.
        reason: Reason,
        /// Who is to be looked at.
        blame: Blame,
        /// When to come again.
        retry_after: Option<Millis>,
    },
}

/// How a room ended, for metrics, logs and spans. Blame is assigned up to 250 ms after the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoomEnd {
    /// The room.
    pub room: RoomId,
    /// Its request.
    pub request: RequestKey,
    /// Which try it was.
    pub attempt: Attempt,
    /// Its verdict.
    pub verdict: Verdict,
    /// Who is to be looked at.
    pub blame: Blame,
    /// What P reported, if it did.
    pub prefill: Option<Evidence>,
    /// What D reported, if it did.
    pub decode: Option<Evidence>,
}

/// What is to be done. Effects are executed in order; none of them is waited for.
#[must_use = "an effect that is not executed is a silent no-op"]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Answer an abort.
    AnswerAbort {
        /// The question.
        ticket: u64,
        /// The answer.
        answer: AbortAnswer,
    },
    /// Begin a room: its actor is spawned. Always before any other effect for the room.
    Begin {
        /// The room.
        spec: RoomSpec,
        /// Tokens of the request that passed the gate before this room.
        passed: u32,
        /// How its workers were chosen.
        chosen: Chosen,
    },
    /// Open the room at a worker, on a new stream. To P with what D admitted.
    Open {
        /// The room.
        spec: RoomSpec,
        /// Which worker.
        side: Side,
        /// D's data address; empty to D.
        decode_addr: String,
        /// The room's secret; 0 to D.
        token: u64,
        /// Tokens of the request that passed the gate before this room.
        passed: u32,
    },
    /// Say this to a worker on the room's stream.
    Tell {
        /// Which room.
        room: RoomId,
        /// Which worker.
        side: Side,
        /// What.
        message: ToWorker,
    },
    /// Ask a worker for its evidence of a room (on the node stream).
    AskEvidence {
        /// Which room.
        room: RoomId,
        /// Which worker.
        side: Side,
        /// Its incarnation.
        node: Incarnation,
    },
    /// End the room's stream to a worker: half-close now, reset after the grace.
    CloseStream {
        /// Which room.
        room: RoomId,
        /// Which worker.
        side: Side,
    },
    /// Ask a worker who it is.
    Who {
        /// Whom.
        incarnation: Incarnation,
    },
    /// Grant the lease and write the doors, once.
    Grant {
        /// The room.
        spec: RoomSpec,
    },
    /// Renew the lease, once.
    Renew {
        /// Which room.
        room: RoomId,
    },
    /// Revoke the lease, once.
    Revoke {
        /// Which room.
        room: RoomId,
    },
    /// Pass tokens of the message in hand to the client: those from index `skip` on, `count` of them.
    Pass {
        /// To which request.
        request: RequestKey,
        /// From which room.
        room: RoomId,
        /// Tokens of the message that had passed already.
        skip: u32,
        /// How many pass.
        count: u32,
    },
    /// Answer the request. Exactly once per arrival.
    Answer {
        /// Which request.
        request: RequestKey,
        /// How.
        outcome: Outcome,
    },
    /// The room is over and blame is known.
    Ended(Box<RoomEnd>),
    /// The room's actor may go: cancel, grace, kill.
    End {
        /// Which room.
        room: RoomId,
    },
    /// Submit a canary: an [`Arrival`] for this pair, with as long a prompt, that asks for one token.
    Canary {
        /// The prefill worker.
        prefill: Incarnation,
        /// The decode worker.
        decode: Incarnation,
        /// One KV page.
        prompt_tokens: u32,
    },
    /// Forget the connection to a member that is gone or was replaced.
    Drop {
        /// Whose.
        incarnation: Incarnation,
    },
}
