//! What is counted and measured as it happens.

use innkeeper_room::Role;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets, linear_buckets};
use prometheus_client::registry::{Metric, Registry};

/// All of them; those that a role does not have are not registered.
pub(super) struct Counted {
    pub(super) ended: Family<EndedLabels, Counter>,
    pub(super) phases: Family<PhaseLabels, Histogram>,
    pub(super) degraded: Gauge,
    pub(super) reloads: Family<ReloadLabels, Counter>,
    pub(super) reload_failing: Family<FilesLabels, Gauge>,
    // Router.
    pub(super) unauthenticated: Family<WhyLabels, Counter>,
    pub(super) requests: Family<OutcomeLabels, Counter>,
    pub(super) canaries: Family<OutcomeLabels, Counter>,
    pub(super) evictions: Family<EvictionLabels, Counter>,
    pub(super) lease_operations: Family<LeaseLabels, Counter>,
    pub(super) placements: Family<PlacementLabels, Counter>,
    pub(super) prefix_match: Family<PolicyLabels, Histogram>,
    pub(super) placed_tokens: Family<SentLabels, Counter>,
    pub(super) rate_limited: Family<LimitLabels, Counter>,
    pub(super) tenants: Gauge,
    pub(super) retries: Counter,
    pub(super) migrations: Counter,
    pub(super) first_token: Histogram,
    pub(super) between_tokens: Histogram,
    pub(super) queued: Histogram,
    pub(super) aborted: Histogram,
    pub(super) renewed: Histogram,
    // Workers.
    pub(super) transfer_rate: Histogram,
    pub(super) transferred: Counter,
    pub(super) prefix_queries: Counter,
    pub(super) prefix_hits: Counter,
    pub(super) bootstrap_failed: Counter,
    pub(super) transfer_failed: Counter,
    pub(super) aborted_parts: Counter,
    pub(super) transfer_speed: Histogram,
    pub(super) transfer_latency: Histogram,
    pub(super) transfer_size: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct EndedLabels {
    pub(super) reason: &'static str,
    pub(super) blame: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OutcomeLabels {
    pub(super) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LimitLabels {
    pub(super) limit: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReloadLabels {
    pub(super) files: &'static str,
    pub(super) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct FilesLabels {
    pub(super) files: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct WhyLabels {
    pub(super) why: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PhaseLabels {
    pub(super) phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct EvictionLabels {
    pub(super) phase: &'static str,
    pub(super) reason: &'static str,
    pub(super) blame: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LeaseLabels {
    pub(super) operation: &'static str,
    pub(super) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PlacementLabels {
    pub(super) role: &'static str,
    pub(super) policy: &'static str,
    pub(super) by: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PolicyLabels {
    pub(super) policy: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct SentLabels {
    pub(super) sent_before: &'static str,
}

/// None, and each tenth up to all.
fn tenths() -> Histogram {
    Histogram::new(linear_buckets(0.0, 0.1, 11))
}

/// 1 ms to 9 minutes: a mock engine's phase, and the longest decode that there is a bound for.
fn minutes() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 20))
}

/// 1 ms to 2 minutes: a mock engine's first token, and one that waited for nearly all timeouts.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 18))
}

impl Counted {
    pub(super) fn register(role: Role, own: &mut Registry, foreign: &mut Registry) -> Self {
        let counted = Self {
            ended: Family::default(),
            phases: Family::new_with_constructor(minutes as fn() -> Histogram),
            degraded: Gauge::default(),
            reloads: Family::default(),
            reload_failing: Family::default(),
            unauthenticated: Family::default(),
            requests: Family::default(),
            canaries: Family::default(),
            evictions: Family::default(),
            lease_operations: Family::default(),
            placements: Family::default(),
            prefix_match: Family::new_with_constructor(tenths as fn() -> Histogram),
            placed_tokens: Family::default(),
            rate_limited: Family::default(),
            tenants: Gauge::default(),
            retries: Counter::default(),
            migrations: Counter::default(),
            first_token: seconds(),
            // 0.1 ms to 13 s.
            between_tokens: Histogram::new(exponential_buckets(0.000_1, 2.0, 18)),
            queued: seconds(),
            aborted: seconds(),
            renewed: seconds(),
            // 64 KB/s to 137 GB/s.
            transfer_rate: Histogram::new(exponential_buckets(65_536.0, 4.0, 12)),
            transferred: Counter::default(),
            prefix_queries: Counter::default(),
            prefix_hits: Counter::default(),
            bootstrap_failed: Counter::default(),
            transfer_failed: Counter::default(),
            aborted_parts: Counter::default(),
            transfer_speed: Histogram::new(exponential_buckets(0.000_1, 4.0, 12)),
            transfer_latency: Histogram::new(exponential_buckets(1.0, 2.0, 14)),
            transfer_size: Histogram::new(exponential_buckets(0.01, 4.0, 12)),
        };
        counted.register_common(role, own);
        match role {
            Role::Router => counted.register_router(own),
            Role::Prefill => {
                counted.register_worker(foreign);
                counted.register_sender(own, foreign);
            }
            Role::Decode => counted.register_worker(foreign),
        }
        counted
    }

    fn register_common(&self, role: Role, own: &mut Registry) {
        let what = match role {
            Role::Router => "Rooms that ended, by reason and by who is to be looked at",
            Role::Prefill | Role::Decode => "Parts of rooms that ended here, by reason",
        };
        add(own, "rooms_ended", what, &self.ended);
        let help = "How long rooms (of a worker: its parts) were in a phase, in seconds";
        add(own, "phase_seconds", help, &self.phases);
        add(
            own,
            "degraded",
            "1 while the lease store is away: rooms run unleased",
            &self.degraded,
        );
        let help = "Files of keys, certificates or limits that changed, by which and by whether they could be used";
        add(own, "reloads", help, &self.reloads);
        let help = "1 while files of keys, certificates or limits cannot be used and what was read before still counts";
        add(own, "reload_failing", help, &self.reload_failing);
    }

    fn register_router(&self, own: &mut Registry) {
        add(own, "requests", "Requests answered, by outcome", &self.requests);
        let help = "Requests that were refused because they showed no key (missing) or none that counts (wrong)";
        add(own, "unauthenticated", help, &self.unauthenticated);
        let help = "Canaries answered, by outcome: the router's own requests, which are in no other count of it";
        add(own, "canaries", help, &self.canaries);
        let help =
            "Rooms that were ended although nobody had asked for it, by phase, reason and who is to be looked at";
        add(own, "evictions", help, &self.evictions);
        let help = "Operations on rooms' leases, by what the store answered";
        add(own, "lease_operations", help, &self.lease_operations);
        let help = "Workers chosen for rooms, by role, policy, and what the choice went by";
        add(own, "placements", help, &self.placements);
        let help = "How much of a prompt its prefill worker was sent before, of its beginning that is in whole blocks";
        add(own, "prefix_match_ratio", help, &self.prefix_match);
        let help = "Prompt tokens in whole blocks, by whether their prefill worker was sent the same beginning before";
        add(own, "placed_prompt_tokens", help, &self.placed_tokens);
        let help = "Requests that a tenant's own limit refused, by the limit: requests or tokens in a minute";
        add(own, "rate_limited", help, &self.rate_limited);
        let help = "Tenants with limits that are remembered, when one was last refused something";
        add(own, "limited_tenants", help, &self.tenants);
        add(own, "retries", "Attempts after the first", &self.retries);
        let help = "Attempts that went on after tokens of an attempt before had passed";
        add(own, "migrations", help, &self.migrations);
        let help = "From a request's arrival to its first token, in seconds";
        add(own, "time_to_first_token_seconds", help, &self.first_token);
        let help = "Between tokens as they arrive, in seconds";
        add(own, "inter_token_seconds", help, &self.between_tokens);
        let help = "How long requests waited for admission before each room, in seconds";
        add(own, "queue_seconds", help, &self.queued);
        let help = "From the abort of a room to the end of both workers' parts, in seconds";
        add(own, "abort_seconds", help, &self.aborted);
        let help = "From the sending of a lease renewal to the store's answer, in seconds";
        add(own, "lease_renewal_seconds", help, &self.renewed);
    }

    fn register_worker(&self, foreign: &mut Registry) {
        let help = "Parts that failed before KV could flow";
        add(
            foreign,
            "sglang:num_bootstrap_failed_reqs",
            help,
            &self.bootstrap_failed,
        );
        let help = "Parts that failed while KV flowed or was computed for it";
        add(foreign, "sglang:num_transfer_failed_reqs", help, &self.transfer_failed);
        let help = "Parts that were ended because their client had asked for it or left";
        add(foreign, "sglang:num_aborted_requests", help, &self.aborted_parts);
    }

    fn register_sender(&self, own: &mut Registry, foreign: &mut Registry) {
        let help = "KV bytes of a room by the time from its start to the commit, in bytes per second";
        add(own, "transfer_bytes_per_second", help, &self.transfer_rate);
        add(
            own,
            "transfer_bytes",
            "KV bytes handed over with a commit",
            &self.transferred,
        );
        let help = "Prompt tokens that were looked up in the prefix cache";
        add(own, "prefix_cache_queries", help, &self.prefix_queries);
        add(foreign, "vllm:prefix_cache_queries", help, &self.prefix_queries);
        let help = "Of these, those that were there and were not computed";
        add(own, "prefix_cache_hits", help, &self.prefix_hits);
        add(foreign, "vllm:prefix_cache_hits", help, &self.prefix_hits);
        add(foreign, "sglang:cached_tokens", help, &self.prefix_hits);
        let help = "KV of a room by the time from its start to the commit, in GB/s";
        add(foreign, "sglang:kv_transfer_speed_gb_s", help, &self.transfer_speed);
        let help = "From the last sealed slab to the commit, in milliseconds";
        add(foreign, "sglang:kv_transfer_latency_ms", help, &self.transfer_latency);
        add(
            foreign,
            "sglang:kv_transfer_total_mb",
            "KV of a room, in MB",
            &self.transfer_size,
        );
    }
}

fn add(registry: &mut Registry, name: &str, help: &str, metric: &(impl Metric + Clone)) {
    registry.register(name, help, metric.clone());
}
