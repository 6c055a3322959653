//! What is asked of an engine, and what it says, whichever it is.

use std::sync::Arc;

use innkeeper_room::{Attempt, RoomId, Sampling, Token, Work};

/// A room's prompt, for the leg at prefill's engine.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The room.
    pub room: RoomId,
    /// Which try at the request it is.
    pub attempt: Attempt,
    /// The prompt's token ids.
    pub ids: Arc<[u32]>,
    /// Keeps the engine's prefix cache apart from other rooms'; `None`: it may be shared.
    pub salt: Option<String>,
}

/// The leg at decode's engine.
#[derive(Clone, Debug)]
pub struct Leg {
    /// Room and prompt, the same as at prefill's engine.
    pub prompt: Prompt,
    /// Tokens to produce, at least 1.
    pub max_tokens: u32,
    /// How to choose them.
    pub sampling: Sampling,
    /// Ids that end the answer; nothing else does.
    pub stop_ids: Arc<[u32]>,
}

impl Leg {
    /// A room's work as a leg.
    #[must_use]
    pub fn new(room: RoomId, attempt: Attempt, work: &Work, max_tokens: u32) -> Self {
        Self {
            prompt: Prompt {
                room,
                attempt,
                ids: Arc::clone(&work.prompt),
                salt: None,
            },
            max_tokens,
            sampling: work.sampling,
            stop_ids: Arc::clone(&work.stop_ids),
        }
    }
}

/// What came out of a stream.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Piece {
    /// New tokens, in order.
    pub tokens: Vec<Token>,
    /// It was the last.
    pub finish: Option<Finish>,
}

/// How an engine ended a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// All tokens that were asked for.
    Length,
    /// One of the stop ids.
    Stop,
    /// It was aborted.
    Abort,
    /// Anything else, in the engine's word.
    Other(String),
}

impl Finish {
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "length" => Self::Length,
            "stop" => Self::Stop,
            "abort" => Self::Abort,
            other => Self::Other(other.chars().take(40).collect()),
        }
    }

    /// Whether the answer is whole.
    #[must_use]
    pub const fn is_good(&self) -> bool {
        matches!(self, Self::Length | Self::Stop)
    }

    /// The engine's word for it.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Self::Length => "length",
            Self::Stop => "stop",
            Self::Abort => "abort",
            Self::Other(word) => word,
        }
    }
}
