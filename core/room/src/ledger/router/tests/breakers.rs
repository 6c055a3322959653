//! Who is avoided, who is not, and what canaries find out.

use super::*;
use crate::breaker::BreakerState;

const PERIOD: u64 = 30_000;

fn breaker(bench: &Bench, node: Incarnation) -> BreakerState {
    let members = bench.ledger.members();
    let found = members.iter().find(|member| member.info.incarnation == node);
    found.expect("it is a member").breaker
}

fn canaries(effects: &[Effect]) -> Vec<(Incarnation, Incarnation)> {
    let canary = |effect: &Effect| match effect {
        Effect::Canary { prefill, decode, .. } => Some((*prefill, *decode)),
        _ => None,
    };
    effects.iter().filter_map(canary).collect()
}

/// What the executor makes of the order.
fn send(bench: &mut Bench, key: u64, pair: (Incarnation, Incarnation)) -> Vec<Effect> {
    bench.on(Event::Arrive(Arrival {
        rid: "canary".into(),
        model: None,
        prompt_tokens: 16,
        max_tokens: 1,
        pair: Some(pair),
        ..arrival(key)
    }))
}

/// Requests whose rooms at this decode worker end with its connection: it is blamed for all.
fn lose(bench: &mut Bench, node: Incarnation, times: usize) {
    let mut lost = 0;
    let from = 1000 + bench.out.len() as u64;
    for key in from.. {
        let spec = bench.decoding(key);
        if spec.decode == node {
            let broken = true;
            bench.on(Event::StreamEnded {
                room: spec.room,
                side: Side::Decode,
                broken,
            });
            lost += 1;
        }
        bench.on(Event::ClientGone {
            request: RequestKey(key),
        });
        bench.pass(300);
        if lost == times {
            return;
        }
    }
}

#[test]
fn a_worker_that_was_blamed_three_times_in_a_row_is_avoided_until_a_canary_comes_through() {
    let mut bench = Bench::four();
    lose(&mut bench, D1, 2);
    assert_eq!(breaker(&bench, D1), BreakerState::Closed, "two are not enough");
    lose(&mut bench, D1, 1);
    assert_eq!(breaker(&bench, D1), BreakerState::Open);
    assert_eq!(breaker(&bench, P1), BreakerState::Closed, "who waited is not to blame");
    for key in 1..6 {
        assert_eq!(begun(&bench.arrive(key)).decode, D2);
    }
    assert_eq!(bench.ledger.gauges(bench.now).avoided_nodes, 1);

    let effects = bench.pass(11_000);
    let [pair] = canaries(&effects)[..] else {
        panic!("one canary expected in {:?}", canaries(&effects))
    };
    assert_eq!(pair.1, D1);
    assert_eq!(breaker(&bench, D1), BreakerState::HalfOpen);
    let room = begun(&send(&mut bench, 900, pair)).room;
    assert_eq!(begun(&bench.arrive(6)).decode, D2, "no client is the probe");
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
    let effects = bench.tokens(room, 0, 1);
    assert_eq!(answers(&effects), [(RequestKey(900), Outcome::Done)]);
    assert_eq!(breaker(&bench, D1), BreakerState::Closed);
}

#[test]
fn a_canary_that_fails_keeps_it_avoided_for_longer_and_is_not_tried_again_elsewhere() {
    let mut bench = Bench::four();
    lose(&mut bench, D1, 3);
    let pair = canaries(&bench.pass(11_000))[0];
    let room = begun(&send(&mut bench, 900, pair)).room;
    let lost = bench.on(Event::StreamEnded {
        room,
        side: Side::Decode,
        broken: true,
    });
    let mut effects = lost;
    effects.extend(bench.pass(300));
    assert_eq!(error(&effects), (Reason::DecodeLost, Blame::Decode(D1)));
    assert!(!begins(&effects), "a canary is tried once");
    assert_eq!(breaker(&bench, D1), BreakerState::Open);
    let to_d1 = |effects: &[Effect]| canaries(effects).iter().filter(|pair| pair.1 == D1).count();
    assert_eq!(to_d1(&bench.pass(11_000)), 0, "twice as long");
    assert_eq!(to_d1(&bench.pass(10_000)), 1);
}

#[test]
fn where_nothing_else_is_left_the_avoided_are_used() {
    let mut bench = Bench::pair();
    lose(&mut bench, D1, 3);
    assert_eq!(breaker(&bench, D1), BreakerState::Open);
    assert_eq!(begun(&bench.arrive(1)).decode, D1);
}

#[test]
fn a_healthy_pair_that_is_full_is_waited_for() {
    let settings = Settings {
        open_window: 1,
        ..Settings::default()
    };
    let mut bench = Bench::with(settings, &[P1], &[D1, D2]);
    lose(&mut bench, D1, 3);
    let first = begun(&bench.arrive(1));
    assert_eq!(first.decode, D2);
    assert!(!begins(&bench.arrive(2)), "D2 has one to answer, and D1 is avoided");
}

#[test]
fn who_is_idle_gets_a_canary_each_period_and_who_serves_gets_none() {
    let mut bench = Bench::four();
    let mut sent = canaries(&bench.pass(PERIOD + 1000));
    sent.sort_unstable();
    assert_eq!(sent.len(), 2, "each node once: {sent:?}");
    assert!(sent[0].0 != sent[1].0 && sent[0].1 != sent[1].1, "{sent:?}");
    for (key, pair) in sent.iter().enumerate() {
        let room = begun(&send(&mut bench, 900 + key as u64, *pair)).room;
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
        bench.tokens(room, 0, 1);
    }
    // Three of four nodes stay idle: the fourth is D of every request, and one P.
    let next: Vec<_> = canaries(&bench.pass(PERIOD + 1000));
    assert!(
        next.iter().all(|pair| !sent.contains(pair)),
        "pairs take turns: {next:?}"
    );
}

#[test]
fn nobody_is_sent_a_canary_while_one_is_on_its_way_there_or_the_router_drains() {
    let mut bench = Bench::pair();
    assert_eq!(canaries(&bench.pass(3 * PERIOD)).len(), 1, "it never came back");
    let mut bench = Bench::pair();
    bench.on(Event::Drain);
    assert_eq!(canaries(&bench.pass(3 * PERIOD)), []);
}

#[test]
fn a_canary_that_finds_no_place_is_answered_at_once() {
    let mut bench = Bench::pair();
    bench.on(Event::NodeDown { incarnation: D1 });
    let effects = send(&mut bench, 900, (P1, D1));
    assert_eq!(error(&effects), (Reason::Overloaded, Blame::Nobody));
    bench.on(Event::NodeUp { incarnation: D1 });
    assert_eq!(canaries(&bench.pass(2 * PERIOD)).len(), 1, "and another one may go");
}

/// A room that decodes outlives its prefill worker; what is remembered of pairs does not.
#[test]
fn a_pair_of_which_one_is_gone_is_not_remembered() {
    let mut bench = Bench::pair();
    let spec = bench.decoding(1);
    bench.on(Event::WhoAnswered {
        asked: P1,
        answered: P2,
    });
    let effects = bench.tokens(spec.room, 0, 5);
    assert_eq!(answers(&effects), [(RequestKey(1), Outcome::Done)]);
    assert!(bench.ledger.looked.is_empty(), "{:?}", bench.ledger.looked);
}
