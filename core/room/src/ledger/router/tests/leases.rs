use super::*;

fn leased(bench: &mut Bench, room: RoomId) {
    let sent = bench.now;
    bench.on(Event::LeaseGranted { room, sent });
    assert!(bench.row(room).leased);
}

fn step_bytes(bench: &mut Bench, room: RoomId, bytes: u64) -> Vec<Effect> {
    let counters = Counters {
        bytes_sealed: bytes,
        bytes_verified: bytes,
        ..Counters::default()
    };
    bench.state(room, Side::Prefill, Phase::WaitingForInput, 1, counters)
}

fn renewals(effects: &[Effect]) -> usize {
    effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Renew { .. }))
        .count()
}

fn revokes(effects: &[Effect]) -> usize {
    effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Revoke { .. }))
        .count()
}

#[test]
fn renewed_by_progress_at_most_once_per_third_with_a_trailing_one() {
    let mut bench = Bench::pair();
    let spec = bench.started(1);
    leased(&mut bench, spec.room);
    assert_eq!(
        renewals(&bench.pass(2334)),
        1,
        "Started was progress, and its renewal trails"
    );
    assert_eq!(renewals(&bench.pass(2000)), 0, "nothing was reported since");
    step_bytes(&mut bench, spec.room, 1);
    step_bytes(&mut bench, spec.room, 2);
    assert_eq!(renewals(&bench.pass(334)), 1);
    assert_eq!(renewals(&bench.pass(3000)), 0);
}

fn grants(effects: &[Effect]) -> usize {
    effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Grant { .. }))
        .count()
}

#[test]
fn a_room_that_is_over_soon_never_asks_for_a_lease() {
    let after = Settings::default().lease_after;
    assert_eq!(after, Millis(100));
    let mut bench = Bench::exactly(Settings::default(), &[P1], &[D1]);
    let spec = bench.decoding(1);
    assert_eq!(grants(&bench.pass(after.0 - 1)), 0, "too young");
    let effects = bench.tokens(spec.room, 0, 5);
    assert_eq!(ends(&effects)[0].verdict, Verdict::Done);
    assert_eq!(grants(&bench.pass(10_000)) + revokes(&effects), 0);

    let spec = bench.decoding(2);
    assert_eq!(grants(&bench.pass(after.0 - 1)), 0);
    assert_eq!(bench.ledger.gauges(bench.now).unleased, 0, "it lacks nothing yet");
    assert_eq!(grants(&bench.pass(1)), 1);
    leased(&mut bench, spec.room);
    assert_eq!(grants(&bench.pass(1000)), 0, "once");
    assert_eq!(revokes(&bench.tokens(spec.room, 0, 5)), 1);
}

#[test]
fn revoked_once_at_the_end_and_a_late_yes_too() {
    let mut bench = Bench::pair();
    let spec = bench.decoding(1);
    leased(&mut bench, spec.room);
    assert_eq!(revokes(&bench.tokens(spec.room, 0, 5)), 1);
    let spec = bench.decoding(2);
    assert_eq!(revokes(&bench.tokens(spec.room, 0, 5)), 0, "the grant is not answered");
    let sent = bench.now;
    assert_eq!(revokes(&bench.on(Event::LeaseGranted { room: spec.room, sent })), 1);
    assert_eq!(revokes(&bench.on(Event::LeaseGranted { room: spec.room, sent })), 0);
    let spec = bench.decoding(3);
    bench.on(Event::LeaseFailed {
        room: spec.room,
        exists: true,
    });
    assert_eq!(revokes(&bench.tokens(spec.room, 0, 5)), 0, "what is not ours");
    assert_eq!(revokes(&bench.on(Event::LeaseGranted { room: spec.room, sent })), 0);
}

#[test]
fn a_delete_of_a_fresh_lease_evicts_the_room_and_the_request_tries_again() {
    let mut bench = Bench::pair();
    let spec = bench.started(1);
    leased(&mut bench, spec.room);
    bench.pass(1000);
    let effects = bench.on(Event::DoorGone { room: spec.room });
    let end = ends(&effects)[0];
    assert_eq!(
        (end.verdict, end.blame),
        (Verdict::Failed(Reason::LeaseRevoked), Blame::Nobody)
    );
    assert!(begins(&effects));
}

#[test]
fn an_operator_evicts_a_room_with_a_lease_and_one_without() {
    for has_lease in [true, false] {
        let mut bench = Bench::pair();
        let spec = bench.started(1);
        if has_lease {
            leased(&mut bench, spec.room);
        } else {
            bench.on(Event::LeaseFailed {
                room: spec.room,
                exists: false,
            });
        }
        bench.pass(1000);
        let effects = bench.on(Event::Evict { room: spec.room });
        let end = ends(&effects)[0];
        assert_eq!(
            (end.verdict, end.blame),
            (Verdict::Failed(Reason::LeaseRevoked), Blame::Nobody)
        );
        assert!(begins(&effects), "the request tries again");
        assert_eq!(revokes(&effects), usize::from(has_lease), "a lease is given back");
        assert_eq!(bench.on(Event::Evict { room: spec.room }), vec![], "once");
    }
}

#[test]
fn a_lease_that_ran_out_in_silence_ends_the_room() {
    let settings = Settings {
        router_slack: Millis(60_000),
        ..Settings::default()
    };
    let mut bench = Bench::with(settings, &[P1], &[D1]);
    let spec = bench.started(1);
    leased(&mut bench, spec.room);
    bench.pass(2400);
    let sent = bench.now;
    bench.on(Event::LeaseRenewed { room: spec.room, sent });
    bench.pass(7000);
    let effects = bench.on(Event::DoorGone { room: spec.room });
    assert_eq!(ends(&effects)[0].verdict, Verdict::Failed(Reason::LeaseExpired));
    assert_eq!(ends(&effects)[0].blame, Blame::Prefill(P1), "who owed");
}

#[test]
fn progress_without_a_confirmed_renewal_is_only_a_lapse() {
    let settings = Settings {
        router_slack: Millis(60_000),
        ..Settings::default()
    };
    let mut bench = Bench::with(settings, &[P1], &[D1]);
    let spec = bench.started(1);
    leased(&mut bench, spec.room);
    bench.pass(5000);
    step_bytes(&mut bench, spec.room, 1);
    bench.pass(3000);
    assert!(ends(&bench.on(Event::DoorGone { room: spec.room })).is_empty());
    assert!(!bench.row(spec.room).leased);
    assert!(
        ends(&bench.on(Event::DoorGone { room: spec.room })).is_empty(),
        "an unleased room ignores all"
    );
    assert_eq!(bench.ledger.gauges(bench.now).unleased, 1);
    step_bytes(&mut bench, spec.room, 2);
    assert_eq!(renewals(&bench.pass(5000)), 0);
}

#[test]
fn absence_and_not_found_are_lapses_after_the_watch_had_its_time() {
    let mut bench = Bench::pair();
    let spec = bench.started(1);
    leased(&mut bench, spec.room);
    bench.on(Event::DoorAbsent { room: spec.room });
    assert!(!bench.row(spec.room).leased);
    let spec = bench.started(2);
    leased(&mut bench, spec.room);
    bench.on(Event::RenewFailed {
        room: spec.room,
        not_found: true,
    });
    bench.pass(999);
    assert!(bench.row(spec.room).leased);
    bench.pass(1);
    assert!(!bench.row(spec.room).leased);
}

#[test]
fn a_late_yes_leaves_the_room_unleased() {
    let mut bench = Bench::pair();
    let spec = bench.open(1);
    let sent = bench.now;
    bench.pass(7001);
    bench.on(Event::LeaseGranted { room: spec.room, sent });
    assert!(!bench.row(spec.room).leased);
}

#[test]
fn a_worker_that_asks_is_answered_at_once() {
    let mut bench = Bench::pair();
    let spec = bench.started(1);
    assert_eq!(
        tells(&bench.say(spec.room, Side::Decode, FromWorker::Ask), Side::Decode),
        vec![ToWorker::Live]
    );
}
