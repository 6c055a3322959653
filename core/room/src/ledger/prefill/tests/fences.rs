//! An engine that is a process of its own: what it is called when it stands still, what only its end gets back, and its end.

use super::*;
use crate::ledger::{Accused, Pinned};

fn remote() -> Bench {
    let settings = Settings {
        prefill_concurrency: 2,
        ..Settings::default()
    };
    Bench::with_engine(EngineKind::Remote, settings, 70)
}

/// The room's KV is computed, and kept for D's engine.
fn kept(bench: &mut Bench, number: u64, within: u64) {
    bench.at("computing", number);
    let _ = bench.go(Event::Kept {
        room: room(number),
        read_within: Millis(within),
    });
    assert_eq!(bench.phase(number), Some(Phase::Transferring));
}

fn quiesced(bench: &mut Bench, number: u64, epoch: Epoch) -> Vec<Effect> {
    bench.go(Event::Quiesced {
        room: room(number),
        epoch,
    })
}

/// The room is over, its connection as well: only engines may still touch its pages.
fn given_up(bench: &mut Bench, number: u64, reason: Reason) {
    let over = bench.say(number, ToWorker::Abort(reason));
    assert_eq!(ended(&over, number).map(|end| end.0), Some(PartEnd::Failed(reason)));
    let _ = quiesced(bench, number, E1);
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

fn closes(number: u64) -> Effect {
    Effect::ClosePages {
        room: room(number),
        keep: vec![],
    }
}

/// The engine has a step in hand all the time.
fn stand_still(bench: &mut Bench, millis: u64) -> Vec<Effect> {
    let mut held = 0;
    bench.wait_doing(millis, |bench| {
        held += 250;
        Event::Engine(EngineView {
            progress: bench.progress,
            in_hand: Some(Millis(held)),
            alive: true,
        })
    })
}

#[test]
fn when_it_stands_still_it_is_wedged_whoever_waits_for_it() {
    let mut bench = remote();
    kept(&mut bench, 1, 60_000);
    bench.at("computing", 2);
    bench.at("computing", 3);
    bench.at("computing", 4);
    assert_eq!(bench.phase(4), Some(Phase::Queued), "for its turn");
    let over = stand_still(&mut bench, 5500);
    for number in [1, 2, 3, 4] {
        let why = Some((Reason::EngineWedged, Owes::Prefill));
        assert_eq!(failed(&over, number), why, "{number}");
    }
    let mut bench = remote();
    bench.at("pages", 5);
    let _ = stand_still(&mut bench, 5000);
    let ready = bench.reply(5, E1, HelloReply::Ready);
    assert_eq!(
        failed(&ready, 5),
        Some((Reason::EngineWedged, Owes::Prefill)),
        "it has no turns to give"
    );
}

#[test]
fn a_room_whose_own_time_is_over_while_the_engine_is_behind_says_so_too() {
    let mut bench = remote();
    bench.at("computing", 1);
    let _ = bench.wait_doing(2000, |bench| {
        Event::Engine(EngineView {
            progress: bench.progress,
            in_hand: None,
            alive: true,
        })
    });
    let over = stand_still(&mut bench, 3000);
    assert_eq!(failed(&over, 1), Some((Reason::EngineWedged, Owes::Prefill)));
}

#[test]
fn the_workers_process_is_not_ended_for_what_engines_hold() {
    for (engine, ends) in [(EngineKind::Own, 1), (EngineKind::Remote, 0)] {
        let mut bench = Bench::with_engine(engine, Settings::default(), 25);
        kept(&mut bench, 1, 60_000);
        given_up(&mut bench, 1, Reason::Aborted);
        bench.at("computing", 2);
        given_up(&mut bench, 2, Reason::Aborted);
        let fences = bench.wait(70_000);
        assert_eq!(
            exits(&fences),
            ends,
            "{engine:?}: 20 of 25 pages, for longer than every fence"
        );
        assert_eq!(pinned(&bench).map(|pinned| pinned.pages), (ends == 0).then_some(20));
    }
}

#[test]
fn a_connection_that_does_not_let_go_is_the_workers_own_and_ends_it() {
    let mut bench = remote();
    kept(&mut bench, 1, 60_000);
    let _ = bench.say(1, ToWorker::Abort(Reason::Aborted));
    let _ = quiesced(&mut bench, 1, Epoch::TICKET);
    assert_eq!(pinned(&bench), None, "no engine holds it");
    assert_eq!(exits(&bench.wait(70_000)), 1);
}

#[test]
fn a_ticket_is_late_when_the_read_should_be_over_unless_the_reader_is_ill() {
    for (reason, accused) in [
        (Reason::Aborted, Accused::Own),
        (Reason::TransferStalled, Accused::Own),
        (Reason::PrefillLost, Accused::Own),
        (Reason::DecodeLost, Accused::Peer),
        (Reason::EngineWedged, Accused::Peer),
        (Reason::EngineRestarted, Accused::Peer),
    ] {
        let mut bench = remote();
        kept(&mut bench, 1, 20_000);
        let (now, read) = (bench.now, bench.now + Millis(20_000));
        given_up(&mut bench, 1, reason);
        let since = if accused == Accused::Peer { now } else { read };
        let pages = 10;
        assert_eq!(pinned(&bench), Some(Pinned { pages, since, accused }), "{reason}");
        let _ = quiesced(&mut bench, 1, Epoch::TICKET);
        assert_eq!(pinned(&bench), None);
    }
}

#[test]
fn a_prompt_in_hand_is_late_from_the_end_of_its_room_on() {
    let mut bench = remote();
    bench.at("computing", 1);
    given_up(&mut bench, 1, Reason::Aborted);
    let (pages, since) = (10, bench.now);
    let accused = Accused::Own;
    assert_eq!(pinned(&bench), Some(Pinned { pages, since, accused }));
}

#[test]
fn what_had_begun_with_a_former_process_is_over_and_its_pages_are_back() {
    let mut bench = remote();
    kept(&mut bench, 1, 20_000);
    kept(&mut bench, 3, 20_000);
    given_up(&mut bench, 3, Reason::Aborted);
    bench.at("computing", 7);
    given_up(&mut bench, 7, Reason::Aborted);
    bench.at("computing", 2);
    bench.at("computing", 4);
    assert_eq!(bench.phase(4), Some(Phase::Queued), "for its turn");
    bench.at("hello", 5);
    bench.at("pages", 6);

    let restarted = bench.go(Event::EngineRestarted);
    for number in [1, 2] {
        let why = Some((Reason::EngineRestarted, Owes::Prefill));
        assert_eq!(failed(&restarted, number), why, "{number}");
    }
    for number in [3, 4, 5, 6, 7] {
        assert_eq!(ended(&restarted, number), None, "{number}");
    }
    let ticket = |number| Effect::KillSession {
        room: room(number),
        epoch: Epoch::TICKET,
    };
    assert!(!restarted.contains(&ticket(1)) && !restarted.contains(&Effect::CancelEngine { room: room(2) }));
    assert!(restarted.contains(&closes(3)) && restarted.contains(&closes(7)));
    assert_eq!(
        bench.phase(4),
        Some(Phase::WaitingForInput),
        "its turn with the new one"
    );
    let gauges = bench.ledger.gauges(bench.now);
    assert_eq!((gauges.engine_permits, gauges.pinned), (1, None));
    for number in [1, 2] {
        assert!(quiesced(&mut bench, number, E1).contains(&closes(number)));
    }
}

#[test]
fn late_words_about_a_former_life_change_nothing() {
    let mut bench = remote();
    kept(&mut bench, 1, 20_000);
    kept(&mut bench, 3, 20_000);
    given_up(&mut bench, 3, Reason::Aborted);
    bench.at("computing", 2);
    let _ = bench.go(Event::EngineRestarted);
    bench.at("computing", 4);
    let before = bench.ledger.gauges(bench.now);
    let late = [
        Event::Sealed {
            room: room(2),
            bytes: 1000,
        },
        Event::Kept {
            room: room(2),
            read_within: Millis(1000),
        },
        Event::EngineFailed { room: room(2) },
        Event::EngineEnded {
            room: room(2),
            reason: Reason::EngineError,
        },
        Event::EngineStopped { room: room(2) },
        Event::Quiesced {
            room: room(1),
            epoch: Epoch::TICKET,
        },
        Event::Quiesced {
            room: room(3),
            epoch: Epoch::TICKET,
        },
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
fn nothing_is_kept_in_pages_that_are_another_processes() {
    let settings = Settings {
        prefix_cache_percent: 50,
        ..Settings::default()
    };
    let blocks: Arc<[BlockHash]> = (0..10).map(BlockHash).collect();
    for (engine, kept) in [(EngineKind::Own, 10), (EngineKind::Remote, 0)] {
        let mut bench = Bench::with_engine(engine, settings.clone(), 70);
        let _ = bench.go(Event::Open {
            spec: spec(1),
            decode_addr: "d:1".into(),
            token: 7,
            blocks: Arc::clone(&blocks),
        });
        let _ = bench.reply(1, E1, HelloReply::Ready);
        let _ = bench.go(Event::Sealed {
            room: room(1),
            bytes: 1000,
        });
        let _ = bench.say(1, ToWorker::Committed);
        let _ = quiesced(&mut bench, 1, E1);
        assert_eq!(bench.ledger.gauges(bench.now).pages.cached, kept, "{engine:?}");
    }
}

#[test]
fn an_engine_that_ends_with_the_worker_cannot_be_another_one() {
    let mut bench = Bench::staged("computing");
    let fenced = bench.ledger.gauges(bench.now).fenced;
    assert_eq!(bench.go(Event::EngineRestarted), vec![]);
    let gauges = bench.ledger.gauges(bench.now);
    assert_eq!((gauges.engine_permits, gauges.fenced), (1, fenced + 1));
}
