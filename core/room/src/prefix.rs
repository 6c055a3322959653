//! The beginnings of a prompt as numbers: one hash for each whole block of tokens, over the block and all before it. Two
//! prompts begin alike for as many blocks as their first hashes are equal.
//!
//! Good for choosing where to go, and for nothing else: the hash is fast and public, so equal hashes are no proof of equal
//! tokens to somebody who wants them to be.

use std::sync::Arc;

/// A prompt is looked at for at most this many blocks: 4,096 tokens in blocks of 16.
pub const MOST_BLOCKS: usize = 256;

/// The hashes of a prompt's beginnings. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Blocks {
    hashes: Arc<[u64]>,
    tokens: u32,
}

impl Blocks {
    /// Of a prompt's token ids, in blocks of `block_tokens`: the pages of the model's KV, so that an equal hash means a page
    /// that could be used again. Tokens behind the last whole block, or behind [`MOST_BLOCKS`], have no hash.
    #[must_use]
    pub fn of(prompt: &[u32], block_tokens: u32) -> Self {
        let tokens = block_tokens.max(1);
        let whole = prompt.chunks_exact(usize::try_from(tokens).unwrap_or(usize::MAX));
        let mut before = u64::from(tokens);
        let chained = whole.take(MOST_BLOCKS).map(|block| {
            before = block.iter().fold(before, |hash, token| chain(hash, u64::from(*token)));
            before
        });
        Self {
            hashes: chained.collect(),
            tokens,
        }
    }

    /// The hashes, of the shortest beginning first.
    #[must_use]
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// How many blocks there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.hashes.len()).unwrap_or(u32::MAX)
    }

    /// Tokens in a block; 0 if there are no blocks at all.
    #[must_use]
    pub const fn block_tokens(&self) -> u32 {
        self.tokens
    }

    /// The hash of the first `tokens` tokens, rounded up to whole blocks, or of all there are; `None` if there is no block.
    #[must_use]
    pub fn beginning(&self, tokens: u32) -> Option<u64> {
        let blocks = usize::try_from(tokens.div_ceil(self.tokens.max(1)).max(1)).unwrap_or(usize::MAX);
        self.hashes.get(blocks.min(self.hashes.len()).checked_sub(1)?).copied()
    }
}

/// The hash of what `before` is the hash of, followed by `next`.
pub(crate) const fn chain(before: u64, next: u64) -> u64 {
    mix(before.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ next)
}

/// Spreads every bit of `word` over all (the finaliser of SplitMix64): one to one.
pub(crate) const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(tokens: u32) -> Vec<u32> {
        (0..tokens).map(|token| token * 7 % 50_000).collect()
    }

    #[test]
    fn prompts_that_begin_alike_have_equal_first_hashes() {
        let (one, mut other) = (prompt(70), prompt(70));
        other[40] += 1;
        let (one, other) = (Blocks::of(&one, 16), Blocks::of(&other, 16));
        assert_eq!(
            (one.count(), other.count()),
            (4, 4),
            "64 of 70 tokens are in whole blocks"
        );
        assert_eq!(one.hashes()[..2], other.hashes()[..2]);
        assert!(
            one.hashes()[2..].iter().zip(&other.hashes()[2..]).all(|(a, b)| a != b),
            "all that follow differ"
        );
        assert_ne!(
            Blocks::of(&prompt(64), 32).hashes()[0],
            one.hashes()[1],
            "blocks of another size are others"
        );
    }

    #[test]
    fn a_prompt_is_looked_at_up_to_a_bound() {
        assert_eq!(
            Blocks::of(&prompt(15), 16),
            Blocks {
                tokens: 16,
                ..Blocks::default()
            }
        );
        let long = Blocks::of(&prompt(100_000), 16);
        assert_eq!(long.hashes().len(), MOST_BLOCKS);
        assert_eq!(long.beginning(17), Some(long.hashes()[1]), "rounded up to blocks");
        assert_eq!(long.beginning(0), Some(long.hashes()[0]));
        assert_eq!(long.beginning(u32::MAX), long.hashes().last().copied());
        assert_eq!(Blocks::default().beginning(16), None);
    }
}
