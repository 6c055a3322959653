use std::time::Instant;

use innkeeper_actors::ports::{LinkItem, Links, NodeEvent, NodeQuestion};
use innkeeper_proto::v1;
use innkeeper_proto::v1::worker_client::WorkerClient;
use innkeeper_room::ledger::router::Load;
use innkeeper_room::{Evidence, FromWorker, Millis, PartEnd, Reason, RoomId, Settings, ToWorker};

use super::harness::*;
use crate::convert::{RouterSays, Wire};
use crate::grpc::channel;
use crate::net::Connections;

fn fast() -> Settings {
    Settings::from_ttl(Millis(1000))
}

fn the_end() -> FromWorker {
    FromWorker::Ended {
        end: PartEnd::Failed(Reason::Aborted),
        evidence: Evidence::default(),
        relayed: false,
    }
}

#[tokio::test]
async fn messages_keep_their_order_and_an_abort_never_overtakes_its_open() {
    let settings = fast();
    let mut served = Served::start(&settings, any_port()).await;
    let (links, tasks) = links(&settings);
    // All of it is said before there is a connection.
    let mut link = links.open(&target(served.addr), an_open(7));
    for position in 1..100 {
        link.to.try_send(ToWorker::Taken(position)).unwrap();
    }
    link.to.try_send(ToWorker::Abort(Reason::Aborted)).unwrap();
    let mut room = served.room().await;
    assert_eq!(room.open.spec, an_open(7).spec);
    for position in 1..100 {
        assert_eq!(room.hears().await, Heard::Says(ToWorker::Taken(position)));
    }
    assert_eq!(room.hears().await, Heard::Says(ToWorker::Abort(Reason::Aborted)));

    room.says(FromWorker::Admitted {
        data_addr: "d:1".into(),
        token: 9,
    });
    for position in 0..500 {
        room.token(position);
    }
    room.says(the_end());
    drop(room.say);
    let LinkItem::Says(first) = says(&mut link).await else {
        panic!("Admitted comes first")
    };
    assert_eq!(
        first.message,
        FromWorker::Admitted {
            data_addr: "d:1".into(),
            token: 9
        }
    );
    for expected in 0..500 {
        let LinkItem::Says(says) = says(&mut link).await else {
            panic!("token {expected} comes next")
        };
        assert_eq!(
            (says.message, says.tokens[0].id),
            (
                FromWorker::Tokens {
                    position: expected,
                    count: 1
                },
                expected
            )
        );
    }
    let LinkItem::Says(last) = says(&mut link).await else {
        panic!("the part's end comes last")
    };
    assert_eq!(last.message, the_end());
    assert!(!ended(&mut link).await.0);
    drop(link);
    until("no task is left", || {
        tasks.live("room_link") == 0 && served.tasks.live("room_stream") == 0
    })
    .await;
}

#[tokio::test]
async fn a_half_close_is_heard_and_the_stream_is_reset_after_the_grace() {
    let settings = fast();
    let mut served = Served::start(&settings, any_port()).await;
    let (links, _tasks) = links(&settings);
    let mut link = links.open(&target(served.addr), an_open(7));
    let mut room = served.room().await;
    let began = Instant::now();
    // R drops its sender and listens on; the room never ends by itself.
    let (to, _) = tokio::sync::mpsc::channel(1);
    drop(std::mem::replace(&mut link.to, to));
    assert_eq!(room.hears().await, Heard::Ended);
    assert!(!ended(&mut link).await.0);
    assert!(began.elapsed() >= settings.grace.duration(), "{:?}", began.elapsed());
    until("no task is left", || served.tasks.live("room_stream") == 0).await;
}

#[tokio::test]
async fn what_the_room_says_after_a_half_close_still_arrives() {
    let settings = fast();
    let mut served = Served::start(&settings, any_port()).await;
    let (links, _tasks) = links(&settings);
    let mut link = links.open(&target(served.addr), an_open(7));
    let mut room = served.room().await;
    let (to, _) = tokio::sync::mpsc::channel(1);
    drop(std::mem::replace(&mut link.to, to));
    assert_eq!(room.hears().await, Heard::Ended);
    room.says(the_end());
    drop(room.say);
    assert!(matches!(says(&mut link).await, LinkItem::Says(says) if says.message == the_end()));
    assert!(!ended(&mut link).await.0);
}

#[tokio::test]
async fn the_worker_goes_on_hearing_after_its_own_end() {
    let settings = fast();
    let mut served = Served::start(&settings, any_port()).await;
    let (links, _tasks) = links(&settings);
    let link = links.open(&target(served.addr), an_open(7));
    let mut room = served.room().await;
    room.says(the_end());
    let (unused, _) = tokio::sync::mpsc::unbounded_channel();
    drop(std::mem::replace(&mut room.say, unused));
    link.to
        .send(ToWorker::Verdict(innkeeper_room::Verdict::Done))
        .await
        .unwrap();
    assert_eq!(
        room.hears().await,
        Heard::Says(ToWorker::Verdict(innkeeper_room::Verdict::Done))
    );
    drop(link);
    assert_eq!(room.hears().await, Heard::Ended);
}

#[tokio::test]
async fn a_cut_connection_is_broken_on_both_sides() {
    let settings = fast();
    let mut served = Served::start(&settings, any_port()).await;
    let proxy = Proxy::start(served.addr).await;
    let (links, _tasks) = links(&settings);
    let mut link = links.open(&target(proxy.addr), an_open(7));
    let mut room = served.room().await;
    proxy.cut().await;
    let (broken, why) = ended(&mut link).await;
    assert!(broken, "{why}");
    assert_eq!(room.hears().await, Heard::Ended);
}

#[tokio::test]
async fn a_server_that_breaks_its_connections_is_broken() {
    let settings = fast();
    let mut served = Served::start(&settings, any_port()).await;
    let (links, _tasks) = links(&settings);
    let mut link = links.open(&target(served.addr), an_open(7));
    let mut room = served.room().await;
    served.connections.break_all();
    let (broken, why) = ended(&mut link).await;
    assert!(broken, "{why}");
    assert_eq!(room.hears().await, Heard::Ended);
}

#[tokio::test]
async fn a_stopped_peer_is_seen_by_pings_on_both_sides() {
    let settings = fast();
    let mut served = Served::start(&settings, any_port()).await;
    let proxy = Proxy::start(served.addr).await;
    let (links, _tasks) = links(&settings);
    let mut link = links.open(&target(proxy.addr), an_open(7));
    let mut room = served.room().await;
    proxy.silent.cancel();
    let began = Instant::now();
    let (broken, why) = ended(&mut link).await;
    assert!(broken, "{why}");
    assert_eq!(room.hears().await, Heard::Ended);
    let bound = (settings.ping_interval + settings.ping_timeout).duration();
    assert!(
        began.elapsed() < bound + std::time::Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
}

/// A worker that refuses a stream is alive: R must not accuse it of a broken connection.
#[tokio::test]
async fn a_stream_that_is_reset_is_not_a_broken_connection() {
    let settings = fast();
    let listener = tokio::net::TcpListener::bind(any_port()).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (links, tasks) = links(&settings);
    let refuse_all = async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        }
    };
    tasks.spawn("server", refuse_all).unwrap();
    for room in 1..3 {
        let (broken, why) = ended(&mut links.open(&target(addr), an_open(room))).await;
        assert!(!broken, "{why}");
    }
    assert_eq!(links.connections().count().1, 1);
}

#[tokio::test]
async fn who_cannot_be_reached_is_broken() {
    let settings = fast();
    let (links, _tasks) = links(&settings);
    let free = tokio::net::TcpListener::bind(any_port())
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let (broken, why) = ended(&mut links.open(&target(free), an_open(7))).await;
    assert!(broken && why.contains("refused"), "{why}");
    // Accepts, and never says a word.
    let mute = tokio::net::TcpListener::bind(any_port()).await.unwrap();
    let began = Instant::now();
    let (broken, why) = ended(&mut links.open(&target(mute.local_addr().unwrap()), an_open(8))).await;
    assert!(broken, "{why}");
    assert!(
        began.elapsed() < settings.progress_ttl.duration(),
        "{:?}",
        began.elapsed()
    );
    let nonsense = innkeeper_actors::ports::Target {
        incarnation: WORKER,
        control: "no address".into(),
    };
    assert!(ended(&mut links.open(&nonsense, an_open(9))).await.0);
}

#[tokio::test]
async fn a_hundred_rooms_share_a_connection_and_one_that_is_not_read_harms_none() {
    const ROOMS: u64 = 100;
    const TOKENS: u32 = 200;
    let settings = Settings {
        // Twenty thousand messages on one thread: a ping may have to wait for them, on a busy machine for long.
        ping_timeout: Millis(20_000),
        ..fast()
    };
    let mut served = Served::start(&settings, any_port()).await;
    let (links, tasks) = links(&settings);
    let unread = links.open(&target(served.addr), an_open(1000));
    let unread_room = served.room().await;
    let mut opened: Vec<_> = (1..=ROOMS)
        .map(|room| links.open(&target(served.addr), an_open(room)))
        .collect();
    let mut rooms = Vec::new();
    for _ in 0..ROOMS {
        rooms.push(served.room().await);
    }
    for position in 0..2000 {
        unread_room.token(position);
    }
    for position in 0..TOKENS {
        rooms.iter().for_each(|room| room.token(position));
    }
    rooms.clear();
    for link in &mut opened {
        for position in 0..TOKENS {
            let LinkItem::Says(says) = says(link).await else {
                panic!("{position} is missing")
            };
            assert_eq!(says.tokens[0].id, position);
        }
        let (broken, why) = ended(link).await;
        assert!(!broken, "{why}");
    }
    assert_eq!(links.connections().count().1, 1);
    assert!(tasks.live("room_link") >= 1, "the unread one goes on");
    drop((unread, unread_room));
    drop(opened);
    until("no task is left", || {
        tasks.live("room_link") == 0 && served.tasks.live("room_stream") == 0
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_breaks_the_rules_is_refused() {
    let settings = fast();
    let mut served = Served::start(&settings, any_port()).await;
    let connections = Connections::new("test", 4);
    let mut client = WorkerClient::new(channel(&served.addr.to_string(), &settings, &connections, None).unwrap());
    let first = ToWorker::Live.to_wire();
    let mut answers = client.room(tokio_stream::iter([first])).await.unwrap().into_inner();
    assert_eq!(
        answers.message().await.unwrap_err().code(),
        tonic::Code::InvalidArgument
    );

    let open = RouterSays::Open(Box::new(an_open(3))).to_wire();
    let (send, messages) = tokio::sync::mpsc::channel(4);
    let messages = tokio_stream::wrappers::ReceiverStream::new(messages);
    send.send(open).await.unwrap();
    let mut answers = client.room(messages).await.unwrap().into_inner();
    let mut room = served.room().await;
    send.send(v1::RouterMessage { message: None }).await.unwrap();
    assert_eq!(room.hears().await, Heard::Ended);
    let status = soon("the refusal", answers.message()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert!(status.message().contains("missing"), "{status}");

    // Nothing at all is said.
    let mut answers = client.room(tokio_stream::pending()).await.unwrap().into_inner();
    assert_eq!(
        soon("the refusal", answers.message()).await.unwrap_err().code(),
        tonic::Code::DeadlineExceeded
    );
    drop(send);
}

#[tokio::test]
async fn the_node_stream_reports_answers_and_comes_back() {
    let settings = fast();
    let served = Served::start(&settings, any_port()).await;
    let addr = served.addr;
    let (links, tasks) = links(&settings);
    let mut node = links.node(&target(addr));
    let load = |free_pages| NodeEvent::Load {
        incarnation: WORKER,
        load: Load {
            free_pages,
            ..Load::default()
        },
    };
    assert_eq!(soon("the first report", node.events.recv()).await, Some(load(0)));
    // A report that says the same again is a report.
    served.worker.loads.send_replace(Load::default());
    assert_eq!(soon("an equal report", node.events.recv()).await, Some(load(0)));
    served.worker.loads.send_replace(Load {
        free_pages: 5,
        ..Load::default()
    });
    assert_eq!(soon("a report", node.events.recv()).await, Some(load(5)));
    node.ask.send(NodeQuestion::Who).await.unwrap();
    assert_eq!(
        soon("Identity", node.events.recv()).await,
        Some(NodeEvent::Identity { incarnation: WORKER })
    );
    let known = RoomId::from_random(KNOWN_ROOM);
    for (room, evidence) in [
        (
            known,
            Some(Evidence {
                waited: Millis(5),
                ..Evidence::default()
            }),
        ),
        (RoomId::from_random(78), None),
    ] {
        node.ask.send(NodeQuestion::Evidence(room)).await.unwrap();
        assert_eq!(
            soon("Evidence", node.events.recv()).await,
            Some(NodeEvent::Evidence { room, evidence })
        );
    }

    assert_eq!(served.tasks.shutdown(SOON).await, 0);
    let Some(NodeEvent::Down { .. }) = soon("Down", node.events.recv()).await else {
        panic!("Down comes next")
    };
    drop(served);
    let _again = Served::start(&settings, addr).await;
    let back = async { while !matches!(node.events.recv().await, Some(NodeEvent::Load { .. })) {} };
    soon("a report after the restart", back).await;
    drop(node);
    until("no task is left", || tasks.live("node_link") == 0).await;
}

#[tokio::test]
async fn a_worker_that_falls_silent_is_down() {
    let settings = fast();
    let served = Served::start(&settings, any_port()).await;
    let (links, _tasks) = links(&settings);
    let mut node = links.node(&target(served.addr));
    let Some(NodeEvent::Load { .. }) = soon("a report", node.events.recv()).await else {
        panic!("a report comes first")
    };
    // Its connection is fine, but its ledger reports no more.
    let began = Instant::now();
    let Some(NodeEvent::Down { why }) = soon("Down", node.events.recv()).await else {
        panic!("Down comes next")
    };
    assert!(why.contains("no report"), "{why}");
    assert!(began.elapsed() >= settings.progress_ttl.duration());
}

#[tokio::test]
async fn a_forgotten_worker_leaves_nothing() {
    let settings = fast();
    let mut served = Served::start(&settings, any_port()).await;
    let (links, tasks) = links(&settings);
    let mut link = links.open(&target(served.addr), an_open(7));
    let mut node = links.node(&target(served.addr));
    let mut room = served.room().await;
    links.forget(WORKER);
    assert!(!ended(&mut link).await.0);
    let nothing_more = async { while node.events.recv().await.is_some() {} };
    soon("the end of the events", nothing_more).await;
    assert_eq!(room.hears().await, Heard::Ended);
    until("no task is left", || {
        tasks.live("room_link") == 0 && tasks.live("node_link") == 0
    })
    .await;
    until("no connection is left", || {
        links.connections().count().1 == 0 && served.connections.count().1 == 0
    })
    .await;
    // After the shutdown there are no new links, and they say so.
    assert_eq!(tasks.shutdown(SOON).await, 0);
    assert!(!ended(&mut links.open(&target(served.addr), an_open(8))).await.0);
    assert_eq!(links.node(&target(served.addr)).events.recv().await, None);
}
