//! How rooms run.

use super::*;

#[test]
fn a_room_runs_from_open_to_handed_over_and_gives_everything_back() {
    let mut bench = Bench::new();
    let opened = bench.open(1);
    assert_eq!(opened[0], Effect::Begin { room: room(1) });
    assert!(told(
        &opened,
        1,
        &FromWorker::Admitted {
            data_addr: String::new(),
            token: 0
        }
    ));
    assert!(opened.contains(&Effect::Connect {
        room: room(1),
        epoch: E1,
        after: Millis(0)
    }));
    let ready = bench.reply(1, E1, HelloReply::Ready);
    assert_eq!(
        ready[0],
        Effect::SayStarted {
            room: room(1),
            epoch: E1
        }
    );
    assert!(told(&ready, 1, &FromWorker::Started { epoch: E1, reused: 0 }));
    assert!(ready.contains(&Effect::Compute {
        room: room(1),
        tokens: 100,
        reuse: vec![]
    }));
    assert_eq!(bench.ledger.gauges(bench.now).pages.held, 10);
    let _ = bench.sample(1, 500, 300, 0);
    let _ = bench.go(Event::Sealed {
        room: room(1),
        bytes: 1000,
    });
    assert_eq!(bench.phase(1), Some(Phase::Transferring));
    let _ = bench.sample(1, 1000, 1000, 1000);
    let over = bench.go(Event::Committed {
        room: room(1),
        epoch: E1,
    });
    assert_eq!(ended(&over, 1).map(|(end, ..)| end), Some(PartEnd::HandedOver));
    assert!(over.contains(&Effect::FinishSession {
        room: room(1),
        epoch: E1
    }));
    assert_eq!(over.last(), Some(&Effect::End { room: room(1) }));
    assert_eq!(bench.ledger.gauges(bench.now).pages.quarantined, 10);
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
    assert_eq!(bench.go(Event::Drain), vec![Effect::Serving(false)]);
    assert!(bench.ledger.drained());
}

#[test]
fn r_may_tell_of_the_commit_first() {
    let mut bench = Bench::staged("sending");
    let over = bench.say(1, ToWorker::Committed);
    assert_eq!(ended(&over, 1).map(|(end, ..)| end), Some(PartEnd::HandedOver));
    let late = bench.go(Event::Committed {
        room: room(1),
        epoch: E1,
    });
    assert_eq!(late, vec![]);
    let also = Bench::staged("hello").reply(1, E1, HelloReply::Committed);
    assert_eq!(ended(&also, 1).map(|(end, ..)| end), Some(PartEnd::HandedOver));
}

#[test]
fn opens_are_refused_for_a_reason() {
    let refused = |bench: &mut Bench, spec: RoomSpec| {
        let effects = bench.go(Event::Open {
            spec,
            decode_addr: String::new(),
            token: 0,
            blocks: Arc::default(),
        });
        match effects.as_slice() {
            [
                Effect::Tell {
                    message: FromWorker::Refused(refusal),
                    ..
                },
            ] => Some(*refusal),
            _ => None,
        }
    };
    let mut bench = Bench::with(
        Settings {
            permits: 2,
            ..Settings::default()
        },
        20,
    );
    let other = RoomSpec {
        prefill: DECODE,
        ..spec(1)
    };
    assert_eq!(refused(&mut bench, other), Some(Refusal::WrongIncarnation));
    assert_eq!(
        refused(
            &mut bench,
            RoomSpec {
                prompt_tokens: 201,
                ..spec(1)
            }
        ),
        Some(Refusal::TooLarge)
    );
    assert_eq!(
        refused(
            &mut bench,
            RoomSpec {
                max_tokens: 501,
                ..spec(1)
            }
        ),
        Some(Refusal::TooLarge)
    );
    assert_eq!(refused(&mut bench, spec(1)), None);
    assert_eq!(refused(&mut bench, spec(1)), Some(Refusal::Exists));
    assert_eq!(refused(&mut bench, spec(2)), None);
    assert_eq!(refused(&mut bench, spec(3)), Some(Refusal::NoPermit));
    let _ = bench.say(1, ToWorker::Abort(Reason::Aborted));
    let _ = bench.go(Event::Quiesced {
        room: room(1),
        epoch: E1,
    });
    assert_eq!(
        refused(&mut bench, spec(1)),
        Some(Refusal::Exists),
        "also when it is only remembered"
    );
    let _ = bench.go(Event::Drain);
    assert_eq!(refused(&mut bench, spec(4)), Some(Refusal::Draining));
}

#[test]
fn a_mute_decode_worker_holds_up_nobody_but_the_hello_window() {
    let mut bench = Bench::with(
        Settings {
            hello_window: 2,
            ..Settings::default()
        },
        70,
    );
    assert_eq!(connects(&bench.open(1)).len(), 1);
    assert_eq!(connects(&bench.open(2)).len(), 1);
    assert_eq!(connects(&bench.open(3)).len(), 0);
    assert_eq!(bench.phase(3), Some(Phase::Queued));
    assert_eq!(
        connects(&bench.reply(1, E1, HelloReply::Wait)).len(),
        1,
        "Wait gives the place to the next"
    );
    assert_eq!(bench.phase(1), Some(Phase::Queued));
    assert_eq!(connects(&bench.open(4)).len(), 0);
    assert_eq!(
        connects(&bench.reply(2, E1, HelloReply::Ready)).len(),
        1,
        "Ready gives it too"
    );
    assert_eq!(connects(&bench.open(5)).len(), 0);
    assert_eq!(
        connects(&bench.say(3, ToWorker::Abort(Reason::Aborted))).len(),
        1,
        "and so does the end"
    );
    let effects = bench.reply(1, E1, HelloReply::Ready);
    assert!(
        told(&effects, 1, &FromWorker::Started { epoch: E1, reused: 0 }),
        "Ready after Wait"
    );
}

#[test]
fn every_hello_has_a_deadline() {
    let mut bench = Bench::staged("hello");
    assert_eq!(failed(&bench.wait(4999), 1), None);
    let over = bench.wait(1);
    assert_eq!(failed(&over, 1), Some((Reason::HandshakeTimeout, Owes::Decode)));
    assert!(over.iter().any(|effect| matches!(
        effect,
        Effect::SayFail {
            reason: Reason::HandshakeTimeout,
            ..
        }
    )));
    let mut again = Bench::staged("computing");
    let _ = again.broken(1, E1);
    let over = again.wait_doing(5000, |bench| {
        // The engine moves: only the handshake is owed.
        bench.progress += 1;
        Event::Engine(EngineView {
            progress: bench.progress,
            in_hand: Some(Millis(1)),
            alive: true,
        })
    });
    assert_eq!(failed(&over, 1), Some((Reason::HandshakeTimeout, Owes::Decode)));
    let mut waits = Bench::staged("pages");
    assert_eq!(failed(&waits.wait(20_000), 1), None, "Wait stops the handshake timer");
}

#[test]
fn an_abort_counts_in_every_phase_and_is_answered_after_the_end() {
    for (stage, phase) in STAGES {
        let mut bench = Bench::staged(stage);
        assert_eq!(bench.phase(1), Some(phase), "{stage}");
        let over = bench.say(1, ToWorker::Abort(Reason::Aborted));
        assert_eq!(
            failed(&over, 1).map(|(reason, _)| reason),
            Some(Reason::Aborted),
            "{stage}"
        );
        assert_eq!(bench.phase(1), None, "{stage}");
        let engine = over.contains(&Effect::CancelEngine { room: room(1) });
        assert_eq!(engine, stage == "computing", "{stage}");
        let again = bench.say(1, ToWorker::Abort(Reason::ClientStalled));
        let answer = FromWorker::AlreadyEnded(PartEnd::Failed(Reason::Aborted));
        assert_eq!(
            again,
            vec![Effect::Tell {
                room: room(1),
                message: answer
            }],
            "{stage}: the first reason wins"
        );
    }
}

#[test]
fn an_unknown_room_is_an_answer_and_no_state() {
    let mut bench = Bench::new();
    for message in [
        ToWorker::Abort(Reason::Aborted),
        ToWorker::Committed,
        ToWorker::Live,
        ToWorker::Taken(1),
    ] {
        let answer = vec![Effect::Tell {
            room: room(5),
            message: FromWorker::Unknown,
        }];
        assert_eq!(bench.say(5, message), answer);
    }
    assert_eq!(bench.say(5, ToWorker::Unknown), vec![], "an answer is not answered");
    assert_eq!(bench.sample(5, 1, 1, 1), vec![]);
    assert_eq!(bench.ledger.rows(bench.now), vec![]);
    assert_eq!(bench.ledger.evidence(room(5), bench.now), None);
    assert_eq!(bench.ledger.gauges(bench.now).fenced, 6);
}

#[test]
fn an_update_after_the_end_changes_nothing() {
    let mut bench = Bench::staged("computing");
    let _ = bench.say(1, ToWorker::Abort(Reason::Aborted));
    let seen = bench.ledger.evidence(room(1), bench.now);
    assert_eq!(bench.sample(1, 10, 10, 10), vec![]);
    assert_eq!(bench.reply(1, E1, HelloReply::Ready), vec![]);
    assert_eq!(bench.broken(1, E1), vec![]);
    assert_eq!(bench.go(Event::ActorDied { room: room(1) }), vec![]);
    assert_eq!(bench.go(Event::StreamEnded { room: room(1) }), vec![]);
    assert_eq!(bench.go(Event::DoorGone { room: room(1) }), vec![]);
    assert_eq!(bench.ledger.evidence(room(1), bench.now), seen);
    assert_eq!(bench.ledger.rows(bench.now), vec![]);
}

#[test]
fn a_broken_connection_is_tried_again_in_every_phase() {
    for (stage, phase) in STAGES {
        if stage == "window" {
            continue; // It has no connection yet.
        }
        let mut bench = Bench::staged(stage);
        let effects = bench.broken(1, E1);
        assert!(
            effects.contains(&Effect::KillSession {
                room: room(1),
                epoch: E1
            }),
            "{stage}"
        );
        assert_eq!(connects(&effects), vec![(E2, 0)], "{stage}: at once");
        let kept = matches!(stage, "computing" | "sending");
        assert_eq!(bench.phase(1) == Some(phase), kept || stage == "hello", "{stage}");
        assert_eq!(
            connects(&bench.broken(1, E1)),
            vec![],
            "{stage}: the old epoch is fenced"
        );
        let ready = bench.reply(1, E2, HelloReply::Ready);
        let restarted = ready.contains(&Effect::SayStarted {
            room: room(1),
            epoch: E2,
        });
        assert_eq!(restarted, stage != "turn", "{stage}");
        assert_eq!(
            told(&ready, 1, &FromWorker::Started { epoch: E2, reused: 0 }),
            restarted && !kept,
            "{stage}: pages and turn are kept"
        );
    }
}

#[test]
fn epochs_are_bounded_except_those_spent_while_queued() {
    let mut bench = Bench::staged("computing");
    assert_eq!(connects(&bench.broken(1, Epoch(1))), vec![(Epoch(2), 0)]);
    assert_eq!(connects(&bench.broken(1, Epoch(2))), vec![(Epoch(3), 100)]);
    assert_eq!(connects(&bench.broken(1, Epoch(3))), vec![(Epoch(4), 400)]);
    let over = bench.broken(1, Epoch(4));
    assert_eq!(failed(&over, 1).map(|(reason, _)| reason), Some(Reason::TransferLost));
    assert!(ended(&over, 1).is_some_and(|(_, evidence, _)| evidence.data_link_broken));
    let mut queued = Bench::staged("pages");
    for epoch in 1..20 {
        assert_eq!(connects(&queued.broken(1, Epoch(epoch))).len(), 1);
        let _ = queued.reply(1, Epoch(epoch + 1), HelloReply::Wait);
    }
    assert_eq!(queued.phase(1), Some(Phase::Queued));
}

#[test]
fn a_restart_is_never_progress() {
    let mut bench = Bench::staged("sending");
    let _ = bench.sample(1, 1000, 1000, 0);
    let mut over = Vec::new();
    for epoch in 1..4 {
        over.extend(bench.wait(1400));
        over.extend(bench.broken(1, Epoch(epoch)));
        over.extend(bench.reply(1, Epoch(epoch + 1), HelloReply::Ready));
    }
    assert_eq!(failed(&over, 1), None);
    assert_eq!(
        failed(&bench.wait(800), 1),
        Some((Reason::TransferStalled, Owes::Decode))
    );
}

#[test]
fn a_refused_connection_is_a_signal() {
    let mut bench = Bench::staged("hello");
    let over = bench.go(Event::Broken {
        room: room(1),
        epoch: E1,
        unacked: false,
        refused: true,
    });
    assert_eq!(failed(&over, 1), Some((Reason::DecodeLost, Owes::Decode)));
    assert!(ended(&over, 1).is_some_and(|(_, evidence, _)| evidence.data_link_broken));
}

#[test]
fn last_words_of_the_peer_are_relayed() {
    let theirs = Evidence {
        waited_for: Owes::Prefill,
        waited: Millis(77),
        ..Evidence::default()
    };
    let mut bench = Bench::staged("sending");
    let fail = Event::PeerFailed {
        room: room(1),
        epoch: E1,
        reason: Reason::KvCorrupt,
        evidence: theirs,
    };
    let over = bench.go(fail);
    assert_eq!(
        ended(&over, 1),
        Some((PartEnd::Failed(Reason::KvCorrupt), theirs, true))
    );
    assert!(
        over.contains(&Effect::FinishSession {
            room: room(1),
            epoch: E1
        }),
        "it needs no Fail back"
    );
    let own = bench
        .ledger
        .evidence(room(1), bench.now)
        .map(|evidence| evidence.waited_for);
    assert_eq!(own, Some(Owes::Prefill), "this node's own view stays to be asked for");
    let over = Bench::staged("hello").reply(1, E1, HelloReply::Ended(Reason::RouterLost));
    assert_eq!(
        ended(&over, 1).map(|(end, _, relayed)| (end, relayed)),
        Some((PartEnd::Failed(Reason::RouterLost), true))
    );
    let over = Bench::staged("hello").reply(1, E1, HelloReply::Unknown);
    assert_eq!(failed(&over, 1), Some((Reason::WrongIncarnation, Owes::Decode)));
    let stale = Bench::staged("hello").reply(1, E1, HelloReply::Stale);
    assert_eq!(connects(&stale), vec![(E2, 0)]);
}
