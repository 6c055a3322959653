//! A node's Prometheus metrics: `docs/metrics.md` has them all. The registry belongs to the node, not to the process:
//! several nodes may share one.
//!
//! Gauges are taken from the ledger when they are asked for, so that they are true at that moment; if it does not answer
//! within the deadline they are left out, and `innkeeper_ledger_answers` is 0.
//!
//! ```text
//! snapshot  what is true of a node at the moment of a scrape
//! foreign   the same under the names of SGLang and vLLM
//! counted   what is counted and measured as it happens
//! worker    … on workers: what parts say
//! router    … on routers: what the ledger is told and orders
//! ```

mod counted;
mod foreign;
mod router;
mod snapshot;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use innkeeper_room::ledger::router::Outcome;
use innkeeper_room::{Blame, PartEnd, Role, Verdict};
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::registry::Registry;

use crate::recorder::RecorderCounts;
use crate::telemetry::SpanCounts;
use crate::view::NodeView;
use counted::{Counted, EndedLabels, FilesLabels, LimitLabels, OutcomeLabels, ReloadLabels, WhyLabels};
use snapshot::Snapshot;

/// What a scrape is answered with, unless OpenMetrics is asked for: the plain text format, which every tool reads.
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;
/// What a scrape that asks for OpenMetrics is answered with.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The ledger's time to answer a scrape, which itself must answer within a second.
pub const LEDGER_DEADLINE: Duration = Duration::from_millis(800);

const PREFIX: &str = "innkeeper";

/// A node's counters, and what makes the text of a scrape.
pub struct NodeMetrics {
    role: Role,
    view: Arc<dyn NodeView>,
    registry: Registry,
    /// Those that are not named after this project.
    foreign: Registry,
    counted: Counted,
    parts: Mutex<worker::Parts>,
    rooms: Mutex<router::Rooms>,
    spans: OnceLock<Arc<SpanCounts>>,
    recorder: OnceLock<Arc<RecorderCounts>>,
}

/// In which form a scrape is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Prometheus's own text format.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl NodeMetrics {
    /// The metrics of a node. Only a router has those of requests.
    #[must_use]
    pub fn new(role: Role, view: Arc<dyn NodeView>) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let mut foreign = Registry::default();
        let counted = Counted::register(role, &mut registry, &mut foreign);
        Self {
            role,
            view,
            registry,
            foreign,
            counted,
            parts: Mutex::default(),
            rooms: Mutex::default(),
            spans: OnceLock::new(),
            recorder: OnceLock::new(),
        }
    }

    /// The node exports spans: what becomes of them is shown. Once only.
    pub fn show_spans(&self, counts: &Arc<SpanCounts>) {
        drop(self.spans.set(Arc::clone(counts)));
    }

    /// The node records what ended badly: what becomes of that is shown. Once only.
    pub fn show_recorder(&self, counts: Arc<RecorderCounts>) {
        drop(self.recorder.set(counts));
    }

    /// A room that this router owned has ended.
    pub fn room_ended(&self, verdict: Verdict, blame: Blame) {
        let labels = EndedLabels {
            reason: verdict.code(),
            blame: blame.label(),
        };
        self.counted.ended.get_or_create(&labels).inc();
    }

    /// This worker's part of a room has ended. Workers blame nobody: that is the router's.
    pub fn part_ended(&self, end: PartEnd) {
        let labels = EndedLabels {
            reason: end.code(),
            blame: Blame::Nobody.label(),
        };
        self.counted.ended.get_or_create(&labels).inc();
    }

    /// A request was answered.
    pub fn request(&self, outcome: Outcome) {
        self.request_outcome(label(outcome));
    }

    /// A canary was answered.
    pub fn canary(&self, outcome: Outcome) {
        let outcome = label(outcome);
        self.counted.canaries.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// A request was answered before it reached the ledger, e.g. as `invalid_request`. Only fixed words: each is a series.
    pub fn request_outcome(&self, outcome: &'static str) {
        self.counted.requests.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// A tenant's limit refused a request, by its label; so many tenants are remembered.
    pub fn rate_limited(&self, limit: &'static str, tenants: usize) {
        self.counted.rate_limited.get_or_create(&LimitLabels { limit }).inc();
        self.counted.tenants.set(i64::try_from(tenants).unwrap_or(i64::MAX));
    }

    /// A request's first token came this long after its arrival.
    pub fn first_token(&self, after: Duration) {
        self.counted.first_token.observe(after.as_secs_f64());
    }

    /// A token came this long after the one before it.
    pub fn next_token(&self, after: Duration) {
        self.counted.between_tokens.observe(after.as_secs_f64());
    }

    /// Whether the lease store is away.
    pub fn degraded(&self, away: bool) {
        self.counted.degraded.set(i64::from(away));
    }

    /// These files are followed, and can be used so far. Only fixed words: each is a series.
    pub fn reload_works(&self, files: &'static str) {
        self.counted.reload_failing.get_or_create(&FilesLabels { files }).set(0);
    }

    /// These files changed, and could be used or not.
    pub fn reloaded(&self, files: &'static str, works: bool) {
        let outcome = if works { "ok" } else { "failed" };
        self.counted
            .reloads
            .get_or_create(&ReloadLabels { files, outcome })
            .inc();
        let failing = self.counted.reload_failing.get_or_create(&FilesLabels { files });
        failing.set(i64::from(!works));
    }

    /// A request showed no key that counts. Only fixed words: each is a series.
    pub fn unauthenticated(&self, why: &'static str) {
        self.counted.unauthenticated.get_or_create(&WhyLabels { why }).inc();
    }

    /// The text of a scrape, within [`LEDGER_DEADLINE`] and a little.
    ///
    /// # Errors
    /// Never in practice: writing to a string does not fail.
    pub async fn scrape(&self, form: Form) -> Result<String, std::fmt::Error> {
        let gauges = tokio::time::timeout(LEDGER_DEADLINE, self.view.gauges())
            .await
            .unwrap_or(None);
        let (mut now, mut foreign_now) = (Registry::with_prefix(PREFIX), Registry::default());
        let mut snapshot = Snapshot::take(self.role, &*self.view, gauges);
        snapshot.spans = self.spans.get().map(|counts| counts.get());
        snapshot.recorder = self.recorder.get().map(|counts| counts.get());
        foreign_now.register_collector(Box::new(foreign::Foreign::of(&snapshot)));
        now.register_collector(Box::new(snapshot));
        let mut page = String::new();
        for registry in [&self.registry, &now, &self.foreign, &foreign_now] {
            match form {
                Form::Prometheus => prometheus_text::encode(&mut page, registry)?,
                Form::OpenMetrics => text::encode_registry(&mut page, registry)?,
            }
        }
        if form == Form::OpenMetrics {
            text::encode_eof(&mut page)?;
        }
        Ok(page)
    }
}

const fn label(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done",
        Outcome::Failed { reason, .. } => reason.code(),
    }
}
