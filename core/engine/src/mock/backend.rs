//! What the mock computes on the engine's thread.

use std::sync::Arc;

use innkeeper_room::{SlabError, Token, Work};

use super::clock::Clock;
use super::kv::{self, Digest, Prefix};
use crate::driver::{Backend, Chunk, Item, closed};
use crate::pool::RoomPages;
use crate::port::EngineError;
use crate::sample::mix;
use crate::text::ByteTokenizer;

/// What the mock writes with: printable, and roughly as frequent as in English.
const LETTERS: &[u8; 64] = b"etaoinshrdlu etaoinsh etaoin etaois cmfwypvbgk jqxz ETAOINSHRDLU";

/// Now and then it writes a character of four bytes, so of four tokens: whoever cuts an answer anywhere cuts one.
const WIDE: [&str; 4] = ["🦀", "🌍", "🎈", "🚀"];
/// Of so many positions the last but four to the last but one are those of a wide character.
const WIDE_EACH: u64 = 32;

pub(super) struct MockBackend {
    clock: Arc<Clock>,
    eos_at: Option<u64>,
}

/// What a job remembers: how far it knows the ids and the bytes.
#[derive(Default)]
pub(super) struct MockState {
    prefix: Prefix,
    prefixed: u32,
    digest: Digest,
}

impl MockBackend {
    pub(super) fn new(clock: Arc<Clock>, eos_at: Option<u64>) -> Self {
        Self { clock, eos_at }
    }

    /// The token at an absolute position, from all KV before it.
    fn token(&self, digest: &Digest, work: &Work, position: u64) -> Token {
        let seed = if work.sampling.temperature > 0.0 {
            mix(work.sampling.seed ^ 0x5EED)
        } else {
            0
        };
        let draw = mix(digest.value() ^ seed ^ mix(position));
        let id = match self.eos_at {
            Some(eos_at) if position >= eos_at => ByteTokenizer::EOS,
            _ => wide(seed, position).unwrap_or_else(|| letter(draw)),
        };
        let logprob = ((draw >> 32) % 1_000) as f32 / -1_000.0;
        let others = (0..u64::from(work.sampling.top_logprobs)).map(|rank| (letter(mix(draw ^ rank)), rank));
        let mut top: Vec<_> = others
            .filter(|(other, _)| *other != id)
            .map(|(other, rank)| (other, logprob - 1.0 - rank as f32))
            .collect();
        top.insert(0, (id, logprob));
        top.truncate(usize::from(work.sampling.top_logprobs));
        Token { id, logprob, top }
    }

    fn item(&self, item: &mut Item<'_, MockState>) -> Result<Token, SlabError> {
        let state = &mut *item.state;
        let prompt = item.work.prompt.len();
        if state.prefixed == 0 {
            state.prefix = item
                .work
                .prompt
                .iter()
                .fold(Prefix::default(), |prefix, id| prefix.push(*id));
            state.prefixed = u32::try_from(prompt).unwrap_or(u32::MAX);
            state.digest.extend(item.pages, state.prefixed)?;
        }
        let fed = item.produced.last().copied().unwrap_or_default();
        let at = prompt as u32 + item.produced.len() as u32 - 1;
        state.prefix = state.prefix.push(fed);
        state.prefixed = at + 1;
        kv::write(item.pages, at, state.prefix)?;
        state.digest.extend(item.pages, at + 1)?;
        let position = u64::from(item.work.start_position) + item.produced.len() as u64;
        Ok(self.token(&state.digest, item.work, position))
    }
}

fn letter(draw: u64) -> u32 {
    u32::from(LETTERS[(draw % LETTERS.len() as u64) as usize])
}

/// The byte of a wide character that belongs at this position, if one does. It does not depend on the KV: half a character
/// of one prefix and half of another would be none.
fn wide(seed: u64, position: u64) -> Option<u32> {
    let at = (position % WIDE_EACH).checked_sub(WIDE_EACH - 5)?;
    let which = mix(seed ^ (position / WIDE_EACH)) % WIDE.len() as u64;
    let bytes = WIDE[which as usize].as_bytes();
    bytes.get(usize::try_from(at).ok()?).map(|byte| u32::from(*byte))
}

fn failed() -> EngineError {
    EngineError::Broken("the mock was told to fail".to_owned())
}

impl Backend for MockBackend {
    type State = MockState;

    fn prefill(&mut self, chunk: Chunk<'_>, state: &mut MockState) -> Result<Option<Token>, EngineError> {
        // Behind pages that are reused: what came before is known by its ids, and read from the pages.
        for id in &chunk.work.prompt[state.prefixed as usize..chunk.from as usize] {
            state.prefix = state.prefix.push(*id);
        }
        state.prefixed = chunk.to;
        let ids = &chunk.work.prompt[chunk.from as usize..chunk.to as usize];
        for (at, id) in (chunk.from..).zip(ids) {
            state.prefix = state.prefix.push(*id);
            kv::write(chunk.pages, at, state.prefix).map_err(closed)?;
        }
        state.digest.extend(chunk.pages, chunk.to).map_err(closed)?;
        if !self.clock.chunk(chunk.to - chunk.from) {
            return Err(failed());
        }
        let first = || self.token(&state.digest, chunk.work, u64::from(chunk.work.start_position));
        Ok(chunk.is_last().then(first))
    }

    fn step(&mut self, items: &mut [Item<'_, MockState>]) -> Vec<Result<Token, EngineError>> {
        let results: Vec<_> = items.iter_mut().map(|item| self.item(item).map_err(closed)).collect();
        if self.clock.step() {
            results
        } else {
            items.iter().map(|_| Err(failed())).collect()
        }
    }

    /// The KV that the answer came from must still be what it was: a write by somebody else since then is seen here.
    fn verify(&mut self, pages: &RoomPages, state: &MockState) -> Result<(), EngineError> {
        let mut now = Digest::default();
        now.extend(pages, state.digest.tokens).map_err(closed)?;
        if state.digest.tokens == 0 || now == state.digest {
            return Ok(());
        }
        Err(EngineError::Broken(
            "foreign bytes: the room's KV changed while it was decoded".to_owned(),
        ))
    }
}
