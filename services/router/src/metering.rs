//! What happens, as metrics, log lines, records and spans. The tree needs it before the metrics exist, so these are filled in.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use innkeeper_actors::hooks::Hooks;
use innkeeper_actors::ports::NewRequest;
use innkeeper_leases::Member;
use innkeeper_node::metrics::NodeMetrics;
use innkeeper_node::recorder::Recorder;
use innkeeper_room::ledger::router::{Effect, Event, Outcome, RoomEnd, Side};
use innkeeper_room::{Evidence, Incarnation, PartEnd, Phase, RequestKey, RoomId, Verdict};

use crate::front::{Metrics, NoKey, RequestEnd, Route, ServerSpan};
use crate::spans::RequestSpans;

/// The meter.
pub struct Metering {
    metrics: OnceLock<Arc<NodeMetrics>>,
    spans: Option<RequestSpans>,
    recorder: Recorder,
}

impl Metering {
    /// Without metrics as yet.
    pub const fn new(spans: Option<RequestSpans>, recorder: Recorder) -> Self {
        Self {
            metrics: OnceLock::new(),
            spans,
            recorder,
        }
    }

    /// From now on there are metrics. Once only.
    pub fn fill(&self, metrics: Arc<NodeMetrics>) {
        drop(self.metrics.set(metrics));
    }
}

impl Hooks for Metering {
    fn part_ended(&self, _room: RoomId, _end: PartEnd, _evidence: &Evidence) {}

    fn room_ended(&self, end: &RoomEnd) {
        let RoomEnd {
            room,
            request,
            attempt,
            verdict,
            blame,
            ..
        } = end;
        match verdict {
            Verdict::Done => tracing::debug!(%room, request = request.0, attempt = attempt.0, "the room is done"),
            Verdict::Failed(reason) => tracing::info!(
                %room,
                request = request.0,
                attempt = attempt.0,
                reason = reason.code(),
                blame = blame.label(),
                node = blame.node().map(tracing::field::display),
                "the room failed"
            ),
        }
        if let Some(metrics) = self.metrics.get() {
            metrics.room_ended(*verdict, *blame);
        }
    }

    fn answered(&self, outcome: &Outcome) {
        if let Some(metrics) = self.metrics.get() {
            metrics.request(*outcome);
        }
    }

    fn canary(&self, outcome: &Outcome) {
        if let Outcome::Failed { reason, blame, .. } = outcome {
            tracing::info!(
                reason = reason.code(),
                blame = blame.label(),
                node = blame.node().map(tracing::field::display),
                "a canary failed"
            );
        }
        if let Some(metrics) = self.metrics.get() {
            metrics.canary(*outcome);
        }
    }

    fn arrived(&self, request: RequestKey, what: &NewRequest) {
        if let Some(metrics) = self.metrics.get() {
            metrics.arrived(request);
        }
        if let Some(spans) = &self.spans {
            spans.arrived(request, what);
        }
        self.recorder.arrived(request, what);
    }

    fn told(&self, event: &Event) {
        if let Some(metrics) = self.metrics.get() {
            metrics.told(event);
        }
        if let Some(spans) = &self.spans {
            spans.told(event);
        }
        self.recorder.told(event);
    }

    fn ordered(&self, effect: &Effect) {
        if let Some(metrics) = self.metrics.get() {
            metrics.ordered(effect);
        }
        if let Some(spans) = &self.spans {
            spans.ordered(effect);
        }
        self.recorder.ordered(effect);
    }

    fn room_phase(&self, room: RoomId, phase: Phase) {
        if let Some(metrics) = self.metrics.get() {
            metrics.room_phase(room, phase);
        }
        if let Some(spans) = &self.spans {
            spans.phase(room, phase);
        }
        self.recorder.room_phase(room, phase);
    }

    fn member(&self, member: &Member) {
        self.recorder.member(member);
    }

    fn stream_broke(&self, room: RoomId, side: Side, why: &str) {
        self.recorder.stream_broke(room, side, why);
    }

    fn node_broke(&self, node: Incarnation, why: &str) {
        self.recorder.node_broke(node, why);
    }

    fn traceparent(&self, room: RoomId) -> Option<String> {
        self.spans.as_ref()?.traceparent(room)
    }

    fn degraded(&self, away: bool) {
        if let Some(metrics) = self.metrics.get() {
            metrics.degraded(away);
        }
    }
}

impl Metrics for Metering {
    fn unauthenticated(&self, why: NoKey) {
        if let Some(metrics) = self.metrics.get() {
            metrics.unauthenticated(why.label());
        }
    }

    fn ended(&self, end: &RequestEnd) {
        tracing::info!(
            route = end.route.label(),
            outcome = end.outcome,
            took_ms = u64::try_from(end.took.as_millis()).unwrap_or(u64::MAX),
            prompt_tokens = end.prompt_tokens,
            completion_tokens = end.completion_tokens,
            "request"
        );
        // What reached the ledger is counted there; this is what did not.
        if let Some(metrics) = self.metrics.get().filter(|_| end.outcome == "refused") {
            metrics.request_outcome("refused");
        }
    }

    fn rate_limited(&self, which: &'static str, tenants: usize) {
        if let Some(metrics) = self.metrics.get() {
            metrics.rate_limited(which, tenants);
        }
    }

    fn first_token(&self, _route: Route, waited: Duration) {
        if let Some(metrics) = self.metrics.get() {
            metrics.first_token(waited);
        }
    }

    fn next_tokens(&self, _route: Route, gap: Duration, tokens: usize) {
        let Some(metrics) = self.metrics.get() else { return };
        let each = gap / u32::try_from(tokens.max(1)).unwrap_or(u32::MAX);
        for _ in 0..tokens {
            metrics.next_token(each);
        }
    }

    fn span(&self, route: Route, rid: &str, model: &str, caller: Option<&str>) -> Option<Arc<dyn ServerSpan>> {
        Some(self.spans.as_ref()?.http(route, rid, model, caller))
    }
}
