use super::*;

/// R is stopped for so long: no event, then one. Whom it asks whether they are there.
fn wake(bench: &mut Bench, ms: u64) -> Vec<Incarnation> {
    bench.now = bench.now + Millis(ms);
    let asked = bench.on(Event::Tick).into_iter().map(|effect| match effect {
        Effect::Who { incarnation } => incarnation,
        other => panic!("only messages for the grace, and questions: {other:?}"),
    });
    asked.collect()
}

/// The same, and they all answer.
fn stop(bench: &mut Bench, ms: u64) {
    for asked in wake(bench, ms) {
        let effects = bench.on(Event::WhoAnswered { asked, answered: asked });
        assert!(effects.is_empty(), "{effects:?}");
    }
}

#[test]
fn after_its_own_stop_a_router_accuses_nobody_and_tries_again_for_free() {
    let settings = Settings {
        retry_bucket: 0,
        max_attempts: 1,
        ..Settings::default()
    };
    let mut bench = Bench::with(settings, &[P1], &[D1]);
    let spec = bench.started(1);
    stop(&mut bench, 10_000);
    bench.on(Event::NodeDown { incarnation: D1 });
    bench.on(Event::NodeUp { incarnation: D1 });
    bench.on(Event::StreamEnded {
        room: spec.room,
        side: Side::Decode,
        broken: true,
    });
    assert!(bench.arrive(2).is_empty(), "it opens nothing");
    assert!(ends(&bench.pass(249)).is_empty());
    let effects = bench.pass(1);
    let end = ends(&effects)[0];
    assert_eq!(
        (end.verdict, end.blame),
        (Verdict::Failed(Reason::SelfPaused), Blame::Nobody)
    );
    let rooms = effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Begin { .. }))
        .count();
    assert_eq!(
        (rooms, answers(&effects).len()),
        (2, 0),
        "both requests go on, without a token of the bucket"
    );
}

/// A hundred rooms have said much until their streams broke: R reads all of that first.
#[test]
fn a_break_that_is_read_after_the_grace_costs_nothing_either() {
    let settings = Settings {
        retry_bucket: 0,
        max_attempts: 1,
        ..Settings::default()
    };
    for after in [300, 2 * settings.connect_timeout.0 + 300] {
        let mut bench = Bench::with(settings.clone(), &[P1], &[D1]);
        let spec = bench.decoding(1);
        stop(&mut bench, 10_000);
        bench.tokens(spec.room, 0, 2);
        assert!(ends(&bench.pass(250)).is_empty(), "nothing was cut off yet");
        bench.pass(after - 250);
        let effects = bench.on(Event::StreamEnded {
            room: spec.room,
            side: Side::Decode,
            broken: true,
        });
        let soon = after == 300;
        let reason = if soon { Reason::SelfPaused } else { Reason::DecodeLost };
        let after_blame = [effects.clone(), bench.pass(300)].concat();
        assert_eq!(ends(&after_blame)[0].verdict, Verdict::Failed(reason));
        assert_eq!(
            answers(&effects).is_empty(),
            soon,
            "the request goes on, without a token of the bucket"
        );
    }
}

#[test]
fn what_is_heard_in_the_grace_counts() {
    let mut bench = Bench::pair();
    let spec = bench.decoding(1);
    stop(&mut bench, 10_000);
    let effects = bench.tokens(spec.room, 0, 2);
    assert!(has(
        &effects,
        &Effect::Pass {
            request: RequestKey(1),
            room: spec.room,
            skip: 0,
            count: 2
        }
    ));
    assert!(ends(&bench.pass(4000)).is_empty(), "the token armed the timer anew");
    let effects = bench.tokens(spec.room, 2, 3);
    assert_eq!(answers(&effects), vec![(RequestKey(1), Outcome::Done)]);
}

#[test]
fn who_missed_the_router_says_so_and_nobody_is_blamed() {
    for reason in [Reason::RouterLost, Reason::LeaseLost] {
        let mut bench = Bench::four();
        let spec = bench.decoding(1);
        stop(&mut bench, 3000);
        bench.fail_part(spec.room, Side::Decode, reason, false);
        let effects = bench.pass(250);
        let end = ends(&bench.out)[0];
        assert_eq!(
            (end.verdict, end.blame),
            (Verdict::Failed(Reason::SelfPaused), Blame::Nobody)
        );
        assert!(begins(&effects));
    }
}

#[test]
fn an_open_that_was_answered_in_the_grace_goes_on_after_it() {
    let mut bench = Bench::pair();
    let spec = begun(&bench.arrive(1));
    stop(&mut bench, 3000);
    assert!(bench.say(spec.room, Side::Decode, admitted("d:1", 7)).is_empty());
    let effects = bench.pass(250);
    assert!(effects.iter().any(|effect| matches!(
        effect,
        Effect::Open {
            side: Side::Prefill,
            token: 7,
            ..
        }
    )));
}

#[test]
fn a_room_that_lived_through_a_stop_blames_nobody_later() {
    let mut bench = Bench::pair();
    let spec = bench.decoding(1);
    stop(&mut bench, 2000);
    bench.pass(500);
    let effects = bench.on(Event::StreamEnded {
        room: spec.room,
        side: Side::Decode,
        broken: true,
    });
    assert_eq!(ends(&effects)[0].blame, Blame::Nobody);
}

#[test]
fn nothing_is_stuck_while_a_router_finds_out_that_it_was_stopped() {
    let mut bench = Bench::pair();
    let _ = bench.decoding(1);
    let later = bench.now + Millis(1_000_000);
    assert_eq!(bench.ledger.gauges(later).stuck, 0, "judged by the last step");
    stop(&mut bench, 1_000_000);
    assert_eq!(bench.ledger.gauges(bench.now).stuck, 0, "in the grace");
    assert_eq!(ends(&bench.pass(250)).len(), 1);
}

#[test]
fn whoever_missed_a_stopped_router_costs_no_attempt() {
    for reason in [Reason::RouterLost, Reason::LeaseLost, Reason::RouterStalled] {
        let settings = Settings {
            max_attempts: 1,
            retry_bucket: 0,
            ..Settings::default()
        };
        let mut bench = Bench::with(settings, &[P1], &[D1]);
        let spec = bench.decoding(1);
        stop(&mut bench, 2000);
        bench.pass(250);
        let effects = bench.fail_part(spec.room, Side::Decode, reason, false);
        assert_eq!(ends(&effects)[0].verdict, Verdict::Failed(Reason::SelfPaused));
        assert!(begins(&effects) && answers(&effects).is_empty(), "{reason}");
    }
}

/// Its connections broke because it did not answer pings; they are made again a moment after its grace.
#[test]
fn after_a_stop_requests_wait_for_workers_to_be_connected_again() {
    for comes_back in [true, false] {
        let mut bench = Bench::pair();
        bench.decoding(1);
        stop(&mut bench, 10_000);
        for incarnation in [P1, D1] {
            bench.on(Event::NodeDown { incarnation });
        }
        let effects = bench.pass(1000);
        assert_eq!(ends(&effects).len(), 1, "its room ended as SelfPaused");
        assert_eq!(answers(&effects), vec![], "its request waits");
        if comes_back {
            for incarnation in [P1, D1] {
                bench.on(Event::NodeUp { incarnation });
            }
            assert!(begins(&bench.pass(1000)));
        } else {
            let (_, outcome) = answers(&bench.pass(4000))[0];
            let reason = match outcome {
                Outcome::Failed { reason, .. } => Some(reason),
                Outcome::Done => None,
            };
            assert_eq!(reason, Some(Reason::SelfPaused), "but not for long");
        }
    }
}

/// Old reports are read from a connection before its break is: a room that is opened meanwhile would be lost with it, at
/// the cost of an attempt and by the fault of a worker that is well.
#[test]
fn after_a_stop_rooms_are_opened_only_at_workers_that_have_answered_since() {
    for breaks in [true, false] {
        let mut bench = Bench::pair();
        bench.decoding(1);
        assert_eq!(wake(&mut bench, 10_000), [P1, D1]);
        bench.on(Event::NodeDown { incarnation: P1 });
        bench.on(Event::NodeUp { incarnation: P1 });
        bench.on(Event::Load {
            incarnation: D1,
            load: load(1),
        });
        bench.arrive(2);
        let effects = bench.pass(300);
        assert!(
            !begins(&effects),
            "what D1 said may have been said before it closed the connection"
        );
        let effects = if breaks {
            let effects = bench.on(Event::NodeDown { incarnation: D1 });
            assert!(
                ends(&effects).is_empty() && answers(&effects).is_empty(),
                "nothing was there"
            );
            bench.on(Event::NodeUp { incarnation: D1 })
        } else {
            bench.on(Event::WhoAnswered {
                asked: D1,
                answered: D1,
            })
        };
        let later = bench.pass(250);
        assert!(begins(&effects) || begins(&later), "it waited for nothing else");
    }
}

/// It was asked before R was stopped, and may have answered long before its connection broke.
#[test]
fn an_answer_that_was_asked_for_before_the_stop_proves_nothing() {
    let mut bench = Bench::pair();
    bench.on(Event::MemberGone { incarnation: D1 });
    assert_eq!(wake(&mut bench, 10_000), [P1, D1]);
    bench.arrive(1);
    let answer = |asked| Event::WhoAnswered { asked, answered: asked };
    bench.on(answer(P1));
    bench.on(answer(D1));
    assert!(!begins(&bench.pass(300)), "this one may be old");
    let effects = bench.on(answer(D1));
    let later = bench.pass(250);
    assert!(begins(&effects) || begins(&later));
}

#[test]
fn a_worker_whose_answer_is_lost_is_used_again_when_the_recovery_is_over() {
    let mut bench = Bench::pair();
    assert_eq!(wake(&mut bench, 10_000), [P1, D1]);
    bench.arrive(1);
    let recovery = bench.ledger.settings.connect_timeout.0 * 2;
    assert!(!begins(&bench.pass(recovery)), "nobody has answered");
    assert!(begins(&bench.pass(300)));
}
