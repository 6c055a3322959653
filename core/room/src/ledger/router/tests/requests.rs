use super::*;

#[test]
fn a_request_runs_from_arrival_to_done() {
    let mut bench = Bench::pair();
    let effects = bench.arrive(1);
    let spec = begun(&effects);
    let open_d = Effect::Open {
        spec: spec.clone(),
        side: Side::Decode,
        decode_addr: String::new(),
        token: 0,
        passed: 0,
    };
    assert_eq!(
        effects,
        vec![
            Effect::Begin {
                spec: spec.clone(),
                passed: 0,
                chosen: Chosen::default()
            },
            Effect::Grant { spec: spec.clone() },
            open_d
        ]
    );
    let effects = bench.say(spec.room, Side::Decode, admitted("d:1", 7));
    let open_p = Effect::Open {
        spec: spec.clone(),
        side: Side::Prefill,
        decode_addr: "d:1".into(),
        token: 7,
        passed: 0,
    };
    assert_eq!(effects, vec![open_p]);
    bench.say(spec.room, Side::Prefill, admitted("", 0));
    bench.say(
        spec.room,
        Side::Prefill,
        FromWorker::Started {
            epoch: Epoch(1),
            reused: 0,
        },
    );
    assert_eq!(bench.row(spec.room).phase, Phase::WaitingForInput);
    let effects = bench.tokens(spec.room, 0, 2);
    assert_eq!(
        tells(&effects, Side::Prefill),
        vec![ToWorker::Committed],
        "a first token implies the commit"
    );
    assert_eq!(tells(&effects, Side::Decode), vec![ToWorker::Taken(2)]);
    assert!(has(
        &effects,
        &Effect::Pass {
            request: RequestKey(1),
            room: spec.room,
            skip: 0,
            count: 2
        }
    ));
    let effects = bench.tokens(spec.room, 2, 3);
    assert_eq!(answers(&effects), vec![(RequestKey(1), Outcome::Done)]);
    let done = ToWorker::Verdict(Verdict::Done);
    assert_eq!(tells(&effects, Side::Prefill), vec![done]);
    assert_eq!(tells(&effects, Side::Decode), vec![ToWorker::Taken(5), done]);
    assert_eq!(ends(&effects)[0].verdict, Verdict::Done);
    assert_eq!(bench.ledger.gauges(bench.now).rooms, [0; 7]);
}

#[test]
fn without_workers_the_answer_comes_at_once() {
    let mut bench = Bench::with(Settings::default(), &[], &[]);
    assert_eq!(error(&bench.arrive(1)).0, Reason::NoPrefillWorker);
    bench.join(P1, Role::Prefill);
    let effects = bench.arrive(2);
    assert_eq!(error(&effects).0, Reason::NoDecodeWorker);
    assert!(matches!(
        answers(&effects)[0].1,
        Outcome::Failed {
            retry_after: Some(_),
            ..
        }
    ));
    bench.join(D1, Role::Decode);
    assert!(begins(&bench.arrive(3)));
}

#[test]
fn what_can_never_fit_is_refused_at_pairing() {
    let mut bench = Bench::pair();
    let long = Arrival {
        prompt_tokens: 996,
        ..arrival(1)
    };
    assert_eq!(error(&bench.on(Event::Arrive(long))).0, Reason::TooLarge);
    let other = Arrival {
        model: Some("other".into()),
        ..arrival(2)
    };
    assert_eq!(error(&bench.on(Event::Arrive(other))).0, Reason::NoPrefillWorker);
}

#[test]
fn a_full_router_says_so() {
    let settings = Settings {
        max_requests: 1,
        ..Settings::default()
    };
    let mut bench = Bench::with(settings, &[P1], &[D1]);
    bench.arrive(1);
    assert_eq!(error(&bench.arrive(2)).0, Reason::Overloaded);
}

#[test]
fn an_abort_before_the_arrival_waits_for_it() {
    let mut bench = Bench::pair();
    let abort = Event::Abort {
        rid: "rid-1".into(),
        client: "c".into(),
        ticket: 4,
    };
    let accepted = Effect::AnswerAbort {
        ticket: 4,
        answer: AbortAnswer::Accepted,
    };
    assert_eq!(bench.on(abort.clone()), vec![accepted]);
    assert_eq!(error(&bench.arrive(1)).0, Reason::Aborted);
    let again = Arrival {
        rid: "rid-1".into(),
        ..arrival(2)
    };
    assert_eq!(
        error(&bench.on(Event::Arrive(again))).0,
        Reason::Aborted,
        "every arrival under the id"
    );
    let already = Effect::AnswerAbort {
        ticket: 4,
        answer: AbortAnswer::AlreadyEnded,
    };
    assert_eq!(bench.on(abort), vec![already]);
    assert_eq!(bench.ledger.gauges(bench.now).tombstones, 1);
    bench.pass(600_000);
    assert_eq!(bench.ledger.gauges(bench.now).tombstones, 0);
    let later = Arrival {
        rid: "rid-1".into(),
        ..arrival(3)
    };
    assert!(begins(&bench.on(Event::Arrive(later))));
}

#[test]
fn an_abort_ends_every_request_under_the_id_in_any_phase() {
    for phase in 0..4 {
        let mut bench = Bench::pair();
        let spec = match phase {
            0 => begun(&bench.arrive(1)),
            1 => bench.open(1),
            2 => bench.started(1),
            _ => bench.decoding(1),
        };
        bench.on(Event::Arrive(Arrival {
            rid: "rid-1".into(),
            ..arrival(2)
        }));
        let effects = bench.on(Event::Abort {
            rid: "rid-1".into(),
            client: "c".into(),
            ticket: 1,
        });
        assert!(has(
            &effects,
            &Effect::AnswerAbort {
                ticket: 1,
                answer: AbortAnswer::Aborted
            }
        ));
        assert_eq!(answers(&effects).len(), 2);
        assert!(tells(&effects, Side::Decode).contains(&ToWorker::Abort(Reason::Aborted)));
        assert_eq!(
            tells(&effects, Side::Prefill).is_empty(),
            phase == 0,
            "P was not opened yet"
        );
        let end = ends(&effects)
            .into_iter()
            .find(|end| end.room == spec.room)
            .expect("it has ended");
        assert_eq!(
            (end.verdict, end.blame),
            (Verdict::Failed(Reason::Aborted), Blame::Nobody)
        );
        let effects = bench.on(Event::Abort {
            rid: "rid-1".into(),
            client: "c".into(),
            ticket: 2,
        });
        assert_eq!(
            effects,
            vec![Effect::AnswerAbort {
                ticket: 2,
                answer: AbortAnswer::AlreadyEnded
            }]
        );
        let late = bench.say(spec.room, Side::Decode, FromWorker::Committed);
        assert_eq!(
            tells(&late, Side::Decode),
            vec![ToWorker::Verdict(Verdict::Failed(Reason::Aborted))]
        );
    }
}

#[test]
fn the_clients_end_is_an_abort_and_a_stalled_one_is_blamed() {
    let mut bench = Bench::pair();
    bench.decoding(1);
    assert_eq!(
        error(&bench.on(Event::ClientGone { request: RequestKey(1) })).0,
        Reason::Aborted
    );
    assert!(bench.on(Event::ClientGone { request: RequestKey(1) }).is_empty());
    bench.decoding(2);
    let effects = bench.on(Event::ClientStalled { request: RequestKey(2) });
    assert_eq!(error(&effects), (Reason::ClientStalled, Blame::Client));
}

#[test]
fn queue_time_is_one_budget_and_blames_nobody() {
    let mut bench = Bench::pair();
    let spec = bench.open(1);
    bench.pass(20_000);
    let hello = bench.state(spec.room, Side::Prefill, Phase::Bootstrapping, 1, Counters::default());
    assert!(answers(&hello).is_empty());
    bench.pass(2000);
    bench.state(spec.room, Side::Prefill, Phase::Queued, 1, Counters::default());
    assert!(
        answers(&bench.pass(9_990)).is_empty(),
        "the handshake's time is not the queue's"
    );
    let effects = bench.pass(20);
    assert_eq!(error(&effects), (Reason::QueueTimeout, Blame::Nobody));
    assert_eq!(ends(&effects)[0].verdict, Verdict::Failed(Reason::QueueTimeout));
    assert!(!begins(&effects));
}

#[test]
fn the_absolute_deadline_ends_whatever_lives() {
    let settings = Settings {
        request_timeout: Millis(3000),
        queue_timeout: Millis(3000),
        ..Settings::default()
    };
    let mut bench = Bench::with(settings, &[P1], &[D1]);
    bench.decoding(1);
    assert_eq!(error(&bench.pass(3000)).0, Reason::RequestTimeout);
}

#[test]
fn a_refusal_costs_no_attempt_and_each_worker_is_asked_once() {
    let mut bench = Bench::four();
    let first = begun(&bench.arrive(1));
    let effects = bench.say(
        first.room,
        Side::Decode,
        FromWorker::Refused(crate::message::Refusal::PeerShare),
    );
    let second = begun(&effects);
    assert_ne!(first.decode, second.decode);
    assert_eq!(second.attempt, Attempt(1));
    let effects = bench.say(
        second.room,
        Side::Decode,
        FromWorker::Refused(crate::message::Refusal::PeerShare),
    );
    assert!(!begins(&effects) && answers(&effects).is_empty(), "back to admission");
    let third = begun(&bench.pass(250));
    assert_eq!(third.attempt, Attempt(1));
    bench.admit(third.room);
    assert_eq!(bench.row(third.room).phase, Phase::Queued);
}

#[test]
fn too_large_everywhere_is_too_large() {
    let mut bench = Bench::four();
    let first = begun(&bench.arrive(1));
    let refused = FromWorker::Refused(crate::message::Refusal::TooLarge);
    let second = begun(&bench.say(first.room, Side::Decode, refused.clone()));
    assert_eq!(
        error(&bench.say(second.room, Side::Decode, refused)).0,
        Reason::TooLarge
    );
}

#[test]
fn a_refused_prefill_frees_the_decode_and_another_one_is_tried() {
    let mut bench = Bench::with(Settings::default(), &[P1, P2], &[D1]);
    let first = begun(&bench.arrive(1));
    bench.say(first.room, Side::Decode, admitted("d:1", 7));
    let effects = bench.say(
        first.room,
        Side::Prefill,
        FromWorker::Refused(crate::message::Refusal::NoPermit),
    );
    assert!(matches!(tells(&effects, Side::Decode)[..], [ToWorker::Abort(_)]));
    assert_ne!(begun(&effects).prefill, first.prefill);
}

/// A burst waits for admission, not at workers that would answer too late: an Open that is not answered is a lost worker.
#[test]
fn a_burst_is_opened_in_windows() {
    let settings = Settings {
        open_window: 2,
        ..Settings::default()
    };
    let begins = |effects: &[Effect]| {
        effects
            .iter()
            .filter(|effect| matches!(effect, Effect::Begin { .. }))
            .count()
    };
    let mut bench = Bench::with(settings, &[P1], &[D1]);
    let first = begun(&bench.arrive(1));
    let second = begun(&bench.arrive(2));
    for key in 3..=5 {
        assert_eq!(begins(&bench.arrive(key)), 0, "request {key} waits");
    }
    assert_eq!(bench.ledger.gauges(bench.now).queued_requests, 3);
    // With D's answer its place is free, and P, which is asked now, has another one.
    let third = begun(&bench.say(first.room, Side::Decode, admitted("d:1", 7)));
    assert_eq!(
        begins(&bench.say(second.room, Side::Decode, admitted("d:1", 7))),
        0,
        "P has two to answer"
    );
    assert_eq!(begins(&bench.say(first.room, Side::Prefill, admitted("", 0))), 1);
    let over = bench.on(Event::StreamEnded {
        room: third.room,
        side: Side::Decode,
        broken: false,
    });
    assert!(begins(&over) > 0, "a room that ends gives its places back");
}

/// A D that does not answer holds up those that go to it, and no others.
#[test]
fn a_mute_decode_worker_takes_no_places_at_prefill() {
    let settings = Settings {
        open_window: 2,
        ..Settings::default()
    };
    let mut bench = Bench::with(settings, &[P1], &[D1, D2]);
    let rooms: Vec<RoomSpec> = (1..=4).map(|key| begun(&bench.arrive(key))).collect();
    let (at_mute, at_other): (Vec<_>, Vec<_>) = rooms.into_iter().partition(|spec| spec.decode == D1);
    assert_eq!((at_mute.len(), at_other.len()), (2, 2), "both windows are full");
    bench.admit(at_other[0].room);
    assert_eq!(begun(&bench.arrive(5)).decode, D2);
}

/// The room has its verdict and blame is awaited; what it still says reaches nobody, also before the next room speaks.
#[test]
fn a_room_that_has_failed_is_not_listened_to_any_more() {
    let mut bench = Bench::four();
    let room = bench.decoding(1).room;
    bench.tokens(room, 0, 1);
    let limit = bench.now + Millis(60_000);
    while bench.ledger.rooms.get(&room).is_some_and(Room::is_live) {
        assert!(bench.now < limit, "it stalls");
        bench.pass(50);
    }
    assert!(bench.ledger.rooms.contains_key(&room), "blame is awaited");
    let effects = bench.tokens(room, 1, 1);
    let passed = effects.iter().any(|effect| matches!(effect, Effect::Pass { .. }));
    assert!(!passed, "I10: two would speak: {effects:?}");
    assert!(matches!(tells(&effects, Side::Decode)[..], [ToWorker::Verdict(_)]));
}

/// The policy is about what the client has seen: before the first token another attempt shows it nothing.
#[test]
fn a_request_that_is_not_to_migrate_fails_after_its_first_token_alone() {
    let lose = |bench: &mut Bench, room, key| {
        let mut effects = bench.on(Event::StreamEnded {
            room,
            side: Side::Decode,
            broken: true,
        });
        effects.extend(bench.pass(300));
        (
            begins(&effects),
            answers(&effects).iter().any(|(request, _)| *request == RequestKey(key)),
        )
    };
    for (tokens, next_attempt) in [(0, true), (1, false)] {
        let mut bench = Bench::four();
        let arrival = Arrival {
            on_failure: OnFailure::Fail,
            ..arrival(1)
        };
        let room = begun(&bench.on(Event::Arrive(arrival))).room;
        bench.admit(room);
        bench.say(
            room,
            Side::Prefill,
            FromWorker::Started {
                epoch: Epoch(1),
                reused: 0,
            },
        );
        bench.say(room, Side::Decode, FromWorker::Committed);
        bench.tokens(room, 0, tokens);
        assert_eq!(
            lose(&mut bench, room, 1),
            (next_attempt, !next_attempt),
            "after {tokens} tokens"
        );
    }
}

#[test]
fn the_next_attempt_goes_elsewhere_and_goes_on_where_the_gate_stands() {
    let mut bench = Bench::four();
    let first = bench.decoding(1);
    bench.tokens(first.room, 0, 2);
    let effects = bench.on(Event::StreamEnded {
        room: first.room,
        side: Side::Decode,
        broken: true,
    });
    let second = begun(&effects);
    assert_eq!(ends(&effects)[0].blame, Blame::Decode(first.decode));
    assert_ne!(second.decode, first.decode);
    assert_eq!(
        (second.prompt_tokens, second.max_tokens, second.attempt),
        (22, 3, Attempt(2))
    );
    assert!(effects.contains(&Effect::Begin {
        spec: second.clone(),
        passed: 2,
        chosen: Chosen::default()
    }));
    let late = bench.tokens(first.room, 2, 1);
    assert!(
        !late.iter().any(|effect| matches!(effect, Effect::Pass { .. })),
        "the old room speaks to nobody"
    );
    bench.admit(second.room);
    let effects = bench.tokens(second.room, 0, 3);
    assert_eq!(answers(&effects), vec![(RequestKey(1), Outcome::Done)]);
}

#[test]
fn attempts_and_the_bucket_run_out() {
    let settings = Settings {
        retry_bucket: 1,
        retry_gain_milli: 0,
        ..Settings::default()
    };
    let mut bench = Bench::with(settings, &[P1, P2], &[D1, D2]);
    let first = bench.open(1);
    let second = begun(&bench.on(Event::StreamEnded {
        room: first.room,
        side: Side::Decode,
        broken: true,
    }));
    let effects = bench.on(Event::StreamEnded {
        room: second.room,
        side: Side::Decode,
        broken: true,
    });
    assert_eq!(
        error(&effects),
        (Reason::DecodeLost, Blame::Decode(second.decode)),
        "two attempts"
    );
    let third = bench.open(2);
    let effects = bench.on(Event::StreamEnded {
        room: third.room,
        side: Side::Decode,
        broken: true,
    });
    assert_eq!(error(&effects).0, Reason::DecodeLost);
    assert!(
        matches!(
            answers(&effects)[0].1,
            Outcome::Failed {
                retry_after: Some(_),
                ..
            }
        ),
        "the bucket is empty"
    );
}

#[test]
fn the_same_pair_again_only_without_another_and_without_a_blamed_node() {
    let mut bench = Bench::pair();
    let first = bench.started(1);
    bench.fail_part(first.room, Side::Decode, Reason::TransferStalled, false);
    let effects = bench.evidence(first.room, Side::Prefill);
    assert_eq!(
        ends(&effects)[0].blame,
        Blame::Link {
            prefill: P1,
            decode: D1
        }
    );
    let second = begun(&effects);
    let effects = bench.on(Event::StreamEnded {
        room: second.room,
        side: Side::Decode,
        broken: true,
    });
    assert_eq!(error(&effects).0, Reason::DecodeLost);
    let third = bench.open(2);
    let effects = bench.on(Event::StreamEnded {
        room: third.room,
        side: Side::Decode,
        broken: true,
    });
    assert_eq!(
        error(&effects),
        (Reason::DecodeLost, Blame::Decode(D1)),
        "the only pair holds the blamed node"
    );
}

#[test]
fn satisfied_is_done_even_while_blame_is_awaited() {
    let mut bench = Bench::four();
    let spec = bench.decoding(1);
    bench.tokens(spec.room, 0, 2);
    let effects = bench.on(Event::Satisfied { request: RequestKey(1) });
    assert_eq!(answers(&effects), vec![(RequestKey(1), Outcome::Done)]);
    let spec = bench.decoding(2);
    bench.tokens(spec.room, 0, 2);
    bench.fail_part(spec.room, Side::Decode, Reason::DecodeStalled, false);
    let effects = bench.on(Event::Satisfied { request: RequestKey(2) });
    assert!(answers(&effects).is_empty() || answers(&effects) == vec![(RequestKey(2), Outcome::Done)]);
}

#[test]
fn draining_turns_away_and_finishes_what_there_is() {
    let mut bench = Bench::pair();
    let spec = bench.decoding(1);
    bench.on(Event::Drain);
    assert_eq!(error(&bench.arrive(2)).0, Reason::Draining);
    assert!(!bench.ledger.drained());
    bench.tokens(spec.room, 0, 5);
    assert!(bench.ledger.drained());
    let mut bench = Bench::pair();
    bench.decoding(1);
    assert_eq!(error(&bench.on(Event::DrainOver)).0, Reason::Draining);
    assert!(bench.ledger.drained());
}
