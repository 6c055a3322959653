//! Open: what R asks of a worker.

use std::sync::Arc;

use innkeeper_actors::ports::OpenRoom;
use innkeeper_proto::v1;
use innkeeper_room::{Attempt, Incarnation, Millis, RequestKey, RoomId, RoomSpec, Sampling, Work};

use super::abort::LONGEST_RID;
use super::{Wire, WireError, present, short, wrong};

/// Longest queue time that a part is given. It is a backstop, for R times the queue itself: one that never comes is none.
const LONGEST_QUEUE: Millis = Millis::from_secs(24 * 3600);
/// Most ids that end an answer: a model's own and those that a client may name.
const MOST_STOP_IDS: usize = 4096;

impl Wire for Sampling {
    type Message = v1::Sampling;

    fn to_wire(&self) -> v1::Sampling {
        v1::Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            seed: self.seed,
            top_logprobs: u32::from(self.top_logprobs),
        }
    }

    fn from_wire(message: v1::Sampling) -> Result<Self, WireError> {
        if !message.temperature.is_finite() || message.temperature < 0.0 {
            return Err(wrong("sampling.temperature", message.temperature, "0 or more"));
        }
        if !(message.top_p > 0.0 && message.top_p <= 1.0) {
            return Err(wrong("sampling.top_p", message.top_p, "above 0 and at most 1"));
        }
        let top_logprobs = u8::try_from(message.top_logprobs)
            .ok()
            .filter(|top| *top <= 20)
            .ok_or_else(|| wrong("sampling.top_logprobs", message.top_logprobs, "0 to 20"))?;
        Ok(Self {
            temperature: message.temperature,
            top_p: message.top_p,
            seed: message.seed,
            top_logprobs,
        })
    }
}

impl Wire for OpenRoom {
    type Message = v1::Open;

    fn to_wire(&self) -> v1::Open {
        let Self {
            spec,
            work,
            decode_addr,
            token,
        } = self;
        v1::Open {
            room: spec.room.get(),
            request: spec.request.0,
            attempt: u32::from(spec.attempt.0),
            router: spec.router.get(),
            prefill: spec.prefill.get(),
            decode: spec.decode.get(),
            max_tokens: spec.max_tokens,
            queue_left_ms: spec.queue_left.0,
            decode_addr: decode_addr.clone(),
            token: *token,
            prompt: work.prompt.to_vec(),
            start_position: work.start_position,
            sampling: Some(work.sampling.to_wire()),
            stop_ids: work.stop_ids.to_vec(),
            request_id: work.request_id.to_string(),
            traceparent: work.traceparent.clone(),
            tenant: tenant_bytes(work.tenant).into(),
        }
    }

    /// The prompt's length in the spec is the length of the prompt that came: nobody can claim another.
    fn from_wire(message: v1::Open) -> Result<Self, WireError> {
        let prompt_tokens = u32::try_from(message.prompt.len())
            .ok()
            .filter(|tokens| *tokens > 0)
            .ok_or_else(|| wrong("open.prompt", message.prompt.len(), "at least one token"))?;
        if message.max_tokens == 0 {
            return Err(wrong("open.max_tokens", 0, "at least 1"));
        }
        if message.stop_ids.len() > MOST_STOP_IDS {
            return Err(wrong("open.stop_ids", message.stop_ids.len(), "at most 4096 ids"));
        }
        if message.request_id.len() > LONGEST_RID {
            return Err(wrong("open.request_id", message.request_id, "at most 256 bytes long"));
        }
        let attempt = u8::try_from(message.attempt)
            .ok()
            .filter(|attempt| *attempt > 0)
            .ok_or_else(|| wrong("open.attempt", message.attempt, "1 to 255"))?;
        let spec = RoomSpec {
            room: room_id("open.room", message.room)?,
            request: RequestKey(message.request),
            attempt: Attempt(attempt),
            router: incarnation("open.router", message.router)?,
            prefill: incarnation("open.prefill", message.prefill)?,
            decode: incarnation("open.decode", message.decode)?,
            prompt_tokens,
            max_tokens: message.max_tokens,
            queue_left: Millis(message.queue_left_ms).min(LONGEST_QUEUE),
        };
        let work = Work {
            prompt: message.prompt.into(),
            start_position: message.start_position,
            sampling: Sampling::from_wire(present("open.sampling", message.sampling)?)?,
            stop_ids: message.stop_ids.into(),
            request_id: message.request_id.into(),
            traceparent: short("open.traceparent", message.traceparent)?,
            tenant: tenant(&message.tenant)?,
        };
        Ok(Self {
            spec,
            work: Arc::new(work),
            decode_addr: short("open.decode_addr", message.decode_addr)?,
            token: message.token,
        })
    }
}

/// Nobody is no bytes.
fn tenant_bytes(tenant: u128) -> Vec<u8> {
    match tenant {
        0 => vec![],
        tenant => tenant.to_be_bytes().to_vec(),
    }
}

fn tenant(bytes: &[u8]) -> Result<u128, WireError> {
    match bytes {
        [] => Ok(0),
        bytes => <[u8; 16]>::try_from(bytes)
            .map(u128::from_be_bytes)
            .map_err(|_| wrong("open.tenant", format!("{} bytes", bytes.len()), "none or 16 bytes")),
    }
}

pub(super) fn room_id(field: &'static str, value: u64) -> Result<RoomId, WireError> {
    RoomId::from_wire(value).ok_or_else(|| wrong(field, value, "a non-zero 63-bit number"))
}

pub(super) fn incarnation(field: &'static str, value: u64) -> Result<Incarnation, WireError> {
    if value == 0 {
        Err(wrong(field, 0, "an incarnation, which is never 0"))
    } else {
        Ok(Incarnation::new(value))
    }
}
