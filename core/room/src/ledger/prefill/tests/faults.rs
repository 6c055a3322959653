//! What ends rooms, and what is left of them.

use super::*;

#[test]
fn a_node_that_was_stopped_accuses_nobody() {
    let mut bench = Bench::staged("hello");
    let _ = bench.wait(1000);
    bench.stop(8000);
    assert_eq!(failed(&bench.go(Event::Tick), 1), None, "the grace: messages first");
    let over = bench.wait(250);
    assert_eq!(failed(&over, 1).map(|(reason, _)| reason), Some(Reason::SelfPaused));
    assert!(ended(&over, 1).is_some_and(|(_, evidence, _)| evidence.was_stopped));

    let mut saved = Bench::staged("hello");
    saved.stop(8000);
    let _ = saved.reply(1, E1, HelloReply::Ready);
    assert_eq!(failed(&saved.wait(1000), 1), None, "the answer had arrived meanwhile");

    let mut cut = Bench::staged("computing");
    cut.stop(2000);
    assert_eq!(cut.go(Event::StreamEnded { room: room(1) }).len(), 0);
    assert_eq!(
        failed(&cut.wait(250), 1).map(|(reason, _)| reason),
        Some(Reason::SelfPaused)
    );

    let mut link = Bench::staged("computing");
    link.stop(2000);
    assert_eq!(connects(&link.broken(1, E1)), vec![]);
    assert_eq!(connects(&link.wait(250)), vec![(E2, 0)], "tried again, nobody accused");
}

#[test]
fn the_end_of_the_stream_is_the_loss_of_the_router() {
    for (stage, _) in STAGES {
        let over = Bench::staged(stage).go(Event::StreamEnded { room: room(1) });
        assert_eq!(failed(&over, 1), Some((Reason::RouterLost, Owes::Router)), "{stage}");
    }
}

#[test]
fn a_gone_door_or_member_is_a_question_to_the_router() {
    let asked = |effects: &[Effect]| told(effects, 1, &FromWorker::Ask);
    for event in [
        Event::DoorGone { room: room(1) },
        Event::MemberGone { incarnation: ROUTER },
    ] {
        let mut silent = Bench::staged("pages");
        assert!(asked(&silent.go(event.clone())));
        assert!(!asked(&silent.go(event.clone())), "once");
        let over = silent.wait(2000);
        assert_eq!(failed(&over, 1), Some((Reason::LeaseLost, Owes::Router)));
        let mut alive = Bench::staged("pages");
        let _ = alive.go(event.clone());
        let _ = alive.say(1, ToWorker::Live);
        assert_eq!(failed(&alive.wait(10_000), 1), None);
        assert!(!asked(&alive.go(event.clone())), "a room that runs unleased ignores it");
        let mut over = Bench::staged("pages");
        let _ = over.go(event);
        let verdict = over.say(1, ToWorker::Verdict(Verdict::Failed(Reason::LeaseRevoked)));
        assert_eq!(
            failed(&verdict, 1).map(|(reason, _)| reason),
            Some(Reason::LeaseRevoked)
        );
    }
    let mut own = Bench::staged("pages");
    assert_eq!(own.go(Event::MemberGone { incarnation: PREFILL }), vec![]);
}

#[test]
fn pages_stay_in_quarantine_until_every_permit_is_back() {
    let mut bench = Bench::staged("computing");
    let _ = bench.broken(1, E1);
    let over = bench.say(1, ToWorker::Abort(Reason::Aborted));
    assert!(
        over.contains(&Effect::KillSession {
            room: room(1),
            epoch: E1
        }),
        "the old epoch's sender too"
    );
    let gauges = bench.ledger.gauges(bench.now);
    assert_eq!(
        (gauges.pages.quarantined, gauges.session_permits, gauges.engine_permits),
        (10, 2, 1)
    );
    assert_eq!(
        bench.go(Event::Quiesced {
            room: room(1),
            epoch: E2
        }),
        vec![]
    );
    assert_eq!(bench.go(Event::EngineStopped { room: room(1) }), vec![]);
    let killed = bench.wait(250);
    assert_eq!(
        killed,
        vec![Effect::KillSession {
            room: room(1),
            epoch: E1
        }],
        "after the grace"
    );
    assert_eq!(
        bench.wait(4750),
        vec![Effect::KillSession {
            room: room(1),
            epoch: E1
        }],
        "destroyed after a TTL"
    );
    let back = bench.go(Event::Quiesced {
        room: room(1),
        epoch: E1,
    });
    assert_eq!(
        back,
        vec![Effect::ClosePages {
            room: room(1),
            keep: vec![]
        }]
    );
    assert_eq!(bench.ledger.gauges(bench.now).pages, PageCounts::all_free(70));
}

#[test]
fn what_never_comes_back_ends_the_process() {
    let mut bench = Bench::staged("computing");
    bench.at("pages", 2);
    let _ = bench.say(1, ToWorker::Abort(Reason::Aborted));
    let quiet = bench.wait(25_000);
    assert!(
        !quiet.contains(&Effect::Serving(false)),
        "10 of 70 pages are no quarter"
    );
    let mut over = bench.wait(35_000);
    over.extend(bench.wait(10_000));
    assert!(over.contains(&Effect::Serving(false)));
    assert_eq!(
        over.iter()
            .filter(|effect| matches!(effect, Effect::Exit { .. }))
            .count(),
        1
    );
    let mut quarter = Bench::with(Settings::default(), 40);
    quarter.at("computing", 1);
    let _ = quarter.say(1, ToWorker::Abort(Reason::Aborted));
    assert!(!quarter.wait(9999).contains(&Effect::Serving(false)));
    let over = quarter.wait(1);
    assert_eq!(over[0], Effect::Serving(false));
    assert!(matches!(over[1], Effect::Exit { .. }), "no room is left to drain");
}

#[test]
fn a_drain_finishes_what_there_is_and_then_ends_it() {
    let mut bench = Bench::staged("computing");
    let _ = bench.go(Event::Drain);
    assert!(!bench.ledger.drained());
    let over = bench.go(Event::DrainOver);
    assert_eq!(failed(&over, 1).map(|(reason, _)| reason), Some(Reason::Draining));
    assert!(!bench.ledger.drained(), "its permits are out");
    let _ = bench.go(Event::EngineStopped { room: room(1) });
    let _ = bench.go(Event::Quiesced {
        room: room(1),
        epoch: E1,
    });
    assert!(bench.ledger.drained());
}

#[test]
fn failures_of_this_node_are_its_own() {
    let over = Bench::staged("computing").go(Event::EngineFailed { room: room(1) });
    assert_eq!(failed(&over, 1), Some((Reason::EngineFailed, Owes::Prefill)));
    let over = Bench::staged("sending").go(Event::ActorDied { room: room(1) });
    assert_eq!(failed(&over, 1), Some((Reason::InternalError, Owes::Prefill)));
}

#[test]
fn counters_are_reported_within_a_report_period_and_not_more_often() {
    let mut bench = Bench::staged("computing");
    let mut states = 0;
    for step in 1..=1000 {
        bench.now = bench.now + Millis(1);
        let effects = bench.sample(1, step, 0, 0);
        states += effects
            .iter()
            .filter(|e| {
                matches!(
                    e,
                    Effect::Tell {
                        message: FromWorker::State(_),
                        ..
                    }
                )
            })
            .count();
    }
    assert!((4..=5).contains(&states), "{states}");
}
