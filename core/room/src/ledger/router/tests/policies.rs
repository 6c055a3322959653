//! What each policy makes of the same workers, seen from outside: who is chosen, how evenly, and what moves.

use super::*;
use crate::prefix::Blocks;

const SEED: u64 = 0x9e37_79b9;

fn policies(prefill: Policy) -> Policies {
    Policies {
        prefill,
        ..Policies::default()
    }
}

/// So many prefill workers and one decode worker, each with places for everybody.
fn bench(prefill: Policy, workers: u64, settings: Settings) -> Bench {
    let mut bench = Bench::with(settings, &[], &[]);
    bench.ledger = bench.ledger.clone().with_policies(policies(prefill));
    (0..workers).for_each(|number| bench.worker(number));
    bench.big(D1, Role::Decode);
    bench
}

fn worker(number: u64) -> Incarnation {
    Incarnation::new(0x100 + number)
}

fn prompt(prefix: u32, tokens: u32) -> Blocks {
    let ids: Vec<u32> = (0..tokens).map(|at| prefix * 10_000 + at).collect();
    Blocks::of(&ids, 16)
}

impl Bench {
    fn worker(&mut self, number: u64) {
        self.big(worker(number), Role::Prefill);
    }

    fn big(&mut self, node: Incarnation, role: Role) {
        self.on(Event::MemberUp(MemberInfo {
            permits: 100_000,
            pages: 1 << 20,
            context: 1 << 20,
            ..member(node, role)
        }));
        self.on(Event::NodeUp { incarnation: node });
        let load = Load {
            free_pages: 1 << 20,
            ..load(0)
        };
        self.on(Event::Load {
            incarnation: node,
            load,
        });
    }

    /// A request with this prompt begins; both workers admit it.
    fn asks(&mut self, key: u64, blocks: Blocks) -> (RoomSpec, Chosen) {
        let effects = self.on(Event::Arrive(Arrival {
            blocks,
            ..arrival(key.wrapping_mul(SEED))
        }));
        let spec = begun(&effects);
        let chosen = effects.iter().find_map(|effect| match effect {
            Effect::Begin { chosen, .. } => Some(*chosen),
            _ => None,
        });
        self.admit(spec.room);
        (spec, chosen.expect("it begins"))
    }

    /// The same, and its client has all it wants.
    fn served(&mut self, key: u64, blocks: Blocks) -> (Incarnation, Chosen) {
        let (spec, chosen) = self.asks(key, blocks);
        self.on(Event::Satisfied { request: spec.request });
        (spec.prefill, chosen)
    }

    /// Where prompts go while nobody has anything to do.
    fn map(&mut self, from: u64, prompts: u32) -> Vec<Incarnation> {
        let each = (0..prompts).map(|prefix| self.served(from + u64::from(prefix), prompt(prefix, 64)).0);
        each.collect()
    }

    fn rooms_at(&self, workers: u64) -> Vec<usize> {
        let rooms = |number| self.ledger.members[&worker(number)].rooms.len();
        (0..workers).map(rooms).collect()
    }
}

fn counts(chosen: &[Incarnation], workers: u64) -> Vec<usize> {
    let of = |number| chosen.iter().filter(|one| **one == worker(number)).count();
    (0..workers).map(of).collect()
}

#[test]
fn names_are_read_as_they_are_shown() {
    for policy in Policy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    let error = "fastest".parse::<Policy>().unwrap_err().to_string();
    assert!(
        error.contains("`fastest`") && Policy::ALL.iter().all(|policy| error.contains(policy.label())),
        "{error}"
    );
}

#[test]
fn each_takes_its_turn() {
    let mut bench = bench(Policy::RoundRobin, 4, Settings::default());
    let chosen: Vec<_> = (0..40).map(|key| bench.served(key, Blocks::default()).0).collect();
    assert_eq!(counts(&chosen, 4), [10; 4]);
    assert!(chosen.windows(4).all(|four| counts(four, 4) == [1; 4]));
    bench.worker(4);
    let chosen: Vec<_> = (40..60).map(|key| bench.served(key, Blocks::default()).0).collect();
    assert_eq!(
        counts(&chosen, 5),
        [4; 5],
        "one that comes has its turn, and no more than that"
    );
}

#[test]
fn chance_is_even_and_two_choices_are_more_even() {
    let spread = |policy| {
        let mut bench = bench(
            policy,
            8,
            Settings {
                max_requests: 10_000,
                open_window: 10_000,
                ..Settings::default()
            },
        );
        let mut grounds = BTreeSet::new();
        (0..2000).for_each(|key| {
            grounds.insert(bench.asks(key, Blocks::default()).1.prefill);
        });
        assert_eq!(grounds, BTreeSet::from([Ground::Chance]));
        let rooms = bench.rooms_at(8);
        let (least, most) = (rooms.iter().min().copied(), rooms.iter().max().copied());
        (least.unwrap_or(0), most.unwrap_or(0))
    };
    let (least, most) = spread(Policy::Random);
    assert!(
        least >= 190 && most <= 310,
        "250 each, and four times the deviation of 15: {least} to {most}"
    );
    assert!(most - least > 8, "chance is not a turn: {least} to {most}");
    let (least, most) = spread(Policy::PowerOfTwo);
    assert!(most - least <= 8, "{least} to {most}");
}

#[test]
fn chance_depends_on_request_and_attempt_alone() {
    let mut once = bench(Policy::Random, 8, Settings::default());
    let mut again = bench(Policy::Random, 8, Settings::default());
    again.served(77, Blocks::default());
    again.pass(5000);
    let of = |bench: &mut Bench| {
        (0..50)
            .map(|key| bench.served(key, Blocks::default()).0)
            .collect::<Vec<_>>()
    };
    assert_eq!(of(&mut once), of(&mut again));
}

#[test]
fn when_a_worker_comes_or_goes_only_its_share_moves() {
    let mut bench = bench(Policy::PrefixHash, 5, Settings::default());
    let before = bench.map(0, 300);
    assert_eq!(bench.map(1000, 300), before, "a prompt has its worker");
    assert!(
        counts(&before, 5).iter().all(|share| (30..=95).contains(share)),
        "{:?}",
        counts(&before, 5)
    );
    bench.worker(5);
    let more = bench.map(2000, 300);
    let moved: Vec<_> = before.iter().zip(&more).filter(|(old, new)| old != new).collect();
    assert!(moved.iter().all(|(_, new)| **new == worker(5)), "only to the new one");
    assert!(
        (25..=85).contains(&moved.len()),
        "about a sixth of 300: {}",
        moved.len()
    );
    bench.on(Event::NodeDown { incarnation: worker(5) });
    assert_eq!(bench.map(3000, 300), before, "all come back");
    bench.on(Event::NodeDown { incarnation: worker(2) });
    let fewer = bench.map(4000, 300);
    assert!(
        before
            .iter()
            .zip(&fewer)
            .all(|(old, new)| (old == new) == (*old != worker(2)))
    );
    // Started again at its address: another life, and the same share.
    let info = MemberInfo {
        control: member(worker(2), Role::Prefill).control,
        ..member(worker(9), Role::Prefill)
    };
    bench.on(Event::MemberUp(info));
    bench.on(Event::NodeUp { incarnation: worker(9) });
    let again = bench.map(5000, 300);
    let life = |old: Incarnation| if old == worker(2) { worker(9) } else { old };
    assert!(before.iter().zip(&again).all(|(old, new)| life(*old) == *new));
}

/// One prompt, and nobody is done: the worker that it leads to takes no more than its bound.
#[test]
fn a_prompt_that_everybody_sends_is_spread_by_the_bound() {
    for policy in [Policy::PrefixHash, Policy::CacheAware] {
        let mut bench = bench(policy, 4, Settings::default());
        let mut grounds = vec![];
        for key in 1..=60 {
            grounds.push(bench.asks(key, prompt(1, 64)).1.prefill);
            let rooms = bench.rooms_at(4);
            let bound = (rooms.iter().sum::<usize>() * 125).div_ceil(4 * 100).max(4);
            assert!(
                rooms.iter().all(|rooms| *rooms <= bound),
                "{policy}: {rooms:?} with {key} rooms"
            );
        }
        let of = |ground| grounds.iter().filter(|one| **one == ground).count();
        assert!(of(Ground::Prefix) >= 15, "{policy}: {grounds:?}");
        // What was sent there because of the bound leads there too from then on, where what was sent counts.
        let least = if policy == Policy::PrefixHash { 15 } else { 3 };
        assert!(of(Ground::Bounded) >= least, "{policy}: {grounds:?}");
    }
}

#[test]
fn a_prompt_goes_where_most_of_it_was_sent_if_that_is_enough() {
    let mut bench = bench(Policy::CacheAware, 4, Settings::default());
    let (first, chosen) = bench.served(1, prompt(1, 160));
    assert_eq!(
        (chosen.prefill, chosen.sent_before, chosen.looked_at),
        (Ground::Load, 0, 160)
    );
    for key in 2..10 {
        let (again, chosen) = bench.served(key, prompt(1, 176));
        assert_eq!((again, chosen.prefill, chosen.looked_at), (first, Ground::Prefix, 176));
        assert!(chosen.sent_before >= 160);
    }
    // Two blocks of eight are a quarter: less than 30 percent.
    let half: Vec<u32> = (0..128)
        .map(|at| if at < 32 { 10_000 + at } else { 500_000 + at })
        .collect();
    let (other, chosen) = bench.served(20, Blocks::of(&half, 16));
    assert_eq!((chosen.prefill, chosen.sent_before), (Ground::Load, 0));
    assert_ne!(other, first, "the least loaded one");
    let (again, chosen) = bench.served(21, Blocks::of(&half, 16));
    assert_eq!(
        (again, chosen.prefill, chosen.sent_before),
        (other, Ground::Prefix, 128),
        "the longer match"
    );
}

#[test]
fn a_worker_that_leaves_or_is_blamed_is_forgotten() {
    for leaves in [true, false] {
        let mut bench = bench(Policy::CacheAware, 3, Settings::default());
        let (first, _) = bench.served(1, prompt(1, 160));
        if leaves {
            bench.on(Event::NodeDown { incarnation: first });
            bench.on(Event::MemberGone { incarnation: first });
            bench.pass(10_000);
            assert!(!bench.ledger.members.contains_key(&first));
        } else {
            let (spec, _) = bench.asks(2, prompt(1, 160));
            assert_eq!(spec.prefill, first);
            let effects = bench.fail_part(spec.room, Side::Prefill, Reason::EngineFailed, false);
            assert_eq!(ends(&effects)[0].blame, Blame::Prefill(first));
        }
        let (next, chosen) = bench.served(3, prompt(1, 160));
        assert_ne!(next, first);
        // The attempt after the blamed one was sent it meanwhile.
        assert_eq!(chosen.prefill, if leaves { Ground::Load } else { Ground::Prefix });
    }
}

#[test]
fn a_policy_is_switched_while_requests_run() {
    let mut bench = bench(Policy::LeastLoaded, 3, Settings::default());
    let (spec, chosen) = bench.asks(1, prompt(1, 160));
    assert_eq!(chosen.policies, Policies::default());
    let cache_aware = Policies {
        prefill: Policy::CacheAware,
        decode: Policy::CacheAware,
    };
    assert!(
        bench.on(Event::Policies(cache_aware)).is_empty(),
        "what runs stays where it is"
    );
    assert_eq!(bench.ledger.policies(), cache_aware);
    let (next, chosen) = bench.asks(2, prompt(1, 160));
    assert_eq!(
        (next.prefill, chosen.prefill),
        (spec.prefill, Ground::Prefix),
        "what was sent is known already"
    );
    assert_eq!(
        (chosen.policies, chosen.decode),
        (cache_aware, Ground::Load),
        "of decode workers it was not"
    );
    assert_eq!(bench.asks(3, prompt(1, 160)).1.decode, Ground::Prefix);
    bench.on(Event::Policies(policies(Policy::RoundRobin)));
    let chosen: Vec<_> = (4..7).map(|key| bench.served(key, prompt(1, 160)).0).collect();
    assert_eq!(counts(&chosen, 3), [1; 3]);
}

#[test]
fn without_a_memory_prompts_lead_nowhere() {
    let settings = Settings {
        prefix_blocks: 0,
        ..Settings::default()
    };
    let mut bench = bench(Policy::CacheAware, 3, settings);
    let chosen: Vec<_> = (1..=6).map(|key| bench.served(key, prompt(1, 160))).collect();
    assert!(
        chosen
            .iter()
            .all(|(_, chosen)| (chosen.prefill, chosen.sent_before) == (Ground::Load, 0))
    );
    assert_eq!(
        counts(&chosen.iter().map(|(one, _)| *one).collect::<Vec<_>>(), 3),
        [2; 3]
    );
}

/// A canary goes where it is sent, and leaves no trace.
#[test]
fn a_canary_has_no_policy() {
    let mut bench = bench(Policy::CacheAware, 2, Settings::default());
    let effects = bench.on(Event::Arrive(Arrival {
        pair: Some((worker(1), D1)),
        ..arrival(1)
    }));
    let chosen = effects.iter().find_map(|effect| match effect {
        Effect::Begin { spec, chosen, .. } => Some((spec.prefill, *chosen)),
        _ => None,
    });
    let (prefill, chosen) = chosen.expect("it begins");
    assert_eq!(
        (prefill, chosen.prefill, chosen.decode),
        (worker(1), Ground::Asked, Ground::Asked)
    );
}
