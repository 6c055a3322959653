//! What R asks of the two workers when it opens a room.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{Attempt, Incarnation, RequestKey, RoomId};
use crate::time::Millis;

/// The part of an Open that the protocol looks at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RoomSpec {
    /// The room.
    pub room: RoomId,
    /// The router's own number of the request.
    pub request: RequestKey,
    /// Which try at the request this is.
    pub attempt: Attempt,
    /// The owner.
    pub router: Incarnation,
    /// The prefill worker that is meant; another one answers `WrongIncarnation`.
    pub prefill: Incarnation,
    /// The decode worker that is meant.
    pub decode: Incarnation,
    /// Tokens of the prompt, those that already passed the gate in earlier attempts included.
    pub prompt_tokens: u32,
    /// Tokens that may still be produced.
    pub max_tokens: u32,
    /// What is left of the request's queue time; each part's backstop is this + 2 TTL.
    pub queue_left: Millis,
}

/// The part of an Open that only the engines look at.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Work {
    /// The prompt's token ids, those that already passed the gate included.
    pub prompt: Arc<[u32]>,
    /// How many of the request's tokens already passed the gate: the position of the first token of this room.
    pub start_position: u32,
    /// How to choose tokens.
    pub sampling: Sampling,
    /// Token ids that end the answer (they are produced, and are the last).
    pub stop_ids: Arc<[u32]>,
    /// The client's id of the request, for people.
    pub request_id: Arc<str>,
    /// W3C trace context of the room's span; empty if there is none.
    pub traceparent: String,
    /// Whose prompt it is, as a number that says nothing of a key: only a prompt of the same tenant begins with KV that was
    /// computed before. 0: nobody's, and its KV is neither reused nor kept.
    pub tenant: u128,
}

/// How to choose a token. The choice depends only on (seed, position, ids so far), never on batching or threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Nucleus: the smallest set of most likely tokens whose probability reaches this. 1 is all.
    pub top_p: f32,
    /// R gives every request a seed.
    pub seed: u64,
    /// How many alternatives to report per token, 0 to 20.
    pub top_logprobs: u8,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            seed: 0,
            top_logprobs: 0,
        }
    }
}

/// One produced token. Workers send ids and logprobs, never text.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Token {
    /// The token's id.
    pub id: u32,
    /// Its natural-log probability.
    pub logprob: f32,
    /// The most likely alternatives `(id, logprob)`, best first.
    pub top: Vec<(u32, f32)>,
}
