//! P, honest or not.

use innkeeper_room::{Epoch, FirstToken, Incarnation, Manifest, RoomId, SlabId, SlabMeta};

use crate::frame::{Body, Header, HelloBody, Kind, encode_manifest};
use crate::fuzz::{Input, Writer, script};

/// One connection of P.
pub(super) struct Peer {
    room: RoomId,
    epoch: Epoch,
    lens: Vec<u32>,
    /// What comes next, if it goes through the slabs in order: slab and offset.
    next: (usize, u32),
    /// What it wrote, to say it again.
    said: Vec<Vec<u8>>,
}

impl Peer {
    pub(super) fn new(lens: Vec<u32>, epoch: u32) -> Self {
        Self {
            room: script::room(0),
            epoch: Epoch(epoch),
            lens,
            next: (0, 0),
            said: Vec::new(),
        }
    }

    pub(super) fn ids(&self) -> (RoomId, Epoch) {
        (self.room, self.epoch)
    }

    /// What it writes next; `choice` is 5 to 19.
    pub(super) fn act(&mut self, choice: u8, input: &mut Input<'_>) -> Vec<u8> {
        let bytes = match choice {
            5 | 6 => self.hello(input),
            7 => Body::Started.frame(self.room, self.epoch),
            8 => self.in_order(usize::from(input.u16()) + 1),
            9 => self.all_that_is_left(),
            10 => self.anywhere(input),
            11 | 12 => self.manifest(input),
            13 => Body::Progress(input.u64()).frame(self.room, self.epoch),
            14 => Body::Fail(script::reason(input), script::evidence(input)).frame(self.room, self.epoch),
            15 => self.of_another(input),
            16 => self.again(input),
            17 => self.lying_length(input),
            18 => input.slice().to_vec(),
            _ => {
                let mut bytes = Vec::new();
                script::step(input, &mut bytes);
                bytes
            }
        };
        self.said.push(bytes.clone());
        bytes
    }

    fn hello(&self, input: &mut Input<'_>) -> Vec<u8> {
        let body = HelloBody {
            token: u64::from(input.u8()),
            prefill: Incarnation::new(1),
            decode: Incarnation::new(2),
        };
        Body::Hello(body).frame(self.room, self.epoch)
    }

    fn slab(&self, slab: u32, offset: u32, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            kind: Kind::Slab,
            room: self.room,
            epoch: self.epoch,
            slab,
            offset,
            length: u32::try_from(payload.len()).unwrap_or(u32::MAX),
        };
        script::frame(header, payload)
    }

    /// The next bytes of the room, at most `most` of them.
    fn in_order(&mut self, most: usize) -> Vec<u8> {
        let (slab, offset) = self.next;
        let Some(len) = self.lens.get(slab).copied() else {
            return Vec::new();
        };
        let end = len.min(offset.saturating_add(u32::try_from(most.min(200_000)).unwrap_or(len)));
        self.next = if end == len { (slab + 1, 0) } else { (slab, end) };
        if end == offset {
            return Vec::new();
        }
        let id = u32::try_from(slab).unwrap_or(u32::MAX);
        self.slab(id, offset, &sealed(id, offset, end))
    }

    fn all_that_is_left(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.next.0 < self.lens.len() {
            bytes.extend(self.in_order(200_000));
        }
        bytes
    }

    /// A piece of a slab that is there or is not, with the right bytes or others.
    fn anywhere(&self, input: &mut Input<'_>) -> Vec<u8> {
        let slab = u32::from(input.u8() % 8);
        let offset = match input.u8() {
            255 => input.u32(),
            near => u32::from(near),
        };
        let len = 1 + u32::from(input.u8());
        let mut bytes = sealed(slab, offset, offset.saturating_add(len));
        if bytes.is_empty() {
            bytes.push(0);
        }
        bytes[0] ^= input.u8() & 1;
        self.slab(slab, offset, &bytes)
    }

    /// The manifest of all that it sealed, or one that is wrong in one way, whole or in pieces.
    fn manifest(&self, input: &mut Input<'_>) -> Vec<u8> {
        let slabs = (0..).zip(&self.lens).map(|(id, len)| SlabMeta {
            id: SlabId(id),
            len: *len,
            checksum: crc32fast::hash(&sealed(id, 0, *len)),
        });
        let mut manifest = Manifest {
            slabs: slabs.collect(),
            token_count: 33,
            first_token: FirstToken {
                id: 5,
                logprob_bits: 9,
                top: vec![(5, 9); usize::from(input.u8() % 4)],
            },
            ticket: None,
        };
        spoil(&mut manifest, input.u8());
        let bytes = encode_manifest(&manifest);
        let lie = input.u8();
        let whole = u32::try_from(bytes.len())
            .unwrap_or(u32::MAX)
            .wrapping_add(u32::from(lie % 16 == 1));
        let piece = usize::from(input.u8().wrapping_sub(1)).max(1);
        let mut out = Vec::new();
        for (at, part) in bytes.chunks(piece).enumerate() {
            let offset = u32::try_from(at * piece).unwrap_or(u32::MAX);
            let header = Header {
                kind: Kind::Manifest,
                room: self.room,
                epoch: self.epoch,
                slab: if lie % 16 == 2 { whole + offset } else { whole },
                offset: if lie % 16 == 3 { offset.wrapping_mul(2) } else { offset },
                length: u32::try_from(part.len()).unwrap_or(u32::MAX),
            };
            out.extend(script::frame(header, part));
        }
        out
    }

    /// A right frame of another room or epoch.
    fn of_another(&self, input: &mut Input<'_>) -> Vec<u8> {
        let (room, epoch) = match input.u8() % 4 {
            0 => (script::room(1), self.epoch),
            1 => (self.room, Epoch(self.epoch.0 - 1)),
            2 => (self.room, self.epoch.next()),
            _ => (script::room(input.u8()), Epoch(input.u32())),
        };
        let stranger = Self {
            room,
            epoch,
            lens: self.lens.clone(),
            next: (0, 0),
            said: Vec::new(),
        };
        match input.u8() % 3 {
            0 => Body::Started.frame(room, epoch),
            1 => stranger.manifest(input),
            _ => stranger.slab(0, 0, &[0x55; 9]),
        }
    }

    fn again(&self, input: &mut Input<'_>) -> Vec<u8> {
        let at = usize::from(input.u8());
        self.said.get(at % self.said.len().max(1)).cloned().unwrap_or_default()
    }

    fn lying_length(&self, input: &mut Input<'_>) -> Vec<u8> {
        let payload = sealed(0, 0, 1 + u32::from(input.u8()));
        let header = Header {
            kind: if input.u8().is_multiple_of(2) {
                Kind::Slab
            } else {
                Kind::Manifest
            },
            room: self.room,
            epoch: self.epoch,
            slab: u32::from(input.u8() % 6),
            offset: 0,
            length: input.u32(),
        };
        script::frame(header, &payload)
    }
}

/// The bytes that P sealed: each tells where it belongs.
fn sealed(slab: u32, from: u32, to: u32) -> Vec<u8> {
    (from..to)
        .map(|at| (at.wrapping_mul(31) ^ slab.wrapping_mul(97) ^ 1).to_le_bytes()[0])
        .collect()
}

fn spoil(manifest: &mut Manifest, how: u8) {
    let at = usize::from(how / 16) % manifest.slabs.len().max(1);
    let slabs = &mut manifest.slabs;
    match how % 16 {
        1 => slabs[at].checksum ^= 1,
        2 => slabs[at].len = slabs[at].len.wrapping_add(1),
        3 => slabs[at].id.0 ^= 1,
        4 => drop(slabs.pop()),
        5 => slabs.push(slabs[at]),
        6 => slabs.reverse(),
        7 => slabs.clear(),
        8 => manifest.token_count = u32::MAX,
        _ => {}
    }
}

pub(super) fn seeds() -> Vec<(String, Vec<u8>)> {
    // Three slabs, the middle one empty; a hello, which D answers Ready.
    let ready = || Writer::default().raw(&[2, 200, 0, 90]).raw(&[5, 1, 0, 2, 0, 1, 5]);
    // Each act is its choice, what it takes, and how its bytes are cut.
    let started = |script: Writer| script.raw(&[7, 4]);
    let all = |script: Writer| script.raw(&[9, 100]);
    let manifest = |script: Writer, spoilt: u8, lie: u8, piece: u8| script.raw(&[11, 1, spoilt, lie, piece, 0]);
    let mut seeds: Vec<(String, Vec<u8>)> = Vec::new();
    let mut add = |name: &str, script: Writer| seeds.push((name.to_owned(), script.0));
    add(
        "commit",
        manifest(all(started(ready())), 0, 0, 0).raw(&[1, 9, 2, 7, 1, 9]),
    );
    add(
        "commit-in-pieces",
        manifest(all(started(ready())), 0, 0, 8).raw(&[2, 7]),
    );
    for (spoilt, name) in (1..).zip([
        "checksum", "length", "order", "one-less", "one-more", "reversed", "none",
    ]) {
        add(&format!("manifest-{name}"), manifest(all(ready()), spoilt, 0, 0));
    }
    for (lie, name) in (1..).zip(["whole", "growing", "gaps"]) {
        add(&format!("manifest-lies-{name}"), manifest(all(ready()), 0, lie, 8));
    }
    add("manifest-too-early", manifest(ready().raw(&[8, 20, 0, 0]), 0, 0, 0));
    add(
        "manifest-of-another-epoch",
        all(ready()).raw(&[15, 1, 1, 0, 0, 0, 0, 0]),
    );
    add("slab-of-another-epoch", ready().raw(&[15, 1, 2, 0]));
    add("slab-of-another-room", ready().raw(&[15, 0, 2, 0]));
    add("slab-not-granted", ready().raw(&[10, 7, 0, 8, 0, 0]));
    add("slab-past-its-end", ready().raw(&[10, 0, 195, 8, 0, 0]));
    add(
        "slab-far-away",
        ready().raw(&[10, 0, 255]).u32(u32::MAX).raw(&[8, 0, 0]),
    );
    add(
        "replayed",
        manifest(ready().raw(&[8, 50, 0, 0, 16, 1, 0, 16, 0, 0, 9, 0]), 0, 0, 0),
    );
    add("replayed-manifest", manifest(all(ready()), 0, 0, 0).raw(&[16, 2, 0]));
    for (name, length) in [("short", 3_u32), ("long", 200_000), ("huge", u32::MAX)] {
        add(
            &format!("lying-{name}"),
            ready().raw(&[17, 20, 0, 0]).u32(length).raw(&[0]),
        );
    }
    add(
        "cut-within-a-frame",
        ready().raw(&[8, 50, 0, 0, 18]).slice(b"IKV1\x01\x03").raw(&[0, 0]),
    );
    let second = |script: Writer| script.raw(&[0, 5, 1, 0, 2, 0, 1, 5]);
    add(
        "second-epoch",
        manifest(all(second(ready().raw(&[8, 50, 0, 0]))), 0, 0, 0).raw(&[2, 7]),
    );
    add("second-epoch-sends-less", manifest(second(all(ready())), 0, 0, 0));
    add("permit-taken-back", ready().raw(&[8, 50, 0, 0, 2, 6, 9, 0, 2, 8, 3]));
    add("killed", ready().raw(&[8, 50, 0, 0, 2, 9, 9, 0]));
    add(
        "wait-then-ready",
        Writer::default().raw(&[0, 30, 5, 1, 0, 2, 4, 1, 9, 2, 0, 1, 5, 9, 0, 11, 0, 0, 0, 0, 0]),
    );
    add("refused", Writer::default().raw(&[0, 30, 5, 1, 0, 2, 5, 1, 9, 0]));
    add("before-ready", Writer::default().raw(&[0, 30, 5, 1, 0, 9, 0]));
    add("no-hello", Writer::default().raw(&[0, 30, 9, 0]));
    add("failed", ready().raw(&[14, 3, 1]));
    add(
        "garbage",
        Writer::default()
            .raw(&[0, 30, 18])
            .slice(b"GET / HTTP/1.1\r\n\r\n")
            .raw(&[0]),
    );
    add(
        "large",
        manifest(all(Writer::default().raw(&[1, 255, 254, 5, 1, 0, 2, 0, 1, 5])), 0, 0, 0).raw(&[2, 7]),
    );
    seeds
}
