//! Turns, pages, and what is waited for how long.

use super::*;

#[test]
fn turns_and_pages_are_given_in_the_order_of_the_opens() {
    let mut bench = Bench::with(
        Settings {
            prefill_concurrency: 2,
            ..Settings::default()
        },
        25,
    );
    for number in 1..=4 {
        let _ = bench.open(number);
    }
    for number in [4, 3, 2, 1] {
        let _ = bench.reply(number, E1, HelloReply::Ready);
    }
    let computing = |bench: &Bench| {
        [1, 2, 3, 4]
            .into_iter()
            .filter(|n| bench.phase(*n) == Some(Phase::WaitingForInput))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        computing(&bench),
        vec![3, 4],
        "whoever was ready first when a turn was free"
    );
    let sealed = bench.go(Event::Sealed {
        room: room(4),
        bytes: 10,
    });
    assert!(
        !sealed.iter().any(|effect| matches!(effect, Effect::Compute { .. })),
        "the turn is free, pages are not"
    );
    let _ = bench.say(4, ToWorker::Committed);
    let back = bench.go(Event::Quiesced {
        room: room(4),
        epoch: E1,
    });
    assert!(
        back.contains(&Effect::Compute {
            room: room(1),
            tokens: 100,
            reuse: vec![]
        }),
        "the first Open first"
    );
    assert_eq!(computing(&bench), vec![1, 3]);
}

#[test]
fn the_prefill_floor_bounds_how_many_compute_at_once() {
    let mut bench = Bench::with(
        Settings {
            prefill_floor: 40,
            ..Settings::default()
        },
        70,
    );
    bench.at("computing", 1);
    let mut tokens = 0;
    let _ = bench.wait_doing(5000, |bench| {
        // 60 tokens a second: enough for one room at the floor of 40, not for two.
        tokens += 15;
        bench.progress += 1;
        let progress = bench.progress;
        let counters = Counters {
            tokens_computed: tokens,
            bytes_sealed: u64::from(tokens),
            ..Counters::default()
        };
        let _ = bench.go(Event::Sample {
            room: room(1),
            counters,
            unacked: false,
        });
        Event::Engine(EngineView {
            progress,
            in_hand: Some(Millis(10)),
            alive: true,
        })
    });
    bench.at("computing", 2);
    assert_eq!(bench.phase(2), Some(Phase::Queued));
    let _ = bench.go(Event::Sealed {
        room: room(1),
        bytes: 1000,
    });
    assert_eq!(bench.phase(2), Some(Phase::WaitingForInput));
}

#[test]
fn a_room_in_a_batch_counts_the_engines_chunks_under_its_absolute_deadline() {
    let mut bench = Bench::staged("computing");
    let busy = |bench: &mut Bench| {
        bench.progress += 1;
        Event::Engine(EngineView {
            progress: bench.progress,
            in_hand: Some(Millis(10)),
            alive: true,
        })
    };
    assert_eq!(
        failed(&bench.wait_doing(14_900, busy), 1),
        None,
        "others' chunks are progress of the engine"
    );
    let over = bench.wait_doing(200, busy);
    assert_eq!(
        failed(&over, 1),
        Some((Reason::PrefillStalled, Owes::Prefill)),
        "100 tokens at 20/s, and 2 TTL"
    );
    let mut idle = Bench::staged("computing");
    assert_eq!(failed(&idle.wait(4999), 1), None);
    assert_eq!(
        failed(&idle.wait(1), 1),
        Some((Reason::PrefillStalled, Owes::Prefill)),
        "an engine that lost the job"
    );
}

#[test]
fn the_ack_timer_is_armed_exactly_while_bytes_are_unverified() {
    let mut bench = Bench::staged("computing");
    let sealing = |sealed: u64, sent: u64, verified: u64| {
        let mut sealed = sealed;
        move |_: &mut Bench| {
            sealed += 1;
            let counters = Counters {
                bytes_sealed: sealed,
                bytes_sent: sent,
                bytes_verified: verified,
                ..Counters::default()
            };
            Event::Sample {
                room: room(1),
                counters,
                unacked: true,
            }
        }
    };
    assert_eq!(
        failed(&bench.wait_doing(2000, sealing(0, 0, 0)), 1),
        None,
        "nothing was handed over: no debt"
    );
    assert_eq!(failed(&bench.wait_doing(4000, sealing(100, 50, 10)), 1), None);
    assert_eq!(
        failed(&bench.wait_doing(1000, sealing(200, 50, 50)), 1),
        None,
        "all verified: the debt is gone"
    );
    let over = bench.wait_doing(6000, sealing(300, 60, 50));
    assert_eq!(failed(&over, 1), Some((Reason::TransferStalled, Owes::Decode)));
    assert!(ended(&over, 1).is_some_and(|(_, evidence, _)| evidence.unacked && evidence.waited >= Millis(5000)));
}

#[test]
fn in_transferring_the_debtor_is_who_holds_the_bytes() {
    let mut sender = Bench::staged("sending");
    let _ = sender.sample(1, 1000, 500, 500);
    assert_eq!(
        failed(&sender.wait(5000), 1),
        Some((Reason::TransferStalled, Owes::Prefill)),
        "sealed, not handed over"
    );
    let mut commit = Bench::staged("sending");
    let _ = commit.sample(1, 1000, 1000, 1000);
    assert_eq!(
        failed(&commit.wait(5000), 1),
        Some((Reason::TransferStalled, Owes::Decode)),
        "D owes the commit"
    );
    let mut slow = Bench::staged("sending");
    let mut verified = 0;
    let over = slow.wait_doing(10_250, |_| {
        verified += 1;
        let counters = Counters {
            bytes_sealed: 1000,
            bytes_sent: 1000,
            bytes_verified: verified,
            ..Counters::default()
        };
        Event::Sample {
            room: room(1),
            counters,
            unacked: false,
        }
    });
    assert_eq!(
        failed(&over, 1),
        Some((Reason::TransferStalled, Owes::Decode)),
        "a drip ends by the absolute deadline"
    );
}

#[test]
fn a_queued_room_has_its_own_backstop_that_blames_nobody() {
    for stage in ["window", "pages", "turn"] {
        let mut bench = Bench::staged(stage);
        let over = bench.wait_doing(40_000, |bench| {
            // Room 9, which holds the place or the engine, is kept alive.
            bench.progress += 1;
            Event::Engine(EngineView {
                progress: bench.progress,
                in_hand: Some(Millis(1)),
                alive: true,
            })
        });
        // In `window` room 9 times out, and room 1 has its own mute D.
        let expected = if stage == "window" {
            Reason::HandshakeTimeout
        } else {
            Reason::QueueTimeout
        };
        let first = failed(&over, 1).map(|(reason, _)| reason);
        if stage == "turn" {
            // Room 9 misses its absolute deadline after 15 s; its engine never stops: room 1 has no turn.
            assert_eq!(first, Some(expected));
        } else {
            assert_eq!(first, Some(expected), "{stage}");
        }
    }
}

/// Else a worker that is busy with short prompts takes itself for slow, computes one room at a time, and the next long prompt
/// holds up all others.
#[test]
fn prompts_that_are_over_before_anybody_looks_count_for_the_rate() {
    let settings = Settings {
        prefill_concurrency: 4,
        ..Settings::default()
    };
    let mut bench = Bench::with(settings, 70);
    for number in 1..=20 {
        bench.at("computing", number);
        bench.now = bench.now + Millis(250);
        bench.progress += 1;
        let _ = bench.engine(Some(0));
        let _ = bench.go(Event::Sealed {
            room: room(number),
            bytes: 1000,
        });
        let _ = bench.say(number, ToWorker::Abort(Reason::Aborted));
        let _ = bench.go(Event::Quiesced {
            room: room(number),
            epoch: E1,
        });
    }
    for number in 21..=24 {
        bench.at("computing", number);
        assert_eq!(
            bench.phase(number),
            Some(Phase::WaitingForInput),
            "{number}: it has its turn"
        );
    }
}

#[test]
fn a_wedged_engine_fails_those_who_wait_for_it_and_stops_serving_until_it_moves() {
    let mut bench = Bench::with(
        Settings {
            prefill_concurrency: 1,
            ..Settings::default()
        },
        70,
    );
    bench.at("computing", 1);
    bench.at("computing", 2);
    bench.at("pages", 3);
    let mut held = 0;
    let over = bench.wait_doing(5500, |_| {
        held += 250;
        Event::Engine(EngineView {
            progress: 0,
            in_hand: Some(Millis(held)),
            alive: true,
        })
    });
    for number in [1, 2] {
        assert_eq!(
            failed(&over, number),
            Some((Reason::EngineStalled, Owes::Prefill)),
            "{number}"
        );
        assert!(
            ended(&over, number).is_some_and(|(_, evidence, _)| evidence.admits(Millis(2500))),
            "{number}"
        );
    }
    assert_eq!(bench.phase(3), Some(Phase::Queued), "it waits for D");
    assert!(over.contains(&Effect::Serving(false)));
    let refused = bench.open(4);
    assert!(told(&refused, 4, &FromWorker::Refused(Refusal::Draining)));
    bench.progress = 1;
    assert!(bench.engine(None).contains(&Effect::Serving(true)));
}

#[test]
fn an_engine_that_owes_nothing_is_not_wedged() {
    let mut bench = Bench::staged("pages");
    let over = bench.wait_doing(30_000, |_| {
        Event::Engine(EngineView {
            progress: 0,
            in_hand: None,
            alive: true,
        })
    });
    assert!(!over.iter().any(|effect| matches!(effect, Effect::Serving(_))));
    assert_eq!(bench.phase(1), Some(Phase::Queued));
}

#[test]
fn progress_in_the_same_step_is_not_too_late() {
    let mut bench = Bench::staged("computing");
    let _ = bench.engine(Some(0));
    let _ = bench.wait(4990);
    bench.now = bench.now + Millis(20);
    bench.progress = 1;
    let effects = bench.engine(Some(0));
    assert_eq!(failed(&effects, 1), None);
    assert!(!effects.contains(&Effect::Serving(false)));
}

#[test]
fn nothing_is_stuck_while_a_worker_finds_out_that_it_was_stopped() {
    let mut bench = Bench::staged("computing");
    bench.stop(1_000_000);
    assert_eq!(bench.ledger.gauges(bench.now).stuck, 0, "judged by the last step");
    let _ = bench.go(Event::Tick);
    assert_eq!(bench.ledger.gauges(bench.now).stuck, 0, "in the grace");
    assert_eq!(
        failed(&bench.wait(250), 1).map(|(reason, _)| reason),
        Some(Reason::SelfPaused)
    );
}
