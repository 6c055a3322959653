//! The data plane over TLS: who gets in, what a reader of the network sees, what strangers cost. What every backend owes is in
//! the conformance suite, which runs over TLS too.

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

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use innkeeper_room::{Epoch, HelloReply, Incarnation, RoomId};
use innkeeper_transfer::frame::{Body, HEADER, HelloBody};
use innkeeper_transfer::tls::throwaway::{NAME, Throwaway};
use innkeeper_transfer::tls::{HandshakeError, Tls};
use innkeeper_transfer::{Config, RecvEvent, SendEvent, Stats};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn throwaway() -> Throwaway {
    Throwaway::new(NAME).unwrap()
}

fn of(shown: &Throwaway, trusted: &Throwaway) -> Arc<Tls> {
    Arc::new(shown.tls(trusted).unwrap())
}

async fn world(p: Option<Arc<Tls>>, d: Option<Arc<Tls>>) -> World {
    World::over(Kind::Tls, config(), config(), [p, d]).await
}

/// How P's session ends that gets nowhere: why, and whether it counts as refused.
async fn turned_away(world: &World) -> (String, bool) {
    let room = Room::new(&[1000]);
    let began = Instant::now();
    let mut p = world.dial_at(&world.direct, 7, 1, &room.source);
    p.send_all(&room.source);
    let SendEvent::Broken { why, refused, .. } = p.edge().await else {
        panic!("it was let in");
    };
    assert_eq!(p.edge().await, SendEvent::Quiesced);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}: {why}", began.elapsed());
    (why, refused)
}

#[tokio::test]
async fn ends_that_do_not_both_speak_tls_say_so_at_once() {
    let tls = node_tls();
    for (p, d) in [(Some(Arc::clone(&tls)), None), (None, Some(tls))] {
        let world = world(p, d).await;
        let (why, refused) = turned_away(&world).await;
        assert!(refused && why.contains("TLS") && why.contains("--node-cert"), "{why}");
        let stats = world.d.stats();
        until("it is counted", || Stats::get(&stats.refused_connections) == 1).await;
        until("no connection", || Stats::get(&stats.connections_in) == 0).await;
    }
}

#[tokio::test]
async fn who_has_no_certificate_of_a_node_is_turned_away_on_either_side() {
    let (own, other, web) = (throwaway(), throwaway(), Throwaway::new("www.example.org").unwrap());
    let wrong = [
        // Who is called is not trusted; who calls is not; and is, but is no node.
        (of(&own, &own), of(&other, &own), "refused"),
        (of(&other, &own), of(&own, &own), "refuses"),
        (of(&web, &own), of(&own, &web), "closed"),
        (of(&own, &web), of(&web, &own), "refused"),
    ];
    for (p, d, said) in wrong {
        let mut world = world(Some(p), Some(d)).await;
        let (why, refused) = turned_away(&world).await;
        assert!(why.contains(said), "{said}: {why}");
        // One that came through its handshake hears only that it is closed.
        assert_eq!(refused, said != "closed", "{why}");
        let stats = world.d.stats();
        until("it is counted", || Stats::get(&stats.refused_connections) == 1).await;
        assert!(world.no_hello(), "nothing of it got in");
    }
}

#[tokio::test]
async fn without_a_certificate_and_as_another_protocol_nobody_gets_in() {
    let own = throwaway();
    let mut world = world(Some(of(&own, &own)), Some(of(&own, &own))).await;
    let (with, _) = own.configurations(&own).unwrap();
    let mut another = with.clone();
    another.alpn_protocols = vec![b"h2".to_vec()];
    let mut mute = with.clone();
    mute.alpn_protocols = vec![];
    let mut anonymous = with.clone();
    anonymous.alpn_protocols = vec![innkeeper_transfer::tls::PROTOCOL.to_vec()];
    anonymous.client_auth_cert_resolver = Arc::new(NoCertificate);
    for config in [another, mute, anonymous] {
        let stream = TcpStream::connect(&world.direct).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let connected = within("a handshake", connector.connect(NAME.try_into().unwrap(), stream)).await;
        if let Ok(mut stream) = connected {
            // It may have been closed already.
            drop(stream.write_all(&hello(7)).await);
            let mut said = Vec::new();
            drop(within("the close", stream.read_to_end(&mut said)).await);
            assert_eq!(said, [], "no word of a data plane");
        }
    }
    assert!(world.no_hello());
    Room::new(&[1000]).finish(&mut world, 1).await;
}

#[derive(Debug)]
struct NoCertificate;

impl rustls::client::ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

fn hello(room: u64) -> Vec<u8> {
    let body = HelloBody {
        token: TOKEN,
        prefill: Incarnation::new(1),
        decode: Incarnation::new(2),
    };
    Body::Hello(body).frame(RoomId::from_random(room), Epoch(1))
}

#[tokio::test]
async fn certificates_are_replaced_between_rooms_and_connections_that_stand_go_on() {
    let (old, new) = (throwaway(), throwaway());
    let (p, d) = (of(&old, &old), of(&old, &old));
    let mut world = World::over(
        Kind::Tls,
        config(),
        config(),
        [Some(Arc::clone(&p)), Some(Arc::clone(&d))],
    )
    .await;
    let replace = |tls: &Tls| {
        let (client, server) = new.configurations(&new).unwrap();
        tls.replace(client, server);
    };
    let room = Room::new(&[1_000_000]);
    let mut standing = world.dial(1, &room.source);
    let mut hosted = world.host().await;
    replace(&d);
    // P has not got the new files yet.
    let (why, refused) = turned_away(&world).await;
    assert!(refused, "{why}");
    replace(&p);
    Room::new(&[1000]).finish(&mut world, 1).await;

    room.ready(&hosted);
    standing.send_all(&room.source);
    assert_eq!(hosted.edge().await, RecvEvent::Started);
    assert!(matches!(hosted.edge().await, RecvEvent::Complete(_)));
    hosted.session.committed();
    assert!(standing.rest().await.contains(&SendEvent::Committed));
}

/// What a network between the ends does to the bytes towards D, and what it has read.
#[derive(Clone, Default)]
struct Wire {
    seen: Arc<Mutex<Vec<u8>>>,
    /// After so many bytes nothing more passes, and both ends see a clean close of TCP.
    close_after: Option<usize>,
    /// This byte is changed.
    flip: Option<usize>,
}

impl Wire {
    /// Where to call instead of `target`. One connection.
    async fn before(self, target: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, target) = (listener.local_addr().unwrap(), target.to_owned());
        tokio::spawn(async move {
            let (from, _) = listener.accept().await.unwrap();
            let to = TcpStream::connect(target).await.unwrap();
            let ((mut from_p, mut to_p), (mut from_d, mut to_d)) = (from.into_split(), to.into_split());
            let back = tokio::io::copy(&mut from_d, &mut to_p);
            tokio::select! {
                () = self.onward(&mut from_p, &mut to_d) => {}
                _ = back => {}
            }
            let _ = to_d.shutdown().await;
            let _ = to_p.shutdown().await;
            // Reads on: closing with unread bytes would be a reset.
            let mut scrap = [0; 4096];
            while let Ok(1..) = from_p.read(&mut scrap).await {}
            while let Ok(1..) = from_d.read(&mut scrap).await {}
        });
        addr.to_string()
    }

    async fn onward(&self, from: &mut (impl AsyncReadExt + Unpin), to: &mut (impl AsyncWriteExt + Unpin)) {
        let mut piece = [0; 16_384];
        while let Ok(got @ 1..) = from.read(&mut piece).await {
            let before = self.seen.lock().unwrap().len();
            let pass = self
                .close_after
                .map_or(got, |after| after.saturating_sub(before).min(got));
            if let Some(at) = self
                .flip
                .and_then(|flip| flip.checked_sub(before))
                .filter(|at| *at < got)
            {
                piece[at] ^= 1;
            }
            self.seen.lock().unwrap().extend_from_slice(&piece[..got]);
            if to.write_all(&piece[..pass]).await.is_err() || pass < got {
                return;
            }
        }
    }
}

fn contains(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|window| window == part)
}

#[tokio::test]
async fn a_reader_of_the_network_sees_no_kv_no_token_of_the_room_and_no_answer() {
    for kind in [Kind::Tcp, Kind::Tls] {
        let mut world = World::new(kind).await;
        let wire = Wire::default();
        let addr = wire.clone().before(&world.direct).await;
        let room = Room::new(&[300_000]);
        let mut p = world.dial_at(&addr, 7, 1, &room.source);
        let mut d = world.host().await;
        room.ready(&d);
        p.send_all(&room.source);
        assert_eq!(d.edge().await, RecvEvent::Started);
        assert!(matches!(d.edge().await, RecvEvent::Complete(_)));
        d.session.committed();
        assert!(p.rest().await.contains(&SendEvent::Committed));
        let seen = wire.seen.lock().unwrap();
        assert!(seen.len() > 300_000);
        let slab = &room.source.slabs[0][100_000..100_032];
        let token = TOKEN.to_le_bytes();
        for secret in [slab, &token[..], &b"IKV1"[..]] {
            assert_eq!(contains(&seen, secret), kind == Kind::Tcp, "{kind:?} {secret:?}");
        }
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_short_or_changed_is_broken_and_the_next_epoch_makes_it_good() {
    let whole = {
        let mut world = World::new(Kind::Tls).await;
        let wire = Wire::default();
        let addr = wire.clone().before(&world.direct).await;
        transfer(&mut world, &addr, &Room::new(&[100_000; 3])).await;
        wire.seen.lock().unwrap().len()
    };
    assert!(whole > 300_000);
    for at in (0..12).map(|step| 1500 + step * (whole - 4000) / 12) {
        let cut = Wire {
            close_after: Some(at),
            ..Wire::default()
        };
        let changed = Wire {
            flip: Some(at),
            ..Wire::default()
        };
        for wire in [cut, changed] {
            let mut world = World::new(Kind::Tls).await;
            let room = Room::new(&[100_000; 3]);
            let addr = wire.before(&world.direct).await;
            let (p, d) = transfer(&mut world, &addr, &room).await;
            assert!(
                p.iter().any(|event| matches!(event, SendEvent::Broken { .. })),
                "at {at}: {p:?}"
            );
            assert!(
                !d.iter()
                    .any(|event| matches!(event, RecvEvent::Complete(_) | RecvEvent::Corrupt(_))),
                "at {at}: {d:?}"
            );
            room.finish(&mut world, 2).await;
        }
    }
}

/// Moves a room, as far as it comes, and ends it: what both heard.
async fn transfer(world: &mut World, addr: &str, room: &Room) -> (Vec<SendEvent>, Vec<RecvEvent>) {
    let mut p = world.dial_at(addr, 7, 1, &room.source);
    p.send_all(&room.source);
    let mut heard = vec![];
    let mut d = tokio::select! {
        d = world.host() => d,
        // It may be over before its hello.
        all = p.rest() => return (all, vec![]),
    };
    room.ready(&d);
    loop {
        let event = d.next().await;
        let over = matches!(event, RecvEvent::Complete(_) | RecvEvent::Broken { .. });
        heard.push(event);
        if over {
            break;
        }
    }
    d.session.committed();
    heard.extend(d.rest().await);
    (p.rest().await, heard)
}

/// The first bytes of a true handshake.
async fn client_hello() -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let tls = node_tls();
    let calling = async {
        let stream = TcpStream::connect(addr).await.unwrap();
        drop(tls.connect(stream).await);
    };
    let hearing = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = vec![0; 4096];
        let got = stream.read(&mut bytes).await.unwrap();
        bytes.truncate(got);
        bytes
    };
    within("a client's first words", async { tokio::join!(calling, hearing) })
        .await
        .1
}

#[tokio::test]
async fn handshakes_that_are_never_finished_are_bounded_in_number_and_time() {
    let few = Config {
        max_pending_hellos: 4,
        hello_timeout: Duration::from_secs(2),
        ..config()
    };
    let tls = Some(node_tls());
    let mut world = World::over(Kind::Tls, config(), few, [tls.clone(), tls]).await;
    let first = client_hello().await;
    let stats = world.d.stats();
    let mut flood = vec![];
    for said in [0, 1, 5, first.len() / 2, first.len()].into_iter().cycle().take(40) {
        let mut stream = TcpStream::connect(&world.direct).await.unwrap();
        // It may be thrown out meanwhile.
        drop(stream.write_all(&first[..said]).await);
        flood.push(stream);
    }
    until("evictions", || Stats::get(&stats.refused_connections) >= 36).await;
    assert!(Stats::get(&stats.connections_in) <= 4);
    Room::new(&[1000]).finish(&mut world, 1).await;
    until("the rest are closed", || Stats::get(&stats.connections_in) == 0).await;
    assert_eq!(Stats::get(&stats.refused_connections), 40);
    for mut stream in flood {
        let mut scrap = vec![];
        // A reset is an end as well.
        drop(within("the close", stream.read_to_end(&mut scrap)).await);
    }
}

/// One that sends byte by byte gets no more time than one that is silent.
#[tokio::test]
async fn a_handshake_in_drops_ends_at_the_deadline() {
    let hasty = Config {
        hello_timeout: Duration::from_millis(300),
        ..config()
    };
    let tls = Some(node_tls());
    let world = World::over(Kind::Tls, config(), hasty, [tls.clone(), tls]).await;
    let first = client_hello().await;
    let mut stream = TcpStream::connect(&world.direct).await.unwrap();
    let began = Instant::now();
    let dripping = async {
        for byte in first {
            if stream.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut scrap = vec![];
        drop(stream.read_to_end(&mut scrap).await);
    };
    within("the close", dripping).await;
    assert_eq!(Stats::get(&world.d.stats().refused_connections), 1);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test]
async fn garbage_is_closed_and_leaves_nothing_behind() {
    let mut world = World::new(Kind::Tls).await;
    let first = client_hello().await;
    let mut torn = first.clone();
    torn[40] ^= 0xff;
    torn.extend_from_slice(&[0x17; 300]);
    let garbage = [
        vec![0xa5; 4096],
        b"GET / HTTP/1.1\r\nHost: innkeeper.example\r\n\r\n".to_vec(),
        hello(7),
        vec![0x16, 3, 1, 0xff, 0xff],
        [first.clone(), first].concat(),
        torn,
    ];
    let count = garbage.len() as u64;
    for bytes in garbage {
        let mut stream = TcpStream::connect(&world.direct).await.unwrap();
        drop(stream.write_all(&bytes).await);
        let mut said = vec![];
        drop(stream.shutdown().await);
        drop(within("the close", stream.read_to_end(&mut said)).await);
        assert!(!contains(&said, b"IKV1"), "{said:?}");
    }
    let stats = world.d.stats();
    until("all are counted", || Stats::get(&stats.refused_connections) == count).await;
    until("no connection", || Stats::get(&stats.connections_in) == 0).await;
    assert!(world.no_hello());
    Room::new(&[1000]).finish(&mut world, 1).await;
}

#[tokio::test]
async fn a_peer_that_takes_connections_and_shakes_no_hand_is_given_up_in_the_connect_timeout() {
    let hasty = Config {
        connect_timeout: Duration::from_millis(200),
        ..config()
    };
    let tls = Some(node_tls());
    let world = World::over(Kind::Tls, hasty, config(), [tls.clone(), tls]).await;
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let room = Room::new(&[1000]);
    let mut p = world.dial_at(&mute.local_addr().unwrap().to_string(), 7, 1, &room.source);
    let SendEvent::Broken { why, refused: true, .. } = p.edge().await else {
        panic!("it was never established");
    };
    assert!(why.contains("handshake within 200ms"), "{why}");
    assert_eq!(p.edge().await, SendEvent::Quiesced);
    assert_eq!(Stats::get(&world.p.stats().connections_out), 0);
}

/// A kill in the midst of a frame: no goodbye, and the peer sees a broken connection.
#[tokio::test]
async fn a_kill_is_no_clean_end() {
    let mut world = World::new(Kind::Tls).await;
    let room = Room::new(&[4_000_000; 4]);
    let mut p = world.dial_at(&world.direct, 7, 1, &room.source);
    let mut d = world.host().await;
    room.ready(&d);
    p.send_all(&room.source);
    until("bytes in flight", || room.coverage.verified_bytes() > 0).await;
    p.session.kill();
    p.rest().await;
    let heard = d.rest().await;
    assert!(
        heard.iter().any(|event| matches!(event, RecvEvent::Broken { .. })),
        "{heard:?}"
    );
}

/// Through TLS the kernel still tells what the peer's has not acknowledged.
#[tokio::test]
async fn a_peer_that_took_the_bytes_is_not_unacknowledged() {
    let mut world = World::new(Kind::Tls).await;
    let room = Room::new(&[100]);
    let mut p = world.dial(1, &room.source);
    let d = world.host().await;
    d.session.reply(HelloReply::Wait, None);
    assert_eq!(p.edge().await, SendEvent::Reply(HelloReply::Wait));
    assert!(!p.session.unacked());
}

#[tokio::test]
async fn the_tests_that_make_writes_fail_do_so_through_tls() {
    let p_config = config();
    let tls = Some(node_tls());
    let mut world = World::over(Kind::Tls, p_config.clone(), config(), [tls.clone(), tls]).await;
    let room = Room::new(&[1_000_000]);
    let mut p = world.dial(1, &room.source);
    let d = world.host().await;
    room.ready(&d);
    assert_eq!(p.edge().await, SendEvent::Reply(HelloReply::Ready));
    p_config.sabotage.fail_write(3);
    p.send_all(&room.source);
    let ends = p.rest().await;
    assert!(
        ends.iter().any(
            |event| matches!(event, SendEvent::Broken { why, refused: false, .. } if why.contains("told to fail"))
        ),
        "{ends:?}"
    );
    room.finish(&mut world, 2).await;
}

#[test]
fn a_handshake_that_fails_says_what_to_do() {
    for error in [
        HandshakeError::Refused(String::new()),
        HandshakeError::NotTls(String::new()),
        HandshakeError::Ended(String::new()),
    ] {
        assert!(error.to_string().contains("--node-cert"), "{error}");
    }
    assert_eq!(HEADER, 40, "shorter than any first word of TLS");
}
