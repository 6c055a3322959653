//! Why a part or a room ended, and who is to be looked at. Codes are what clients, metrics and scripts see: keep them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::Incarnation;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal, $http:literal, $say:literal;)+) => {
        /// Why a room, a part or a request failed. The reason names the debt, not the reporter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Reason { $($(#[doc = $doc])+ $name,)+ }

        impl Reason {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The typed code: `error.code` of the API, `reason` of metrics and spans.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $(Self::$name => $code,)+ }
            }

            /// The HTTP status of an answer that failed with this before its first token.
            #[must_use]
            pub const fn http_status(self) -> u16 {
                match self { $(Self::$name => $http,)+ }
            }

            /// One sentence for people: what happened and what can be done.
            #[must_use]
            pub const fn explanation(self) -> &'static str {
                match self { $(Self::$name => $say,)+ }
            }

            /// Reads a code back.
            #[must_use]
            pub fn from_code(code: &str) -> Option<Self> {
                match code { $($code => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

reasons! {
    /// The request waited longer than the queue timeout for a turn, a permit or pages.
    QueueTimeout = "queue_timeout", 503, "the request waited too long for a free worker; retry later or add workers";
    /// The request's absolute deadline passed.
    RequestTimeout = "request_timeout", 504, "the request's absolute deadline passed; ask for fewer tokens or raise request-timeout-ms";
    /// D did not answer P's hello in time.
    HandshakeTimeout = "handshake_timeout", 504, "the decode worker did not answer the handshake in time; check the data network between the pair";
    /// P owed a chunk and sealed nothing for a progress TTL, or missed its absolute deadline.
    PrefillStalled = "prefill_stalled", 504, "the prefill worker stopped making progress; look at that worker";
    /// Bytes handed over were not verified, or sealed bytes not handed over, for a progress TTL.
    TransferStalled = "transfer_stalled", 504, "the KV transfer stopped making progress; check the data network between the pair";
    /// D owed a token and produced none for a progress TTL.
    DecodeStalled = "decode_stalled", 504, "the decode worker stopped producing tokens; look at that worker";
    /// R took no token for a progress TTL.
    RouterStalled = "router_stalled", 504, "the router took no token for a progress TTL; look at the router";
    /// The connection to the prefill worker broke.
    PrefillLost = "prefill_lost", 502, "the connection to the prefill worker broke; retry";
    /// The connection to the decode worker broke.
    DecodeLost = "decode_lost", 502, "the connection to the decode worker broke; retry";
    /// The owner's stream ended: the room's router is gone.
    RouterLost = "router_lost", 502, "the router that owned the room is gone; retry";
    /// The data connection between the pair broke more often than the epochs allow.
    TransferLost = "transfer_lost", 502, "the data connection between the pair broke too often; check the network between them";
    /// The room's lease ended although nothing was reported: the lease did its work.
    LeaseExpired = "lease_expired", 504, "the room's lease ended without progress; look at the blamed node";
    /// Somebody revoked the room's lease on purpose.
    LeaseRevoked = "lease_revoked", 503, "an operator evicted the room by revoking its lease; retry";
    /// The room's lease is gone and its owner did not answer.
    LeaseLost = "lease_lost", 504, "the room's lease is gone and its router did not answer; look at the router";
    /// The lease of the member ended and it did not answer.
    MemberLost = "member_lost", 502, "the worker's own lease ended and it did not answer; look at that worker";
    /// The client asked for it, or closed the connection.
    Aborted = "aborted", 499, "the request was aborted by its client";
    /// The client's socket took no byte for too long.
    ClientStalled = "client_stalled", 499, "the client took no data for too long and was given up";
    /// KV that arrived contradicts the manifest.
    KvCorrupt = "kv_corrupt", 502, "the KV that arrived does not match what the prefill worker sealed; look at that worker";
    /// The engine failed.
    EngineFailed = "engine_failed", 500, "the engine of the worker failed; look at its log";
    /// The engine owed a step and finished none for a progress TTL.
    EngineStalled = "engine_stalled", 504, "the worker's engine stopped finishing steps; look at that worker";
    /// The read of the KV ended too late to say that prefill's engine still kept it then.
    KvUnproven = "kv_unproven", 502, "the KV was read too late to be sure of it; raise the engine's KV lease or check the network between the pair";
    /// An engine of its own process answered no canary for a progress TTL.
    EngineWedged = "engine_wedged", 504, "the worker's engine answers no request of one token; look at that engine's process";
    /// The engine's process is another one than before: what it held is gone.
    EngineRestarted = "engine_restarted", 502, "the worker's engine was started anew; retry";
    /// The engine answered with an error.
    EngineError = "engine_error", 502, "the worker's engine answered with an error; look at its log";
    /// The worker is another incarnation than the one that was meant.
    WrongIncarnation = "wrong_incarnation", 503, "the worker was replaced since it was chosen; retry";
    /// The node itself had been stopped; it accuses nobody.
    SelfPaused = "self_paused", 503, "a node of the room had itself been stopped; retry";
    /// The node drains.
    Draining = "draining", 503, "the worker is shutting down; retry";
    /// An actor or task of the room died.
    InternalError = "internal_error", 500, "an internal part of the room died; report this with the request id";
    /// A peer broke the protocol.
    ProtocolError = "protocol_error", 502, "a peer broke the protocol; check that all nodes run the same version";
    /// The room does not exist here.
    UnknownRoom = "unknown_room", 404, "no such room here: it never existed, or it ended long ago";
    /// No prefill worker is registered that fits.
    NoPrefillWorker = "no_prefill_worker", 503, "no prefill worker is available; start one or wait until it has registered";
    /// No decode worker is registered that fits.
    NoDecodeWorker = "no_decode_worker", 503, "no decode worker is available; start one or wait until it has registered";
    /// Prompt and answer can never fit a worker's pages.
    TooLarge = "too_large", 400, "prompt and max_tokens together do not fit a worker's KV pages; shorten the prompt or lower max_tokens";
    /// More comes than fits: R holds as many requests as it may, or it would wait longer than it may.
    Overloaded = "overloaded", 503, "more requests came than can be served in time; retry later, when Retry-After says";
    /// No token is left in the retry bucket.
    RetryBudgetSpent = "retry_budget_spent", 503, "the attempt failed and the fleet's retry budget is spent; retry later";
}

impl Reason {
    /// Whether another attempt in a new room may help. `queue_timeout` answers the client: more load would not.
    #[must_use]
    pub const fn may_retry(self) -> bool {
        !matches!(
            self,
            Self::QueueTimeout
                | Self::RequestTimeout
                | Self::Aborted
                | Self::ClientStalled
                | Self::TooLarge
                | Self::Overloaded
                | Self::NoPrefillWorker
                | Self::NoDecodeWorker
                | Self::RetryBudgetSpent
                | Self::UnknownRoom
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// Who is to be looked at. The accused is only where to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// Nobody: overload, an abort, or a good end.
    #[default]
    Nobody,
    /// A router.
    Router(Incarnation),
    /// A prefill worker.
    Prefill(Incarnation),
    /// A decode worker.
    Decode(Incarnation),
    /// The link between the pair.
    Link {
        /// The prefill worker at one end.
        prefill: Incarnation,
        /// The decode worker at the other end.
        decode: Incarnation,
    },
    /// The client.
    Client,
}

impl Blame {
    /// The bounded label of metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::Router(_) => "router",
            Self::Prefill(_) => "prefill",
            Self::Decode(_) => "decode",
            Self::Link { .. } => "link",
            Self::Client => "client",
        }
    }

    /// The accused node, if it is one node.
    #[must_use]
    pub const fn node(self) -> Option<Incarnation> {
        match self {
            Self::Router(node) | Self::Prefill(node) | Self::Decode(node) => Some(node),
            Self::Nobody | Self::Link { .. } | Self::Client => None,
        }
    }
}

/// How a room ended; the router alone decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The request has what it asked for.
    Done,
    /// It has not.
    Failed(Reason),
}

impl Verdict {
    /// The code used in metrics and JSON.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed(reason) => reason.code(),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// How one node's part ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartEnd {
    /// P's part: D has committed. It ends no room.
    HandedOver,
    /// D's part: its last token was taken.
    Done,
    /// Anything else.
    Failed(Reason),
}

impl PartEnd {
    /// The code used in metrics and JSON.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::HandedOver => "handed_over",
            Self::Done => "done",
            Self::Failed(reason) => reason.code(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_read_back() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_code(reason.code()), Some(*reason));
            assert!((400..=599).contains(&reason.http_status()));
        }
    }
}
