//! What a connection carries that is not what P means: cut, lying, of another epoch, said again, for pages not granted.

#![allow(
    clippy::unwrap_used,
    reason = "a test; clippy exempts only what is inside of the test functions"
)]

#[allow(
    dead_code,
    unreachable_pub,
    reason = "shared by the suites, each of which uses its part"
)]
mod support;

use std::sync::atomic::Ordering;

use innkeeper_room::{Epoch, Incarnation, Manifest, Millis, RoomId};
use innkeeper_transfer::frame::{Body, HEADER, Header, HelloBody, Kind as FrameKind, encode_manifest};
use innkeeper_transfer::{Coverage, RecvEvent, Stats};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LENS: [u32; 3] = [5, 0, 3];

fn room() -> RoomId {
    RoomId::from_random(7)
}

fn hello(epoch: u32) -> Vec<u8> {
    let body = HelloBody {
        token: 1,
        prefill: Incarnation::new(1),
        decode: Incarnation::new(2),
    };
    Body::Hello(body).frame(room(), Epoch(epoch))
}

/// A frame whose header may lie.
fn frame(kind: FrameKind, epoch: u32, slab: u32, offset: u32, length: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        kind,
        room: room(),
        epoch: Epoch(epoch),
        slab,
        offset,
        length,
    };
    [&header.encode(payload)[..], payload].concat()
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap()
}

fn slab(epoch: u32, id: u32, offset: u32, payload: &[u8]) -> Vec<u8> {
    frame(FrameKind::Slab, epoch, id, offset, length(payload), payload)
}

fn manifest(epoch: u32, manifest: &Manifest) -> Vec<u8> {
    let bytes = encode_manifest(manifest);
    frame(FrameKind::Manifest, epoch, length(&bytes), 0, length(&bytes), &bytes)
}

/// Everything that an honest P says after Ready, frame by frame.
fn honest(room: &Room, epoch: u32) -> Vec<Vec<u8>> {
    let mut frames = vec![Body::Started.frame(self::room(), Epoch(epoch))];
    let slabs = (0..).zip(&room.source.slabs).filter(|(_, bytes)| !bytes.is_empty());
    frames.extend(slabs.map(|(id, bytes)| slab(epoch, id, 0, bytes)));
    frames.push(manifest(epoch, &room.source.manifest()));
    frames
}

/// Says hello, is told Ready, says `bytes` and goes; what D's owner was told, counters apart.
async fn told(world: &mut World, room: &Room, epoch: u32, bytes: &[u8]) -> Vec<RecvEvent> {
    let mut stream = TcpStream::connect(&world.direct).await.unwrap();
    stream.write_all(&hello(epoch)).await.unwrap();
    let mut d = world.host().await;
    room.ready(&d);
    let mut head = [0; HEADER];
    within("Ready", stream.read_exact(&mut head)).await.unwrap();
    let ready = Header::decode(&head).unwrap();
    assert_eq!(ready.kind, FrameKind::Ready);
    let mut rest = vec![0; ready.length as usize];
    within("Ready", stream.read_exact(&mut rest)).await.unwrap();
    // D may close before the end: that is what some of these are about.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut events = d.rest().await;
    events.retain(|event| !matches!(event, RecvEvent::Verified(_) | RecvEvent::PeerProgress(_)));
    events
}

/// The session broke, and nothing was committed.
fn broke(events: &[RecvEvent]) -> bool {
    let last = events.len().checked_sub(2).and_then(|at| events.get(at));
    matches!(last, Some(RecvEvent::Broken { .. }))
        && !events.iter().any(|event| matches!(event, RecvEvent::Complete(_)))
}

#[tokio::test]
async fn a_transfer_that_is_cut_at_any_byte_leaves_whole_frames_and_commits_nothing() {
    let mut world = World::new(Kind::Tcp).await;
    let frames = honest(&Room::new(&LENS), 1);
    let whole = frames.concat();
    for cut in 0..whole.len() {
        let room = Room::new(&LENS);
        let events = told(&mut world, &room, 1, &whole[..cut]).await;
        assert!(broke(&events), "cut at byte {cut}: {events:?}");
        let mut end = 0;
        let came = frames.iter().filter(|frame| {
            end += frame.len();
            end <= cut
        });
        let slabs = came.filter(|frame| frame[5] == FrameKind::Slab as u8);
        let bytes: usize = slabs.map(|frame| frame.len() - HEADER).sum();
        assert_eq!(room.coverage.verified_bytes(), bytes as u64, "cut at byte {cut}");
    }
    let room = Room::new(&LENS);
    let events = told(&mut world, &room, 1, &whole).await;
    assert!(
        events.contains(&RecvEvent::Complete(room.source.manifest())),
        "{events:?}"
    );
    assert!(room.pages.equal(&room.source));
}

#[tokio::test]
async fn a_length_that_its_kind_cannot_have_is_refused_before_its_bytes_come() {
    let mut world = World::new(Kind::Tcp).await;
    let mut bad = 0;
    for kind in [
        FrameKind::Started,
        FrameKind::Slab,
        FrameKind::Manifest,
        FrameKind::Progress,
        FrameKind::LeaseAge,
        FrameKind::Fail,
    ] {
        let (least, most) = kind.lengths();
        let lies = [
            least.checked_sub(1),
            Some(most + 1),
            Some(1 << 24),
            Some(u32::MAX as usize),
        ];
        for lie in lies.into_iter().flatten() {
            let room = Room::new(&LENS);
            // The header alone: whoever waits for the rest waits for ever.
            let head = frame(kind, 1, 0, 0, u32::try_from(lie).unwrap(), &[]);
            let events = told(&mut world, &room, 1, &head).await;
            assert!(broke(&events), "{kind:?} of {lie} bytes: {events:?}");
            bad += 1;
            assert_eq!(
                Stats::get(&world.d.stats().bad_frames),
                bad,
                "{kind:?} of {lie} bytes was not counted"
            );
            assert_eq!(room.pages.writes.load(Ordering::SeqCst), 0);
        }
    }
}

#[tokio::test]
async fn a_length_that_lies_within_its_bounds_takes_the_next_frame_for_damaged() {
    let mut world = World::new(Kind::Tcp).await;
    for lie in [1, 2, 4] {
        let room = Room::new(&LENS);
        let bytes = [
            frame(FrameKind::Slab, 1, 0, 0, lie, &[1, 2, 3]),
            slab(1, 2, 0, &[1, 2, 3]),
        ];
        let events = told(&mut world, &room, 1, &bytes.concat()).await;
        assert!(broke(&events), "{lie} instead of 3 bytes: {events:?}");
        assert_eq!(room.pages.writes.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test]
async fn frames_that_are_said_again_count_once() {
    let mut world = World::new(Kind::Tcp).await;
    let room = Room::new(&LENS);
    let frames = honest(&room, 1);
    let (manifest, before) = frames.split_last().unwrap();
    let twice: Vec<u8> = before.iter().flat_map(|frame| [&frame[..], frame].concat()).collect();
    let events = told(&mut world, &room, 1, &[&twice[..], manifest].concat()).await;
    assert!(
        events.contains(&RecvEvent::Complete(room.source.manifest())),
        "{events:?}"
    );
    assert_eq!(room.coverage.verified_bytes(), room.source.bytes());
    assert_eq!(
        room.pages.writes.load(Ordering::SeqCst),
        2,
        "a complete slab is not written again"
    );
}

#[tokio::test]
async fn frames_of_an_earlier_epoch_are_fenced_in_the_next_one() {
    let mut world = World::new(Kind::Tcp).await;
    let room = Room::new(&LENS);
    let earlier = honest(&room, 1);
    assert!(broke(&told(&mut world, &room, 1, &[]).await));
    for (fenced, frame) in (1..).zip(&earlier) {
        let epoch = u32::try_from(fenced).unwrap() + 1;
        let events = told(&mut world, &room, epoch, frame).await;
        assert!(broke(&events), "{events:?}");
        assert_eq!(Stats::get(&world.d.stats().fenced_frames), fenced);
    }
    assert_eq!(room.pages.writes.load(Ordering::SeqCst), 0);
    let events = told(&mut world, &room, 9, &honest(&room, 9).concat()).await;
    assert!(
        events.contains(&RecvEvent::Complete(room.source.manifest())),
        "{events:?}"
    );
}

#[tokio::test]
async fn a_frame_for_a_page_that_was_not_granted_breaks_the_session_without_a_write() {
    let mut world = World::new(Kind::Tcp).await;
    let strangers = [
        slab(1, 3, 0, &[1]),
        slab(1, u32::MAX, 0, &[1]),
        slab(1, 1, 0, &[1]),
        slab(1, 0, 5, &[1]),
        slab(1, 0, 0, &[1; 6]),
        slab(1, 2, u32::MAX, &[1; 4]),
    ];
    for (bad, frame) in (1..).zip(strangers) {
        let room = Room::new(&LENS);
        let events = told(&mut world, &room, 1, &frame).await;
        assert!(broke(&events), "{events:?}");
        assert_eq!(room.pages.writes.load(Ordering::SeqCst), 0);
        assert_eq!(Stats::get(&world.d.stats().bad_frames), bad);
    }
}

#[tokio::test]
async fn only_the_exact_manifest_completes_a_room() {
    let mut world = World::new(Kind::Tcp).await;
    let lies: [fn(&mut Manifest); 7] = [
        |manifest| manifest.slabs[0].checksum ^= 1,
        |manifest| manifest.slabs[0].len += 1,
        |manifest| manifest.slabs.swap(0, 2),
        |manifest| manifest.slabs[1].id.0 = 2,
        |manifest| manifest.slabs.truncate(2),
        |manifest| manifest.slabs.push(manifest.slabs[0]),
        |manifest| manifest.slabs.clear(),
    ];
    for (at, lie) in lies.iter().enumerate() {
        let room = Room::new(&LENS);
        let mut wrong = room.source.manifest();
        lie(&mut wrong);
        let mut frames = honest(&room, 1);
        *frames.last_mut().unwrap() = manifest(1, &wrong);
        // The right one comes too late: the first is judged.
        frames.push(manifest(1, &room.source.manifest()));
        let events = told(&mut world, &room, 1, &frames.concat()).await;
        let corrupt = events.iter().any(|event| matches!(event, RecvEvent::Corrupt(_)));
        assert!(corrupt && broke(&events), "lie {at}: {events:?}");
    }
}

#[tokio::test]
async fn pieces_of_a_manifest_that_disagree_about_the_whole_break_the_session() {
    let mut world = World::new(Kind::Tcp).await;
    let room = Room::new(&LENS);
    let bytes = encode_manifest(&room.source.manifest());
    let whole = length(&bytes);
    let (head, tail) = bytes.split_at(bytes.len() / 2);
    let mut frames = honest(&room, 1);
    let _ = frames.pop();
    // The first piece says that there will be more than there is; the second, that there is what there is.
    frames.push(frame(FrameKind::Manifest, 1, whole + 4, 0, length(head), head));
    frames.push(frame(FrameKind::Manifest, 1, whole, length(head), length(tail), tail));
    let events = told(&mut world, &room, 1, &frames.concat()).await;
    assert!(broke(&events), "{events:?}");
    assert_eq!(
        Coverage::new(LENS.to_vec()).total_bytes(),
        room.coverage.verified_bytes()
    );
}

#[tokio::test]
async fn an_answer_about_the_lease_that_nobody_asked_for_breaks_the_connection() {
    let mut world = World::new(Kind::Tcp).await;
    let room = Room::new(&LENS);
    let answer = Body::LeaseAge(Some(Millis(1))).frame(self::room(), Epoch(1));
    let events = told(&mut world, &room, 1, &answer).await;
    assert!(broke(&events), "{events:?}");
}
