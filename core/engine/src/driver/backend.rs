//! What an engine has to compute; everything around it is the driver's.

use innkeeper_room::{Token, Work};

use crate::pool::RoomPages;
use crate::port::EngineError;

/// Computes chunks and steps. Lives on the engine's thread.
pub(crate) trait Backend: Send + 'static {
    /// What it keeps per job between chunks or steps.
    type State: Default + Send;

    /// Computes the KV of a part of a prompt into the room's pages; if it is the last part, samples the first token.
    fn prefill(&mut self, chunk: Chunk<'_>, state: &mut Self::State) -> Result<Option<Token>, EngineError>;

    /// One step for several rooms: the KV of each room's newest token goes into its pages, the next is sampled.
    /// Answers one result per item, in order.
    fn step(&mut self, items: &mut [Item<'_, Self::State>]) -> Vec<Result<Token, EngineError>>;

    /// A last look before a decode job is reported as finished.
    fn verify(&mut self, _pages: &RoomPages, _state: &Self::State) -> Result<(), EngineError> {
        Ok(())
    }
}

/// A part of a prompt.
pub(crate) struct Chunk<'a> {
    pub(crate) pages: &'a RoomPages,
    pub(crate) work: &'a Work,
    /// First token of the chunk.
    pub(crate) from: u32,
    /// One past its last.
    pub(crate) to: u32,
}

impl Chunk<'_> {
    /// Whether the prompt ends with it.
    pub(crate) fn is_last(&self) -> bool {
        self.to as usize >= self.work.prompt.len()
    }
}

/// One room's share of a decode step.
pub(crate) struct Item<'a, S> {
    pub(crate) pages: &'a RoomPages,
    pub(crate) work: &'a Work,
    /// What this room produced so far, prefill's first token included; the last one is fed now.
    pub(crate) produced: &'a [u32],
    pub(crate) state: &'a mut S,
}

impl<S> Item<'_, S> {
    /// The position in the pages of the token that is fed.
    pub(crate) fn fed_at(&self) -> u32 {
        u32::try_from(self.work.prompt.len() + self.produced.len() - 1).unwrap_or(u32::MAX)
    }

    /// The request's absolute position of the token that is sampled.
    pub(crate) fn samples_at(&self) -> u64 {
        u64::from(self.work.start_position) + self.produced.len() as u64
    }
}
