//! Reasons, parties, phases and events in plain words.

use innkeeper_room::{Owes, Phase, Reason, Role};

use crate::recorder::record::What;

/// A kind of node.
pub(super) const fn kind(role: Role) -> &'static str {
    match role {
        Role::Router => "router",
        Role::Prefill => "prefill worker",
        Role::Decode => "decode worker",
    }
}

/// What happened to a room that failed for this reason. Goes on with where and when.
pub(super) const fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::QueueTimeout => "the request waited for a place longer than a queue may last",
        Reason::RequestTimeout => "the request's absolute deadline passed",
        Reason::HandshakeTimeout => "the decode worker did not answer the handshake in time",
        Reason::PrefillStalled => "the prefill worker owed the next chunk of the prompt and did not finish it in time",
        Reason::TransferStalled => "the transfer of the KV stopped making progress",
        Reason::DecodeStalled => "the decode worker owed a token and produced none in time",
        Reason::RouterStalled => "the router took none of the tokens that it was sent",
        Reason::PrefillLost => "the control connection between the router and the prefill worker broke",
        Reason::DecodeLost => "the control or data connection to the decode worker broke",
        Reason::RouterLost => "the room's router was gone: its control stream ended",
        Reason::TransferLost => "the data connection between the pair broke more often than it may",
        Reason::LeaseExpired => "the room's lease ran out, because nothing had moved for as long as it lasts",
        Reason::LeaseRevoked => "an operator evicted the room",
        Reason::LeaseLost => "the room's lease was gone and its router did not answer",
        Reason::MemberLost => "the own lease of a worker ended and it did not answer",
        Reason::Aborted => "the client asked for an abort or left",
        Reason::ClientStalled => "the client took no data for too long and was given up",
        Reason::KvCorrupt => "the KV that arrived was not what the prefill worker had sealed",
        Reason::EngineFailed => "the engine of a worker failed",
        Reason::EngineStalled => "the engine of a worker had a step in hand and did not finish it in time",
        Reason::KvUnproven => "the KV had been read too late to say that prefill's engine still kept it",
        Reason::EngineWedged => "the engine of a worker answered no canary in time",
        Reason::EngineRestarted => "the engine of a worker was started anew, and what it held was gone",
        Reason::EngineError => "the engine of a worker answered with an error",
        Reason::WrongIncarnation => "the worker that was meant had been replaced by another process",
        Reason::SelfPaused => "a node of the room had itself been stopped, and so accuses nobody",
        Reason::Draining => "the worker was shutting down",
        Reason::InternalError => "an internal part of the room died",
        Reason::ProtocolError => "a node said something that the protocol does not allow",
        Reason::UnknownRoom => "a node did not know the room",
        Reason::NoPrefillWorker => "no prefill worker that fits was there",
        Reason::NoDecodeWorker => "no decode worker that fits was there",
        Reason::TooLarge => "prompt and answer together do not fit a worker's KV pages",
        Reason::Overloaded => "a worker had no place for another room",
        Reason::RetryBudgetSpent => "the attempt failed and the fleet's budget for retries was spent",
    }
}

/// Which of its own timers ends a room for this reason, if one does.
pub(super) const fn timer(reason: Reason) -> Option<&'static str> {
    match reason {
        Reason::QueueTimeout => Some("the queue deadline"),
        Reason::RequestTimeout => Some("the request's absolute deadline"),
        Reason::HandshakeTimeout => Some("the handshake timer"),
        Reason::PrefillStalled => Some("the timer of the next chunk, or the deadline of the whole prompt,"),
        Reason::TransferStalled => Some("the timer of newly verified bytes, or the deadline of the whole transfer,"),
        Reason::DecodeStalled => Some("the timer of the next token, or the deadline of the whole answer,"),
        Reason::RouterStalled => Some("the timer of tokens that were not taken"),
        Reason::PrefillLost | Reason::DecodeLost => Some("the timer of the worker's answer or report"),
        Reason::LeaseExpired | Reason::LeaseLost => Some("the lease's own time"),
        Reason::MemberLost => Some("the timer of the worker's answer to who it is"),
        Reason::EngineStalled => Some("the timer of the engine's step in hand"),
        Reason::EngineWedged => Some("the timer of the engine's canaries"),
        Reason::SelfPaused => Some("the grace after the node's own stop"),
        Reason::RouterLost
        | Reason::TransferLost
        | Reason::LeaseRevoked
        | Reason::Aborted
        | Reason::ClientStalled
        | Reason::KvCorrupt
        | Reason::KvUnproven
        | Reason::EngineFailed
        | Reason::EngineRestarted
        | Reason::EngineError
        | Reason::WrongIncarnation
        | Reason::Draining
        | Reason::InternalError
        | Reason::ProtocolError
        | Reason::UnknownRoom
        | Reason::NoPrefillWorker
        | Reason::NoDecodeWorker
        | Reason::TooLarge
        | Reason::Overloaded
        | Reason::RetryBudgetSpent => None,
    }
}

/// The step that this party owes in this phase.
pub(super) const fn step(who: Owes, phase: Phase) -> &'static str {
    match (who, phase) {
        (Owes::Nobody, Phase::Queued) => "the room waits for a turn or for pages, which is nobody's debt",
        (Owes::Nobody, _) => "no step is owed",
        (Owes::Decode, Phase::Queued | Phase::Bootstrapping) => "to answer the handshake",
        (Owes::Decode, Phase::WaitingForInput | Phase::Transferring) => {
            "to verify the KV that was handed over, and to commit"
        }
        (Owes::Decode, Phase::Decoding | Phase::Done | Phase::Failed) => "to produce the next token",
        (Owes::Prefill, Phase::Queued | Phase::Bootstrapping | Phase::WaitingForInput) => {
            "to compute the next chunk of the prompt and to seal its KV"
        }
        (Owes::Prefill, _) => "to hand over the KV that it has sealed",
        (Owes::Router, Phase::Decoding) => "to take the tokens that it was sent",
        (Owes::Router, _) => "to answer for the room",
    }
}

/// Where a room is in this phase.
pub(super) const fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Queued => "while it waited for its turn",
        Phase::Bootstrapping => "in the handshake of the pair",
        Phase::WaitingForInput => "while the prompt was computed",
        Phase::Transferring => "while its KV was transferred",
        Phase::Decoding => "while it decoded",
        Phase::Done | Phase::Failed => "at its end",
    }
}

/// Something that happened on a node.
pub(super) const fn what(what: What, on: Role) -> &'static str {
    match (what, on) {
        (What::Began, Role::Router) => "the room begins",
        (What::Began, Role::Prefill | Role::Decode) => "its part begins",
        (What::Asked, _) => "asks a worker to open it",
        (What::Admitted, _) => "admitted",
        (What::Refused, _) => "refused",
        (What::Phase, _) => "phase",
        (What::Restart, _) => "the transfer is begun anew",
        (What::Started, _) => "prefill has its turn and pages",
        (What::Committed, _) => "committed: all KV is verified",
        (What::FirstToken, Role::Router) => "the first token passes to the client",
        (What::FirstToken, Role::Prefill | Role::Decode) => "the first token is sent",
        (What::LeaseGranted, _) => "lease granted",
        (What::LeaseFailed, _) => "no lease: the room runs unleased",
        (What::RenewFailed, _) => "the lease was not renewed",
        (What::DoorGone, _) => "the lease's key was deleted",
        (What::DoorAbsent, _) => "the lease's key is not in the store's list",
        (What::LeaseRevoked, _) => "gives the lease back",
        (What::ConnectionBroke, _) => "the data connection broke",
        (What::StreamBroke, _) => "the control connection broke",
        (What::StreamEnded, _) => "the control stream ended",
        (What::NodeDown, _) => "the worker's own stream broke",
        (What::AskedRouter, Role::Router) => "a worker asks whether the room lives",
        (What::AskedRouter, Role::Prefill | Role::Decode) => {
            "the lease is gone: asks the router whether the room lives"
        }
        (What::Vouched, Role::Router) => "vouches for the room",
        (What::Vouched, Role::Prefill | Role::Decode) => "the router vouches for the room",
        (What::UnknownToRouter, _) => "the router does not know the room",
        (What::Abort, Role::Router) => "tells a worker that it is over",
        (What::Abort, Role::Prefill | Role::Decode) => "the router ends it",
        (What::PartEnded, _) => "part ended",
        (What::EvidenceAsked, _) => "asks what a worker saw",
        (What::EvidenceHeard, _) => "a worker says what it saw",
        (What::ActorDied, _) => "the room's actor died",
        (What::Client, _) => "client",
        (What::Evicted, _) => "an operator evicts the room",
        (What::Stopped, _) => "this node had itself been stopped",
        (What::Verdict, _) => "verdict",
        (What::NextAttempt, _) => "the next attempt begins",
        (What::Answered, _) => "the request is answered",
        (What::Other, _) => "something that this version does not know",
    }
}

/// A number of bytes.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub(super) fn bytes(count: u64) -> String {
    match count {
        0..10_000 => format!("{count} bytes"),
        10_000..10_000_000 => format!("{:.0} kB", count as f64 / 1e3),
        _ => format!("{:.1} MB", count as f64 / 1e6),
    }
}

/// A length of time.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub(super) fn time(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        _ => format!("{:.1} s", ms as f64 / 1e3),
    }
}

/// A sentence begins so.
pub(super) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
