//! What nodes say to each other about a room, as the core sees it. The wire form is in `proto`; the conversion in `services/node`.

use serde::{Deserialize, Serialize};

use crate::evidence::Evidence;
use crate::ids::Epoch;
use crate::phase::Phase;
use crate::reason::{PartEnd, Reason, Verdict};

/// R → worker, on the room's stream. Its order makes an abort unable to overtake its Open; its end is an abort.
/// (Open itself carries a [`crate::spec::RoomSpec`] and is the ledger's own event.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ToWorker {
    /// End the part.
    Abort(Reason),
    /// To P: D has committed.
    Committed,
    /// To D: R has taken all tokens before this position (of this room, from 0).
    Taken(u32),
    /// The answer to Ask: the room lives; go on, unleased.
    Live,
    /// The answer to Ask, or to a report about a room that is over.
    Verdict(Verdict),
    /// The answer to a report about a room that R does not know.
    Unknown,
}

/// Worker → R, on the room's stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FromWorker {
    /// The part exists. D names its data address and the token that P must show there.
    Admitted {
        /// `host:port` of D's data plane; empty from P.
        data_addr: String,
        /// The room's secret for P's hello; 0 from P.
        token: u64,
    },
    /// The part does not exist; this costs no attempt unless the request can never fit.
    Refused(Refusal),
    /// Where the part stands. Counters are absolute; only an increase counts. Unread ones are coalesced into the newest.
    State(PartState),
    /// P has its turn and its pages; chunk timers begin.
    Started {
        /// In which epoch.
        epoch: Epoch,
        /// Tokens of the prompt whose KV P has already: it computes the others.
        reused: u32,
    },
    /// D has committed.
    Committed,
    /// D's tokens: `count` of them from `position` (of this room, from 0). The ids travel beside this.
    Tokens {
        /// Position of the first one, from 0 in this room.
        position: u32,
        /// How many.
        count: u32,
    },
    /// The part has ended.
    Ended {
        /// How.
        end: PartEnd,
        /// What the node saw.
        evidence: Evidence,
        /// The other worker said so: it counts as that node's report.
        relayed: bool,
    },
    /// The room's lease is gone: does it live?
    Ask,
    /// What the node sees of the room right now (the answer to R's question after a verdict).
    Evidence(Evidence),
    /// The answer to a message about a room that ended here.
    AlreadyEnded(PartEnd),
    /// The answer to a message about a room that is not known here.
    Unknown,
}

/// Why a worker refuses a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// All places in the table are taken.
    NoPermit,
    /// The peer holds its share of the places.
    PeerShare,
    /// The node drains, or is not serving.
    Draining,
    /// Another incarnation was meant.
    WrongIncarnation,
    /// The room exists here, live or ended.
    Exists,
    /// The request can never fit this worker's pages.
    TooLarge,
}

/// What a worker reports of its part within a report period of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct PartState {
    /// The part's phase.
    pub phase: PartPhase,
    /// The epoch it is in.
    pub epoch: Epoch,
    /// The absolute counters.
    pub counters: Counters,
}

/// A part's phase; `Queued` is where every part begins.
pub type PartPhase = Phase;

#[expect(
    clippy::derivable_impls,
    reason = "the phase enum is ordered as the protocol page has it"
)]
impl Default for Phase {
    fn default() -> Self {
        Self::Queued
    }
}

/// Absolute counters of a part: what has moved since the room began, over all epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct Counters {
    /// Prompt tokens computed (P).
    pub tokens_computed: u32,
    /// Bytes of sealed slabs (P).
    pub bytes_sealed: u64,
    /// Bytes handed to the data connection, each slab counted once (P).
    pub bytes_sent: u64,
    /// Bytes newly verified at D (D counts, P is told).
    pub bytes_verified: u64,
    /// Tokens produced (D).
    pub tokens_made: u32,
}

impl Counters {
    /// Takes the larger of each counter; whether any grew.
    pub fn raise(&mut self, newer: Self) -> bool {
        let before = *self;
        self.tokens_computed = self.tokens_computed.max(newer.tokens_computed);
        self.bytes_sealed = self.bytes_sealed.max(newer.bytes_sealed);
        self.bytes_sent = self.bytes_sent.max(newer.bytes_sent);
        self.bytes_verified = self.bytes_verified.max(newer.bytes_verified);
        self.tokens_made = self.tokens_made.max(newer.tokens_made);
        *self != before
    }
}

/// D's answer to a hello, on the data connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HelloReply {
    /// D's pages are reserved; P may send what D's coverage lacks (the coverage travels beside this).
    Ready,
    /// D has no pages yet: the room is Queued again, the connection idles.
    Wait,
    /// D committed this room already, running or ended.
    Committed,
    /// The room ended here.
    Ended(Reason),
    /// No such room here, or the token is wrong: both are told alike.
    Unknown,
    /// A lower epoch than one that was seen: dropped and counted.
    Stale,
}
