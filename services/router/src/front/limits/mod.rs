//! What a tenant may ask for in a minute, in requests and in tokens. Refused here, a request has cost nothing: not even its
//! body is parsed if it is one too many.

mod bucket;
mod headers;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use innkeeper_node::config::{Limit, Limits};
use innkeeper_room::Class;
use innkeeper_room::lru::Lru;

use bucket::Bucket;
pub(crate) use bucket::Left;
pub(crate) use headers::Told;

/// All tenants' limits, and what is left of them.
#[derive(Debug)]
pub struct RateLimits {
    names: RandomState,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limits: Limits,
    /// By the hash of their names: bounded however long they are. Who is forgotten has a whole minute again.
    tenants: Lru<u64, Tenant>,
}

#[derive(Clone, Copy, Debug)]
struct Tenant {
    requests: Bucket,
    tokens: Bucket,
}

/// Which limit a request has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Requests in a minute.
    Requests,
    /// Tokens in a minute.
    Tokens,
}

impl Which {
    /// The label of metrics, and the word for people.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
        }
    }
}

/// A request that is one too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimited {
    /// By which limit.
    pub which: Which,
    /// How much of it the tenant has.
    pub limit: u32,
    /// What the request asked for.
    pub asked: u64,
    /// When it would be let in.
    pub wait: Duration,
    /// What is told in headers.
    pub(crate) told: Told,
}

impl RateLimits {
    /// With these limits, for so many tenants.
    #[must_use]
    pub fn new(limits: Limits, max_tenants: u32) -> Self {
        let state = State {
            limits,
            tenants: Lru::new(max_tenants as usize),
        };
        Self {
            names: RandomState::new(),
            state: Mutex::new(state),
        }
    }

    /// Other limits hold from now on; what tenants have spent is spent.
    pub fn set(&self, limits: Limits) {
        self.state().limits = limits;
    }

    /// How many tenants are remembered.
    #[must_use]
    pub fn tenants(&self) -> usize {
        self.state().tenants.len()
    }

    /// The class that a tenant gets if it asks for this one.
    pub(crate) fn class(&self, tenant: &str, asked: Class) -> Class {
        // The order is that of urgency, the most urgent first.
        asked.max(self.state().limits.of_tenant(tenant).highest)
    }

    /// A request of a tenant's came.
    pub(crate) fn request(&self, tenant: &str) -> Result<(), RateLimited> {
        self.take(tenant, Which::Requests, 1).map(drop)
    }

    /// It asks for so many tokens; what is left, for the answer's headers.
    pub(crate) fn tokens(&self, tenant: &str, amount: u64) -> Result<Told, RateLimited> {
        self.take(tenant, Which::Tokens, amount)
    }

    /// It was refused for want of a worker: what it asked for is not counted.
    pub(crate) fn give_back(&self, tenant: &str, amount: u64) {
        let key = self.names.hash_one(tenant);
        let mut state = self.state();
        let limit = state.limits.of_tenant(tenant);
        if let Some(known) = state.tenants.get_mut(&key) {
            known.tokens.give_back(limit.tokens, amount);
        }
    }

    fn take(&self, tenant: &str, which: Which, amount: u64) -> Result<Told, RateLimited> {
        let (key, now) = (self.names.hash_one(tenant), Instant::now());
        let mut state = self.state();
        let limit = state.limits.of_tenant(tenant);
        if limit.requests == 0 && limit.tokens == 0 {
            return Ok(Told::default());
        }
        if !state.tenants.touch(&key) {
            state.tenants.insert(key, Tenant::new(limit, now));
        }
        let Some(known) = state.tenants.get_mut(&key) else {
            return Ok(Told::default());
        };
        let (bucket, most) = match which {
            Which::Requests => (&mut known.requests, limit.requests),
            Which::Tokens => (&mut known.tokens, limit.tokens),
        };
        let taken = if most == 0 {
            Ok(())
        } else {
            bucket.take(most, amount, now)
        };
        let told = known.told(limit, now);
        taken.map(|()| told).map_err(|wait| RateLimited {
            which,
            limit: most,
            asked: amount,
            wait,
            told,
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing is half done when something under the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tenant {
    fn new(limit: Limit, now: Instant) -> Self {
        Self {
            requests: Bucket::full(limit.requests, now),
            tokens: Bucket::full(limit.tokens, now),
        }
    }

    fn told(&mut self, limit: Limit, now: Instant) -> Told {
        let left = |bucket: &mut Bucket, most: u32| (most > 0).then(|| bucket.left(most, now));
        Told {
            requests: left(&mut self.requests, limit.requests),
            tokens: left(&mut self.tokens, limit.tokens),
        }
    }
}

impl std::fmt::Display for RateLimited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { limit, asked, .. } = self;
        let what = self.which.label();
        if self.asked > u64::from(self.limit) {
            return write!(
                f,
                "the request asks for {asked} {what}, and {limit} are allowed in a minute: it can never be served; ask for less"
            );
        }
        write!(
            f,
            "the limit of {limit} {what} in a minute is reached (the request asks for {asked}); retry in {} ms",
            self.wait.as_millis()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(requests: u32, tokens: u32) -> Limit {
        Limit {
            requests,
            tokens,
            ..Limit::default()
        }
    }

    #[test]
    fn each_tenant_has_its_own_and_a_change_counts_at_once() {
        let limits = RateLimits::new(Limits::of(limit(2, 100)), 10);
        for tenant in ["a", "b"] {
            assert_eq!((0..5).filter(|_| limits.request(tenant).is_ok()).count(), 2, "{tenant}");
            assert!(limits.tokens(tenant, 100).is_ok());
            let met = limits.tokens(tenant, 50).unwrap_err();
            assert_eq!((met.which, met.limit, met.asked), (Which::Tokens, 100, 50));
            assert!(
                met.wait > Duration::from_secs(29) && met.wait <= Duration::from_secs(30),
                "{met:?}"
            );
        }
        limits.give_back("a", 60);
        assert!(limits.tokens("a", 50).is_ok());
        limits.set(Limits::of(limit(0, 0)));
        assert!(limits.request("b").is_ok());
        assert_eq!(
            limits.tokens("b", 1_000_000).map(|told| told.requests.is_none()),
            Ok(true)
        );
    }

    #[test]
    fn only_so_many_tenants_are_remembered() {
        let limits = RateLimits::new(Limits::of(limit(1, 0)), 3);
        for tenant in 0..10 {
            assert!(limits.request(&format!("t{tenant}")).is_ok());
        }
        assert_eq!(limits.tenants(), 3);
        assert!(limits.request("t9").is_err());
        assert!(limits.request("t0").is_ok(), "it was forgotten");
    }

    #[test]
    fn who_has_no_limit_is_not_remembered() {
        let limits = RateLimits::new(Limits::of(limit(0, 0)), 3);
        assert!(limits.request("a").is_ok());
        assert_eq!(limits.tenants(), 0);
    }
}
