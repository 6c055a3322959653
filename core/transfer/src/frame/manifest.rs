//! The manifest on the wire: it may be larger than a frame, and is bounded by the slabs that the room has.

use innkeeper_room::{FirstToken, Manifest, SlabId, SlabMeta, Ticket};

use super::cursor::Cursor;
use super::{FrameError, Header, Kind};

/// Bytes of one slab in the manifest.
const SLAB: usize = 12;
/// Everything else of it, with room for a few hundred alternatives of the first token.
const REST: usize = 4 + 14 + 8 * 512;

/// The manifest's bytes.
#[must_use]
pub fn encode_manifest(manifest: &Manifest) -> Vec<u8> {
    let mut out = Vec::with_capacity(manifest.slabs.len() * SLAB + REST);
    out.extend(u32::try_from(manifest.slabs.len()).unwrap_or(u32::MAX).to_le_bytes());
    for slab in &manifest.slabs {
        for part in [slab.id.0, slab.len, slab.checksum] {
            out.extend(part.to_le_bytes());
        }
    }
    let first = &manifest.first_token;
    for part in [manifest.token_count, first.id, first.logprob_bits] {
        out.extend(part.to_le_bytes());
    }
    let top = first.top.get(..first.top.len().min(512)).unwrap_or(&[]);
    out.extend(u16::try_from(top.len()).unwrap_or(0).to_le_bytes());
    for (id, logprob) in top {
        out.extend(id.to_le_bytes());
        out.extend(logprob.to_le_bytes());
    }
    if let Some(ticket) = &manifest.ticket {
        // Up to the end: the manifest's length is known.
        out.extend_from_slice(ticket.bytes());
    }
    out
}

/// Reads a manifest.
///
/// # Errors
/// [`FrameError::Payload`] for bytes that are none; a count that lies allocates nothing.
pub fn decode_manifest(bytes: &[u8]) -> Result<Manifest, FrameError> {
    read(bytes).ok_or(FrameError::Payload(Kind::Manifest))
}

fn read(bytes: &[u8]) -> Option<Manifest> {
    let mut cursor = Cursor(bytes);
    let count = usize::try_from(cursor.u32()?).ok()?;
    let mut table = Cursor(cursor.bytes(count.checked_mul(SLAB)?)?);
    let mut slabs = Vec::with_capacity(count);
    for _ in 0..count {
        slabs.push(SlabMeta {
            id: SlabId(table.u32()?),
            len: table.u32()?,
            checksum: table.u32()?,
        });
    }
    let token_count = cursor.u32()?;
    let (id, logprob_bits) = (cursor.u32()?, cursor.u32()?);
    let alternatives = usize::from(cursor.u16()?);
    let mut table = Cursor(cursor.bytes(alternatives * 8)?);
    let mut top = Vec::with_capacity(alternatives);
    for _ in 0..alternatives {
        top.push((table.u32()?, table.u32()?));
    }
    let ticket = match cursor.0 {
        [] => None,
        // KV is either sent or read: what has slabs has no ticket.
        rest if count == 0 => Some(Ticket::new(rest.to_vec()).ok()?),
        _ => return None,
    };
    Some(Manifest {
        slabs,
        token_count,
        first_token: FirstToken { id, logprob_bits, top },
        ticket,
    })
}

/// Puts a manifest together from its frames.
#[derive(Debug)]
pub struct ManifestPieces {
    most: usize,
    /// What the first piece said of the whole; all must say the same.
    whole: Option<u32>,
    bytes: Vec<u8>,
}

impl ManifestPieces {
    /// For a room that expects this many slabs; one that expects none may be sent a ticket.
    #[must_use]
    pub fn new(slabs: usize) -> Self {
        let kv = if slabs == 0 {
            Ticket::LONGEST
        } else {
            slabs.saturating_mul(SLAB)
        };
        Self {
            most: kv.saturating_add(REST),
            whole: None,
            bytes: Vec::new(),
        }
    }

    /// Takes the next piece; the manifest, if it was the last.
    ///
    /// # Errors
    /// [`FrameError::ManifestPieces`] if it does not follow the one before, or the whole is larger than this room's can be;
    /// [`FrameError::Payload`] if the whole cannot be read.
    pub fn push(&mut self, header: &Header, piece: &[u8]) -> Result<Option<Manifest>, FrameError> {
        let whole = header.slab as usize;
        let fits = *self.whole.get_or_insert(header.slab) == header.slab
            && whole <= self.most
            && header.offset as usize == self.bytes.len()
            && self.bytes.len() + piece.len() <= whole
            && !piece.is_empty();
        if !fits {
            return Err(FrameError::ManifestPieces);
        }
        self.bytes.extend_from_slice(piece);
        if self.bytes.len() < whole {
            return Ok(None);
        }
        self.whole = None;
        decode_manifest(&std::mem::take(&mut self.bytes)).map(Some)
    }
}
