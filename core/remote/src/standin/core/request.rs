//! What is asked of the core, and what becomes of it.

use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use crate::standin::Chooser;

/// What a request tells its HTTP side. Bounded by the tokens that were asked for.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::standin) enum Out {
    Token(u32),
    Done {
        reason: &'static str,
        ticket: Option<String>,
    },
    Error(String),
}

/// What a request is for.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::standin) enum Role {
    /// Computes and answers.
    Plain,
    /// vLLM: computes, and keeps the KV.
    Keep,
    /// vLLM: reads the KV and answers.
    Pull(TicketOf),
    /// SGLang: computes, and hands the KV over in a room.
    HandOver(u64),
    /// SGLang: takes KV in a room, and answers.
    TakeIn(u64),
}

/// A ticket as the engine reads it.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::standin) struct TicketOf {
    pub(in crate::standin) engine: String,
    pub(in crate::standin) request: String,
    pub(in crate::standin) blocks: Vec<u32>,
}

/// A request.
#[derive(Clone, Debug)]
pub(in crate::standin) struct Ask {
    pub(in crate::standin) id: String,
    pub(in crate::standin) role: Role,
    pub(in crate::standin) prompt: Vec<u32>,
    pub(in crate::standin) max_tokens: usize,
    pub(in crate::standin) stop_ids: Vec<u32>,
    pub(in crate::standin) chooser: Chooser,
    pub(in crate::standin) out: UnboundedSender<Out>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum State {
    /// In the queue.
    Waiting,
    /// SGLang: waits for the other engine (at prefill), or for its KV (at decode).
    Meeting,
    /// vLLM: reads, until then at the earliest.
    Pulling {
        until: Instant,
    },
    Computing,
    /// SGLang: computed, not handed over.
    Inflight {
        since: Instant,
    },
    /// SGLang: handed over, and not ended.
    Forgotten,
    Decoding,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) ask: Ask,
    pub(super) pages: Vec<u32>,
    pub(super) computed: usize,
    pub(super) produced: Vec<u32>,
    pub(super) state: State,
    /// Nobody waits for it any more, but its pages are still written to.
    pub(super) orphan: bool,
}

#[derive(Debug)]
pub(super) struct Kept {
    pub(super) pages: Vec<u32>,
    pub(super) until: Instant,
}

/// A notice that waits for the first contact, and for a step of this engine.
#[derive(Debug)]
pub(super) struct Unsent {
    pub(super) ticket: TicketOf,
    /// When the first contact is over.
    pub(super) at: Instant,
    /// A step was made since.
    pub(super) stepped: bool,
}

/// Something in another engine that is to be touched once this one is unlocked.
#[derive(Debug, PartialEq)]
pub(in crate::standin) enum Reach {
    /// Tell it that a ticket will not be read, or has been.
    Notice { engine: String, request: String },
    /// Read its pages.
    Read { key: u64, ticket: TicketOf },
    /// See whether decode's engine is in the room.
    Meet { key: u64, room: u64 },
    /// Give decode's engine the KV.
    HandOver { key: u64, room: u64, since: Instant },
}

/// That a ticket has been read, or will not be.
pub(super) fn notice(ticket: TicketOf) -> Reach {
    Reach::Notice {
        engine: ticket.engine,
        request: ticket.request,
    }
}
