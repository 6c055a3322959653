//! The decoder of frames.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, ReadBuf};

use super::Input;
use super::script::{self, Writer};
use crate::config::MAX_PAYLOAD;
use crate::frame::{
    Body, FrameError, FrameReader, HEADER, Header, Kind, ManifestPieces, ReadError, decode_frame, decode_manifest,
    encode_manifest,
};

/// Most alternatives of a first token that are written.
const ALTERNATIVES: usize = 512;

/// Reads a peer's bytes: as a stream that is cut in two ways, as payloads, and as a manifest.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let cuts = [Cuts::whole(), Cuts::new(input.u32()), Cuts::new(input.u32())];
    let raw = input;
    let stream = script::stream(&mut input);
    let expected = at_once(&stream);
    for cut in cuts {
        assert_eq!(in_pieces(&stream, cut), expected, "cut as {cut:?}");
    }
    for (header, payload) in &expected.0 {
        reads_back(header, payload);
    }
    pieces(&expected.0);
    payloads({ raw }.rest());
}

/// The frames of a stream, and how it ended.
type Frames = (Vec<(Header, Vec<u8>)>, End);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Clean,
    Cut,
    Bad(FrameError),
}

/// What the decoder of whole frames makes of it.
fn at_once(mut bytes: &[u8]) -> Frames {
    let mut frames = Vec::new();
    loop {
        if bytes.is_empty() {
            return (frames, End::Clean);
        }
        match decode_frame(bytes) {
            Ok((header, payload, rest)) => {
                assert!(payload.len() <= MAX_PAYLOAD);
                frames.push((header, payload.to_vec()));
                bytes = rest;
            }
            Err(FrameError::Short) => return (frames, End::Cut),
            Err(error) => return (frames, End::Bad(error)),
        }
    }
}

/// How a stream is cut into reads.
#[derive(Clone, Copy, Debug)]
struct Cuts {
    state: u32,
    whole: bool,
}

impl Cuts {
    const fn whole() -> Self {
        Self { state: 1, whole: true }
    }

    const fn new(seed: u32) -> Self {
        Self {
            state: seed | 1,
            whole: false,
        }
    }

    /// Bytes of the next read; 0: none are there yet.
    fn next(&mut self) -> usize {
        if self.whole {
            return usize::MAX;
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 17;
        self.state ^= self.state << 5;
        match self.state % 8 {
            0 => 0,
            1 => 1,
            2..=4 => self.state as usize >> 8 & 0x3f,
            _ => self.state as usize >> 8 & 0xffff,
        }
    }
}

/// A stream that comes in pieces.
struct Drip<'a> {
    left: &'a [u8],
    cuts: Cuts,
}

impl AsyncRead for Drip<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let next = self.cuts.next();
        if next == 0 && !self.left.is_empty() {
            return Poll::Pending;
        }
        let (head, rest) = self.left.split_at(next.min(self.left.len()).min(buf.remaining()));
        buf.put_slice(head);
        self.left = rest;
        Poll::Ready(Ok(()))
    }
}

/// What the reader of a connection makes of it. Whenever no bytes are there its future is dropped and made anew, as a
/// session does whose other half had something to do.
fn in_pieces(bytes: &[u8], cuts: Cuts) -> Frames {
    let mut reader = FrameReader::new(Drip { left: bytes, cuts }, Arc::default());
    let mut frames = Vec::new();
    loop {
        match next(&mut reader) {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => {
                assert!(matches!(next(&mut reader), Ok(None)), "an end is no end");
                return (frames, End::Clean);
            }
            Err(end) => {
                for _ in 0..3 {
                    assert_eq!(next(&mut reader), Err(end), "an error was forgotten");
                }
                return (frames, end);
            }
        }
    }
}

fn next(reader: &mut FrameReader<Drip<'_>>) -> Result<Option<(Header, Vec<u8>)>, End> {
    let mut context = Context::from_waker(Waker::noop());
    loop {
        let mut gate = |_: &Header| Ok(());
        let polled = pin!(reader.next(&mut gate)).poll(&mut context);
        let got = match polled {
            Poll::Pending => continue,
            Poll::Ready(Ok(frame)) => Ok(frame.map(|(header, payload)| (header, payload.to_vec()))),
            Poll::Ready(Err(ReadError::Cut)) => Err(End::Cut),
            Poll::Ready(Err(ReadError::Bad(error))) => Err(End::Bad(error)),
            Poll::Ready(Err(error)) => panic!("a stream without faults had one: {error}"),
        };
        assert!(
            reader.held() <= MAX_PAYLOAD + 2 * HEADER,
            "{} bytes held",
            reader.held()
        );
        return got;
    }
}

/// What was decoded is encoded to the same bytes.
fn reads_back(header: &Header, payload: &[u8]) {
    let encoded = header.encode(payload);
    assert_eq!(Header::decode(&encoded), Ok(*header));
    if let Ok(body) = Body::decode(header.kind, payload) {
        payload_reads_back(header.kind, payload, &body);
    }
}

fn payload_reads_back(kind: Kind, payload: &[u8], body: &Body) {
    assert_eq!(body.kind(), kind);
    if matches!(kind, Kind::Slab | Kind::Manifest) {
        return;
    }
    let frame = body.frame(script::room(0), innkeeper_room::Epoch(1));
    let (_, again, rest) = decode_frame(&frame).expect("a frame that this side writes can be read");
    assert_eq!((again, rest.len()), (payload, 0), "{body:?}");
    assert_eq!(Body::decode(kind, again).as_ref(), Ok(body));
}

/// The manifest in these frames, if it is one: never more than the room's can be.
fn pieces(frames: &[(Header, Vec<u8>)]) {
    const SLABS: usize = 16;
    let mut pieces = ManifestPieces::new(SLABS);
    let (mut whole, mut together) = (None, Vec::new());
    for (header, payload) in frames.iter().filter(|(header, _)| header.kind == Kind::Manifest) {
        match pieces.push(header, payload) {
            Ok(None) => together.extend_from_slice(payload),
            Ok(Some(manifest)) => {
                together.extend_from_slice(payload);
                assert_eq!(decode_manifest(&together), Ok(manifest));
                assert_eq!(together.len(), header.slab as usize);
                (whole, together) = (None, Vec::new());
                continue;
            }
            Err(_) => return,
        }
        assert!(
            together.len() <= SLABS * 12 + 18 + ALTERNATIVES * 8,
            "{} bytes held",
            together.len()
        );
        assert_eq!(
            *whole.get_or_insert(header.slab),
            header.slab,
            "two lengths of one manifest"
        );
    }
}

/// The bytes as a payload of every kind, and as a manifest.
fn payloads(bytes: &[u8]) {
    for kind in Kind::ALL {
        let (least, most) = kind.lengths();
        if let Ok(body) = Body::decode(kind, bytes)
            && (least..=most).contains(&bytes.len())
        {
            payload_reads_back(kind, bytes, &body);
        }
    }
    if let Ok(manifest) = decode_manifest(bytes)
        && manifest.first_token.top.len() <= ALTERNATIVES
    {
        assert_eq!(encode_manifest(&manifest), bytes);
    }
}

/// Scripts to begin with, by name.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let head = || Writer::default().u32(3).u32(0x1234_5678);
    let mut seeds: Vec<(String, Vec<u8>)> = Vec::new();
    let mut add = |name: &str, script: Writer| seeds.push((name.to_owned(), script.0));
    for (at, kind) in (0_u8..).zip(Kind::ALL) {
        let payload = vec![at; kind.lengths().0.max(usize::from(matches!(kind, Kind::Slab)))];
        let script = head().raw(&[0]).slice(&payload).raw(&[at, 0, 1]).u32(0).u32(0);
        add(&format!("kind-{kind:?}").to_lowercase(), script);
    }
    for choice in 0..12_u8 {
        let numbers: Vec<u8> = (1..=120).collect();
        add(&format!("body-{choice}"), head().raw(&[3, 0, 1, choice]).raw(&numbers));
    }
    for (name, length) in [
        ("short", 3_u32),
        ("long", 300),
        ("longest", 0x4_0000),
        ("over", 0x4_0001),
        ("huge", u32::MAX),
    ] {
        let script = head()
            .raw(&[1])
            .u32(length)
            .slice(b"twenty bytes of slab")
            .raw(&[2, 0, 1])
            .u32(0)
            .u32(0);
        add(&format!("lying-{name}"), script);
    }
    let two = |script: Writer| script.raw(&[3, 0, 1, 1]).raw(&[3, 0, 1, 5]);
    add(
        "two-frames-and-garbage",
        two(head()).raw(&[2]).slice(b"GET / HTTP/1.1\r\n\r\n"),
    );
    add("cut", two(head()).raw(&[6, 7]));
    add("damaged", two(head()).raw(&[5]).u16(41).raw(&[0x80]).raw(&[3, 0, 1, 7]));
    add(
        "large",
        head().raw(&[7, 8, 0xab, 2, 0, 1]).u32(1).u32(0).raw(&[3, 0, 1, 1]),
    );
    let large = |script: Writer, less: u8| script.raw(&[7, less, 0xab, 2, 0, 1]).u32(1).u32(0);
    add("large-and-larger", large(large(head(), 100), 9));
    add("too-large", head().raw(&[7, 0, 0xab, 2, 0, 1]).u32(1).u32(0));
    let slab = |id: u8| Writer::default().raw(&[id]).u32(100).u32(0xdead).0;
    let manifest = head()
        .raw(&[4, 2])
        .raw(&slab(0))
        .raw(&slab(1))
        .raw(&[1])
        .u32(5)
        .u32(6)
        .u32(42)
        .u32(7)
        .u32(9);
    add("manifest-in-pieces", manifest.clone().raw(&[3, 0, 1]));
    add("manifest-whole", manifest.raw(&[255, 0, 1]));
    seeds
}
