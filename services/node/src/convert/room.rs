//! The room stream: what R and a worker say to each other.

use innkeeper_actors::ports::{OpenRoom, WorkerSays};
use innkeeper_proto::v1;
use innkeeper_proto::v1::router_message::Message as FromR;
use innkeeper_proto::v1::worker_message::Message as FromW;
use innkeeper_room::{
    Counters, Epoch, Evidence, FromWorker, PartEnd, PartState, Phase, Refusal, ToWorker, Token, Verdict,
};

use super::evidence::reason;
use super::{Wire, WireError, present, short, wrong};

/// Most alternatives of a token: as many as can be asked for.
const MOST_ALTERNATIVES: usize = 20;

/// What R says on a room's stream: Open first, then the rest.
#[derive(Clone, Debug)]
pub enum RouterSays {
    /// The first message, and only that.
    Open(Box<OpenRoom>),
    /// All others.
    Says(ToWorker),
}

impl Wire for ToWorker {
    type Message = v1::RouterMessage;

    fn to_wire(&self) -> v1::RouterMessage {
        let message = match self {
            Self::Abort(reason) => FromR::Abort(v1::Abort {
                reason: reason.code().to_owned(),
            }),
            Self::Committed => FromR::Committed(v1::Nothing {}),
            Self::Taken(position) => FromR::Taken(*position),
            Self::Live => FromR::Live(v1::Nothing {}),
            Self::Verdict(verdict) => FromR::Verdict(verdict.to_wire()),
            Self::Unknown => FromR::Unknown(v1::Nothing {}),
        };
        v1::RouterMessage { message: Some(message) }
    }

    fn from_wire(message: v1::RouterMessage) -> Result<Self, WireError> {
        match RouterSays::from_wire(message)? {
            RouterSays::Says(says) => Ok(says),
            RouterSays::Open(_) => Err(wrong("message", "open", "anything but a second Open on one stream")),
        }
    }
}

impl Wire for RouterSays {
    type Message = v1::RouterMessage;

    fn to_wire(&self) -> v1::RouterMessage {
        match self {
            Self::Open(open) => v1::RouterMessage {
                message: Some(FromR::Open(open.to_wire())),
            },
            Self::Says(says) => says.to_wire(),
        }
    }

    fn from_wire(message: v1::RouterMessage) -> Result<Self, WireError> {
        Ok(Self::Says(match present("message", message.message)? {
            FromR::Open(open) => return Ok(Self::Open(Box::new(OpenRoom::from_wire(open)?))),
            FromR::Abort(abort) => ToWorker::Abort(reason("abort.reason", &abort.reason)?),
            FromR::Committed(_) => ToWorker::Committed,
            FromR::Taken(position) => ToWorker::Taken(position),
            FromR::Live(_) => ToWorker::Live,
            FromR::Verdict(verdict) => ToWorker::Verdict(Verdict::from_wire(verdict)?),
            FromR::Unknown(_) => ToWorker::Unknown,
        }))
    }
}

impl Wire for Refusal {
    type Message = i32;

    fn to_wire(&self) -> i32 {
        match self {
            Self::NoPermit => v1::Refusal::NoPermit,
            Self::PeerShare => v1::Refusal::PeerShare,
            Self::Draining => v1::Refusal::Draining,
            Self::WrongIncarnation => v1::Refusal::WrongIncarnation,
            Self::Exists => v1::Refusal::Exists,
            Self::TooLarge => v1::Refusal::TooLarge,
        }
        .into()
    }

    fn from_wire(message: i32) -> Result<Self, WireError> {
        match v1::Refusal::try_from(message) {
            Ok(v1::Refusal::NoPermit) => Ok(Self::NoPermit),
            Ok(v1::Refusal::PeerShare) => Ok(Self::PeerShare),
            Ok(v1::Refusal::Draining) => Ok(Self::Draining),
            Ok(v1::Refusal::WrongIncarnation) => Ok(Self::WrongIncarnation),
            Ok(v1::Refusal::Exists) => Ok(Self::Exists),
            Ok(v1::Refusal::TooLarge) => Ok(Self::TooLarge),
            Ok(v1::Refusal::Unspecified) | Err(_) => Err(wrong("refused", message, "1 to 6")),
        }
    }
}

impl Wire for PartState {
    type Message = v1::PartState;

    fn to_wire(&self) -> v1::PartState {
        v1::PartState {
            phase: self.phase.to_wire(),
            epoch: self.epoch.0,
            counters: Some(self.counters.to_wire()),
        }
    }

    fn from_wire(message: v1::PartState) -> Result<Self, WireError> {
        Ok(Self {
            phase: Phase::from_wire(message.phase)?,
            epoch: Epoch(message.epoch),
            counters: Counters::from_wire(present("state.counters", message.counters)?)?,
        })
    }
}

impl Wire for Token {
    type Message = v1::Token;

    fn to_wire(&self) -> v1::Token {
        let top = self
            .top
            .iter()
            .map(|&(id, logprob)| v1::Alternative { id, logprob })
            .collect();
        v1::Token {
            id: self.id,
            logprob: self.logprob,
            top,
        }
    }

    fn from_wire(message: v1::Token) -> Result<Self, WireError> {
        if message.top.len() > MOST_ALTERNATIVES {
            return Err(wrong("token.top", message.top.len(), "at most 20 alternatives"));
        }
        let top = message.top.iter().map(|other| (other.id, other.logprob)).collect();
        Ok(Self {
            id: message.id,
            logprob: message.logprob,
            top,
        })
    }
}

impl Wire for WorkerSays {
    type Message = v1::WorkerMessage;

    fn to_wire(&self) -> v1::WorkerMessage {
        let message = match &self.message {
            FromWorker::Admitted { data_addr, token } => FromW::Admitted(v1::Admitted {
                data_addr: data_addr.clone(),
                token: *token,
            }),
            FromWorker::Refused(refusal) => FromW::Refused(refusal.to_wire()),
            FromWorker::State(state) => FromW::State(state.to_wire()),
            FromWorker::Started { epoch, .. } => FromW::Started(epoch.0),
            FromWorker::Committed => FromW::Committed(v1::Nothing {}),
            // The count is that of the tokens that travel.
            FromWorker::Tokens { position, count: _ } => FromW::Tokens(v1::Tokens {
                position: *position,
                tokens: self.tokens.iter().map(Wire::to_wire).collect(),
            }),
            FromWorker::Ended { end, evidence, relayed } => FromW::Ended(v1::Ended {
                end: Some(end.to_wire()),
                evidence: Some(evidence.to_wire()),
                relayed: *relayed,
            }),
            FromWorker::Ask => FromW::Ask(v1::Nothing {}),
            FromWorker::Evidence(evidence) => FromW::Evidence(evidence.to_wire()),
            FromWorker::AlreadyEnded(end) => FromW::AlreadyEnded(end.to_wire()),
            FromWorker::Unknown => FromW::Unknown(v1::Nothing {}),
        };
        let reused = match &self.message {
            FromWorker::Started { reused, .. } => *reused,
            _ => 0,
        };
        v1::WorkerMessage {
            message: Some(message),
            reused,
        }
    }

    fn from_wire(message: v1::WorkerMessage) -> Result<Self, WireError> {
        let reused = message.reused;
        let message = match present("message", message.message)? {
            FromW::Tokens(tokens) => return tokens_from_wire(tokens),
            FromW::Admitted(admitted) => FromWorker::Admitted {
                data_addr: short("admitted.data_addr", admitted.data_addr)?,
                token: admitted.token,
            },
            FromW::Refused(refusal) => FromWorker::Refused(Refusal::from_wire(refusal)?),
            FromW::State(state) => FromWorker::State(PartState::from_wire(state)?),
            FromW::Started(epoch) => FromWorker::Started {
                epoch: Epoch(epoch),
                reused,
            },
            FromW::Committed(_) => FromWorker::Committed,
            FromW::Ended(ended) => FromWorker::Ended {
                end: PartEnd::from_wire(present("ended.end", ended.end)?)?,
                evidence: Evidence::from_wire(present("ended.evidence", ended.evidence)?)?,
                relayed: ended.relayed,
            },
            FromW::Ask(_) => FromWorker::Ask,
            FromW::Evidence(evidence) => FromWorker::Evidence(Evidence::from_wire(evidence)?),
            FromW::AlreadyEnded(end) => FromWorker::AlreadyEnded(PartEnd::from_wire(end)?),
            FromW::Unknown(_) => FromWorker::Unknown,
        };
        Ok(Self {
            message,
            tokens: Vec::new(),
        })
    }
}

fn tokens_from_wire(message: v1::Tokens) -> Result<WorkerSays, WireError> {
    let count = u32::try_from(message.tokens.len()).unwrap_or(u32::MAX);
    if count == 0 || message.position.checked_add(count).is_none() {
        return Err(wrong(
            "tokens",
            format!("{count} from {}", message.position),
            "at least one, with positions of 32 bits",
        ));
    }
    let tokens = message
        .tokens
        .into_iter()
        .map(Token::from_wire)
        .collect::<Result<_, _>>()?;
    Ok(WorkerSays {
        message: FromWorker::Tokens {
            position: message.position,
            count,
        },
        tokens,
    })
}
