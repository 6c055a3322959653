//! What a node saw. Nodes report evidence, R assigns blame.

use serde::{Deserialize, Serialize};

use crate::message::Counters;
use crate::phase::Phase;
use crate::time::Millis;

/// Who a node waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owes {
    /// Nobody: a queue.
    #[default]
    Nobody,
    /// The prefill worker.
    Prefill,
    /// The decode worker.
    Decode,
    /// The router.
    Router,
}

impl Owes {
    /// The name used in JSON and spans.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Router => "router",
        }
    }
}

/// Who owes the next step of a room in this phase, when this much has moved: the phase table.
#[must_use]
pub const fn owes(phase: Phase, counters: &Counters) -> Owes {
    match phase {
        Phase::Queued | Phase::Done | Phase::Failed => Owes::Nobody,
        Phase::Bootstrapping | Phase::Decoding => Owes::Decode,
        Phase::WaitingForInput => Owes::Prefill,
        Phase::Transferring => {
            if counters.bytes_sent < counters.bytes_sealed {
                Owes::Prefill
            } else {
                Owes::Decode
            }
        }
    }
}

/// One node's view of a room at its end, and of its own debts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Evidence {
    /// Whose step this node waited for.
    pub waited_for: Owes,
    /// For how long it had waited.
    pub waited: Millis,
    /// What had moved.
    pub counters: Counters,
    /// The data connection had sent bytes that the peer's kernel did not acknowledge (TCP_INFO) for a while.
    pub unacked: bool,
    /// The data connection to the peer broke or was refused.
    pub data_link_broken: bool,
    /// Its own engine has had a step in hand for this long without finishing it; 0 if it owes none.
    pub engine_owes: Millis,
    /// It had itself been stopped.
    pub was_stopped: bool,
}

impl Evidence {
    /// Whether the node admits a debt of its own that is `limit` old or older, or that it was stopped. A node that finds its
    /// engine wedged does so at exactly the limit.
    #[must_use]
    pub fn admits(&self, limit: Millis) -> bool {
        self.was_stopped || (self.engine_owes >= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_whose_engine_was_found_wedged_admits_it() {
        let owes = |owed| Evidence {
            engine_owes: Millis(owed),
            ..Evidence::default()
        };
        assert!(owes(5000).admits(Millis(5000)), "found at exactly the limit");
        assert!(!owes(4999).admits(Millis(5000)));
    }
}
