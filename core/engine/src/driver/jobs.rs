//! Jobs as the engine's thread holds them.

use std::sync::Arc;

use innkeeper_room::{SlabMeta, Work};

use super::shared::Ticket;
use crate::pool::RoomPages;
use crate::port::{DecodeJob, DecodeSink, EngineError, PrefillSink};

/// A job on its way to the thread.
pub(crate) enum Job<S> {
    Prefill(PrefillRun<S>),
    Decode(DecodeRun<S>),
}

pub(crate) struct PrefillRun<S> {
    pub(crate) ticket: Arc<Ticket>,
    pub(crate) pages: Arc<RoomPages>,
    pub(crate) work: Arc<Work>,
    pub(crate) sink: Arc<dyn PrefillSink>,
    pub(crate) state: S,
    /// Prompt tokens whose KV is there: reused or computed.
    pub(crate) computed: u32,
    pub(crate) sealed: Vec<SlabMeta>,
}

impl<S: Default> PrefillRun<S> {
    /// `reused`: what was said of the slabs that are there already.
    pub(crate) fn new(
        ticket: Arc<Ticket>,
        pages: Arc<RoomPages>,
        work: Arc<Work>,
        sink: Arc<dyn PrefillSink>,
        reused: Vec<SlabMeta>,
    ) -> Self {
        Self {
            ticket,
            computed: pages.reused_tokens(),
            pages,
            work,
            sink,
            state: S::default(),
            sealed: reused,
        }
    }
}

pub(crate) struct DecodeRun<S> {
    pub(crate) ticket: Arc<Ticket>,
    pub(crate) pages: Arc<RoomPages>,
    pub(crate) work: Arc<Work>,
    pub(crate) sink: Arc<dyn DecodeSink>,
    pub(crate) state: S,
    pub(crate) max_tokens: u32,
    /// Ids so far, the first one included.
    pub(crate) produced: Vec<u32>,
}

impl<S: Default> DecodeRun<S> {
    pub(crate) fn new(ticket: Arc<Ticket>, pages: Arc<RoomPages>, job: DecodeJob, sink: Arc<dyn DecodeSink>) -> Self {
        let DecodeJob {
            work,
            first,
            max_tokens,
        } = job;
        Self {
            ticket,
            pages,
            work,
            sink,
            state: S::default(),
            max_tokens,
            produced: vec![first.id],
        }
    }

    /// Whether the answer is complete.
    pub(crate) fn is_complete(&self) -> bool {
        let stopped = self
            .produced
            .last()
            .is_some_and(|last| self.work.stop_ids.contains(last));
        stopped || self.produced.len() as u64 >= u64::from(self.max_tokens)
    }
}

/// How a job ended.
pub(crate) enum End {
    Stopped,
    Failed(EngineError),
}

impl End {
    /// A failure of a cancelled or closed room is the answer to the cancel.
    pub(crate) fn of(error: EngineError, ticket: &Ticket, pages: &RoomPages) -> Self {
        if ticket.is_cancelled() || pages.is_closed() {
            Self::Stopped
        } else {
            Self::Failed(error)
        }
    }
}
