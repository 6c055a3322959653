use super::*;

fn sealed(bytes_sealed: u64, bytes_verified: u64) -> Counters {
    Counters {
        bytes_sealed,
        bytes_sent: bytes_sealed,
        bytes_verified,
        ..Counters::default()
    }
}

#[test]
fn tokens_pass_once_and_in_order() {
    let mut bench = Bench::pair();
    let spec = bench.decoding(1);
    bench.tokens(spec.room, 0, 2);
    let effects = bench.tokens(spec.room, 0, 2);
    assert_eq!(
        effects,
        vec![Effect::Tell {
            room: spec.room,
            side: Side::Decode,
            message: ToWorker::Taken(2)
        }]
    );
    let effects = bench.tokens(spec.room, 1, 2);
    assert!(has(
        &effects,
        &Effect::Pass {
            request: RequestKey(1),
            room: spec.room,
            skip: 1,
            count: 1
        }
    ));
    let effects = bench.tokens(spec.room, 4, 1);
    assert_eq!(error(&effects), (Reason::ProtocolError, Blame::Decode(D1)));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Pass { .. })));
}

#[test]
fn the_room_follows_prefill_until_the_commit() {
    let mut bench = Bench::pair();
    let spec = bench.open(1);
    for (phase, owes) in [
        (Phase::Bootstrapping, crate::evidence::Owes::Decode),
        (Phase::Queued, crate::evidence::Owes::Nobody),
        (Phase::WaitingForInput, crate::evidence::Owes::Prefill),
        (Phase::Transferring, crate::evidence::Owes::Decode),
    ] {
        bench.state(spec.room, Side::Prefill, phase, 1, Counters::default());
        assert_eq!((bench.row(spec.room).phase, bench.row(spec.room).owes), (phase, owes));
    }
    let effects = bench.say(spec.room, Side::Decode, FromWorker::Committed);
    assert_eq!(tells(&effects, Side::Prefill), vec![ToWorker::Committed]);
    bench.state(spec.room, Side::Prefill, Phase::Transferring, 1, sealed(10, 10));
    assert_eq!(bench.row(spec.room).phase, Phase::Decoding);
}

#[test]
fn a_rooms_budget_is_that_of_the_wait_that_ends_it_and_begins_anew_with_progress() {
    let mut bench = Bench::pair();
    let ttl = Settings::default().router_ttl();
    let spec = bench.open(1);
    assert_eq!(bench.row(spec.room).budget_ms, Settings::default().queue_timeout);
    bench.say(spec.room, Side::Decode, FromWorker::Committed);
    bench.pass(ttl.0 / 2);
    let row = bench.row(spec.room);
    assert_eq!((row.deadline_ms, row.budget_ms), (Millis(ttl.0 - ttl.0 / 2), ttl));
    assert_eq!(bench.ledger.gauges(bench.now).budget_used, 500);
    bench.tokens(spec.room, 0, 1);
    assert_eq!(bench.row(spec.room).deadline_ms, ttl);
    assert_eq!(bench.ledger.gauges(bench.now).budget_used, 0);
}

#[test]
fn after_the_commit_no_failure_of_prefill_counts() {
    for knows in 0..3 {
        let mut bench = Bench::pair();
        let spec = bench.started(1);
        match knows {
            0 => bench.say(spec.room, Side::Decode, FromWorker::Committed),
            1 => bench.tokens(spec.room, 0, 1),
            _ => bench.say(
                spec.room,
                Side::Prefill,
                FromWorker::Ended {
                    end: PartEnd::HandedOver,
                    evidence: Evidence::default(),
                    relayed: false,
                },
            ),
        };
        bench.fail_part(spec.room, Side::Prefill, Reason::EngineFailed, false);
        bench.on(Event::StreamEnded {
            room: spec.room,
            side: Side::Prefill,
            broken: true,
        });
        bench.on(Event::NodeDown { incarnation: P1 });
        bench.on(Event::MemberUp(MemberInfo {
            control: member(P1, Role::Prefill).control,
            ..member(P2, Role::Prefill)
        }));
        assert_eq!(bench.row(spec.room).phase, Phase::Decoding, "way {knows}");
        let taken = u32::from(knows == 1);
        let effects = bench.tokens(spec.room, taken, 5 - taken);
        assert_eq!(answers(&effects), vec![(RequestKey(1), Outcome::Done)]);
    }
}

#[test]
fn a_report_by_relay_counts_as_the_other_workers() {
    let mut bench = Bench::pair();
    let spec = bench.started(1);
    let effects = bench.fail_part(spec.room, Side::Prefill, Reason::EngineFailed, true);
    assert_eq!(error(&effects), (Reason::EngineFailed, Blame::Decode(D1)));
    let spec = bench.started(2);
    let effects = bench.fail_part(spec.room, Side::Prefill, Reason::RouterLost, true);
    assert_eq!(
        error(&effects),
        (Reason::DecodeLost, Blame::Decode(D1)),
        "that node's control link broke"
    );
}

#[test]
fn one_verdict_and_later_reports_are_answered() {
    let mut bench = Bench::pair();
    let spec = bench.started(1);
    let effects = bench.fail_part(spec.room, Side::Decode, Reason::TransferStalled, false);
    assert_eq!(
        tells(&effects, Side::Prefill),
        vec![ToWorker::Abort(Reason::TransferStalled)]
    );
    assert!(has(
        &effects,
        &Effect::AskEvidence {
            room: spec.room,
            side: Side::Prefill,
            node: P1
        }
    ));
    assert!(answers(&effects).is_empty(), "blame is awaited");
    let late = bench.say(spec.room, Side::Decode, FromWorker::Ask);
    let verdict = ToWorker::Verdict(Verdict::Failed(Reason::TransferStalled));
    assert_eq!(tells(&late, Side::Decode), vec![verdict]);
    let late = bench.fail_part(spec.room, Side::Prefill, Reason::KvCorrupt, false);
    assert_eq!(
        ends(&late)[0].verdict,
        Verdict::Failed(Reason::TransferStalled),
        "the first reason wins"
    );
    let late = bench.say(
        spec.room,
        Side::Prefill,
        FromWorker::Started {
            epoch: Epoch(1),
            reused: 0,
        },
    );
    assert_eq!(tells(&late, Side::Prefill), vec![verdict]);
    let stranger = RoomId::from_random(77);
    let unknown = bench.say(stranger, Side::Prefill, FromWorker::Ask);
    assert_eq!(tells(&unknown, Side::Prefill), vec![ToWorker::Unknown]);
    assert!(
        bench.say(stranger, Side::Prefill, FromWorker::Unknown).is_empty(),
        "an answer is not answered"
    );
}

#[test]
fn blame_comes_within_its_wait_though_nobody_answers() {
    let mut bench = Bench::four();
    let spec = bench.started(1);
    let effects = bench.fail_part(spec.room, Side::Decode, Reason::TransferStalled, false);
    assert!(ends(&effects).is_empty());
    assert!(ends(&bench.pass(249)).is_empty());
    let effects = bench.pass(1);
    assert_eq!(ends(&effects)[0].blame, Blame::Prefill(spec.prefill), "one is silent");
    assert_ne!(begun(&effects).prefill, spec.prefill);
}

#[test]
fn a_worker_that_does_not_answer_open_is_lost() {
    let mut bench = Bench::pair();
    begun(&bench.arrive(1));
    assert!(answers(&bench.pass(1999)).is_empty());
    assert_eq!(error(&bench.pass(1)), (Reason::DecodeLost, Blame::Decode(D1)));
    let spec = begun(&bench.arrive(2));
    bench.say(spec.room, Side::Decode, admitted("d:1", 7));
    assert_eq!(error(&bench.pass(2000)), (Reason::PrefillLost, Blame::Prefill(P1)));
}

/// R's own timer ends the room, then asks both; silence of both names the debtor.
fn stalls(bench: &mut Bench, within: u64) -> (Reason, Blame) {
    let before = bench.pass(within - 1);
    assert!(
        ends(&before).is_empty() && answers(&before).is_empty(),
        "too early: {before:?}"
    );
    let effects = bench.pass(1);
    for (side, node) in [(Side::Prefill, P1), (Side::Decode, D1)] {
        let asked = |effect: &Effect| matches!(effect, Effect::AskEvidence { side: s, node: n, .. } if (*s, *n) == (side, node));
        assert!(effects.iter().any(asked), "it asks {side:?} before it accuses");
    }
    error(&bench.pass(250))
}

#[test]
fn each_phase_has_its_timer() {
    let mut bench = Bench::pair();
    let spec = bench.open(1);
    bench.state(spec.room, Side::Prefill, Phase::Bootstrapping, 1, Counters::default());
    assert_eq!(stalls(&mut bench, 5500), (Reason::HandshakeTimeout, Blame::Decode(D1)));
    bench.started(2);
    assert_eq!(stalls(&mut bench, 5500), (Reason::PrefillStalled, Blame::Prefill(P1)));
    let spec = bench.started(3);
    bench.state(spec.room, Side::Prefill, Phase::Transferring, 1, sealed(10, 0));
    assert_eq!(stalls(&mut bench, 5500), (Reason::TransferStalled, Blame::Decode(D1)));
    bench.decoding(4);
    assert_eq!(stalls(&mut bench, 5500), (Reason::DecodeStalled, Blame::Decode(D1)));
}

#[test]
fn only_an_increase_is_progress() {
    let mut bench = Bench::pair();
    let spec = bench.started(1);
    bench.state(spec.room, Side::Prefill, Phase::WaitingForInput, 1, sealed(10, 10));
    bench.pass(5000);
    bench.state(spec.room, Side::Prefill, Phase::WaitingForInput, 1, sealed(20, 20));
    bench.pass(5000);
    bench.state(spec.room, Side::Prefill, Phase::WaitingForInput, 1, sealed(20, 20));
    assert_eq!(error(&bench.pass(750)).0, Reason::PrefillStalled);
}

#[test]
fn verified_bytes_are_owed_while_prefill_still_seals() {
    let mut bench = Bench::pair();
    let spec = bench.started(1);
    for sealed_so_far in 1..12 {
        bench.state(
            spec.room,
            Side::Prefill,
            Phase::WaitingForInput,
            1,
            sealed(sealed_so_far, 0),
        );
        if let [(_, Outcome::Failed { reason, .. })] = answers(&bench.pass(1000)).as_slice() {
            assert_eq!((*reason, sealed_so_far), (Reason::TransferStalled, 6));
            return;
        }
    }
    panic!("D verified nothing, and nobody noticed");
}

#[test]
fn engine_steps_count_for_a_room_that_waits_for_the_engine() {
    let mut bench = Bench::pair();
    let spec = bench.decoding(1);
    bench.loads = false;
    for step in 1..40 {
        bench.pass(1000);
        for (node, engine_progress) in [(P1, 0), (D1, step)] {
            bench.on(Event::Load {
                incarnation: node,
                load: Load {
                    engine_progress,
                    ..load(1)
                },
            });
        }
        if bench.ledger.row(spec.room, bench.now).is_none() {
            assert!(
                step > 10,
                "the absolute deadline (5 s + 2 TTL + 0.5 s), not the token timer: {step}"
            );
            return;
        }
    }
    panic!("no absolute deadline");
}

#[test]
fn a_lower_epoch_changes_nothing() {
    let mut bench = Bench::pair();
    let spec = bench.started(1);
    bench.state(spec.room, Side::Prefill, Phase::WaitingForInput, 3, Counters::default());
    let before = bench.ledger.gauges(bench.now).fenced;
    bench.state(spec.room, Side::Prefill, Phase::Transferring, 2, sealed(5, 0));
    assert_eq!(bench.row(spec.room).phase, Phase::WaitingForInput);
    assert_eq!(bench.ledger.gauges(bench.now).fenced, before + 1);
    assert_eq!(bench.row(spec.room).epoch, Epoch(3));
}

#[test]
fn a_later_hello_keeps_the_timers_that_started_armed() {
    let mut bench = Bench::pair();
    let spec = bench.started(1);
    bench.pass(3000);
    bench.state(spec.room, Side::Prefill, Phase::Bootstrapping, 2, Counters::default());
    assert_eq!(
        error(&bench.pass(2750)).0,
        Reason::PrefillStalled,
        "5.5 s from Started, not from the hello"
    );
}

#[test]
fn decodes_done_needs_its_tokens_and_handed_over_is_no_verdict() {
    let mut bench = Bench::pair();
    let spec = bench.decoding(1);
    bench.tokens(spec.room, 0, 3);
    let done = FromWorker::Ended {
        end: PartEnd::Done,
        evidence: Evidence::default(),
        relayed: false,
    };
    assert_eq!(
        answers(&bench.say(spec.room, Side::Decode, done.clone())),
        vec![(RequestKey(1), Outcome::Done)]
    );
    let spec = bench.decoding(2);
    assert_eq!(
        error(&bench.say(spec.room, Side::Decode, done)).0,
        Reason::ProtocolError
    );
}

#[test]
fn an_actor_that_died_is_the_routers_own_fault() {
    let mut bench = Bench::pair();
    let spec = bench.started(1);
    let effects = bench.on(Event::ActorDied { room: spec.room });
    assert_eq!(ends(&effects)[0].blame, Blame::Router(ME));
    assert!(begins(&effects), "another room may do better");
}

#[test]
fn a_reset_stream_names_its_worker_and_not_the_link_between_the_pair() {
    for (side, blame) in [(Side::Prefill, Blame::Prefill(P1)), (Side::Decode, Blame::Decode(D1))] {
        let mut bench = Bench::four();
        let spec = bench.started(1);
        let effects = bench.on(Event::StreamEnded {
            room: spec.room,
            side,
            broken: false,
        });
        let end = ends(&effects)[0];
        assert_eq!((end.verdict, end.blame), (Verdict::Failed(side.lost()), blame));
    }
}

#[test]
fn a_worker_that_missed_a_router_that_is_well_is_behind_a_bad_control_link() {
    for reason in [Reason::RouterStalled, Reason::LeaseLost] {
        let mut bench = Bench::four();
        let spec = bench.decoding(1);
        let effects = bench.fail_part(spec.room, Side::Decode, reason, false);
        let end = ends(&effects)[0];
        assert_eq!(
            (end.verdict, end.blame),
            (Verdict::Failed(reason), Blame::Decode(spec.decode))
        );
        assert_ne!(begun(&effects).decode, spec.decode, "the next attempt avoids that node");
    }
}
