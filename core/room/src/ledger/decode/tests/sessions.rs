//! Aborts, and sessions that break.

use super::*;

#[test]
fn an_abort_counts_in_every_phase_and_is_answered_after_the_end() {
    for (stage, phase) in STAGES {
        let mut bench = Bench::at(stage);
        assert_eq!(bench.phase(1), Some(phase), "{stage}");
        let over = bench.say(1, ToWorker::Abort(Reason::Aborted));
        assert_eq!(
            failed(&over, 1).map(|(reason, _)| reason),
            Some(Reason::Aborted),
            "{stage}"
        );
        let said = over.iter().any(|effect| matches!(effect, Effect::SayFail { .. }));
        assert_eq!(said, matches!(stage, "quiescing" | "ready" | "input"), "{stage}");
        assert_eq!(
            over.contains(&Effect::CancelEngine { room: room(1) }),
            stage == "decoding",
            "{stage}"
        );
        let answer = FromWorker::AlreadyEnded(PartEnd::Failed(Reason::Aborted));
        let again = bench.say(1, ToWorker::Abort(Reason::ClientStalled));
        assert_eq!(
            again,
            vec![Effect::Tell {
                room: room(1),
                message: answer
            }],
            "{stage}"
        );
    }
}

#[test]
fn an_unknown_room_is_an_answer_and_an_update_after_the_end_changes_nothing() {
    let mut bench = Bench::at("decoding");
    let unknown = vec![Effect::Tell {
        room: room(5),
        message: FromWorker::Unknown,
    }];
    assert_eq!(bench.say(5, ToWorker::Taken(1)), unknown);
    assert_eq!(bench.say(5, ToWorker::Verdict(Verdict::Done)), vec![]);
    let _ = bench.say(1, ToWorker::Abort(Reason::Aborted));
    assert_eq!(
        bench.go(Event::Made {
            room: room(1),
            tokens: 9
        }),
        vec![],
        "no token is told after the end"
    );
    assert_eq!(
        bench.go(Event::Verified {
            room: room(1),
            epoch: E1,
            bytes: 999
        }),
        vec![]
    );
    assert_eq!(bench.go(Event::StreamEnded { room: room(1) }), vec![]);
    assert_eq!(bench.ledger.rows(bench.now), vec![]);
    assert_eq!(
        bench
            .ledger
            .evidence(room(1), bench.now)
            .map(|seen| seen.counters.bytes_verified),
        Some(100)
    );
}

#[test]
fn a_session_that_breaks_ends_only_itself_in_every_phase() {
    for stage in ["ready", "input"] {
        let mut bench = Bench::at(stage);
        let broken = bench.go(Event::Broken {
            room: room(1),
            epoch: E1,
        });
        assert_eq!(failed(&broken, 1), None, "{stage}");
        assert!(
            broken.contains(&Effect::KillSession {
                room: room(1),
                epoch: E1
            }),
            "{stage}"
        );
        assert_eq!(bench.ledger.gauges(bench.now).pages.held, 10, "{stage}");
        let _ = bench.go(Event::Quiesced {
            room: room(1),
            epoch: E1,
        });
        assert_eq!(
            replies(&bench.hello(1, E2)),
            vec![(room(1), E2, HelloReply::Ready)],
            "{stage}"
        );
    }
    let mut gone = Bench::at("input");
    let _ = gone.wait(2000);
    let _ = gone.go(Event::Broken {
        room: room(1),
        epoch: E1,
    });
    assert_eq!(failed(&gone.wait(2999), 1), None);
    let over = gone.wait(1);
    assert_eq!(
        failed(&over, 1),
        Some((Reason::PrefillLost, Owes::Prefill)),
        "under the timer already armed"
    );
    assert!(ended(&over, 1).is_some_and(|(_, evidence, _)| evidence.data_link_broken));
}

#[test]
fn a_restart_or_a_resend_is_never_progress() {
    let mut bench = Bench::at("input");
    let _ = bench.go(Event::PeerProgress {
        room: room(1),
        epoch: E1,
        progress: 5,
    });
    let _ = bench.go(Event::Verified {
        room: room(1),
        epoch: E1,
        bytes: 100,
    });
    let mut over = Vec::new();
    for epoch in 1..4 {
        over.extend(bench.wait(1400));
        over.extend(bench.hello(1, Epoch(epoch + 1)));
        over.extend(bench.go(Event::Quiesced {
            room: room(1),
            epoch: Epoch(epoch),
        }));
        let again = Epoch(epoch + 1);
        over.extend(bench.go(Event::Started {
            room: room(1),
            epoch: again,
        }));
        over.extend(bench.go(Event::Verified {
            room: room(1),
            epoch: again,
            bytes: 100,
        }));
        over.extend(bench.go(Event::PeerProgress {
            room: room(1),
            epoch: again,
            progress: 5,
        }));
    }
    assert_eq!(failed(&over, 1), None);
    assert_eq!(
        failed(&bench.wait(800), 1),
        Some((Reason::PrefillStalled, Owes::Prefill))
    );
}

#[test]
fn p_is_given_time_by_its_engines_chunks_under_the_absolute_deadline() {
    let mut bench = Bench::at("input");
    let mut progress = 0;
    let mut moving = |_: &mut Bench| {
        progress += 1;
        Event::PeerProgress {
            room: room(1),
            epoch: E1,
            progress,
        }
    };
    // 80 tokens at 20/s + 2 TTL, no byte, + 2 TTL.
    assert_eq!(failed(&bench.wait_doing(23_750, &mut moving), 1), None);
    assert_eq!(
        failed(&bench.wait_doing(500, &mut moving), 1),
        Some((Reason::TransferStalled, Owes::Prefill))
    );
    let mut drip = Bench::with(
        Settings {
            transfer_floor: 100,
            ..Settings::default()
        },
        70,
    );
    drip.bring("input", 1);
    let mut bytes = 0;
    let over = drip.wait_doing(60_000, |_| {
        bytes += 50;
        Event::Verified {
            room: room(1),
            epoch: E1,
            bytes,
        }
    });
    assert_eq!(failed(&over, 1), None, "twice the floor");
    assert_eq!(
        failed(&Bench::at("input").wait(5000), 1),
        Some((Reason::PrefillStalled, Owes::Prefill))
    );
}

#[test]
fn the_first_count_of_ps_engine_after_started_is_progress_once() {
    let mut bench = Bench::at("input");
    let count = |_: &mut Bench| Event::PeerProgress {
        room: room(1),
        epoch: E1,
        progress: 7,
    };
    assert_eq!(failed(&bench.wait(1000), 1), None);
    assert_eq!(
        failed(&bench.wait_doing(4750, count), 1),
        None,
        "a chunk may have ended just before it was first heard of"
    );
    assert_eq!(
        failed(&bench.wait_doing(750, count), 1),
        Some((Reason::PrefillStalled, Owes::Prefill)),
        "the same count again is none"
    );
}
