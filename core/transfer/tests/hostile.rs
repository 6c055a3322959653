//! Strangers on D's port: over TCP, where anybody can speak.

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
use std::time::Duration;

use innkeeper_room::{Epoch, HelloReply, Incarnation, RoomId};
use innkeeper_transfer::frame::{Body, Header, HelloBody, Kind as FrameKind};
use innkeeper_transfer::{Config, RecvEvent, SendEvent, Stats};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn hello(room: RoomId, epoch: Epoch) -> Vec<u8> {
    let body = HelloBody {
        token: 1,
        prefill: Incarnation::new(1),
        decode: Incarnation::new(2),
    };
    Body::Hello(body).frame(room, epoch)
}

fn slab(room: RoomId, epoch: Epoch, offset: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    let header = Header {
        kind: FrameKind::Slab,
        room,
        epoch,
        slab: 0,
        offset,
        length,
    };
    [&header.encode(payload)[..], payload].concat()
}

/// The peer closes or resets.
async fn closed(stream: &mut TcpStream) {
    let mut scrap = [0; 4096];
    within("the close", async {
        while matches!(stream.read(&mut scrap).await, Ok(got) if got > 0) {}
    })
    .await;
}

#[tokio::test]
async fn garbage_and_frames_before_the_hello_are_closed_and_counted() {
    let world = World::new(Kind::Tcp).await;
    let room = RoomId::from_random(7);
    let garbage = [
        vec![0xa5; 4096],
        b"GET / HTTP/1.1\r\nHost: innkeeper.example\r\n\r\n".to_vec(),
    ];
    for bytes in garbage.into_iter().chain([Body::Started.frame(room, Epoch(1))]) {
        let mut stream = TcpStream::connect(&world.direct).await.unwrap();
        let _ = stream.write_all(&bytes).await;
        closed(&mut stream).await;
    }
    let stats = world.d.stats();
    assert_eq!(Stats::get(&stats.bad_frames), 3);
    until("no connection", || Stats::get(&stats.connections_in) == 0).await;
}

#[tokio::test]
async fn a_flood_of_mute_connections_is_bounded_and_the_honest_get_through() {
    let few = Config {
        max_pending_hellos: 4,
        ..config()
    };
    let mut world = World::with(Kind::Tcp, config(), few).await;
    let mut flood = Vec::new();
    for _ in 0..40 {
        flood.push(TcpStream::connect(&world.direct).await.unwrap());
    }
    let stats = world.d.stats();
    until("evictions", || Stats::get(&stats.refused_connections) >= 36).await;
    assert!(Stats::get(&stats.connections_in) <= 4);
    Room::new(&[1000]).finish(&mut world, 1).await;
}

#[tokio::test]
async fn too_many_connections_are_closed_at_once() {
    let few = Config {
        max_connections: 2,
        ..config()
    };
    let world = World::with(Kind::Tcp, config(), few).await;
    let one = TcpStream::connect(&world.direct).await.unwrap();
    let two = TcpStream::connect(&world.direct).await.unwrap();
    let stats = world.d.stats();
    until("two", || Stats::get(&stats.connections_in) == 2).await;
    let mut three = TcpStream::connect(&world.direct).await.unwrap();
    closed(&mut three).await;
    assert_eq!(Stats::get(&stats.connections_in), 2);
    drop((one, two));
}

#[tokio::test]
async fn a_slow_hello_is_closed_at_its_deadline() {
    let hasty = Config {
        hello_timeout: Duration::from_millis(100),
        ..config()
    };
    let world = World::with(Kind::Tcp, config(), hasty).await;
    let mut stream = TcpStream::connect(&world.direct).await.unwrap();
    stream
        .write_all(&hello(RoomId::from_random(7), Epoch(1))[..50])
        .await
        .unwrap();
    closed(&mut stream).await;
    assert_eq!(Stats::get(&world.d.stats().refused_connections), 1);
}

/// Says hello as room 7, epoch 2, is told Ready, and sends `frames`; D's events after that.
async fn after_ready(world: &mut World, room: &Room, frames: &[u8]) -> Vec<RecvEvent> {
    let mut stream = TcpStream::connect(&world.direct).await.unwrap();
    stream
        .write_all(&hello(RoomId::from_random(7), Epoch(2)))
        .await
        .unwrap();
    let mut d = world.host().await;
    room.ready(&d);
    let mut ready = vec![0; 48];
    within("Ready", stream.read_exact(&mut ready)).await.unwrap();
    let _ = stream.write_all(frames).await;
    let events = d.rest().await;
    closed(&mut stream).await;
    events
}

#[tokio::test]
async fn frames_of_another_epoch_or_room_change_nothing_and_are_counted() {
    let mut world = World::new(Kind::Tcp).await;
    let strangers = [(7, 1), (7, 3), (8, 2)];
    for (count, (id, epoch)) in (1..).zip(strangers) {
        let room = Room::new(&[100]);
        let frame = slab(RoomId::from_random(id), Epoch(epoch), 0, &[1; 100]);
        let events = after_ready(&mut world, &room, &frame).await;
        assert!(
            matches!(events[..], [RecvEvent::Broken { .. }, RecvEvent::Quiesced]),
            "{events:?}"
        );
        assert_eq!(Stats::get(&world.d.stats().fenced_frames), count);
        assert_eq!(room.pages.writes.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test]
async fn frames_outside_of_the_room_or_out_of_turn_are_refused() {
    let mut world = World::new(Kind::Tcp).await;
    let id = RoomId::from_random(7);
    let (epoch, again) = (Epoch(2), hello(id, Epoch(2)));
    let manifest = Header {
        kind: FrameKind::Manifest,
        room: id,
        epoch,
        slab: 4,
        offset: 0,
        length: 4,
    };
    let frames = [
        slab(id, epoch, 90, &[1; 11]),
        slab(id, epoch, u32::MAX, &[1; 2]),
        [&manifest.encode(&[0; 4])[..], &[0; 4]].concat(),
        again,
        Body::Committed.frame(id, epoch),
    ];
    for frame in frames {
        let room = Room::new(&[100]);
        let events = after_ready(&mut world, &room, &frame).await;
        assert!(
            matches!(events[..], [RecvEvent::Broken { .. }, RecvEvent::Quiesced]),
            "{events:?}"
        );
        assert_eq!(room.pages.writes.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test]
async fn slab_bytes_before_ready_are_refused() {
    let mut world = World::new(Kind::Tcp).await;
    let id = RoomId::from_random(7);
    let mut stream = TcpStream::connect(&world.direct).await.unwrap();
    let bytes = [hello(id, Epoch(1)), slab(id, Epoch(1), 0, &[1; 10])].concat();
    stream.write_all(&bytes).await.unwrap();
    let mut d = world.host().await;
    assert!(matches!(
        d.rest().await[..],
        [RecvEvent::Broken { .. }, RecvEvent::Quiesced]
    ));
}

#[tokio::test]
async fn an_answer_of_another_epoch_breaks_the_session() {
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = World::new(Kind::Tcp).await;
    let room = Room::new(&[100]);
    let mut p = world.dial_at(&socket.local_addr().unwrap().to_string(), 7, 2, &room.source);
    let (mut stream, _) = within("a connection", socket.accept()).await.unwrap();
    stream
        .write_all(
            &Body::Ready {
                verified: 0,
                runs: vec![],
            }
            .frame(RoomId::from_random(7), Epoch(1)),
        )
        .await
        .unwrap();
    assert!(matches!(p.edge().await, SendEvent::Broken { refused: false, .. }));
    assert_eq!(p.edge().await, SendEvent::Quiesced);
    assert_eq!(Stats::get(&world.p.stats().fenced_frames), 1);
}

#[tokio::test]
async fn a_peer_that_took_the_bytes_is_not_unacknowledged() {
    let mut world = World::new(Kind::Tcp).await;
    let room = Room::new(&[100]);
    let p = world.dial(1, &room.source);
    let d = world.host().await;
    d.session.reply(HelloReply::Wait, None);
    assert!(!p.session.unacked());
}
