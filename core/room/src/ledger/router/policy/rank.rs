//! The order in which the workers of a role are looked at.

use std::cmp::Reverse;

use super::{Candidate, Chooser, Policy};
use crate::ids::{Incarnation, Role};
use crate::ledger::router::members::Member;
use crate::prefix::{Blocks, chain, mix};
use crate::request::Request;
use crate::settings::Settings;

/// Smaller is better: enough free pages by the last report, few rooms, not picked lately, and the id for a total order.
pub(in crate::ledger::router) type Score = (bool, usize, u64, Incarnation);

/// `prefix_hash` goes by this many tokens from the beginning: about a system prompt.
const BEGINNING: u32 = 256;

/// A place in the order: may it be asked at all, has it pages, what the policy says, and load where that says nothing.
type Key = (bool, bool, u8, u64, Score);

/// The workers of a role, the best one first.
pub(in crate::ledger::router) struct Ranked<'a> {
    /// In their order.
    pub(in crate::ledger::router) members: Vec<&'a Member>,
    /// Where the prompt leads, if it leads anywhere.
    pub(in crate::ledger::router) leads_to: Option<Incarnation>,
}

impl Chooser {
    /// Ranks: as many steps as sorting takes, and as many looks at the tree as the prompt has blocks.
    pub(in crate::ledger::router) fn rank<'a>(
        &self,
        request: &Request,
        role: Role,
        candidates: Vec<Candidate<'a>>,
        settings: &Settings,
    ) -> Ranked<'a> {
        let (policy, _) = self.of(role);
        let blocks = &request.arrival.blocks;
        let mut leads_to = None;
        let mut keyed: Vec<(Key, Candidate<'a>)> = match policy {
            Policy::LeastLoaded => by_load(candidates),
            Policy::RoundRobin => with_key(candidates, |one| (0, one.score.2)),
            Policy::Random => with_key(candidates, |one| (0, chance(request, one))),
            Policy::PowerOfTwo => power_of_two(request, candidates),
            Policy::PrefixHash => prefix_hash(blocks, candidates, settings, &mut leads_to),
            Policy::CacheAware => self.cache_aware(blocks, role, candidates, settings, &mut leads_to),
        };
        keyed.sort_unstable_by_key(|(key, _)| *key);
        Ranked {
            members: keyed.into_iter().map(|(_, one)| one.member).collect(),
            leads_to,
        }
    }

    /// Whoever was sent enough of the prompt, most of it first, while its load is within its bound; else by load.
    fn cache_aware<'a>(
        &self,
        blocks: &Blocks,
        role: Role,
        candidates: Vec<Candidate<'a>>,
        settings: &Settings,
        leads_to: &mut Option<Incarnation>,
    ) -> Vec<(Key, Candidate<'a>)> {
        let (_, seen) = self.of(role);
        let matches = seen.matches(blocks.hashes());
        let enough = |matched: u32| {
            matched > 0
                && u64::from(matched) * 100 >= u64::from(blocks.count()) * u64::from(settings.prefix_match_percent)
        };
        let matched = |one: &Candidate<'_>| {
            let found = matches.get(&one.member.info.incarnation).copied();
            found.filter(|matched| enough(*matched))
        };
        let best = candidates
            .iter()
            .filter_map(|one| Some((matched(one)?, Reverse(one.score))));
        *leads_to = best.max().map(|(_, Reverse(score))| score.3);
        let bound = bound(&candidates, settings);
        with_key(candidates, |one| match matched(one) {
            Some(matched) if one.score.1 < bound => (0, u64::MAX - u64::from(matched)),
            Some(_) | None => (1, 0),
        })
    }
}

/// As it stands: not even whether a worker may be asked now comes before its load.
fn by_load(candidates: Vec<Candidate<'_>>) -> Vec<(Key, Candidate<'_>)> {
    let key = |one: Candidate<'_>| (false, false, 0, 0, one.score);
    candidates.into_iter().map(|one| (key(one), one)).collect()
}

fn with_key<'a>(
    candidates: Vec<Candidate<'a>>,
    say: impl Fn(&Candidate<'a>) -> (u8, u64),
) -> Vec<(Key, Candidate<'a>)> {
    let key = |one: &Candidate<'a>| {
        let (class, place) = say(one);
        (!one.open, one.score.0, class, place, one.score)
    };
    candidates.into_iter().map(|one| (key(&one), one)).collect()
}

/// The same for the same request and attempt, and as good as any for another.
fn chance(request: &Request, one: &Candidate<'_>) -> u64 {
    let draw = chain(mix(request.arrival.request.0), u64::from(request.attempt));
    mix(chain(draw, one.member.info.incarnation.get()))
}

/// Two of those that may be asked; the others follow as chance has it.
fn power_of_two<'a>(request: &Request, candidates: Vec<Candidate<'a>>) -> Vec<(Key, Candidate<'a>)> {
    let mut drawn: Vec<(bool, u64)> = candidates.iter().map(|one| (!one.open, chance(request, one))).collect();
    drawn.sort_unstable();
    let second = drawn.get(1).or(drawn.first()).copied();
    with_key(candidates, |one| {
        let draw = (!one.open, chance(request, one));
        if second.is_some_and(|second| draw <= second) {
            (0, 0)
        } else {
            (1, draw.1)
        }
    })
}

/// Rendezvous hashing with bounded loads: each worker draws a number for the prompt's beginning, and the highest wins. Workers
/// are told apart by where they are, so that one that was started again gets its own share back and moves no other.
fn prefix_hash<'a>(
    blocks: &Blocks,
    candidates: Vec<Candidate<'a>>,
    settings: &Settings,
    leads_to: &mut Option<Incarnation>,
) -> Vec<(Key, Candidate<'a>)> {
    let Some(beginning) = blocks.beginning(BEGINNING) else {
        return by_load(candidates);
    };
    let drawn = |one: &Candidate<'_>| {
        let name = one.member.info.control.bytes();
        Reverse(name.fold(mix(beginning), |hash, byte| chain(hash, u64::from(byte))))
    };
    *leads_to = candidates
        .iter()
        .map(|one| (drawn(one), one.member.info.incarnation))
        .min()
        .map(|(_, best)| best);
    let bound = bound(&candidates, settings);
    with_key(candidates, |one| {
        let place = u64::MAX - drawn(one).0;
        (u8::from(one.score.1 >= bound), place)
    })
}

/// Rooms from which on a worker takes no request for its prompt's sake: so many percent of the average with the new room, but
/// never less than a prefill worker computes at once, since below that nobody waits for another.
fn bound(candidates: &[Candidate<'_>], settings: &Settings) -> usize {
    let open = || candidates.iter().filter(|one| one.open);
    let rooms = open().map(|one| one.score.1).sum::<usize>() + 1;
    let percent = usize::try_from(settings.prefix_load_percent).unwrap_or(usize::MAX);
    let fair = rooms.saturating_mul(percent).div_ceil(open().count().max(1) * 100);
    fair.max(usize::try_from(settings.prefill_concurrency).unwrap_or(usize::MAX))
}
