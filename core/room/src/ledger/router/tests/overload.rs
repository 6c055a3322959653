//! More comes than fits: who is refused at once, in which order the others go on, and what they are told.

use super::*;

/// One room at a time: the queue goes down by what is done.
fn narrow(settings: Settings) -> Bench {
    let mut bench = Bench::with(settings, &[P1], &[D1]);
    for (node, role) in [(P1, Role::Prefill), (D1, Role::Decode)] {
        bench.on(Event::MemberUp(MemberInfo {
            permits: 1,
            ..member(node, role)
        }));
    }
    bench
}

fn asks(key: u64, client: &str, class: Class) -> Event {
    Event::Arrive(Arrival {
        client: client.into(),
        class,
        ..arrival(key)
    })
}

/// The room that runs, carried to its end; which request it was, and what followed.
fn serve(bench: &mut Bench) -> (u64, Vec<Effect>) {
    let (room, request) = {
        let mut live = bench.ledger.rooms.iter().filter(|(_, room)| room.is_live());
        let (id, room) = live.next().expect("a room runs");
        (*id, room.spec.request.0)
    };
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
    let effects = bench.tokens(room, 0, 5);
    (request, effects)
}

/// What an arrival was told if it was refused: when to come again.
fn refused(effects: &[Effect]) -> Option<(Reason, Millis)> {
    answers(effects).into_iter().find_map(|(_, outcome)| match outcome {
        Outcome::Failed {
            reason,
            retry_after: Some(wait),
            ..
        } => Some((reason, wait)),
        _ => None,
    })
}

#[test]
fn the_queue_is_bounded_and_a_flood_gives_up_its_own_places() {
    let settings = Settings {
        max_queued: 4,
        ..Settings::default()
    };
    let mut bench = narrow(settings);
    for key in 1..=5 {
        assert_eq!(refused(&bench.on(asks(key, "flood", Class::Normal))), None);
    }
    let (reason, wait) = refused(&bench.on(asks(6, "flood", Class::Normal))).expect("the queue is full");
    assert_eq!(reason, Reason::Overloaded);
    assert!(wait >= Millis(1000), "{wait:?}");
    // Another tenant's takes the place of the flood's last one, which is told so.
    let effects = bench.on(asks(7, "small", Class::Normal));
    assert_eq!(answers(&effects)[0].0, RequestKey(5));
    assert_eq!(refused(&effects).map(|(reason, _)| reason), Some(Reason::Overloaded));
    // A more urgent one as well; a less urgent one does not.
    assert_eq!(answers(&bench.on(asks(8, "flood", Class::High)))[0].0, RequestKey(4));
    assert_eq!(answers(&bench.on(asks(9, "other", Class::Low)))[0].0, RequestKey(9));
    let shed = bench.ledger.gauges(bench.now).shed;
    assert_eq!((shed.queue_full, shed.displaced, shed.predicted_wait), (2, 2, 0));
    // The urgent one is next; then the tenants take turns.
    let order: Vec<u64> = (0..5).map(|_| serve(&mut bench).0).collect();
    assert_eq!(order, vec![1, 8, 2, 7, 3]);
    assert_eq!(bench.ledger.requests.len(), 0);
}

#[test]
fn one_that_would_wait_too_long_is_told_so_at_once() {
    let settings = Settings {
        queue_timeout: Millis(3000),
        ..Settings::default()
    };
    let mut bench = narrow(settings);
    // 25 tokens each; two of them are done in a second.
    for key in 1..=5 {
        assert_eq!(refused(&bench.on(asks(key, "a", Class::Normal))), None);
    }
    let mut key = 5;
    for _ in 0..8 {
        bench.pass(500);
        serve(&mut bench);
        key += 1;
        assert_eq!(refused(&bench.on(asks(key, "a", Class::Normal))), None, "{key}");
    }
    // Four wait, and half a second each is what they take.
    let gauges = bench.ledger.gauges(bench.now);
    assert_eq!(gauges.waiting, [0, 4, 0]);
    let predicted = gauges.predicted_wait[1];
    assert!(
        predicted >= Millis(400) && predicted <= Millis(1000),
        "another tenant waits for one: {predicted:?}"
    );
    // Six are three seconds, of which an eighth is kept: the second or third more would wait beyond that.
    let mut told = (101..).map(|key| (key, refused(&bench.on(asks(key, "a", Class::Normal)))));
    let (last, (reason, wait)) = told.find_map(|(key, told)| Some((key, told?))).expect("there is one");
    assert!((102..=103).contains(&last), "{last}");
    assert_eq!(reason, Reason::Overloaded);
    assert!(wait >= Millis(2500) && wait <= Millis(6000), "{wait:?}");
    assert_eq!(bench.ledger.gauges(bench.now).shed.predicted_wait, 1);
    // Nothing of it is left anywhere, and another tenant is let in: it waits for one of a's only.
    assert!(!bench.ledger.requests.contains_key(&RequestKey(last)));
    assert_eq!(refused(&bench.on(asks(205, "b", Class::Normal))), None);
    assert_eq!(
        refused(&bench.on(asks(206, "a", Class::High))),
        None,
        "a more urgent one as well"
    );
}

#[test]
fn each_class_has_its_own_queue_deadline() {
    let settings = Settings {
        queue_timeout: Millis(4000),
        queue_timeout_high: Millis(2000),
        queue_timeout_low: Millis(8000),
        ..Settings::default()
    };
    let mut bench = narrow(settings);
    bench.on(asks(1, "a", Class::Normal));
    let spec = {
        let (id, _) = bench.ledger.rooms.iter().next().expect("it runs");
        *id
    };
    bench.admit(spec);
    bench.say(
        spec,
        Side::Prefill,
        FromWorker::Started {
            epoch: Epoch(1),
            reused: 0,
        },
    );
    bench.say(spec, Side::Decode, FromWorker::Committed);
    for (key, class) in (2..).zip(Class::ALL) {
        bench.on(asks(key, "a", class));
    }
    let mut left = vec![];
    for _ in 0..90 {
        // D makes progress all the time.
        let taken = bench.ledger.rooms.get(&spec).map_or(5, |room| room.taken);
        if taken < 4 && bench.now.since(Moment(1000)).0 > u64::from(taken) * 2200 {
            bench.tokens(spec, taken, 1);
        }
        let effects = bench.pass(100);
        for (request, outcome) in answers(&effects) {
            assert!(matches!(
                outcome,
                Outcome::Failed {
                    reason: Reason::QueueTimeout,
                    retry_after: Some(_),
                    ..
                }
            ));
            left.push((request.0, bench.now.since(Moment(1000)).0));
        }
    }
    assert_eq!(left, vec![(2, 2000), (3, 4000), (4, 8000)]);
}

#[test]
fn an_abort_of_a_waiting_request_leaves_nothing_in_the_queue() {
    let mut bench = narrow(Settings::default());
    (1..=3).for_each(|key| drop(bench.on(asks(key, "a", Class::Low))));
    bench.on(Event::ClientGone { request: RequestKey(2) });
    let gauges = bench.ledger.gauges(bench.now);
    assert_eq!((gauges.waiting, gauges.waiting_tokens), ([0, 0, 1], [0, 0, 25]));
    assert_eq!(gauges.waiting_tenants, 1);
    serve(&mut bench);
    assert_eq!(serve(&mut bench).0, 3);
    assert_eq!(bench.ledger.gauges(bench.now).waiting_tenants, 0);
}

#[test]
fn canaries_come_through_a_full_router() {
    let settings = Settings {
        max_requests: 1,
        ..Settings::default()
    };
    let mut bench = Bench::with(settings, &[P1, P2], &[D1, D2]);
    begun(&bench.arrive(1));
    assert_eq!(error(&bench.arrive(2)).0, Reason::Overloaded);
    let canary = Arrival {
        pair: Some((P2, D2)),
        max_tokens: 1,
        ..arrival(3)
    };
    assert!(begins(&bench.on(Event::Arrive(canary))));
}
