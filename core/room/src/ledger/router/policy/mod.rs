//! How one worker is chosen among those that may take a request. A policy ranks; it never decides who may: that is
//! `placement`, the same for all of them. Pure: chance is a hash of the request, and a worker's turn is the ledger's count.
//!
//! ```text
//! seen  which beginnings of prompts each worker was sent
//! rank  the order in which workers of a role are looked at
//! ```

mod rank;
mod seen;

use std::fmt;
use std::str::FromStr;

use super::members::Member;
use crate::ids::{Incarnation, Role};
use crate::prefix::Blocks;
use crate::settings::Settings;
use seen::Seen;

pub(super) use rank::{Ranked, Score};

/// How the workers of a role are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// Enough free pages, then the fewest rooms, then the longest not picked.
    #[default]
    LeastLoaded,
    /// The one that was not picked for longest.
    RoundRobin,
    /// Any, as chance has it.
    Random,
    /// Two by chance, and of these the least loaded.
    PowerOfTwo,
    /// By the beginning of the prompt: equal ones go to the same worker while its load is within its bound, and when a worker
    /// comes or goes only its share moves. All routers agree without talking.
    PrefixHash,
    /// The one that was sent most of the prompt before, if that is enough of it and the load is within its bound; else the
    /// least loaded.
    CacheAware,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::LeastLoaded,
        Self::RoundRobin,
        Self::Random,
        Self::PowerOfTwo,
        Self::PrefixHash,
        Self::CacheAware,
    ];

    /// As configuration and metrics have it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::LeastLoaded => "least_loaded",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::PowerOfTwo => "power_of_two",
            Self::PrefixHash => "prefix_hash",
            Self::CacheAware => "cache_aware",
        }
    }

    /// What all workers are chosen by; `None`: it depends on the prompt.
    pub(super) const fn ground(self) -> Option<Ground> {
        match self {
            Self::LeastLoaded => Some(Ground::Load),
            Self::RoundRobin => Some(Ground::Turn),
            Self::Random | Self::PowerOfTwo => Some(Ground::Chance),
            Self::PrefixHash | Self::CacheAware => None,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// The name of no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no policy: write least_loaded, round_robin, random, power_of_two, prefix_hash or cache_aware")]
pub struct NoSuchPolicy(String);

impl FromStr for Policy {
    type Err = NoSuchPolicy;

    fn from_str(text: &str) -> Result<Self, NoSuchPolicy> {
        let named = |policy: &Self| policy.label() == text;
        Self::ALL
            .into_iter()
            .find(named)
            .ok_or_else(|| NoSuchPolicy(text.to_owned()))
    }
}

/// The policy of each role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policies {
    /// Of prefill workers.
    pub prefill: Policy,
    /// Of decode workers.
    pub decode: Policy,
}

/// What a worker was chosen by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ground {
    /// The least loaded one: the policy says so, or the prompt leads nowhere.
    #[default]
    Load,
    /// It was its turn.
    Turn,
    /// Chance.
    Chance,
    /// The prompt's beginning leads there.
    Prefix,
    /// The prompt's beginning leads to another one, which has too much to do, no place, or may not take this request.
    Bounded,
    /// Nothing: the pair was asked for.
    Asked,
}

impl Ground {
    /// As metrics have it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Turn => "turn",
            Self::Chance => "chance",
            Self::Prefix => "prefix",
            Self::Bounded => "bounded",
            Self::Asked => "asked",
        }
    }
}

/// How a room's workers were chosen, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Chosen {
    /// The policies at that moment.
    pub policies: Policies,
    /// What the prefill worker was chosen by.
    pub prefill: Ground,
    /// What the decode worker was chosen by.
    pub decode: Ground,
    /// Tokens of the prompt that are in whole blocks and were looked at.
    pub looked_at: u32,
    /// Of these, from the beginning, those that the prefill worker was sent before, whatever the policy.
    pub sent_before: u32,
}

/// Chooses: the policies, and what they remember.
#[derive(Clone, Debug, Hash)]
pub(super) struct Chooser {
    policies: Policies,
    /// What prefill workers were sent. Kept under every policy, so that what another one would bring can be seen.
    prefill: Seen,
    /// What decode workers were sent, while their policy asks for it.
    decode: Seen,
}

impl Chooser {
    pub(super) fn new(settings: &Settings) -> Self {
        let most = usize::try_from(settings.prefix_blocks).unwrap_or(usize::MAX);
        Self {
            policies: Policies::default(),
            prefill: Seen::new(most),
            decode: Seen::new(most),
        }
    }

    pub(super) const fn policies(&self) -> Policies {
        self.policies
    }

    /// From the next placement on.
    pub(super) fn set(&mut self, policies: Policies) {
        self.policies = policies;
        if policies.decode != Policy::CacheAware {
            self.decode.clear();
        }
    }

    /// A room begins there.
    pub(super) fn sent(&mut self, blocks: &Blocks, prefill: Incarnation, decode: Incarnation) {
        self.prefill.sent(blocks.hashes(), prefill);
        if self.policies.decode == Policy::CacheAware {
            self.decode.sent(blocks.hashes(), decode);
        }
    }

    /// How much of the prompt the prefill worker was sent before, in tokens, and how much was looked at.
    pub(super) fn sent_before(&self, blocks: &Blocks, prefill: Incarnation) -> (u32, u32) {
        let tokens = |count: u32| count.saturating_mul(blocks.block_tokens());
        let matched = self.prefill.matched(blocks.hashes(), prefill);
        (tokens(matched), tokens(blocks.count()))
    }

    /// A worker is gone, or was blamed: the prompts that led to it lead to it no more.
    pub(super) fn forget(&mut self, worker: Incarnation) {
        for seen in [&mut self.prefill, &mut self.decode] {
            if !seen.is_empty() {
                seen.forget(worker);
            }
        }
    }

    const fn of(&self, role: Role) -> (Policy, &Seen) {
        match role {
            Role::Decode => (self.policies.decode, &self.decode),
            Role::Prefill | Role::Router => (self.policies.prefill, &self.prefill),
        }
    }

    /// Whether pairs are looked at prefill worker by prefill worker: the prompt is computed there, so where it leads counts
    /// more than which decode worker is taken.
    pub(super) fn prefill_first(&self, blocks: &Blocks) -> bool {
        self.policies.prefill.ground().is_none() && blocks.count() > 0
    }
}

/// A worker that a request could go to.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) member: &'a Member,
    /// It may be asked now: it has a place, has not refused this request in this round, and is neither blamed for a failure
    /// of it nor avoided.
    pub(super) open: bool,
    pub(super) score: Score,
}
