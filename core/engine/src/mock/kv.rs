//! The mock's KV: pseudo-random bytes that follow from the prompt's prefix, and a digest that follows from the bytes.

use innkeeper_room::SlabError;

use crate::pool::RoomPages;
use crate::sample::mix;

/// A hash of the ids up to a token; its KV follows from this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Prefix(u64);

impl Prefix {
    pub(super) fn push(self, id: u32) -> Self {
        Self(mix(self.0.wrapping_add(u64::from(id)).wrapping_add(1)))
    }
}

/// Writes one token's KV into the room's pages.
pub(super) fn write(pages: &RoomPages, position: u32, prefix: Prefix) -> Result<(), SlabError> {
    let layout = pages.layout();
    let len = layout.group_token_bytes as usize;
    let page_tokens = layout.page_tokens.max(1);
    for group in 0..layout.groups {
        let start = (position % page_tokens) as usize * len;
        pages.with_slab_mut(position / page_tokens, group, |slab| {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(slab);
            let mut state = mix(prefix.0 ^ (u64::from(group) << 32));
            for word in bytes[start..start + len].chunks_mut(8) {
                state = mix(state);
                word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
            }
        })?;
    }
    Ok(())
}

/// A digest of the KV of a room's first tokens, as it is in the pages. Every word is folded in by a bijection, so a
/// difference in a single word always shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Digest {
    /// Tokens folded in.
    pub(super) tokens: u32,
    /// One chain per layer group, so that whole slabs can be folded at once.
    chains: Vec<u64>,
}

impl Digest {
    /// Folds in what the pages hold up to `tokens` tokens.
    pub(super) fn extend(&mut self, pages: &RoomPages, tokens: u32) -> Result<(), SlabError> {
        let layout = pages.layout();
        let (page_tokens, len) = (layout.page_tokens.max(1), layout.group_token_bytes as usize);
        self.chains.resize(layout.groups as usize, 0x9E37_79B9_7F4A_7C15);
        while self.tokens < tokens {
            let page = self.tokens / page_tokens;
            let from = self.tokens % page_tokens;
            let to = (tokens - page * page_tokens).min(page_tokens);
            for (group, chain) in (0u32..).zip(self.chains.iter_mut()) {
                *chain = pages.with_slab(page, group, |slab| {
                    let bytes: &[u8] = bytemuck::cast_slice(slab);
                    // Token by token, so that the digest does not depend on where one extension ended.
                    bytes[from as usize * len..to as usize * len]
                        .chunks(len.max(1))
                        .fold(*chain, fold)
                })?;
            }
            self.tokens = page * page_tokens + to;
        }
        Ok(())
    }

    /// The digest as one number.
    pub(super) fn value(&self) -> u64 {
        self.chains
            .iter()
            .fold(u64::from(self.tokens), |all, chain| mix(all ^ chain))
    }
}

fn fold(chain: u64, token: &[u8]) -> u64 {
    token.chunks(8).fold(chain, |chain, part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        (chain ^ u64::from_le_bytes(word))
            .wrapping_mul(0xD6E8_FEB8_6659_FD93)
            .rotate_left(29)
    })
}
