//! Evidence, counters, phases, reasons: what several messages have in common.

use innkeeper_proto::v1;
use innkeeper_room::{Counters, Evidence, Millis, Owes, PartEnd, Phase, Reason, Verdict};

use super::{Wire, WireError, present, wrong};

pub(super) fn reason(field: &'static str, code: &str) -> Result<Reason, WireError> {
    Reason::from_code(code).ok_or_else(|| wrong(field, code, "a reason's code that this version knows"))
}

impl Wire for Counters {
    type Message = v1::Counters;

    fn to_wire(&self) -> v1::Counters {
        v1::Counters {
            tokens_computed: self.tokens_computed,
            bytes_sealed: self.bytes_sealed,
            bytes_sent: self.bytes_sent,
            bytes_verified: self.bytes_verified,
            tokens_made: self.tokens_made,
        }
    }

    fn from_wire(message: v1::Counters) -> Result<Self, WireError> {
        Ok(Self {
            tokens_computed: message.tokens_computed,
            bytes_sealed: message.bytes_sealed,
            bytes_sent: message.bytes_sent,
            bytes_verified: message.bytes_verified,
            tokens_made: message.tokens_made,
        })
    }
}

impl Wire for Owes {
    type Message = i32;

    fn to_wire(&self) -> i32 {
        match self {
            Self::Nobody => v1::Owes::Nobody,
            Self::Prefill => v1::Owes::Prefill,
            Self::Decode => v1::Owes::Decode,
            Self::Router => v1::Owes::Router,
        }
        .into()
    }

    fn from_wire(message: i32) -> Result<Self, WireError> {
        match v1::Owes::try_from(message) {
            Ok(v1::Owes::Nobody) => Ok(Self::Nobody),
            Ok(v1::Owes::Prefill) => Ok(Self::Prefill),
            Ok(v1::Owes::Decode) => Ok(Self::Decode),
            Ok(v1::Owes::Router) => Ok(Self::Router),
            Err(_) => Err(wrong("evidence.waited_for", message, "0 to 3")),
        }
    }
}

impl Wire for Evidence {
    type Message = v1::Evidence;

    fn to_wire(&self) -> v1::Evidence {
        v1::Evidence {
            waited_for: self.waited_for.to_wire(),
            waited_ms: self.waited.0,
            counters: Some(self.counters.to_wire()),
            unacked: self.unacked,
            data_link_broken: self.data_link_broken,
            engine_owes_ms: self.engine_owes.0,
            was_stopped: self.was_stopped,
        }
    }

    fn from_wire(message: v1::Evidence) -> Result<Self, WireError> {
        Ok(Self {
            waited_for: Owes::from_wire(message.waited_for)?,
            waited: Millis(message.waited_ms),
            counters: Counters::from_wire(present("evidence.counters", message.counters)?)?,
            unacked: message.unacked,
            data_link_broken: message.data_link_broken,
            engine_owes: Millis(message.engine_owes_ms),
            was_stopped: message.was_stopped,
        })
    }
}

impl Wire for Phase {
    type Message = i32;

    fn to_wire(&self) -> i32 {
        match self {
            Self::Queued => v1::Phase::Queued,
            Self::Bootstrapping => v1::Phase::Bootstrapping,
            Self::WaitingForInput => v1::Phase::WaitingForInput,
            Self::Transferring => v1::Phase::Transferring,
            Self::Decoding => v1::Phase::Decoding,
            Self::Done => v1::Phase::Done,
            Self::Failed => v1::Phase::Failed,
        }
        .into()
    }

    fn from_wire(message: i32) -> Result<Self, WireError> {
        match v1::Phase::try_from(message) {
            Ok(v1::Phase::Queued) => Ok(Self::Queued),
            Ok(v1::Phase::Bootstrapping) => Ok(Self::Bootstrapping),
            Ok(v1::Phase::WaitingForInput) => Ok(Self::WaitingForInput),
            Ok(v1::Phase::Transferring) => Ok(Self::Transferring),
            Ok(v1::Phase::Decoding) => Ok(Self::Decoding),
            Ok(v1::Phase::Done) => Ok(Self::Done),
            Ok(v1::Phase::Failed) => Ok(Self::Failed),
            Err(_) => Err(wrong("phase", message, "0 to 6")),
        }
    }
}

impl Wire for PartEnd {
    type Message = v1::PartEnd;

    fn to_wire(&self) -> v1::PartEnd {
        let (kind, reason) = match self {
            Self::HandedOver => (v1::part_end::Kind::HandedOver, ""),
            Self::Done => (v1::part_end::Kind::Done, ""),
            Self::Failed(reason) => (v1::part_end::Kind::Failed, reason.code()),
        };
        v1::PartEnd {
            kind: kind.into(),
            reason: reason.to_owned(),
        }
    }

    fn from_wire(message: v1::PartEnd) -> Result<Self, WireError> {
        match v1::part_end::Kind::try_from(message.kind) {
            Ok(v1::part_end::Kind::HandedOver) => Ok(Self::HandedOver),
            Ok(v1::part_end::Kind::Done) => Ok(Self::Done),
            Ok(v1::part_end::Kind::Failed) => reason("end.reason", &message.reason).map(Self::Failed),
            Err(_) => Err(wrong("end.kind", message.kind, "0 to 2")),
        }
    }
}

impl Wire for Verdict {
    type Message = v1::Verdict;

    fn to_wire(&self) -> v1::Verdict {
        match self {
            Self::Done => v1::Verdict {
                done: true,
                reason: String::new(),
            },
            Self::Failed(reason) => v1::Verdict {
                done: false,
                reason: reason.code().to_owned(),
            },
        }
    }

    fn from_wire(message: v1::Verdict) -> Result<Self, WireError> {
        if message.done {
            return Ok(Self::Done);
        }
        reason("verdict.reason", &message.reason).map(Self::Failed)
    }
}
