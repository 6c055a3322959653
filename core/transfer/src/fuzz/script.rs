//! What a peer writes, as a script says. Sums are made right, or nothing behind them would ever be reached; damage is
//! done afterwards.

use innkeeper_room::{
    Counters, Epoch, Evidence, FirstToken, Incarnation, Manifest, Millis, Owes, Reason, RoomId, SlabId, SlabMeta,
};

use super::Input;
use crate::config::MAX_PAYLOAD;
use crate::coverage::Run;
use crate::frame::{Body, HEADER, Header, HelloBody, Kind, encode_manifest};

/// The rooms and epochs that scripts speak of: the first is the one that is meant.
const ROOMS: [u64; 3] = [7, 8, u64::MAX];

/// Writes scripts, for seeds. The counterpart of [`Input`].
#[derive(Clone, Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// Bytes as they are.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Two bytes.
    #[must_use]
    pub fn u16(self, value: u16) -> Self {
        self.raw(&value.to_le_bytes())
    }

    /// Four bytes.
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    /// Eight bytes.
    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.raw(&value.to_le_bytes())
    }

    /// As [`Input::slice`] reads it; at most 65,535 bytes.
    #[must_use]
    pub fn slice(self, bytes: &[u8]) -> Self {
        let len = u16::try_from(bytes.len()).expect("a slice of a seed is short");
        self.u16(len).raw(bytes)
    }
}

/// One of the rooms that scripts speak of.
pub(super) fn room(choice: u8) -> RoomId {
    RoomId::from_random(ROOMS[usize::from(choice) % ROOMS.len()])
}

/// A frame with right sums for what it carries; its header may claim another length.
pub(super) fn frame(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = header.encode(payload).to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

fn header(input: &mut Input<'_>, length: u32) -> Header {
    Header {
        kind: Kind::ALL[usize::from(input.u8()) % Kind::ALL.len()],
        room: room(input.u8()),
        epoch: Epoch(u32::from(input.u8())),
        slab: input.u32(),
        offset: input.u32(),
        length,
    }
}

fn length_of(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// The next thing that a peer writes; `so_far` may be damaged by it.
pub(super) fn step(input: &mut Input<'_>, so_far: &mut Vec<u8>) {
    match input.u8() % 8 {
        0 => {
            let payload = input.slice();
            let header = header(input, length_of(payload));
            so_far.extend(frame(header, payload));
        }
        1 => {
            let (length, payload) = (input.u32(), input.slice());
            let header = header(input, length);
            so_far.extend(frame(header, payload));
        }
        2 => so_far.extend_from_slice(input.slice()),
        3 => {
            let (room, epoch) = (room(input.u8()), Epoch(u32::from(input.u8())));
            so_far.extend(body(input).frame(room, epoch));
        }
        4 => so_far.extend(manifest_frames(input)),
        5 => {
            let (at, with) = (usize::from(input.u16()), input.u8());
            let back = so_far.len().saturating_sub(1 + at);
            if let Some(byte) = so_far.get_mut(back) {
                *byte ^= with;
            }
        }
        6 => so_far.truncate(so_far.len().saturating_sub(usize::from(input.u8()))),
        _ => {
            // About as large as a frame may be, and a little more; large ones are slow, so that two have to do.
            let less = usize::from(input.u8());
            let most = if so_far.len() < MAX_PAYLOAD + 1024 {
                MAX_PAYLOAD
            } else {
                1024
            };
            let payload = vec![input.u8(); most + 8 - less];
            let header = header(input, length_of(&payload));
            so_far.extend(frame(header, &payload));
        }
    }
}

fn manifest_frames(input: &mut Input<'_>) -> Vec<u8> {
    let bytes = encode_manifest(&manifest(input));
    let piece = usize::from(input.u8()).max(1) * 4;
    let (room, epoch) = (room(input.u8()), Epoch(u32::from(input.u8())));
    let mut out = Vec::new();
    for (at, part) in bytes.chunks(piece).enumerate() {
        let header = Header {
            kind: Kind::Manifest,
            room,
            epoch,
            slab: length_of(&bytes),
            offset: u32::try_from(at * piece).unwrap_or(u32::MAX),
            length: length_of(part),
        };
        out.extend(frame(header, part));
    }
    out
}

fn manifest(input: &mut Input<'_>) -> Manifest {
    let slabs = (0..input.u8() % 48)
        .map(|_| SlabMeta {
            id: SlabId(u32::from(input.u8())),
            len: input.u32(),
            checksum: input.u32(),
        })
        .collect();
    let top = (0..input.u8() % 24).map(|_| (input.u32(), input.u32())).collect();
    Manifest {
        slabs,
        token_count: input.u32(),
        first_token: FirstToken {
            id: input.u32(),
            logprob_bits: input.u32(),
            top,
        },
        ticket: None,
    }
}

/// Any body, of either side.
fn body(input: &mut Input<'_>) -> Body {
    match input.u8() % 14 {
        0 => Body::Hello(HelloBody {
            token: input.u64(),
            prefill: Incarnation::new(input.u64()),
            decode: Incarnation::new(input.u64()),
        }),
        1 => Body::Started,
        2 => Body::Progress(input.u64()),
        3 => Body::Fail(reason(input), evidence(input)),
        4 => Body::Ready {
            verified: input.u64(),
            runs: runs(input),
        },
        5 => Body::Wait,
        6 => Body::Verified {
            verified: input.u64(),
            taken: input.u64(),
        },
        7 => Body::Committed,
        8 => Body::Ended(reason(input)),
        9 => Body::Unknown,
        10 => Body::Stale,
        11 => Body::AskLeaseAge,
        12 => Body::LeaseAge((!input.u8().is_multiple_of(4)).then(|| Millis(input.u64()))),
        _ => Body::AlreadyCommitted,
    }
}

pub(super) fn reason(input: &mut Input<'_>) -> Reason {
    Reason::ALL[usize::from(input.u8()) % Reason::ALL.len()]
}

pub(super) fn evidence(input: &mut Input<'_>) -> Evidence {
    let flags = input.u8();
    Evidence {
        waited_for: [Owes::Nobody, Owes::Prefill, Owes::Decode, Owes::Router][usize::from(flags % 4)],
        waited: Millis(input.u64()),
        counters: Counters {
            tokens_computed: input.u32(),
            bytes_sealed: input.u64(),
            bytes_sent: input.u64(),
            bytes_verified: input.u64(),
            tokens_made: input.u32(),
        },
        unacked: flags & 4 != 0,
        data_link_broken: flags & 8 != 0,
        was_stopped: flags & 16 != 0,
        engine_owes: Millis(input.u64()),
    }
}

/// Ascending, as D writes them; now and then one that is not.
fn runs(input: &mut Input<'_>) -> Vec<Run> {
    let mut free = 0_u32;
    let mut runs = Vec::new();
    for _ in 0..input.u8() % 8 {
        let (gap, count) = (input.u8(), input.u32());
        let first = free.wrapping_add(u32::from(gap));
        free = first.wrapping_add(count);
        runs.push(Run { first, count });
    }
    runs
}

/// The bytes of a whole script.
pub(super) fn stream(input: &mut Input<'_>) -> Vec<u8> {
    // Enough for three of the largest frames.
    const LONGEST: usize = 3 * (HEADER + MAX_PAYLOAD);
    let mut bytes = Vec::new();
    while !input.is_empty() && bytes.len() < LONGEST {
        step(input, &mut bytes);
    }
    bytes
}
