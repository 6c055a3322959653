//! How rooms run.

use super::*;

#[test]
fn a_room_runs_from_open_to_done_and_gives_everything_back() {
    let mut bench = Bench::new();
    let opened = bench.open(1);
    assert_eq!(opened[0], Effect::Begin { room: room(1) });
    assert!(told(
        &opened,
        1,
        &FromWorker::Admitted {
            data_addr: String::new(),
            token: TOKEN
        }
    ));
    let ready = bench.hello(1, E1);
    assert_eq!(
        ready[0],
        Effect::OpenPages {
            room: room(1),
            tokens: 100
        }
    );
    assert_eq!(replies(&ready), vec![(room(1), E1, HelloReply::Ready)]);
    let _ = bench.go(Event::Started {
        room: room(1),
        epoch: E1,
    });
    let _ = bench.go(Event::Verified {
        room: room(1),
        epoch: E1,
        bytes: 100,
    });
    let committed = bench.go(Event::Complete {
        room: room(1),
        epoch: E1,
    });
    assert_eq!(
        committed[0],
        Effect::SayCommitted {
            room: room(1),
            epoch: E1
        }
    );
    assert!(told(&committed, 1, &FromWorker::Committed));
    assert_eq!(committed[2], Effect::Decode { room: room(1) });
    assert!(told(
        &bench.go(Event::Made {
            room: room(1),
            tokens: 1
        }),
        1,
        &FromWorker::Tokens { position: 0, count: 1 }
    ));
    let more = bench.go(Event::Made {
        room: room(1),
        tokens: 4,
    });
    assert!(told(&more, 1, &FromWorker::Tokens { position: 1, count: 3 }));
    assert_eq!(
        bench.go(Event::Made {
            room: room(1),
            tokens: 2
        }),
        vec![],
        "only an increase counts"
    );
    let _ = bench.go(Event::Quiesced {
        room: room(1),
        epoch: E1,
    });
    let _ = bench.go(Event::EngineFinished { room: room(1) });
    let _ = bench.say(1, ToWorker::Taken(3));
    assert_eq!(bench.phase(1), Some(Phase::Decoding), "one token is not taken");
    let over = bench.say(1, ToWorker::Taken(4));
    assert_eq!(ended(&over, 1).map(|(end, ..)| end), Some(PartEnd::Done));
    assert_eq!(
        over[1..],
        [Effect::End { room: room(1) }, Effect::ClosePages { room: room(1) }]
    );
    assert_eq!(bench.ledger.gauges(bench.now).pages, PageCounts::all_free(70));
    let _ = bench.go(Event::Drain);
    assert!(bench.ledger.drained());
}

#[test]
fn one_prefill_worker_may_not_take_all_places_while_there_are_others() {
    let mut bench = Bench::with(
        Settings {
            permits: 4,
            ..Settings::default()
        },
        70,
    );
    let from = |number: u64, prefill: u64| RoomSpec {
        prefill: Incarnation::new(prefill),
        ..spec(number)
    };
    let mut refused = |spec: RoomSpec| {
        let effects = bench.go(Event::Open { spec, token: TOKEN });
        effects.iter().find_map(|effect| match effect {
            Effect::Tell {
                message: FromWorker::Refused(refusal),
                ..
            } => Some(*refusal),
            _ => None,
        })
    };
    for number in 1..=3 {
        assert_eq!(refused(from(number, 2)), None, "the only one takes what there is");
    }
    assert_eq!(refused(from(4, 9)), None);
    assert_eq!(refused(from(5, 9)), Some(Refusal::NoPermit));
    let _ = bench.say(1, ToWorker::Abort(Reason::Aborted));
    let mut refused = |spec: RoomSpec| {
        let effects = bench.go(Event::Open { spec, token: TOKEN });
        effects.iter().any(|e| {
            matches!(
                e,
                Effect::Tell {
                    message: FromWorker::Refused(Refusal::PeerShare),
                    ..
                }
            )
        })
    };
    assert!(refused(from(6, 2)), "it holds its half");
    assert!(!refused(from(7, 9)));
}

#[test]
fn opens_are_refused_for_a_reason() {
    let mut bench = Bench::new();
    let mut refused = |spec: RoomSpec| match bench.go(Event::Open { spec, token: TOKEN }).as_slice() {
        [
            Effect::Tell {
                message: FromWorker::Refused(refusal),
                ..
            },
        ] => Some(*refusal),
        _ => None,
    };
    assert_eq!(
        refused(RoomSpec {
            decode: PREFILL,
            ..spec(1)
        }),
        Some(Refusal::WrongIncarnation)
    );
    assert_eq!(
        refused(RoomSpec {
            max_tokens: u32::MAX,
            ..spec(1)
        }),
        Some(Refusal::TooLarge)
    );
    assert_eq!(refused(spec(1)), None);
    assert_eq!(refused(spec(1)), Some(Refusal::Exists));
    let mut small = Bench::with(Settings::default(), 9);
    let effects = small.open(1);
    assert!(
        told(&effects, 1, &FromWorker::Refused(Refusal::TooLarge)),
        "prompt and all tokens need 10 pages"
    );
}

#[test]
fn a_hello_that_is_not_meant_here_creates_nothing_and_learns_nothing() {
    let mut bench = Bench::at("opened");
    let hello = |token, prefill, decode, number| Event::Hello {
        room: room(number),
        epoch: E1,
        token,
        prefill,
        decode,
        session: SessionId(9),
    };
    for event in [
        hello(TOKEN, PREFILL, DECODE, 2),
        hello(TOKEN + 1, PREFILL, DECODE, 1),
        hello(TOKEN, ROUTER, DECODE, 1),
        hello(TOKEN, PREFILL, ROUTER, 1),
    ] {
        let effects = bench.go(event);
        assert_eq!(
            replies(&effects).iter().map(|(.., reply)| *reply).collect::<Vec<_>>(),
            vec![HelloReply::Unknown]
        );
        assert_eq!(effects.len(), 1);
    }
    let gauges = bench.ledger.gauges(bench.now);
    assert_eq!(
        (gauges.fenced, gauges.pages.held, bench.ledger.rows(bench.now).len()),
        (4, 0, 1)
    );
}

#[test]
fn only_a_higher_epoch_is_taken_and_the_old_writer_must_let_go_first() {
    let mut bench = Bench::at("input");
    assert_eq!(replies(&bench.hello(1, E1)), vec![(room(1), E1, HelloReply::Stale)]);
    let second = bench.hello(1, E2);
    assert!(second.contains(&Effect::KillSession {
        room: room(1),
        epoch: E1
    }));
    assert_eq!(replies(&second), vec![], "two writers are never ready");
    let late = bench.go(Event::Complete {
        room: room(1),
        epoch: E1,
    });
    assert_eq!(late, vec![], "frames of the old epoch change nothing");
    assert_eq!(bench.ledger.gauges(bench.now).fenced, 2);
    let ready = bench.go(Event::Quiesced {
        room: room(1),
        epoch: E1,
    });
    assert_eq!(replies(&ready), vec![(room(1), E2, HelloReply::Ready)]);
    assert!(
        !ready.iter().any(|e| matches!(e, Effect::OpenPages { .. })),
        "a room keeps its pages over epochs"
    );
    assert!(told(
        &bench.go(Event::Complete {
            room: room(1),
            epoch: E2
        }),
        1,
        &FromWorker::Committed
    ));
}

#[test]
fn an_old_writer_that_does_not_let_go_is_this_nodes_debt() {
    let mut bench = Bench::at("quiescing");
    assert_eq!(
        failed(&bench.wait(5000), 1),
        Some((Reason::HandshakeTimeout, Owes::Decode))
    );
}

#[test]
fn pages_are_given_in_full_in_the_order_of_the_first_hellos() {
    let mut bench = Bench::with(Settings::default(), 15);
    for number in 1..=3 {
        let _ = bench.open(number);
    }
    let tiny = RoomSpec {
        prompt_tokens: 5,
        max_tokens: 5,
        ..spec(4)
    };
    let _ = bench.go(Event::Open {
        spec: tiny,
        token: TOKEN,
    });
    assert_eq!(replies(&bench.hello(1, E1)), vec![(room(1), E1, HelloReply::Ready)]);
    assert_eq!(replies(&bench.hello(2, E1)), vec![(room(2), E1, HelloReply::Wait)]);
    assert_eq!(replies(&bench.hello(3, E1)), vec![(room(3), E1, HelloReply::Wait)]);
    assert_eq!(
        replies(&bench.hello(4, E1)),
        vec![(room(4), E1, HelloReply::Wait)],
        "a small room does not overtake"
    );
    let _ = bench.go(Event::Broken {
        room: room(2),
        epoch: E1,
    });
    let _ = bench.say(1, ToWorker::Abort(Reason::Aborted));
    let back = bench.go(Event::Quiesced {
        room: room(1),
        epoch: E1,
    });
    let ready = vec![(room(3), E1, HelloReply::Ready), (room(4), E1, HelloReply::Ready)];
    assert_eq!(
        replies(&back),
        ready,
        "room 2 has no live session: it keeps its place, and nobody waits for it"
    );
    assert_eq!(replies(&bench.hello(2, E2)), vec![(room(2), E2, HelloReply::Wait)]);
    let _ = bench.open(5);
    let _ = bench.hello(5, E1);
    let _ = bench.say(3, ToWorker::Abort(Reason::Aborted));
    let back = bench.go(Event::Quiesced {
        room: room(3),
        epoch: E1,
    });
    assert_eq!(
        replies(&back),
        vec![(room(2), E2, HelloReply::Ready)],
        "its place was before that of room 5"
    );
}

#[test]
fn commit_is_sticky_running_or_ended() {
    let mut bench = Bench::at("decoding");
    assert_eq!(replies(&bench.hello(1, E2)), vec![(room(1), E2, HelloReply::Committed)]);
    assert_eq!(replies(&bench.hello(1, E1)), vec![(room(1), E1, HelloReply::Committed)]);
    let fail = Event::PeerFailed {
        room: room(1),
        epoch: E1,
        reason: Reason::KvCorrupt,
        evidence: Evidence::default(),
    };
    assert_eq!(bench.go(fail), vec![], "no failure of P counts any more");
    assert_eq!(
        bench.go(Event::Broken {
            room: room(1),
            epoch: E1
        }),
        vec![]
    );
    let _ = bench.say(1, ToWorker::Abort(Reason::Aborted));
    assert_eq!(
        replies(&bench.hello(1, E2)),
        vec![(room(1), E2, HelloReply::Committed)],
        "also when it failed later"
    );
    let mut early = Bench::at("input");
    let _ = early.say(1, ToWorker::Abort(Reason::Aborted));
    assert_eq!(
        replies(&early.hello(1, E2)),
        vec![(room(1), E2, HelloReply::Ended(Reason::Aborted))]
    );
}

#[test]
fn what_a_connection_of_an_earlier_epoch_says_changes_nothing() {
    let mut bench = Bench::at("input");
    let _ = bench.hello(1, E2);
    let _ = bench.go(Event::Quiesced {
        room: room(1),
        epoch: E1,
    });
    let fenced = bench.ledger.gauges(bench.now).fenced;
    let before = bench.ledger.row(room(1), bench.now);
    let late = [
        Event::Started {
            room: room(1),
            epoch: E1,
        },
        Event::Verified {
            room: room(1),
            epoch: E1,
            bytes: 500,
        },
        Event::PeerProgress {
            room: room(1),
            epoch: E1,
            progress: 9,
        },
        Event::Complete {
            room: room(1),
            epoch: E1,
        },
        Event::Corrupt {
            room: room(1),
            epoch: E1,
        },
    ];
    for (number, event) in late.into_iter().enumerate() {
        assert_eq!(bench.go(event.clone()), vec![], "{event:?}");
        assert_eq!(
            bench.ledger.gauges(bench.now).fenced,
            fenced + number as u64 + 1,
            "{event:?}"
        );
    }
    assert_eq!(bench.ledger.row(room(1), bench.now), before);
    assert_eq!(bench.phase(1), Some(Phase::WaitingForInput));
}
