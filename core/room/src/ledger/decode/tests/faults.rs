//! What ends rooms, and what is left of them.

use super::*;

#[test]
fn who_has_the_tokens_owes_the_next_step() {
    let mut engine = Bench::at("decoding");
    assert_eq!(failed(&engine.wait(4999), 1), None);
    assert_eq!(failed(&engine.wait(1), 1), Some((Reason::DecodeStalled, Owes::Decode)));
    let mut router = Bench::at("decoding");
    let _ = router.go(Event::Made {
        room: room(1),
        tokens: 2,
    });
    let _ = router.wait(3000);
    let _ = router.say(1, ToWorker::Taken(1));
    assert_eq!(failed(&router.wait(4999), 1), None, "a token taken is progress");
    assert_eq!(failed(&router.wait(1), 1), Some((Reason::RouterStalled, Owes::Router)));
    let mut absolute = Bench::at("decoding");
    let mut made = 0;
    let mut over = Vec::new();
    for _ in 0..10 {
        made += 1;
        over.extend(absolute.go(Event::Made {
            room: room(1),
            tokens: made,
        }));
        over.extend(absolute.say(1, ToWorker::Taken(made)));
        over.extend(absolute.wait(3250));
    }
    assert_eq!(
        failed(&over, 1),
        Some((Reason::DecodeStalled, Owes::Decode)),
        "20 tokens at 1/s, and 2 TTL"
    );
}

#[test]
fn a_batch_counts_the_engines_steps() {
    let mut bench = Bench::at("decoding");
    let over = bench.wait_doing(20_000, |bench| {
        bench.progress += 1;
        bench.engine(Some(5))
    });
    assert_eq!(failed(&over, 1), None);
}

#[test]
fn a_wedged_engine_fails_its_rooms_and_those_who_wait_for_its_pages() {
    let mut bench = Bench::with(Settings::default(), 25);
    bench.bring("decoding", 1);
    bench.bring("input", 2);
    let _ = bench.open(3);
    assert_eq!(replies(&bench.hello(3, E1)), vec![(room(3), E1, HelloReply::Wait)]);
    let mut held = 0;
    let mut verified = 100;
    let mut over = Vec::new();
    over.extend(bench.wait_doing(5250, |bench| {
        held += 125;
        verified += 1;
        match verified % 2 {
            0 => Event::Verified {
                room: room(2),
                epoch: E1,
                bytes: verified,
            },
            _ => bench.engine(Some(held)),
        }
    }));
    for number in [1, 3] {
        assert_eq!(
            failed(&over, number),
            Some((Reason::EngineStalled, Owes::Decode)),
            "{number}"
        );
    }
    assert_eq!(bench.phase(2), Some(Phase::WaitingForInput), "it waits for P");
    assert!(over.contains(&Effect::Serving(false)));
    bench.progress += 1;
    let event = bench.engine(None);
    assert!(bench.go(event).contains(&Effect::Serving(true)));
}

#[test]
fn an_engine_that_does_not_answer_is_not_served_with_rooms() {
    let mut bench = Bench::new();
    let dead = || {
        Event::Engine(EngineView {
            progress: 0,
            in_hand: None,
            alive: false,
        })
    };
    assert_eq!(bench.go(dead()), vec![Effect::Serving(false)]);
    assert!(told(&bench.open(1), 1, &FromWorker::Refused(Refusal::Draining)));
    assert!(bench.wait_doing(6000, |_| dead()).is_empty());
    let event = bench.engine(None);
    assert_eq!(bench.go(event), vec![Effect::Serving(true)]);
}

#[test]
fn the_backstop_runs_until_p_has_started() {
    for stage in ["opened", "ready"] {
        let mut bench = Bench::at(stage);
        assert_eq!(failed(&bench.wait(39_999), 1), None, "{stage}");
        assert_eq!(
            failed(&bench.wait(1), 1),
            Some((Reason::QueueTimeout, Owes::Nobody)),
            "{stage}"
        );
    }
}

#[test]
fn what_contradicts_the_manifest_and_what_p_says_end_the_room() {
    let over = Bench::at("input").go(Event::Corrupt {
        room: room(1),
        epoch: E1,
    });
    assert_eq!(failed(&over, 1), Some((Reason::KvCorrupt, Owes::Prefill)));
    assert!(over.iter().any(|effect| matches!(
        effect,
        Effect::SayFail {
            reason: Reason::KvCorrupt,
            ..
        }
    )));
    let theirs = Evidence {
        engine_owes: Millis(5),
        ..Evidence::default()
    };
    let fail = Event::PeerFailed {
        room: room(1),
        epoch: E1,
        reason: Reason::EngineFailed,
        evidence: theirs,
    };
    let over = Bench::at("ready").go(fail);
    assert_eq!(
        ended(&over, 1),
        Some((PartEnd::Failed(Reason::EngineFailed), theirs, true))
    );
}

#[test]
fn a_node_that_was_stopped_accuses_nobody() {
    let mut bench = Bench::at("input");
    bench.stop(8000);
    assert_eq!(failed(&bench.go(Event::Tick), 1), None);
    assert_eq!(
        failed(&bench.wait(250), 1).map(|(reason, _)| reason),
        Some(Reason::SelfPaused)
    );
    let mut saved = Bench::at("input");
    saved.stop(8000);
    let _ = saved.go(Event::Tick);
    let _ = saved.go(Event::Verified {
        room: room(1),
        epoch: E1,
        bytes: 500,
    });
    assert_eq!(failed(&saved.wait(1000), 1), None);
    let mut cut = Bench::at("decoding");
    cut.stop(2000);
    let _ = cut.go(Event::StreamEnded { room: room(1) });
    let over = cut.wait(250);
    assert_eq!(failed(&over, 1).map(|(reason, _)| reason), Some(Reason::SelfPaused));
    assert!(ended(&over, 1).is_some_and(|(_, evidence, _)| evidence.was_stopped));
    let over = Bench::at("decoding").go(Event::StreamEnded { room: room(1) });
    assert_eq!(failed(&over, 1), Some((Reason::RouterLost, Owes::Router)));
}

#[test]
fn a_gone_door_or_member_is_a_question_to_the_router() {
    for event in [
        Event::DoorGone { room: room(1) },
        Event::MemberGone { incarnation: PREFILL },
    ] {
        let mut silent = Bench::at("ready");
        assert!(told(&silent.go(event.clone()), 1, &FromWorker::Ask));
        assert_eq!(failed(&silent.wait(2000), 1), Some((Reason::LeaseLost, Owes::Router)));
        let mut alive = Bench::at("ready");
        let _ = alive.go(event.clone());
        let _ = alive.say(1, ToWorker::Live);
        assert_eq!(failed(&alive.wait(10_000), 1), None);
        assert_eq!(alive.go(event.clone()), vec![]);
        let mut done = Bench::at("decoding");
        let _ = done.go(event);
        let over = done.say(1, ToWorker::Verdict(Verdict::Done));
        assert_eq!(ended(&over, 1).map(|(end, ..)| end), Some(PartEnd::Done));
    }
}

#[test]
fn a_last_word_is_not_eaten_by_a_kill() {
    let mut bench = Bench::at("decoding");
    let _ = bench.go(Event::Made {
        room: room(1),
        tokens: 1,
    });
    let _ = bench.say(1, ToWorker::Taken(1));
    let over = bench.go(Event::EngineFinished { room: room(1) });
    assert_eq!(ended(&over, 1).map(|(end, ..)| end), Some(PartEnd::Done));
    let killed = |effects: &[Effect]| {
        effects.contains(&Effect::KillSession {
            room: room(1),
            epoch: E1,
        })
    };
    assert!(!killed(&over), "Committed may still be on its way");
    assert!(killed(&bench.wait(250)));
    let mut long = Bench::at("decoding");
    let _ = long.go(Event::Made {
        room: room(1),
        tokens: 1,
    });
    assert!(
        killed(&long.wait(500)),
        "nor does it keep its permit for a whole answer"
    );
}

#[test]
fn pages_stay_in_quarantine_until_every_permit_is_back() {
    let mut bench = Bench::at("decoding");
    let _ = bench.say(1, ToWorker::Abort(Reason::Aborted));
    assert_eq!(bench.go(Event::EngineFinished { room: room(1) }), vec![]);
    assert_eq!(bench.ledger.gauges(bench.now).pages.quarantined, 10);
    let back = bench.go(Event::Quiesced {
        room: room(1),
        epoch: E1,
    });
    assert_eq!(back, vec![Effect::ClosePages { room: room(1) }]);
    assert_eq!(bench.ledger.gauges(bench.now).pages, PageCounts::all_free(70));
    assert_eq!(
        bench.go(Event::Quiesced {
            room: room(1),
            epoch: E1
        }),
        vec![],
        "twice is once"
    );
}

#[test]
fn failures_of_this_node_are_its_own() {
    let over = Bench::at("decoding").go(Event::EngineFailed { room: room(1) });
    assert_eq!(failed(&over, 1), Some((Reason::EngineFailed, Owes::Decode)));
    let over = Bench::at("opened").go(Event::ActorDied { room: room(1) });
    assert_eq!(failed(&over, 1), Some((Reason::InternalError, Owes::Decode)));
    let mut drained = Bench::at("ready");
    let _ = drained.go(Event::Drain);
    assert_eq!(
        failed(&drained.go(Event::DrainOver), 1).map(|(reason, _)| reason),
        Some(Reason::Draining)
    );
}
