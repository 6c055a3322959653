//! What every backend owes, the same for all of them.

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

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use innkeeper_room::{Evidence, HelloReply, Millis, Owes, Reason, Ticket};
use innkeeper_transfer::fault::{Fault, Script, SeenBy, Toward, Which};
use innkeeper_transfer::frame::Kind as FrameKind;
use innkeeper_transfer::{Config, RecvEvent, SendEvent, Stats};
use support::*;

/// Three slabs: several frames, one frame, and a short one.
const LENS: [u32; 3] = [700_000, 262_144, 10_000];

fn evidence() -> Evidence {
    Evidence {
        waited_for: Owes::Decode,
        waited: Millis(77),
        ..Evidence::default()
    }
}

#[tokio::test]
async fn a_transfer_ends_complete_with_exact_bytes() {
    for kind in ALL {
        let mut world = World::new(kind).await;
        let room = Room::new(&LENS);
        room.finish(&mut world, 1).await;
        until("no connection", || Stats::get(&world.p.stats().connections_out) == 0).await;
        until("no connection", || Stats::get(&world.d.stats().connections_in) == 0).await;
    }
}

#[tokio::test]
async fn rooms_without_slabs_and_with_one_complete() {
    for kind in ALL {
        for lens in [vec![], vec![1], vec![4, 0, 4]] {
            let mut world = World::new(kind).await;
            Room::new(&lens).finish(&mut world, 1).await;
        }
    }
}

#[tokio::test]
async fn a_room_without_slabs_carries_a_ticket_and_its_connection_stays() {
    for kind in ALL {
        for len in [1, 700_000, Ticket::LONGEST] {
            let mut world = World::new(kind).await;
            let room = Room::new(&[]);
            let mut p = world.dial(1, &room.source);
            let mut d = world.host().await;
            room.ready(&d);
            let mut manifest = room.source.manifest();
            manifest.ticket = Ticket::new(vec![b'v'; len]).ok();
            p.session.manifest(manifest.clone());
            assert_eq!(d.edge().await, RecvEvent::Complete(manifest));
            // The engines read now; both workers can still speak.
            p.session.progress(5);
            while d.next().await != RecvEvent::PeerProgress(5) {}
            assert_eq!(p.edge().await, SendEvent::Reply(HelloReply::Ready));
            for answer in [Some(Millis(1234)), None] {
                // One at a time, however often it is asked.
                d.session.ask_lease_age();
                d.session.ask_lease_age();
                assert_eq!(p.edge().await, SendEvent::AsksLeaseAge);
                p.session.lease_age(answer);
                assert_eq!(d.edge().await, RecvEvent::LeaseAge(answer));
            }
            // And no third time.
            d.session.ask_lease_age();
            d.session.committed();
            until_committed(&mut p).await;
        }
    }
}

/// What a prefill worker cannot say it says too; and before D is ready there is nothing to ask for.
#[tokio::test]
async fn a_lease_whose_age_nobody_knows_is_answered_once_d_is_ready() {
    for kind in ALL {
        let mut world = World::new(kind).await;
        let room = Room::new(&[]);
        let mut p = world.dial(1, &room.source);
        let mut d = world.host().await;
        d.session.ask_lease_age();
        d.session.reply(HelloReply::Wait, None);
        assert_eq!(p.edge().await, SendEvent::Reply(HelloReply::Wait));
        room.ready(&d);
        assert_eq!(p.edge().await, SendEvent::Reply(HelloReply::Ready));
        assert_eq!(p.edge().await, SendEvent::AsksLeaseAge);
        p.session.lease_age(None);
        assert_eq!(d.edge().await, RecvEvent::LeaseAge(None));
        p.session.kill();
    }
}

/// P hears that D has committed.
async fn until_committed(p: &mut Dialed) {
    while p.edge().await != SendEvent::Committed {}
}

#[tokio::test]
async fn the_hello_arrives_as_it_was_said_and_wait_may_be_followed_by_ready() {
    for kind in ALL {
        let mut world = World::new(kind).await;
        let room = Room::new(&LENS);
        let mut p = world.dial(3, &room.source);
        let mut d = world.host().await;
        assert_eq!((d.hello.room.get(), d.hello.epoch.0, d.hello.token), (7, 3, TOKEN));
        assert_eq!((d.hello.prefill.get(), d.hello.decode.get()), (1, 2));
        d.session.reply(HelloReply::Wait, None);
        assert_eq!(p.edge().await, SendEvent::Reply(HelloReply::Wait));
        p.send_all(&room.source);
        assert_eq!(d.edge().await, RecvEvent::Started);
        assert_eq!(
            room.source.reads.load(Ordering::SeqCst),
            0,
            "nothing is sent before Ready"
        );
        room.ready(&d);
        assert_eq!(p.edge().await, SendEvent::Reply(HelloReply::Ready));
        assert!(matches!(d.edge().await, RecvEvent::Complete(_)));
        p.session.finish();
        assert_eq!(p.edge().await, SendEvent::Quiesced);
    }
}

#[tokio::test]
async fn counters_reach_both_ends() {
    for kind in ALL {
        let mut world = World::new(kind).await;
        let room = Room::new(&LENS);
        let mut p = world.dial(1, &room.source);
        let mut d = world.host().await;
        room.ready(&d);
        p.session.progress(41);
        p.send_all(&room.source);
        let (mut sent, mut verified) = (0, 0);
        while (sent, verified) != (room.source.bytes(), room.source.bytes()) {
            match p.next().await {
                SendEvent::Sent(bytes) => sent = bytes,
                SendEvent::Verified(bytes) => verified = bytes,
                other => assert_eq!(other, SendEvent::Reply(HelloReply::Ready)),
            }
        }
        p.session.progress(42);
        let mut engine = 0;
        let mut here = 0;
        while engine != 42 || here != room.source.bytes() {
            match d.next().await {
                RecvEvent::PeerProgress(count) => engine = count,
                RecvEvent::Verified(bytes) => here = bytes,
                other => assert!(matches!(other, RecvEvent::Started | RecvEvent::Complete(_))),
            }
        }
    }
}

#[tokio::test]
async fn the_next_epoch_sends_only_what_is_lacking() {
    for kind in ALL {
        let mut world = World::new(kind).await;
        let room = Room::new(&[200_000; 10]);
        let mut p = world.dial(1, &room.source);
        let mut d = world.host().await;
        room.ready(&d);
        for meta in &room.source.metas[..7] {
            p.session.submit(*meta);
        }
        until("seven slabs", || room.coverage.verified_bytes() == 1_400_000).await;
        d.session.kill();
        assert_eq!(d.edge().await, RecvEvent::Quiesced);
        assert_eq!(p.edge().await, SendEvent::Reply(HelloReply::Ready));
        assert!(matches!(p.edge().await, SendEvent::Broken { refused: false, .. }));
        assert_eq!(p.edge().await, SendEvent::Quiesced);
        let before = Stats::get(&world.p.stats().bytes_out);
        room.finish(&mut world, 2).await;
        let wire = Stats::get(&world.p.stats().bytes_out) - before;
        assert!(
            (600_000..602_000).contains(&wire),
            "{kind:?}: {wire} bytes for three slabs"
        );
    }
}

#[tokio::test]
async fn cut_anywhere_and_resumed_the_bytes_are_exact() {
    let whole = 980_000;
    for kind in ALL {
        for (step, seen_by) in (0..14).zip([SeenBy::Both, SeenBy::Prefill].into_iter().cycle()) {
            let mut world = World::new(kind).await;
            let room = Room::new(&LENS);
            let cut_at = 64 + step * whole / 14;
            world.faults.push(Script::cut(cut_at, seen_by));
            let mut p = world.dial(1, &room.source);
            let mut d = world.host().await;
            room.ready(&d);
            p.send_all(&room.source);
            let ends = p.rest().await;
            assert!(
                ends.iter()
                    .any(|event| matches!(event, SendEvent::Broken { refused: false, .. })),
                "{ends:?}"
            );
            // As D does when a higher epoch says hello: the connection before it is closed first.
            d.session.kill();
            d.rest().await;
            room.finish(&mut world, 2).await;
        }
    }
}

#[tokio::test]
async fn a_cut_that_only_d_sees_leaves_p_to_its_owner() {
    for kind in ALL {
        let mut world = World::new(kind).await;
        let room = Room::new(&[1_000_000; 8]);
        world.faults.push(Script::cut(500_000, SeenBy::Decode));
        let mut p = world.dial(1, &room.source);
        let mut d = world.host().await;
        room.ready(&d);
        p.send_all(&room.source);
        assert!(
            d.rest()
                .await
                .iter()
                .any(|event| matches!(event, RecvEvent::Broken { .. }))
        );
        assert_eq!(p.edge().await, SendEvent::Reply(HelloReply::Ready));
        p.session.kill();
        assert_eq!(p.edge().await, SendEvent::Quiesced);
        room.finish(&mut world, 2).await;
    }
}

#[tokio::test]
async fn a_flipped_byte_breaks_the_connection_and_completes_nothing() {
    for kind in ALL {
        for (frame, byte) in [(2, 10_000), (2, 25), (3, 30), (4, 17), (7, 50)] {
            let mut world = World::new(kind).await;
            let room = Room::new(&LENS);
            world
                .faults
                .push(Script::rule(Toward::Decode, Which::Nth(frame), Fault::Corrupt(byte)));
            let p = world.dial(1, &room.source);
            let mut d = world.host().await;
            room.ready(&d);
            p.send_all(&room.source);
            let events = d.rest().await;
            assert!(
                events.iter().any(|event| matches!(event, RecvEvent::Broken { .. })),
                "{frame}/{byte}: {events:?}"
            );
            assert!(
                !events
                    .iter()
                    .any(|event| matches!(event, RecvEvent::Complete(_) | RecvEvent::Corrupt(_)))
            );
            assert_eq!(Stats::get(&world.d.stats().bad_frames), 1);
            room.finish(&mut world, 2).await;
        }
    }
}

#[tokio::test]
async fn a_source_that_changed_after_the_seal_is_corrupt() {
    for kind in ALL {
        let mut world = World::new(kind).await;
        let room = Room::new(&LENS);
        room.source.lie.store(true, Ordering::SeqCst);
        let mut p = world.dial(1, &room.source);
        let mut d = world.host().await;
        room.ready(&d);
        p.send_all(&room.source);
        assert_eq!(d.edge().await, RecvEvent::Started);
        assert!(matches!(d.edge().await, RecvEvent::Corrupt(_)));
        d.session.fail(Reason::KvCorrupt, evidence());
        assert_eq!(p.edge().await, SendEvent::Reply(HelloReply::Ready));
        assert_eq!(p.edge().await, SendEvent::PeerFailed(Reason::KvCorrupt, evidence()));
        assert_eq!(p.edge().await, SendEvent::Quiesced);
        assert_eq!(d.edge().await, RecvEvent::Quiesced);
    }
}

#[tokio::test]
async fn a_manifest_of_other_slabs_is_corrupt() {
    for kind in ALL {
        for change in 0..3 {
            let mut world = World::new(kind).await;
            let room = Room::new(&LENS);
            let p = world.dial(1, &room.source);
            let mut d = world.host().await;
            room.ready(&d);
            for meta in &room.source.metas {
                p.session.submit(*meta);
            }
            let mut manifest = room.source.manifest();
            match change {
                0 => drop(manifest.slabs.pop()),
                1 => manifest.slabs[1].len -= 1,
                _ => manifest.slabs.swap(0, 1),
            }
            p.session.manifest(manifest);
            assert!(matches!(d.edge().await, RecvEvent::Corrupt(_)));
        }
    }
}

#[tokio::test]
async fn lost_repeated_and_swapped_frames_never_make_wrong_bytes() {
    for kind in ALL {
        for fault in [
            Fault::Drop,
            Fault::Duplicate,
            Fault::Swap,
            Fault::Delay(Duration::from_millis(20)),
        ] {
            for frame in 1..8 {
                let mut world = World::new(kind).await;
                let room = Room::new(&LENS);
                world
                    .faults
                    .push(Script::rule(Toward::Decode, Which::Nth(frame), fault));
                let p = world.dial(1, &room.source);
                let mut d = world.host().await;
                room.ready(&d);
                p.send_all(&room.source);
                let mut end = d.next().await;
                // A lost manifest is silence: its deadline is the owner's.
                let lost = (fault, frame) == (Fault::Drop, 7) || (fault, frame) == (Fault::Swap, 7);
                while !matches!(end, RecvEvent::Complete(_) | RecvEvent::Broken { .. }) {
                    assert!(!matches!(end, RecvEvent::Corrupt(_)));
                    if lost && end == RecvEvent::Verified(room.source.bytes()) {
                        break;
                    }
                    end = d.next().await;
                }
                if matches!(end, RecvEvent::Complete(_)) {
                    assert!(room.pages.equal(&room.source), "{fault:?} of frame {frame}");
                }
                d.session.kill();
                d.rest().await;
                room.finish(&mut world, 2).await;
            }
        }
    }
}

#[tokio::test]
async fn nothing_is_verified_behind_a_stalled_network_and_kill_is_prompt() {
    for kind in ALL {
        let mut world = World::new(kind).await;
        let room = Room::new(&[1_000_000; 8]);
        world
            .faults
            .push(Script::rule(Toward::Decode, Which::Nth(4), Fault::Stall));
        let mut p = world.dial(1, &room.source);
        let mut d = world.host().await;
        room.ready(&d);
        p.send_all(&room.source);
        until("three frames", || room.coverage.verified_bytes() == 2 * 262_144).await;
        let asked = tokio::time::Instant::now();
        p.session.kill();
        d.session.kill();
        p.rest().await;
        d.rest().await;
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        assert_eq!(room.coverage.verified_bytes(), 2 * 262_144);
        assert_eq!(Arc::strong_count(&room.source), 1, "the source is let go");
        assert_eq!(Arc::strong_count(&room.pages), 1, "the pages are let go");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_byte_is_written_after_quiesced() {
    for kind in ALL {
        for round in 0..10 {
            let mut world = World::new(kind).await;
            let room = Room::new(&[1_000_000; 24]);
            let p = world.dial(1, &room.source);
            let mut d = world.host().await;
            room.ready(&d);
            p.send_all(&room.source);
            until("some bytes", || room.coverage.verified_bytes() > round * 1_000_000).await;
            d.session.kill();
            d.rest().await;
            room.pages.closed.store(true, Ordering::SeqCst);
            let written = room.pages.writes.load(Ordering::SeqCst);
            until("P's end", || Stats::get(&world.p.stats().connections_out) == 0).await;
            assert_eq!(room.pages.writes.load(Ordering::SeqCst), written);
            assert_eq!(room.pages.foreign.load(Ordering::SeqCst), 0);
            assert_eq!(Arc::strong_count(&room.pages), 1);
        }
    }
}

#[tokio::test]
async fn a_permit_taken_back_stops_the_writes() {
    for kind in ALL {
        let mut world = World::new(kind).await;
        let room = Room::new(&LENS);
        room.pages.closed.store(true, Ordering::SeqCst);
        let p = world.dial(1, &room.source);
        let mut d = world.host().await;
        room.ready(&d);
        p.send_all(&room.source);
        let events = d.rest().await;
        assert!(events.iter().any(|event| matches!(event, RecvEvent::Broken { .. })));
        assert_eq!(room.coverage.verified_bytes(), 0);

        // With a reason, as the owner gives one right after: the word goes out.
        let mut p = world.dial(2, &room.source);
        let mut d = world.host().await;
        room.ready(&d);
        p.send_all(&room.source);
        until("a refused write", || room.pages.foreign.load(Ordering::SeqCst) > 1).await;
        d.session.fail(Reason::DecodeStalled, evidence());
        assert!(
            p.rest()
                .await
                .contains(&SendEvent::PeerFailed(Reason::DecodeStalled, evidence()))
        );
        d.rest().await;
    }
}

#[tokio::test]
async fn a_source_taken_back_still_lets_the_last_word_out() {
    for kind in ALL {
        let mut world = World::new(kind).await;
        let room = Room::new(&LENS);
        room.source.closed.store(true, Ordering::SeqCst);
        let mut p = world.dial(1, &room.source);
        let mut d = world.host().await;
        room.ready(&d);
        p.send_all(&room.source);
        assert_eq!(p.edge().await, SendEvent::Reply(HelloReply::Ready));
        assert_eq!(p.edge().await, SendEvent::SourceClosed);
        p.session.fail(Reason::Aborted, evidence());
        assert_eq!(d.edge().await, RecvEvent::Started);
        assert_eq!(d.edge().await, RecvEvent::PeerFailed(Reason::Aborted, evidence()));
        assert_eq!(p.edge().await, SendEvent::Quiesced);
        assert_eq!(d.edge().await, RecvEvent::Quiesced);
    }
}

#[tokio::test]
async fn last_replies_are_terminal() {
    let replies = [
        HelloReply::Unknown,
        HelloReply::Stale,
        HelloReply::Committed,
        HelloReply::Ended(Reason::Aborted),
    ];
    for kind in ALL {
        for reply in replies {
            let mut world = World::new(kind).await;
            let room = Room::new(&LENS);
            let mut p = world.dial(1, &room.source);
            let mut d = world.host().await;
            d.session.reply(reply, None);
            assert_eq!(p.edge().await, SendEvent::Reply(reply));
            assert_eq!(p.edge().await, SendEvent::Quiesced);
            assert_eq!(d.rest().await, [RecvEvent::Quiesced]);
            let fenced = u64::from(reply == HelloReply::Stale);
            assert_eq!(Stats::get(&world.d.stats().fenced_frames), fenced);
        }
    }
}

#[tokio::test]
async fn last_words_arrive_although_p_still_sends() {
    for kind in ALL {
        let mut world = World::new(kind).await;
        let room = Room::new(&[4_000_000; 8]);
        let mut p = world.dial(1, &room.source);
        let mut d = world.host().await;
        room.ready(&d);
        p.send_all(&room.source);
        until("bytes in flight", || room.coverage.verified_bytes() > 0).await;
        d.session.fail(Reason::DecodeStalled, evidence());
        let events = p.rest().await;
        assert!(
            events.contains(&SendEvent::PeerFailed(Reason::DecodeStalled, evidence())),
            "{events:?}"
        );
        assert_eq!(
            d.rest()
                .await
                .iter()
                .filter(|event| !matches!(event, RecvEvent::Verified(_)))
                .count(),
            2
        );
    }
}

#[tokio::test]
async fn p_fails_in_words_with_bytes_in_flight() {
    for kind in ALL {
        let mut world = World::new(kind).await;
        let room = Room::new(&[4_000_000; 8]);
        let mut p = world.dial(1, &room.source);
        let mut d = world.host().await;
        room.ready(&d);
        p.send_all(&room.source);
        until("bytes in flight", || room.coverage.verified_bytes() > 0).await;
        p.session.fail(Reason::PrefillStalled, evidence());
        let events = d.rest().await;
        assert!(
            events.contains(&RecvEvent::PeerFailed(Reason::PrefillStalled, evidence())),
            "{events:?}"
        );
        p.rest().await;
    }
}

#[tokio::test]
async fn a_last_word_that_nobody_takes_is_given_up_after_the_grace() {
    for kind in ALL {
        let mut world = World::new(kind).await;
        let room = Room::new(&[4_000_000; 16]);
        let mut p = world.dial(1, &room.source);
        let d = world.host().await;
        room.ready(&d);
        world.faults.shut(true);
        p.send_all(&room.source);
        p.session.fail(Reason::PrefillStalled, evidence());
        p.rest().await;
    }
}

#[tokio::test]
async fn a_refused_connection_is_told_as_refused() {
    for kind in ALL {
        let world = World::new(kind).await;
        world.listener.shutdown();
        let nobody = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .to_string();
        let room = Room::new(&LENS);
        let mut p = world.dial_at(&nobody, 1, 1, &room.source);
        assert!(matches!(p.edge().await, SendEvent::Broken { refused: true, .. }));
        assert_eq!(p.edge().await, SendEvent::Quiesced);
    }
}

#[tokio::test]
async fn a_mute_peer_is_left_to_the_owner_and_kill_works() {
    for kind in ALL {
        let world = World::new(kind).await;
        let room = Room::new(&LENS);
        world.faults.shut(true);
        let mut p = world.dial(1, &room.source);
        until("the hello out", || Stats::get(&world.p.stats().bytes_out) > 0).await;
        assert!(p.events.try_recv().is_err());
        p.session.kill();
        assert_eq!(p.rest().await, [SendEvent::Quiesced]);
    }
}

#[tokio::test]
async fn an_owner_that_never_answers_costs_the_connection() {
    for kind in ALL {
        let d_config = Config {
            hello_timeout: Duration::from_millis(100),
            ..config()
        };
        let mut world = World::with(kind, config(), d_config).await;
        let room = Room::new(&LENS);
        let mut p = world.dial(1, &room.source);
        let mut d = world.host().await;
        assert!(matches!(d.edge().await, RecvEvent::Broken { .. }));
        assert_eq!(d.edge().await, RecvEvent::Quiesced);
        assert!(matches!(p.edge().await, SendEvent::Broken { .. }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_sessions_at_once() {
    for kind in ALL {
        let mut world = World::new(kind).await;
        let rooms: Vec<Room> = (0..20).map(|at| Room::new(&[100_000 + at, 300_000, 5])).collect();
        let mut dialed: Vec<Dialed> = rooms
            .iter()
            .zip(1..)
            .map(|(room, id)| world.dial_at(&world.addr, id, 1, &room.source))
            .collect();
        let mut hosted = Vec::new();
        for _ in 0..20 {
            let d = world.host().await;
            let at = usize::try_from(d.hello.room.get() - 1).unwrap();
            rooms[at].ready(&d);
            dialed[at].send_all(&rooms[at].source);
            hosted.push((at, d));
        }
        for (at, d) in &mut hosted {
            assert_eq!(d.edge().await, RecvEvent::Started);
            assert!(matches!(d.edge().await, RecvEvent::Complete(_)));
            assert!(rooms[*at].pages.equal(&rooms[*at].source));
            d.session.committed();
        }
        for p in &mut dialed {
            assert!(p.rest().await.contains(&SendEvent::Committed));
        }
    }
}

#[tokio::test]
async fn a_small_cap_is_kept_and_progress_stays_smooth() {
    for kind in ALL {
        let capped = Config {
            rate_cap: Some(400_000),
            ..config()
        };
        let mut world = World::with(kind, capped, config()).await;
        let room = Room::new(&[200_000]);
        let start = tokio::time::Instant::now();
        let mut p = world.dial(1, &room.source);
        let mut d = world.host().await;
        room.ready(&d);
        p.send_all(&room.source);
        let mut steps = 0;
        loop {
            match d.next().await {
                RecvEvent::Verified(_) => steps += 1,
                RecvEvent::Complete(_) => break,
                other => assert_eq!(other, RecvEvent::Started),
            }
        }
        assert!(start.elapsed() >= Duration::from_millis(400), "{:?}", start.elapsed());
        assert!(steps >= 4, "{kind:?}: {steps} reports of progress");
        p.session.finish();
        p.rest().await;
    }
}

#[tokio::test]
async fn the_window_bounds_what_is_handed_over() {
    for kind in ALL {
        let narrow = Config {
            window: 300_000,
            ..config()
        };
        let mut world = World::with(kind, narrow, config()).await;
        let room = Room::new(&[1_000_000; 4]);
        // D's acknowledgements are lost: P must stop at its window.
        world.faults.push(Script::rule(
            Toward::Prefill,
            Which::Every(FrameKind::Verified),
            Fault::Drop,
        ));
        let mut p = world.dial(1, &room.source);
        let d = world.host().await;
        room.ready(&d);
        p.send_all(&room.source);
        until("the window", || room.coverage.verified_bytes() == 262_144).await;
        assert_eq!(p.edge().await, SendEvent::Reply(HelloReply::Ready));
        assert_eq!(room.source.reads.load(Ordering::SeqCst), 1);
        p.session.kill();
        p.rest().await;
        room.finish(&mut world, 2).await;
    }
}

#[tokio::test]
async fn a_listener_that_shuts_down_destroys_its_sessions() {
    for kind in ALL {
        let mut world = World::new(kind).await;
        let room = Room::new(&LENS);
        let mut p = world.dial(1, &room.source);
        let mut d = world.host().await;
        room.ready(&d);
        assert_eq!(p.edge().await, SendEvent::Reply(HelloReply::Ready));
        world.listener.shutdown();
        assert_eq!(d.rest().await, [RecvEvent::Quiesced]);
        assert!(matches!(p.edge().await, SendEvent::Broken { .. }));
    }
}
