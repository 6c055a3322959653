//! The phases of a room. The names are those that SGLang's operators know (KVPoll).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a room, or one node's part of it, stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waits its turn or pages at P, or pages at D. Nobody owes: overload.
    Queued,
    /// From P's hello: D owes Ready or Wait.
    Bootstrapping,
    /// P has its turn and pages and computes; bytes flow from the first sealed slab on.
    WaitingForInput,
    /// P has sealed its last slab; what is outstanding is bytes, verification and the commit.
    Transferring,
    /// D has committed and owes tokens.
    Decoding,
    /// Ended well. For P's part this is `HandedOver`.
    Done,
    /// Ended otherwise; the reason is in the verdict.
    Failed,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Self; 7] = [
        Self::Queued,
        Self::Bootstrapping,
        Self::WaitingForInput,
        Self::Transferring,
        Self::Decoding,
        Self::Done,
        Self::Failed,
    ];

    /// The name used in metrics, spans and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Bootstrapping => "bootstrapping",
            Self::WaitingForInput => "waiting_for_input",
            Self::Transferring => "transferring",
            Self::Decoding => "decoding",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }

    /// Whether nothing can follow.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
