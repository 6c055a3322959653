//! A node's Prometheus metrics. The registry belongs to the node, not to the process: several nodes may share one.
//!
//! Gauges are taken from the ledger when they are asked for, so that they are true at that moment; if it does not answer
//! within the deadline they are left out, and `innkeeper_ledger_answers` is 0.

mod snapshot;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use innkeeper_room::ledger::router::Outcome;
use innkeeper_room::{Blame, PartEnd, Role, Verdict};
use prometheus_client::encoding::{EncodeLabelSet, prometheus_text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::view::NodeView;
use snapshot::Snapshot;

/// What a scrape is answered with: the plain text format, which every tool reads.
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// The ledger's time to answer a scrape, which itself must answer within a second.
pub const LEDGER_DEADLINE: Duration = Duration::from_millis(800);

const PREFIX: &str = "innkeeper";

/// A node's counters, and what makes the text of a scrape.
pub struct NodeMetrics {
    role: Role,
    view: Arc<dyn NodeView>,
    registry: Registry,
    ended: Family<EndedLabels, Counter>,
    requests: Family<OutcomeLabels, Counter>,
    canaries: Family<OutcomeLabels, Counter>,
    migrations: Counter,
    first_token: Histogram,
    between_tokens: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndedLabels {
    reason: &'static str,
    blame: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

impl NodeMetrics {
    /// The metrics of a node. Only a router has those of requests.
    #[must_use]
    pub fn new(role: Role, view: Arc<dyn NodeView>) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let (ended, requests, canaries) = (Family::default(), Family::default(), Family::default());
        let migrations = Counter::default();
        // 1 ms to 2 minutes: a mock engine's first token, and one that waited for nearly all timeouts.
        let first_token = Histogram::new(exponential_buckets(0.001, 2.0, 18));
        // 0.1 ms to 13 s.
        let between_tokens = Histogram::new(exponential_buckets(0.000_1, 2.0, 18));
        let what = match role {
            Role::Router => "Rooms that ended, by reason and by who is to be looked at",
            Role::Prefill | Role::Decode => "Parts of rooms that ended here, by reason",
        };
        registry.register("rooms_ended", what, Family::clone(&ended));
        if role == Role::Router {
            registry.register("requests", "Requests answered, by outcome", Family::clone(&requests));
            let help = "Canaries answered, by outcome: the router's own requests, which are in no other count of it";
            registry.register("canaries", help, Family::clone(&canaries));
            let help = "Rooms that carried an answer on after its first token, because another one was lost";
            registry.register("migrations", help, migrations.clone());
            let help = "From a request's arrival to its first token, in seconds";
            registry.register("time_to_first_token_seconds", help, first_token.clone());
            registry.register(
                "inter_token_seconds",
                "Between tokens as they arrive, in seconds",
                between_tokens.clone(),
            );
        }
        Self {
            role,
            view,
            registry,
            ended,
            requests,
            canaries,
            migrations,
            first_token,
            between_tokens,
        }
    }

    /// A room that this router owned has ended.
    pub fn room_ended(&self, verdict: Verdict, blame: Blame) {
        self.ended
            .get_or_create(&EndedLabels {
                reason: verdict.code(),
                blame: blame.label(),
            })
            .inc();
    }

    /// This worker's part of a room has ended. Workers blame nobody: that is the router's.
    pub fn part_ended(&self, end: PartEnd) {
        self.ended
            .get_or_create(&EndedLabels {
                reason: end.code(),
                blame: Blame::Nobody.label(),
            })
            .inc();
    }

    /// A request was answered.
    pub fn request(&self, outcome: Outcome) {
        self.request_outcome(label(outcome));
    }

    /// An answer is carried on elsewhere.
    pub fn migrated(&self) {
        self.migrations.inc();
    }

    /// A canary was answered.
    pub fn canary(&self, outcome: Outcome) {
        let outcome = label(outcome);
        self.canaries.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// A request was answered before it reached the ledger, e.g. as `invalid_request`. Only fixed words: each is a series.
    pub fn request_outcome(&self, outcome: &'static str) {
        self.requests.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// A request's first token came this long after its arrival.
    pub fn first_token(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    /// A token came this long after the one before it.
    pub fn next_token(&self, after: Duration) {
        self.between_tokens.observe(after.as_secs_f64());
    }

    /// The text of a scrape, within [`LEDGER_DEADLINE`] and a little.
    ///
    /// # Errors
    /// Never in practice: writing to a string does not fail.
    pub async fn scrape(&self) -> Result<String, std::fmt::Error> {
        let gauges = tokio::time::timeout(LEDGER_DEADLINE, self.view.gauges())
            .await
            .unwrap_or(None);
        let mut now = Registry::with_prefix(PREFIX);
        now.register_collector(Box::new(Snapshot::take(self.role, &*self.view, gauges)));
        let mut page = String::new();
        prometheus_text::encode(&mut page, &self.registry)?;
        prometheus_text::encode(&mut page, &now)?;
        Ok(page)
    }
}

const fn label(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done",
        Outcome::Failed { reason, .. } => reason.code(),
    }
}
