//! What the simulated model computes. Its KV follows from the ids of the prefix, and its next token from every byte of KV
//! before it: one wrong, missing or foreign byte changes the answer, and any answer can be checked token for token.

use innkeeper_room::Layout;

use crate::seed::mix;

/// Layer groups: slabs per page.
pub(crate) const GROUPS: u32 = 2;
/// KV bytes per token and group.
pub(crate) const BYTES: usize = 16;
/// Tokens in a page.
pub(crate) const PAGE_TOKENS: u32 = 16;
/// Ids are below this.
pub(crate) const VOCABULARY: u32 = 250;

/// The shape of the KV.
pub(crate) fn layout() -> Layout {
    Layout {
        model: "simulated".into(),
        page_tokens: PAGE_TOKENS,
        groups: GROUPS,
        group_token_bytes: BYTES as u32,
    }
}

/// A hash of the ids up to a token.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prefix(u64);

impl Prefix {
    /// With one more id.
    pub(crate) fn push(self, id: u32) -> Self {
        Self(mix(self.0.wrapping_add(u64::from(id)).wrapping_add(1)))
    }

    /// The KV of its last token in a group.
    pub(crate) fn kv(self, group: u32) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let mut state = mix(self.0 ^ (u64::from(group) << 32));
        for word in bytes.chunks_mut(8) {
            state = mix(state.wrapping_add(1));
            word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
        }
        bytes
    }
}

/// A digest of the KV of the first tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest {
    /// Tokens in it.
    pub(crate) tokens: u32,
    value: u64,
}

impl Digest {
    /// Takes in a token's KV in one group; the groups in order.
    pub(crate) fn group(&mut self, kv: &[u8]) {
        for word in kv.chunks(8) {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            self.value = mix(self.value ^ u64::from_le_bytes(bytes)).wrapping_add(7);
        }
    }

    /// The token that follows.
    pub(crate) fn next(&self) -> u32 {
        u32::try_from(mix(self.value ^ u64::from(self.tokens)) % u64::from(VOCABULARY)).unwrap_or(0)
    }
}

/// What one engine alone answers.
pub(crate) fn expected(prompt: &[u32], max_tokens: u32, stop_ids: &[u32]) -> Vec<u32> {
    let (mut prefix, mut digest) = (Prefix::default(), Digest::default());
    let mut feed = |id: u32| {
        prefix = prefix.push(id);
        for group in 0..GROUPS {
            digest.group(&prefix.kv(group));
        }
        digest.tokens += 1;
        digest.next()
    };
    let mut next = 0;
    for id in prompt {
        next = feed(*id);
    }
    let mut answer = vec![next];
    while answer.len() < max_tokens as usize && !stop_ids.contains(&next) {
        next = feed(next);
        answer.push(next);
    }
    answer
}
