//! The unit in which KV moves: a slab is one KV page's share of one layer group. The engine seals it, the transfer
//! carries it, and both know it only through the traits here.

use serde::{Deserialize, Serialize};

/// The number of a slab within its room: `page index × layer groups + layer group`, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlabId(pub u32);

/// What is known of a sealed slab. The checksum is made when the engine *seals* it, never at send time: a page that was
/// reused by then would carry a valid send-time checksum over another request's KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlabMeta {
    /// Which slab.
    pub id: SlabId,
    /// Its length in bytes (the last page's slabs are shorter).
    pub len: u32,
    /// CRC-32 (IEEE, as crc32fast computes it) over its bytes.
    pub checksum: u32,
}

/// Where D's engine finds the KV of a room whose engines move it themselves. Made by P's worker, opaque to all between the two
/// engines' drivers; no field of a client ever becomes one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct Ticket(Vec<u8>);

/// The bytes are too many for a ticket, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ticket has 1 to {most} bytes, not {len}", most = Ticket::LONGEST)]
pub struct TicketLength {
    /// How many there are.
    pub len: usize,
}

impl Ticket {
    /// Most bytes of a ticket. vLLM names each block of a prompt: a million tokens in blocks of 16 take half of it.
    pub const LONGEST: usize = 1 << 20;

    /// A ticket of these bytes.
    ///
    /// # Errors
    /// [`TicketLength`].
    pub fn new(bytes: Vec<u8>) -> Result<Self, TicketLength> {
        if (1..=Self::LONGEST).contains(&bytes.len()) {
            Ok(Self(bytes))
        } else {
            Err(TicketLength { len: bytes.len() })
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<Vec<u8>> for Ticket {
    type Error = TicketLength;

    fn try_from(bytes: Vec<u8>) -> Result<Self, TicketLength> {
        Self::new(bytes)
    }
}

impl From<Ticket> for Vec<u8> {
    fn from(ticket: Ticket) -> Self {
        ticket.0
    }
}

/// Everything that decode must have, sealed by prefill's engine after its last slab.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Manifest {
    /// All slabs of the room, ascending by id, without gaps.
    pub slabs: Vec<SlabMeta>,
    /// Number of prompt tokens whose KV the slabs hold.
    pub token_count: u32,
    /// The first token that prefill sampled. With a ticket it says nothing: D's engine samples the first one.
    pub first_token: FirstToken,
    /// Instead of slabs: what D's engine reads the KV by.
    pub ticket: Option<Ticket>,
}

impl Manifest {
    /// The bytes of all slabs together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.slabs.iter().map(|slab| u64::from(slab.len)).sum()
    }
}

/// The token that prefill sampled from the last prompt position, with what the client may ask about it.
/// Logprobs travel as IEEE-754 bits, so that they arrive exactly as they were computed.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FirstToken {
    /// The token's id.
    pub id: u32,
    /// Its natural-log probability, as the bits of an `f32`.
    pub logprob_bits: u32,
    /// The most likely alternatives: `(id, logprob bits)`, best first.
    pub top: Vec<(u32, u32)>,
}

/// The shape of KV on a node. Two workers may form a pair only if their layouts are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// Model and weight format by name, e.g. `smollm2-135m-instruct/f32`.
    pub model: String,
    /// Tokens in one KV page.
    pub page_tokens: u32,
    /// Layer groups: slabs per page.
    pub groups: u32,
    /// Bytes of one token in one slab (one layer group).
    pub group_token_bytes: u32,
}

impl Layout {
    /// The pages that `tokens` tokens occupy.
    #[must_use]
    pub const fn pages(&self, tokens: u32) -> u32 {
        tokens.div_ceil(if self.page_tokens == 0 { 1 } else { self.page_tokens })
    }

    /// The slabs that `tokens` tokens occupy.
    #[must_use]
    pub const fn slabs(&self, tokens: u32) -> u32 {
        self.pages(tokens).saturating_mul(self.groups)
    }

    /// The page index and the layer group of a slab.
    #[must_use]
    pub const fn place(&self, slab: SlabId) -> (u32, u32) {
        let groups = if self.groups == 0 { 1 } else { self.groups };
        (slab.0 / groups, slab.0 % groups)
    }

    /// The length in bytes of a slab of a room that holds `tokens` tokens; 0 if the room has no such slab.
    #[must_use]
    pub const fn slab_len(&self, slab: SlabId, tokens: u32) -> u32 {
        let (page, _) = self.place(slab);
        let start = page.saturating_mul(self.page_tokens);
        let held = tokens.saturating_sub(start);
        let held = if held > self.page_tokens {
            self.page_tokens
        } else {
            held
        };
        held.saturating_mul(self.group_token_bytes)
    }

    /// The bytes of KV that `tokens` tokens have.
    #[must_use]
    pub const fn bytes(&self, tokens: u32) -> u64 {
        tokens as u64 * self.groups as u64 * self.group_token_bytes as u64
    }
}

/// The room's pages are closed to this caller: its permit was taken back, or the room is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlabError {
    /// The permit was taken back; nothing was read or written.
    #[error("the pages of this room are closed to this epoch")]
    Closed,
    /// The slab or the range does not exist in this room.
    #[error("slab {slab} has no bytes {offset}..{end}")]
    OutOfRange {
        /// The slab's number.
        slab: u32,
        /// First byte asked for.
        offset: u32,
        /// One past the last byte asked for.
        end: u64,
    },
}

/// Where prefill's sender reads sealed slabs. Held only under the sender's read permit.
pub trait SlabSource: Send + Sync {
    /// Copies `out.len()` bytes of a sealed slab, from `offset`.
    ///
    /// # Errors
    /// [`SlabError::Closed`] after the permit was taken back, [`SlabError::OutOfRange`] for bytes that do not exist.
    fn read(&self, slab: SlabId, offset: u32, out: &mut [u8]) -> Result<(), SlabError>;
}

/// Where decode's reader writes verified bytes. Held only under the write permit of the room's current epoch.
pub trait SlabSink: Send + Sync {
    /// The expected length of a slab in bytes, from the room's prompt length and the layout; `None`: no such slab.
    fn slab_len(&self, slab: SlabId) -> Option<u32>;

    /// Writes bytes of a slab at `offset`. Idempotent.
    ///
    /// # Errors
    /// As [`SlabSource::read`]; after [`SlabError::Closed`] nothing was written.
    fn write(&self, slab: SlabId, offset: u32, data: &[u8]) -> Result<(), SlabError>;

    /// The CRC-32 over the slab as it is in the page now, to compare with the manifest.
    ///
    /// # Errors
    /// As [`SlabSource::read`].
    fn checksum(&self, slab: SlabId) -> Result<u32, SlabError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_page_is_short() {
        let layout = Layout {
            model: "m".into(),
            page_tokens: 16,
            groups: 2,
            group_token_bytes: 10,
        };
        assert_eq!(layout.pages(17), 2);
        assert_eq!(layout.slabs(17), 4);
        assert_eq!(layout.slab_len(SlabId(0), 17), 160);
        assert_eq!(layout.slab_len(SlabId(3), 17), 10);
        assert_eq!(layout.slab_len(SlabId(4), 17), 0);
        assert_eq!(layout.bytes(17), 340);
    }
}
