//! An engine that is a process of its own: what it is called when it stands still, what only its end gets back, and its end.

use super::*;
use crate::ledger::{Accused, Pinned};

fn remote(total_pages: u32) -> Bench {
    Bench::with_engine(EngineKind::Remote, Settings::default(), total_pages)
}

/// The room's engine reads by a ticket.
fn pulling(bench: &mut Bench, number: u64, within: u64) {
    bench.bring("input", number);
    let pull = bench.go(Event::Ticket {
        room: room(number),
        epoch: E1,
        read_within: Millis(within),
    });
    assert_eq!(pull, vec![Effect::Pull { room: room(number) }]);
}

fn pulled(bench: &mut Bench, number: u64) {
    pulling(bench, number, 20_000);
    let read = bench.go(Event::Pulled { room: room(number) });
    assert!(told(&read, number, &FromWorker::Committed));
}

/// The connection of the room lets go of its pages.
fn quiesce(bench: &mut Bench, number: u64) -> Vec<Effect> {
    bench.go(Event::Quiesced {
        room: room(number),
        epoch: E1,
    })
}

/// The room is over, its connection as well: only the engine may still touch its pages.
fn given_up(bench: &mut Bench, number: u64, reason: Reason) {
    let over = bench.say(number, ToWorker::Abort(reason));
    assert!(over.contains(&Effect::CancelEngine { room: room(number) }));
    let _ = quiesce(bench, number);
}

fn pinned(bench: &Bench) -> Option<Pinned> {
    bench.ledger.gauges(bench.now).pinned
}

fn exits(effects: &[Effect]) -> usize {
    effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Exit { .. }))
        .count()
}

#[test]
fn when_it_stands_still_it_is_wedged_whoever_waits_for_it() {
    let mut bench = remote(25);
    pulling(&mut bench, 1, 60_000);
    pulled(&mut bench, 2);
    let _ = bench.open(3);
    assert_eq!(replies(&bench.hello(3, E1)), vec![(room(3), E1, HelloReply::Wait)]);
    let _ = bench.open(4);
    let mut held = 0;
    let over = bench.wait_doing(5500, |bench| {
        held += 250;
        bench.engine(Some(held))
    });
    for number in [1, 2, 3] {
        assert_eq!(
            failed(&over, number),
            Some((Reason::EngineWedged, Owes::Decode)),
            "{number}"
        );
    }
    assert_eq!(
        failed(&bench.hello(4, E1), 4),
        Some((Reason::EngineWedged, Owes::Decode))
    );
}

#[test]
fn a_room_whose_own_time_is_over_while_the_engine_is_behind_says_so_too() {
    let mut bench = remote(25);
    pulled(&mut bench, 1);
    let _ = bench.wait_doing(2000, |bench| bench.engine(None));
    let mut held = 0;
    let over = bench.wait_doing(3000, |bench| {
        held += 250;
        bench.engine(Some(held))
    });
    assert_eq!(failed(&over, 1), Some((Reason::EngineWedged, Owes::Decode)));
}

#[test]
fn the_workers_process_is_not_ended_for_what_the_engines_process_holds() {
    for (engine, ends) in [(EngineKind::Own, 1), (EngineKind::Remote, 0)] {
        let mut bench = Bench::with_engine(engine, Settings::default(), 25);
        pulling(&mut bench, 1, 60_000);
        given_up(&mut bench, 1, Reason::Aborted);
        let fences = bench.wait(70_000);
        assert_eq!(
            exits(&fences),
            ends,
            "{engine:?}: ten of 25 pages, for longer than every fence"
        );
        assert!(fences.contains(&Effect::CancelEngine { room: room(1) }), "asked again");
        assert_eq!(pinned(&bench).map(|pinned| pinned.pages), (ends == 0).then_some(10));
        assert_eq!(
            told(&bench.open(2), 2, &FromWorker::Refused(Refusal::Draining)),
            ends == 1
        );
    }
}

#[test]
fn a_connection_that_does_not_let_go_is_the_workers_own_and_ends_it() {
    let mut bench = remote(70);
    pulling(&mut bench, 1, 60_000);
    let _ = bench.say(1, ToWorker::Abort(Reason::Aborted));
    let _ = bench.go(Event::EngineStopped { room: room(1) });
    assert_eq!(pinned(&bench), None, "no engine holds it");
    assert_eq!(exits(&bench.wait(70_000)), 1);
}

#[test]
fn a_room_accuses_the_engine_of_which_it_was_told() {
    let peer_says = |reason| Event::PeerFailed {
        room: room(1),
        epoch: E1,
        reason,
        evidence: Evidence::default(),
    };
    let router_says = |reason| Event::FromRouter {
        room: room(1),
        message: ToWorker::Abort(reason),
    };
    for (over, accused) in [
        (peer_says(Reason::EngineWedged), Accused::Peer),
        (router_says(Reason::EngineWedged), Accused::Peer),
        (router_says(Reason::EngineRestarted), Accused::Peer),
        (router_says(Reason::PrefillLost), Accused::Peer),
        (router_says(Reason::DecodeLost), Accused::Own),
        (router_says(Reason::TransferStalled), Accused::Own),
        (router_says(Reason::Aborted), Accused::Own),
        (Event::StreamEnded { room: room(1) }, Accused::Own),
    ] {
        let mut bench = remote(70);
        pulling(&mut bench, 1, 20_000);
        let (now, read) = (bench.now, bench.now + Millis(20_000));
        let ended = format!("{over:?}");
        let _ = bench.go(over);
        // Of two engines that are well nobody is accused before the read could be over.
        let since = if accused == Accused::Peer { now } else { read };
        let pages = 10;
        assert_eq!(pinned(&bench), Some(Pinned { pages, since, accused }), "{ended}");
    }
}

#[test]
fn its_own_engine_is_accused_by_a_room_that_ended_for_it() {
    let mut bench = remote(70);
    pulling(&mut bench, 1, 1000);
    let mut held = 0;
    let over = bench.wait_doing(1000, |bench| {
        held += 250;
        bench.engine(Some(held))
    });
    assert_eq!(failed(&over, 1), Some((Reason::TransferStalled, Owes::Prefill)));
    pulling(&mut bench, 2, 60_000);
    let over = bench.wait_doing(4500, |bench| {
        held += 250;
        bench.engine(Some(held))
    });
    assert_eq!(failed(&over, 2), Some((Reason::EngineWedged, Owes::Decode)));
    assert_eq!(
        pinned(&bench).map(|pinned| (pinned.pages, pinned.accused)),
        Some((20, Accused::Own))
    );
}

#[test]
fn the_oldest_pages_are_told_and_none_when_they_are_back() {
    let mut bench = remote(70);
    pulling(&mut bench, 1, 60_000);
    pulling(&mut bench, 2, 60_000);
    let read = bench.now + Millis(60_000);
    given_up(&mut bench, 1, Reason::Aborted);
    let _ = bench.wait(1000);
    let now = bench.now;
    given_up(&mut bench, 2, Reason::EngineWedged);
    let both = Pinned {
        pages: 20,
        since: now,
        accused: Accused::Peer,
    };
    assert_eq!(pinned(&bench), Some(both));
    let _ = bench.go(Event::EngineStopped { room: room(2) });
    let first = Pinned {
        pages: 10,
        since: read,
        accused: Accused::Own,
    };
    assert_eq!(pinned(&bench), Some(first));
    let _ = bench.go(Event::EngineStopped { room: room(1) });
    assert_eq!(pinned(&bench), None);
}

#[test]
fn nobody_was_late_while_this_node_was_stopped() {
    let mut bench = remote(70);
    pulling(&mut bench, 1, 2000);
    given_up(&mut bench, 1, Reason::Aborted);
    let read = bench.now + Millis(2000);
    let _ = bench.wait(3000);
    bench.stop(20_000);
    let _ = bench.wait(1000);
    let since = pinned(&bench).map(|pinned| pinned.since);
    assert!(
        since >= Some(read + Millis(20_000)) && since <= Some(bench.now),
        "{since:?}"
    );
}

#[test]
fn what_had_begun_with_a_former_process_is_over_and_its_pages_are_back() {
    let mut bench = remote(55);
    pulling(&mut bench, 1, 20_000);
    pulled(&mut bench, 2);
    pulling(&mut bench, 3, 20_000);
    given_up(&mut bench, 3, Reason::Aborted);
    bench.bring("input", 4);
    pulled(&mut bench, 5);
    let _ = bench.go(Event::Made {
        room: room(5),
        tokens: 1,
    });
    let _ = bench.go(Event::EngineFinished { room: room(5) });
    let _ = bench.open(6);
    assert_eq!(replies(&bench.hello(6, E1)), vec![(room(6), E1, HelloReply::Wait)]);

    let restarted = bench.go(Event::EngineRestarted);
    for number in [1, 2] {
        let why = Some((Reason::EngineRestarted, Owes::Decode));
        assert_eq!(failed(&restarted, number), why, "{number}");
        let asked = Effect::CancelEngine { room: room(number) };
        assert!(!restarted.contains(&asked), "there is nobody to ask");
    }
    for number in [3, 4, 5, 6] {
        assert_eq!(ended(&restarted, number), None, "{number}");
    }
    assert!(restarted.contains(&Effect::ClosePages { room: room(3) }));
    assert_eq!(replies(&restarted), vec![(room(6), E1, HelloReply::Ready)]);
    let gauges = bench.ledger.gauges(bench.now);
    assert_eq!((gauges.engine_permits, gauges.pinned), (0, None));
    // The connections are this process's own, and still hold what they hold.
    assert_eq!(gauges.pages.quarantined, 20);
    for number in [1, 2] {
        let back = quiesce(&mut bench, number);
        assert!(back.contains(&Effect::ClosePages { room: room(number) }));
    }

    // Those that waited go on with the new one.
    let pull = bench.go(Event::Ticket {
        room: room(4),
        epoch: E1,
        read_within: Millis(20_000),
    });
    assert_eq!(pull, vec![Effect::Pull { room: room(4) }]);
    assert!(told(
        &bench.go(Event::Pulled { room: room(4) }),
        4,
        &FromWorker::Committed
    ));
    assert_eq!(
        ended(&bench.say(5, ToWorker::Taken(1)), 5).map(|end| end.0),
        Some(PartEnd::Done)
    );
}

#[test]
fn late_words_about_a_former_life_change_nothing() {
    let mut bench = remote(70);
    pulling(&mut bench, 1, 20_000);
    pulled(&mut bench, 2);
    pulling(&mut bench, 3, 20_000);
    given_up(&mut bench, 3, Reason::Aborted);
    let _ = bench.go(Event::EngineRestarted);
    pulling(&mut bench, 4, 20_000);
    let before = bench.ledger.gauges(bench.now);
    let late = [
        Event::Pulled { room: room(1) },
        Event::Made {
            room: room(2),
            tokens: 3,
        },
        Event::EngineFinished { room: room(2) },
        Event::EngineFailed { room: room(1) },
        Event::EngineEnded {
            room: room(1),
            reason: Reason::KvUnproven,
        },
        Event::EngineStopped { room: room(3) },
    ];
    let words = late.len() as u64;
    for word in late {
        assert_eq!(bench.go(word.clone()), vec![], "{word:?}");
    }
    let after = bench.ledger.gauges(bench.now);
    assert_eq!(after.fenced, before.fenced + words);
    assert_eq!(
        (after.pages, after.engine_permits, after.session_permits),
        (before.pages, before.engine_permits, before.session_permits)
    );
}

#[test]
fn another_process_owes_nothing_yet_and_is_served() {
    let mut bench = remote(70);
    let mut held = 0;
    let _ = bench.wait_doing(5500, |bench| {
        held += 250;
        bench.engine(Some(held))
    });
    assert!(told(&bench.open(1), 1, &FromWorker::Refused(Refusal::Draining)));
    assert_eq!(bench.go(Event::EngineRestarted), vec![Effect::Serving(true)]);
    // An age that was measured before it began is not its own.
    let late = bench.engine(Some(held));
    assert_eq!(bench.go(late), vec![]);
    let over = bench.wait_doing(4500, |bench| {
        held += 250;
        bench.engine(Some(held))
    });
    assert!(!over.contains(&Effect::Serving(false)));
}

#[test]
fn an_engine_that_ends_with_the_worker_cannot_be_another_one() {
    let mut bench = Bench::at("decoding");
    let fenced = bench.ledger.gauges(bench.now).fenced;
    assert_eq!(bench.go(Event::EngineRestarted), vec![]);
    let gauges = bench.ledger.gauges(bench.now);
    assert_eq!((gauges.engine_permits, gauges.fenced), (1, fenced + 1));
}
