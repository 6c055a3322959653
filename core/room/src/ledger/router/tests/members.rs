use super::*;

#[test]
fn a_broken_control_link_fails_its_rooms_at_once() {
    let mut bench = Bench::four();
    let spec = bench.started(1);
    let effects = bench.on(Event::NodeDown {
        incarnation: spec.decode,
    });
    assert_eq!(ends(&effects)[0].blame, Blame::Decode(spec.decode));
    assert_eq!(ends(&effects)[0].verdict, Verdict::Failed(Reason::DecodeLost));
    assert_ne!(begun(&effects).decode, spec.decode);
}

#[test]
fn a_silent_node_is_lost_and_comes_back_with_a_report() {
    let mut bench = Bench::pair();
    let spec = bench.started(1);
    bench.loads = false;
    let seal = |bench: &mut Bench, bytes| {
        let counters = Counters {
            bytes_sealed: bytes,
            bytes_verified: bytes,
            ..Counters::default()
        };
        bench.state(spec.room, Side::Prefill, Phase::WaitingForInput, 1, counters);
        bench.on(Event::Load {
            incarnation: P1,
            load: load(1),
        });
    };
    bench.pass(3000);
    seal(&mut bench, 1);
    assert_eq!(error(&bench.pass(2500)), (Reason::DecodeLost, Blame::Decode(D1)));
    assert!(bench.ledger.members().iter().any(|member| member.lost));
    assert_eq!(error(&bench.arrive(2)).0, Reason::NoDecodeWorker);
    bench.on(Event::Load {
        incarnation: D1,
        load: load(0),
    });
    assert!(begins(&bench.arrive(3)));
}

#[test]
fn a_new_life_at_an_old_address_replaces_the_old_one() {
    let mut bench = Bench::pair();
    let spec = bench.started(1);
    let info = MemberInfo {
        control: member(D1, Role::Decode).control,
        ..member(D2, Role::Decode)
    };
    let effects = bench.on(Event::MemberUp(info));
    assert!(has(&effects, &Effect::Drop { incarnation: D1 }));
    assert_eq!(ends(&effects)[0].verdict, Verdict::Failed(Reason::MemberLost));
    assert_eq!(ends(&effects)[0].blame, Blame::Decode(spec.decode));
}

#[test]
fn a_life_that_was_replaced_never_comes_back() {
    let mut bench = Bench::pair();
    let old = member(D1, Role::Decode);
    bench.on(Event::MemberUp(MemberInfo {
        incarnation: D2,
        ..old.clone()
    }));
    bench.on(Event::NodeUp { incarnation: D2 });
    assert!(
        bench.on(Event::MemberUp(old)).is_empty(),
        "a list may still hold its key"
    );
    assert_eq!(begun(&bench.arrive(1)).decode, D2);
}

/// A router that starts while a worker's former life still has a key is told of both at once, in no order of birth.
#[test]
fn of_two_lives_at_one_address_that_were_never_heard_the_one_that_answers_is_used() {
    for dead_is_listed_last in [true, false] {
        let mut bench = Bench::with(Settings::default(), &[P1], &[]);
        let live = member(D1, Role::Decode);
        let dead = MemberInfo {
            incarnation: D2,
            ..live.clone()
        };
        let listed = if dead_is_listed_last {
            [live, dead]
        } else {
            [dead, live]
        };
        for info in listed {
            bench.on(Event::MemberUp(info));
        }
        bench.on(Event::NodeUp { incarnation: D1 });
        bench.on(Event::NodeDown { incarnation: D2 });
        assert_eq!(begun(&bench.arrive(1)).decode, D1);
    }
}

#[test]
fn a_key_that_went_is_asked_about() {
    let mut bench = Bench::pair();
    let spec = bench.started(1);
    let effects = bench.on(Event::MemberGone { incarnation: D1 });
    assert_eq!(effects, vec![Effect::Who { incarnation: D1 }]);
    bench.on(Event::WhoAnswered {
        asked: D1,
        answered: D1,
    });
    bench.pass(2000);
    assert_eq!(bench.row(spec.room).phase, Phase::WaitingForInput, "it stays");
    bench.on(Event::MemberGone { incarnation: D1 });
    assert!(answers(&bench.pass(1999)).is_empty());
    let effects = bench.pass(1);
    assert_eq!(error(&effects), (Reason::MemberLost, Blame::Decode(D1)));
    assert!(has(&effects, &Effect::Drop { incarnation: D1 }));
}

#[test]
fn another_life_that_answers_or_refuses_ends_the_old_one() {
    let mut bench = Bench::pair();
    bench.on(Event::MemberGone { incarnation: D1 });
    let effects = bench.on(Event::WhoAnswered {
        asked: D1,
        answered: D2,
    });
    assert!(has(&effects, &Effect::Drop { incarnation: D1 }));
    let mut bench = Bench::four();
    let spec = begun(&bench.arrive(1));
    let refused = FromWorker::Refused(crate::message::Refusal::WrongIncarnation);
    let effects = bench.say(spec.room, Side::Decode, refused);
    assert!(has(
        &effects,
        &Effect::Drop {
            incarnation: spec.decode
        }
    ));
    assert_ne!(begun(&effects).decode, spec.decode);
}

#[test]
fn the_least_loaded_pair_is_taken_and_drained_nodes_are_not() {
    let mut bench = Bench::four();
    let first = begun(&bench.arrive(1));
    let second = begun(&bench.arrive(2));
    assert_ne!((first.prefill, first.decode), (second.prefill, second.decode));
    assert!(first.prefill != second.prefill && first.decode != second.decode);
    bench.on(Event::MemberUp(MemberInfo {
        serving: false,
        ..member(D1, Role::Decode)
    }));
    bench.on(Event::Load {
        incarnation: P1,
        load: load(5),
    });
    let third = begun(&bench.arrive(3));
    assert_eq!((third.prefill, third.decode), (P2, D2));
    bench.on(Event::Load {
        incarnation: D2,
        load: Load {
            serving: false,
            ..load(0)
        },
    });
    assert_eq!(error(&bench.arrive(4)).0, Reason::NoDecodeWorker);
}

#[test]
fn pairs_need_the_same_class() {
    let mut bench = Bench::with(Settings::default(), &[P1], &[D1]);
    bench.on(Event::MemberUp(MemberInfo {
        class: 2,
        ..member(D1, Role::Decode)
    }));
    assert_eq!(error(&bench.arrive(1)).0, Reason::NoPrefillWorker);
}

#[test]
fn who_waits_for_a_place_gets_the_next_one_in_turn() {
    let mut bench = Bench::pair();
    let rooms: Vec<RoomSpec> = (1..=8).map(|key| bench.started(key)).collect();
    assert!(
        bench.arrive(9).is_empty() && bench.arrive(10).is_empty(),
        "the tables are full"
    );
    assert_eq!(bench.ledger.gauges(bench.now).queued_requests, 2);
    let effects = bench.tokens(rooms[3].room, 0, 5);
    assert_eq!(begun(&effects).request, RequestKey(9));
    let effects = bench.on(Event::NodeDown { incarnation: D1 });
    let no_worker = answers(&effects)
        .into_iter()
        .find(|(key, _)| *key == RequestKey(10))
        .expect("answered at once");
    assert!(matches!(
        no_worker.1,
        Outcome::Failed {
            reason: Reason::NoDecodeWorker,
            ..
        }
    ));
}

/// A worker that drains takes its key out, still answers who it is, and goes: nothing else will ever tell that it is gone.
#[test]
fn a_worker_that_answered_while_it_was_leaving_is_forgotten() {
    let mut bench = Bench::pair();
    bench.on(Event::MemberGone { incarnation: D1 });
    bench.on(Event::WhoAnswered {
        asked: D1,
        answered: D1,
    });
    bench.on(Event::NodeDown { incarnation: D1 });
    let later = bench.pass(3000);
    assert!(later.contains(&Effect::Drop { incarnation: D1 }), "{later:?}");
    assert!(
        bench
            .ledger
            .members()
            .iter()
            .all(|member| member.info.incarnation != D1)
    );
}

#[test]
fn a_worker_without_a_key_whose_connection_comes_back_is_asked_again_and_stays() {
    let mut bench = Bench::pair();
    bench.on(Event::MemberGone { incarnation: D1 });
    bench.on(Event::WhoAnswered {
        asked: D1,
        answered: D1,
    });
    bench.on(Event::NodeDown { incarnation: D1 });
    let up = bench.on(Event::NodeUp { incarnation: D1 });
    assert!(up.contains(&Effect::Who { incarnation: D1 }), "{up:?}");
    bench.on(Event::WhoAnswered {
        asked: D1,
        answered: D1,
    });
    bench.pass(5000);
    assert!(
        bench
            .ledger
            .members()
            .iter()
            .any(|member| member.info.incarnation == D1)
    );
}
