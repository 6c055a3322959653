//! Any policy, any state of the cluster, any history of a request: the pair that placement returns may take it. What a policy
//! ranks never decides who may, so whether there is a pair is the same under all of them.

use proptest::prelude::*;

use super::super::placement::Placement;
use super::super::policy::Score;
use super::*;
use crate::breaker::{BreakerState, Party};
use crate::message::Refusal;
use crate::prefix::Blocks;
use crate::request::Request;

/// A worker as it may be.
#[derive(Clone, Debug)]
struct Worker {
    role: bool,
    class: u64,
    model: bool,
    link: bool,
    serving: bool,
    permits: u32,
    rooms: u32,
    free: u32,
    blames: u8,
}

/// What a request has been through, as bits over workers and pairs.
#[derive(Clone, Debug)]
struct History {
    blamed: u8,
    refused: u8,
    too_large: u8,
    failed: u32,
    prompt: u32,
    prefix: u32,
}

fn workers() -> impl Strategy<Value = Vec<Worker>> {
    let worker = (
        (
            any::<bool>(),
            1_u64..3,
            prop::bool::weighted(0.9),
            prop::bool::weighted(0.9),
            prop::bool::weighted(0.9),
        ),
        (1_u32..5, 0_u32..6, 0_u32..100, 0_u8..5),
    );
    let worker = worker.prop_map(
        |((role, class, model, link, serving), (permits, rooms, free, blames))| Worker {
            role,
            class,
            model,
            link,
            serving,
            permits,
            rooms,
            free,
            blames,
        },
    );
    prop::collection::vec(worker, 2..8)
}

fn history() -> impl Strategy<Value = History> {
    let rare = || prop_oneof![2 => Just(0_u8), 1 => any::<u8>().prop_map(|bits| bits & (bits >> 3))];
    (
        rare(),
        rare(),
        rare(),
        prop_oneof![Just(0), any::<u32>()],
        1_u32..400,
        0_u32..4,
    )
        .prop_map(|(blamed, refused, too_large, failed, prompt, prefix)| History {
            blamed,
            refused,
            too_large,
            failed,
            prompt,
            prefix,
        })
}

fn node(index: usize) -> Incarnation {
    Incarnation::new(0x40 + index as u64)
}

fn ledger(workers: &[Worker]) -> Ledger {
    let mut bench = Bench::with(Settings::default(), &[], &[]);
    for (index, worker) in workers.iter().enumerate() {
        let (incarnation, role) = (node(index), if worker.role { Role::Prefill } else { Role::Decode });
        bench.on(Event::MemberUp(MemberInfo {
            class: worker.class,
            model: if worker.model { "m" } else { "other" }.into(),
            serving: worker.serving,
            permits: worker.permits,
            ..member(incarnation, role)
        }));
        if worker.link {
            bench.on(Event::NodeUp { incarnation });
        }
        let load = Load {
            free_pages: worker.free,
            ..load(worker.rooms)
        };
        bench.on(Event::Load { incarnation, load });
        for number in 0..u64::from(worker.blames) {
            bench
                .ledger
                .breakers
                .failed(Party::Node(incarnation), RoomId::from_random(number + 1), bench.now);
        }
    }
    bench.ledger
}

fn request(history: &History, workers: &[Worker]) -> Request {
    let bit = |bits: u8, index: usize| bits >> index & 1 == 1;
    let ids: Vec<u32> = (0..history.prompt).map(|at| history.prefix * 1000 + at).collect();
    let arrival = Arrival {
        prompt_tokens: history.prompt,
        blocks: Blocks::of(&ids, 16),
        ..arrival(u64::from(history.prompt))
    };
    let mut request = Request::new(arrival, Moment(1000), &Settings::default());
    for index in 0..workers.len() {
        if bit(history.blamed, index) {
            request.blamed.insert(node(index));
        }
        if bit(history.refused, index) {
            request.refused.insert(node(index), Refusal::NoPermit);
        }
        if bit(history.too_large, index) {
            request.refused.insert(node(index), Refusal::TooLarge);
        }
        for other in 0..workers.len() {
            if history.failed >> ((index * 8 + other) % 32) & 1 == 1 {
                request.failed_pairs.insert((node(index), node(other)));
            }
        }
    }
    request
}

/// All that is said of pairs, in plain words and without any order: whether it may be opened now, and whether it is one that a
/// request is sent to without need.
struct Pair {
    pair: (Incarnation, Incarnation),
    open: bool,
    failed: bool,
    avoided: bool,
    /// Decode's, then prefill's.
    score: (Score, Score),
}

fn pairs(ledger: &Ledger, request: &Request) -> Vec<Pair> {
    let mut found = vec![];
    for (p, prefill) in &ledger.members {
        for (d, decode) in &ledger.members {
            let roles = prefill.info.role == Role::Prefill && decode.info.role == Role::Decode;
            let usable = prefill.usable() && decode.usable();
            let fits = prefill.info.class == decode.info.class && prefill.info.model == "m" && decode.info.model == "m";
            let all = request.prompt() + request.remaining();
            let holds = all <= prefill.info.context.min(decode.info.context)
                && all.div_ceil(16) <= decode.info.pages
                && request.prompt().div_ceil(16) <= prefill.info.pages;
            let never = [p, d]
                .iter()
                .any(|node| request.refused.get(node) == Some(&Refusal::TooLarge));
            let blamed = request.blamed.contains(p) || request.blamed.contains(d);
            if !(roles && usable && fits && holds) || never || blamed {
                continue;
            }
            let asked = request.refused.contains_key(p) || request.refused.contains_key(d);
            let score = |member: &super::super::members::Member, tokens: u32| {
                let lacks = member.load.is_some_and(|load| load.free_pages < tokens.div_ceil(16));
                (lacks, member.booked(), member.picked, member.info.incarnation)
            };
            found.push(Pair {
                pair: (*p, *d),
                open: !asked
                    && [prefill, decode]
                        .iter()
                        .all(|member| member.has_place(64) && ledger.can_book(request, member)),
                failed: request.failed_pairs.contains(&(*p, *d)),
                avoided: ledger.breakers.pair(*p, *d, ledger.now) != BreakerState::Closed,
                score: (score(decode, all), score(prefill, request.prompt())),
            });
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_policy_the_pair_may_take_it(
        workers in workers(),
        history in history(),
        before in prop::collection::vec((0_u32..4, 1_u32..400), 0..6),
    ) {
        let request = request(&history, &workers);
        let mut plain = ledger(&workers);
        for (key, (prefix, tokens)) in (100..).zip(before) {
            let ids: Vec<u32> = (0..tokens).map(|at| prefix * 1000 + at).collect();
            let earlier = Arrival { prompt_tokens: tokens, blocks: Blocks::of(&ids, 16), ..arrival(key) };
            let now = plain.now;
            let _ = plain.step(Event::Arrive(earlier), now);
        }
        let usual = plain.place(&request);
        let pairs = pairs(&plain, &request);
        for prefill in Policy::ALL {
            for decode in Policy::ALL {
                let ledger = plain.clone().with_policies(Policies { prefill, decode });
                let placed = ledger.place(&request);
                prop_assert_eq!(&placed, &ledger.clone().place(&request), "it is the same each time");
                prop_assert_eq!(
                    std::mem::discriminant(&placed), std::mem::discriminant(&usual),
                    "{}/{} says {:?}, the default {:?}", prefill, decode, &placed, &usual
                );
                let Placement::Pair { prefill: p, decode: d } = placed else { continue };
                let chosen = pairs.iter().find(|pair| pair.pair == (p, d));
                prop_assert!(chosen.is_some_and(|pair| pair.open), "{}/{}: it may not go to {} and {}", prefill, decode, p, d);
                let chosen = chosen.expect("just found");
                let fresh = pairs.iter().any(|pair| !pair.failed && !pair.avoided);
                let other = pairs.iter().any(|pair| !pair.failed);
                prop_assert!(!chosen.failed || !other && request.blamed.is_empty(), "a pair that failed it, without need");
                prop_assert!(!chosen.avoided || !fresh || chosen.failed, "a pair that is avoided, without need");
            }
        }
        // The default is what it always was: of the pairs of one kind the least loaded, decode first.
        if let Placement::Pair { prefill, decode } = usual {
            let kind = |pair: &Pair| (pair.failed, !pair.failed && pair.avoided);
            let chosen = pairs.iter().find(|pair| pair.pair == (prefill, decode)).expect("it may take it");
            let best = pairs.iter().filter(|pair| pair.open && kind(pair) == kind(chosen)).min_by_key(|pair| pair.score);
            prop_assert_eq!(best.map(|pair| pair.pair), Some((prefill, decode)));
        }
    }
}
