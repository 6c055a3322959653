//! The wire format of the data plane, version 1. All numbers are little-endian.
//!
//! A connection is a sequence of frames in both directions: a header of 40 bytes, then `length` bytes of payload.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic `IKV1` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | kind |
//! | 6 | 2 | zero |
//! | 8 | 8 | room (non-zero, 63 bits) |
//! | 16 | 4 | epoch |
//! | 20 | 4 | slab: its number (Slab), or the bytes of the whole manifest (Manifest), else 0 |
//! | 24 | 4 | offset of the payload within the slab or the manifest, else 0 |
//! | 28 | 4 | length of the payload, at most what the kind allows, never above 256 KiB |
//! | 32 | 4 | CRC-32 (IEEE) over bytes 0..32: a damaged length is seen before anything waits for that many bytes |
//! | 36 | 4 | CRC-32 (IEEE) over bytes 0..36 and the payload |
//!
//! | kind | | from | payload |
//! |---|---|---|---|
//! | 1 | Hello | P | token u64, prefill u64, decode u64 |
//! | 2 | Started | P | |
//! | 3 | Slab | P | bytes of the slab, at least one |
//! | 4 | Manifest | P | a piece of the manifest, in order, at least one byte |
//! | 5 | Progress | P | chunks and steps u64 |
//! | 6 | Fail | both | reason, evidence |
//! | 7 | LeaseAge | P | the most that the lease of the room's KV is old, u64 ms; all ones: nobody knows |
//! | 16 | Ready | D | bytes verified u64, then runs of complete slabs: first u32, count u32 |
//! | 17 | Wait | D | |
//! | 18 | Verified | D | bytes verified over all epochs u64, slab bytes taken in this session u64 |
//! | 19 | Committed | D | |
//! | 20 | Ended | D | reason |
//! | 21 | Unknown | D | |
//! | 22 | Stale | D | |
//! | 23 | AlreadyCommitted | D | the answer to a hello for a room that D committed |
//! | 24 | AskLeaseAge | D | |
//!
//! A *reason* is its code with one byte of length before it. *Evidence* is: waited_for u8 (0 nobody, 1 prefill, 2 decode,
//! 3 router), waited u64 ms, tokens_computed u32, bytes_sealed u64, bytes_sent u64, bytes_verified u64, tokens_made u32,
//! flags u8 (1 unacked, 2 data_link_broken, 4 was_stopped), engine_owes u64 ms. The *manifest* is: count u32, then id u32,
//! len u32, checksum u32 for each slab, then token_count u32, first token u32, its logprob u32 (IEEE bits), count u16 of
//! alternatives, then id u32 and logprob u32 for each.

mod body;
mod cursor;
mod manifest;
mod read;

use innkeeper_room::{Epoch, RoomId};

pub use body::{Body, HelloBody, MAX_RUNS};
pub use manifest::{ManifestPieces, decode_manifest, encode_manifest};
pub(crate) use read::{FrameReader, ReadError};

use crate::config::MAX_PAYLOAD;

/// Bytes of a header.
pub const HEADER: usize = 40;
const MAGIC: [u8; 4] = *b"IKV1";
const VERSION: u8 = 1;

/// What a frame is. See the table of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the module's table says what each is")]
pub enum Kind {
    Hello = 1,
    Started = 2,
    Slab = 3,
    Manifest = 4,
    Progress = 5,
    Fail = 6,
    LeaseAge = 7,
    Ready = 16,
    Wait = 17,
    Verified = 18,
    Committed = 19,
    Ended = 20,
    Unknown = 21,
    Stale = 22,
    AlreadyCommitted = 23,
    AskLeaseAge = 24,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 16] = [
        Self::Hello,
        Self::Started,
        Self::Slab,
        Self::Manifest,
        Self::Progress,
        Self::Fail,
        Self::LeaseAge,
        Self::Ready,
        Self::Wait,
        Self::Verified,
        Self::Committed,
        Self::Ended,
        Self::Unknown,
        Self::Stale,
        Self::AlreadyCommitted,
        Self::AskLeaseAge,
    ];

    fn from_wire(value: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == value)
    }

    /// The lengths that a payload of this kind may have.
    #[must_use]
    pub const fn lengths(self) -> (usize, usize) {
        match self {
            Self::Hello => (24, 24),
            Self::Slab | Self::Manifest => (1, MAX_PAYLOAD),
            Self::Progress | Self::LeaseAge => (8, 8),
            Self::Fail => (2, 320),
            Self::Ready => (8, 8 + 8 * MAX_RUNS),
            Self::Verified => (16, 16),
            Self::Ended => (2, 256),
            Self::Started
            | Self::Wait
            | Self::Committed
            | Self::Unknown
            | Self::Stale
            | Self::AlreadyCommitted
            | Self::AskLeaseAge => (0, 0),
        }
    }
}

/// The head of a frame, its magic, version and sums apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// Whose it is.
    pub room: RoomId,
    /// Of which try.
    pub epoch: Epoch,
    /// See the module.
    pub slab: u32,
    /// See the module.
    pub offset: u32,
    /// Bytes of payload.
    pub length: u32,
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It does not begin as a frame of this version does.
    #[error("not a frame of version {VERSION}; check that the peer is an Innkeeper node of the same version")]
    NotAFrame,
    /// A sum does not fit: the bytes were damaged on the way.
    #[error("the {0} checksum is wrong: bytes were damaged on the way")]
    Checksum(&'static str),
    /// The kind is not known.
    #[error("unknown frame kind {0}; check that all nodes run the same version")]
    Kind(u8),
    /// The length is not one that the kind may have.
    #[error("a {kind:?} frame cannot have {length} bytes of payload")]
    Length {
        /// The kind.
        kind: Kind,
        /// What the header said.
        length: u32,
    },
    /// The room is zero or has 64 bits.
    #[error("the frame names no room")]
    Room,
    /// The payload is not what the kind has.
    #[error("the payload of a {0:?} frame cannot be read")]
    Payload(Kind),
    /// The manifest's pieces do not fit together, or it is larger than the room's can be.
    #[error("the manifest's pieces do not fit together, or it is too large for this room")]
    ManifestPieces,
    /// Too few bytes.
    #[error("the frame is cut short")]
    Short,
}

fn u32_at(bytes: &[u8; HEADER], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

impl Header {
    /// Reads a header; the payload's sum is not looked at.
    ///
    /// # Errors
    /// Any bytes give a header or a [`FrameError`]; a length that the kind cannot have is one.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, FrameError> {
        if bytes[..4] != MAGIC || bytes[4] != VERSION {
            return Err(FrameError::NotAFrame);
        }
        if u32_at(bytes, 32) != crc32fast::hash(&bytes[..32]) {
            return Err(FrameError::Checksum("header"));
        }
        if bytes[6..8] != [0, 0] {
            return Err(FrameError::NotAFrame);
        }
        let kind = Kind::from_wire(bytes[5]).ok_or(FrameError::Kind(bytes[5]))?;
        let mut room = [0; 8];
        room.copy_from_slice(&bytes[8..16]);
        let room = RoomId::from_wire(u64::from_le_bytes(room)).ok_or(FrameError::Room)?;
        let length = u32_at(bytes, 28);
        let (least, most) = kind.lengths();
        if !(least..=most).contains(&(length as usize)) {
            return Err(FrameError::Length { kind, length });
        }
        Ok(Self {
            kind,
            room,
            epoch: Epoch(u32_at(bytes, 16)),
            slab: u32_at(bytes, 20),
            offset: u32_at(bytes, 24),
            length,
        })
    }

    /// The header's bytes, for a frame with this payload (whose length must be [`Header::length`]).
    #[must_use]
    pub fn encode(&self, payload: &[u8]) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.kind as u8;
        bytes[8..16].copy_from_slice(&self.room.get().to_le_bytes());
        bytes[16..20].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.slab.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.offset.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.length.to_le_bytes());
        let head = crc32fast::hash(&bytes[..32]);
        bytes[32..36].copy_from_slice(&head.to_le_bytes());
        let sum = frame_sum(&bytes, payload);
        bytes[36..40].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

/// The sum over a header's first 36 bytes and the payload.
fn frame_sum(header: &[u8; HEADER], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&header[..36]);
    hasher.update(payload);
    hasher.finalize()
}

/// Whether the payload is the one that the header was made for.
///
/// # Errors
/// [`FrameError::Checksum`].
pub fn check_payload(header: &[u8; HEADER], payload: &[u8]) -> Result<(), FrameError> {
    if u32_at(header, 36) == frame_sum(header, payload) {
        Ok(())
    } else {
        Err(FrameError::Checksum("frame"))
    }
}

/// Reads the frame at the front of `bytes`; the header, the payload, and what follows.
///
/// # Errors
/// Any bytes give a frame or a [`FrameError`]; nothing is allocated.
pub fn decode_frame(bytes: &[u8]) -> Result<(Header, &[u8], &[u8]), FrameError> {
    let (head, rest) = bytes.split_first_chunk::<HEADER>().ok_or(FrameError::Short)?;
    let header = Header::decode(head)?;
    let (payload, rest) = rest.split_at_checked(header.length as usize).ok_or(FrameError::Short)?;
    check_payload(head, payload)?;
    Ok((header, payload, rest))
}

#[cfg(test)]
mod tests;
