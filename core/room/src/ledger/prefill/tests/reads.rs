//! An engine that keeps the KV for D's engine to read.

use super::*;

fn kept(bench: &mut Bench, within: u64) -> Vec<Effect> {
    bench.go(Event::Kept {
        room: room(1),
        read_within: Millis(within),
    })
}

fn idle(bench: &Bench) -> Event {
    Event::Engine(EngineView {
        progress: bench.progress,
        in_hand: None,
        alive: true,
    })
}

#[test]
fn while_it_is_read_only_the_deadline_of_the_read_is_armed() {
    let mut bench = Bench::staged("computing");
    let _ = kept(&mut bench, 20_000);
    assert_eq!(bench.phase(1), Some(Phase::Transferring));
    // Counters that say nothing, for four TTL: no timer of bytes ends it.
    assert_eq!(failed(&bench.wait_doing(20_499, |bench| idle(bench)), 1), None);
    let over = bench.wait_doing(1, |bench| idle(bench));
    assert_eq!(failed(&over, 1), Some((Reason::TransferStalled, Owes::Decode)));
}

#[test]
fn the_turn_is_free_once_the_prompt_is_computed() {
    let mut bench = Bench::with(
        Settings {
            prefill_concurrency: 1,
            ..Settings::default()
        },
        70,
    );
    bench.at("computing", 1);
    bench.at("computing", 2);
    assert_eq!(bench.phase(2), Some(Phase::Queued));
    let _ = kept(&mut bench, 20_000);
    assert_eq!(bench.phase(2), Some(Phase::WaitingForInput));
    let gauges = bench.ledger.gauges(bench.now);
    assert_eq!(
        (gauges.engine_permits, gauges.session_permits),
        (1, 3),
        "two connections and a reader"
    );
}

#[test]
fn an_engine_that_stands_still_serves_no_read() {
    let mut bench = Bench::staged("computing");
    let _ = kept(&mut bench, 60_000);
    let mut held = 0;
    let over = bench.wait_doing(5500, |bench| {
        held += 250;
        Event::Engine(EngineView {
            progress: bench.progress,
            in_hand: Some(Millis(held)),
            alive: true,
        })
    });
    assert_eq!(failed(&over, 1), Some((Reason::EngineStalled, Owes::Prefill)));
}

#[test]
fn after_ds_commit_nobody_reads_any_more() {
    let mut bench = Bench::staged("computing");
    let _ = kept(&mut bench, 20_000);
    let over = bench.say(1, ToWorker::Committed);
    assert_eq!(ended(&over, 1).map(|end| end.0), Some(PartEnd::HandedOver));
    let ticket = Effect::KillSession {
        room: room(1),
        epoch: Epoch::TICKET,
    };
    assert!(!over.contains(&ticket));
    let back = bench.go(Event::Quiesced {
        room: room(1),
        epoch: E1,
    });
    assert!(back.contains(&Effect::ClosePages {
        room: room(1),
        keep: vec![]
    }));
    assert_eq!(bench.ledger.gauges(bench.now).pages, PageCounts::all_free(70));
}

#[test]
fn a_ticket_that_nobody_will_read_is_given_back_before_its_pages_are() {
    let mut bench = Bench::staged("computing");
    let _ = kept(&mut bench, 20_000);
    let over = bench.say(1, ToWorker::Abort(Reason::Aborted));
    let ticket = Effect::KillSession {
        room: room(1),
        epoch: Epoch::TICKET,
    };
    assert!(over.contains(&ticket));
    let _ = bench.go(Event::Quiesced {
        room: room(1),
        epoch: E1,
    });
    assert_eq!(bench.ledger.gauges(bench.now).pages.quarantined, 10);
    // It did not work: it is tried again at every fence.
    let fences = bench.wait(10_000);
    assert!(fences.iter().filter(|effect| **effect == ticket).count() >= 2);
    let back = bench.go(Event::Quiesced {
        room: room(1),
        epoch: Epoch::TICKET,
    });
    assert!(back.contains(&Effect::ClosePages {
        room: room(1),
        keep: vec![]
    }));
    assert_eq!(bench.ledger.gauges(bench.now).pages, PageCounts::all_free(70));
}

#[test]
fn what_is_kept_of_a_room_that_is_over_is_given_back_before_its_pages_are() {
    let mut bench = Bench::staged("computing");
    let _ = bench.say(1, ToWorker::Abort(Reason::Aborted));
    let _ = bench.go(Event::Quiesced {
        room: room(1),
        epoch: E1,
    });
    // The engine had finished before it could hear that it was to stop.
    let late = kept(&mut bench, 20_000);
    let ticket = Effect::KillSession {
        room: room(1),
        epoch: Epoch::TICKET,
    };
    assert_eq!(late, vec![ticket], "it still holds them");
    let gauges = bench.ledger.gauges(bench.now);
    assert_eq!((gauges.engine_permits, gauges.pages.quarantined), (0, 10));
    let back = bench.go(Event::Quiesced {
        room: room(1),
        epoch: Epoch::TICKET,
    });
    assert!(back.contains(&Effect::ClosePages {
        room: room(1),
        keep: vec![]
    }));
    assert_eq!(kept(&mut bench, 20_000), vec![], "once");
}

#[test]
fn an_engine_says_why_its_job_has_ended() {
    let mut bench = Bench::staged("computing");
    let over = bench.go(Event::EngineEnded {
        room: room(1),
        reason: Reason::EngineError,
    });
    assert_eq!(failed(&over, 1), Some((Reason::EngineError, Owes::Prefill)));
    assert_eq!(bench.ledger.gauges(bench.now).engine_permits, 0);
}
