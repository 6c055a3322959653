//! The spans of one part.

use std::sync::Arc;
use std::time::Instant;

use innkeeper_actors::hooks::Broke;
use innkeeper_room::{Counters, Epoch, Evidence, FromWorker, Layout, PartEnd, PartState, Phase, Role, ToWorker};
use opentelemetry::KeyValue;
use opentelemetry::trace::Span as _;

use crate::telemetry::{Kept, Tracer, failed};

/// A part's spans.
pub(super) struct Part {
    tracer: Tracer,
    role: Role,
    layout: Arc<Layout>,
    span: Kept,
    /// The span of the phase, unless the phase is a transfer.
    step: Option<Kept>,
    transfer: Option<Transfer>,
    state: PartState,
    spoke: bool,
}

/// One epoch in which bytes move.
struct Transfer {
    span: Kept,
    epoch: Epoch,
    began: Instant,
    /// Moved before it.
    before: u64,
}

impl Part {
    pub(super) fn new(tracer: Tracer, role: Role, layout: Arc<Layout>, span: Kept) -> Self {
        let mut part = Self {
            tracer,
            role,
            layout,
            span,
            step: None,
            transfer: None,
            state: PartState::default(),
            spoke: false,
        };
        part.step = part.step_of(Phase::Queued);
        part
    }

    pub(super) fn says(&mut self, message: &FromWorker) {
        match message {
            FromWorker::State(state) => self.moved(*state),
            FromWorker::Committed => self.event("committed", vec![]),
            FromWorker::Tokens { .. } if !std::mem::replace(&mut self.spoke, true) => {
                if let Some(step) = &mut self.step {
                    step.add_event("first token", vec![]);
                }
            }
            FromWorker::Ask => self.event("the lease is gone: the router is asked", vec![]),
            FromWorker::Started { epoch, reused } => {
                let said = vec![
                    KeyValue::new("innkeeper.epoch", i64::from(epoch.0)),
                    KeyValue::new("innkeeper.tokens_reused", i64::from(*reused)),
                ];
                self.event("started", said);
            }
            FromWorker::Tokens { .. }
            | FromWorker::Admitted { .. }
            | FromWorker::Refused(_)
            | FromWorker::Ended { .. }
            | FromWorker::Evidence(_)
            | FromWorker::AlreadyEnded(_)
            | FromWorker::Unknown => {}
        }
    }

    pub(super) fn hears(&mut self, message: &ToWorker) {
        match message {
            ToWorker::Abort(reason) => self.event("abort", vec![KeyValue::new("innkeeper.reason", reason.code())]),
            ToWorker::Committed => self.event("told of the commit", vec![]),
            ToWorker::Live => self.event("the router vouches for the room", vec![]),
            ToWorker::Verdict(verdict) => {
                self.event("verdict", vec![KeyValue::new("innkeeper.verdict", verdict.code())]);
            }
            ToWorker::Unknown => self.event("the router does not know the room", vec![]),
            ToWorker::Taken(_) => {}
        }
    }

    pub(super) fn broke(&mut self, broke: &Broke) {
        let attributes = vec![
            KeyValue::new("innkeeper.epoch", i64::from(broke.epoch.0)),
            KeyValue::new("innkeeper.unacked", broke.unacked),
            KeyValue::new("innkeeper.refused", broke.refused),
        ];
        self.event("data connection broke", attributes);
    }

    /// The part ended: so do all its spans, and the first reason is that of all that were not over.
    pub(super) fn end(mut self, end: PartEnd, evidence: &Evidence, relayed: bool) {
        self.state.counters.raise(evidence.counters);
        if end == PartEnd::HandedOver {
            // What was sent is looked at every report period; a commit says that it was all.
            self.state.counters.bytes_sent = self.state.counters.bytes_sealed;
        }
        let why = match end {
            PartEnd::HandedOver | PartEnd::Done => None,
            PartEnd::Failed(reason) => Some(format!(
                "{}: had waited {} ms for {}",
                reason.code(),
                evidence.waited.0,
                evidence.waited_for.name()
            )),
        };
        self.end_transfer(why.as_deref());
        self.end_step(why.as_deref());
        let counters = self.state.counters;
        self.span.set_attributes([
            KeyValue::new("innkeeper.end", end.code()),
            KeyValue::new("innkeeper.phase", self.state.phase.name()),
            KeyValue::new("innkeeper.epochs", i64::from(self.state.epoch.0)),
            KeyValue::new("innkeeper.waited_for", evidence.waited_for.name()),
            KeyValue::new("innkeeper.waited_ms", whole(evidence.waited.0)),
            KeyValue::new("innkeeper.said_by_peer", relayed),
            KeyValue::new("innkeeper.bytes", whole(self.bytes(&counters))),
        ]);
        if let Some(why) = why {
            failed(&mut self.span, why);
        }
        self.span.end();
    }

    fn moved(&mut self, state: PartState) {
        let before = std::mem::replace(&mut self.state, state);
        self.computed(before.counters, state.counters);
        if state.epoch > before.epoch && before.epoch > Epoch(0) {
            self.event(
                "restart",
                vec![KeyValue::new("innkeeper.epoch", i64::from(state.epoch.0))],
            );
            self.end_transfer(Some("the data connection broke"));
        }
        if state.phase != before.phase {
            self.end_step(None);
            self.step = self.step_of(state.phase);
            if state.phase == Phase::Decoding {
                self.end_transfer(None);
            }
        }
        if matches!(state.phase, Phase::WaitingForInput | Phase::Transferring) {
            self.ensure_transfer();
        }
        if state.phase == Phase::Transferring && before.phase != Phase::Transferring {
            self.event(
                "sealed",
                vec![KeyValue::new("innkeeper.bytes", whole(state.counters.bytes_sealed))],
            );
        }
    }

    /// Chunks of the prompt that were computed since the last report.
    fn computed(&mut self, before: Counters, now: Counters) {
        if now.tokens_computed > before.tokens_computed
            && let Some(step) = &mut self.step
        {
            step.add_event(
                "chunks",
                vec![KeyValue::new(
                    "innkeeper.tokens_computed",
                    i64::from(now.tokens_computed),
                )],
            );
        }
    }

    fn step_of(&self, phase: Phase) -> Option<Kept> {
        let name = match (phase, self.role) {
            (Phase::Queued, _) => "queue",
            (Phase::Bootstrapping, _) => "handshake",
            (Phase::WaitingForInput, Role::Prefill) => "prefill",
            (Phase::Decoding, _) => "decode",
            (Phase::WaitingForInput | Phase::Transferring | Phase::Done | Phase::Failed, _) => return None,
        };
        Some(self.tracer.step(name, self.span.span_context(), None, None, vec![]))
    }

    fn end_step(&mut self, why: Option<&str>) {
        let Some(mut step) = self.step.take() else { return };
        let counters = self.state.counters;
        match self.role {
            Role::Prefill => step.set_attribute(KeyValue::new(
                "innkeeper.tokens_computed",
                i64::from(counters.tokens_computed),
            )),
            Role::Decode | Role::Router => {
                step.set_attribute(KeyValue::new("innkeeper.tokens_made", i64::from(counters.tokens_made)));
            }
        }
        if let Some(why) = why {
            failed(&mut step, why.to_owned());
        }
        step.end();
    }

    fn ensure_transfer(&mut self) {
        let epoch = self.state.epoch;
        if self.transfer.as_ref().is_some_and(|transfer| transfer.epoch == epoch) {
            return;
        }
        self.end_transfer(None);
        let name = match self.role {
            Role::Prefill => "transfer",
            Role::Decode | Role::Router => "receive",
        };
        let attributes = vec![KeyValue::new("innkeeper.epoch", i64::from(epoch.0))];
        let span = self.tracer.step(name, self.span.span_context(), None, None, attributes);
        self.transfer = Some(Transfer {
            span,
            epoch,
            began: Instant::now(),
            before: self.bytes(&self.state.counters),
        });
    }

    fn end_transfer(&mut self, why: Option<&str>) {
        let Some(mut transfer) = self.transfer.take() else {
            return;
        };
        let bytes = self.bytes(&self.state.counters).saturating_sub(transfer.before);
        let took = transfer.began.elapsed();
        let page = self.layout.bytes(self.layout.page_tokens).max(1);
        transfer.span.set_attributes([
            KeyValue::new("innkeeper.bytes", whole(bytes)),
            KeyValue::new("innkeeper.pages", whole(bytes.div_ceil(page))),
            KeyValue::new("innkeeper.bytes_per_second", rate(bytes, took)),
        ]);
        if let Some(why) = why {
            failed(&mut transfer.span, why.to_owned());
        }
        transfer.span.end();
    }

    /// P counts what it handed over, D what it verified.
    fn bytes(&self, counters: &Counters) -> u64 {
        match self.role {
            Role::Prefill => counters.bytes_sent,
            Role::Decode | Role::Router => counters.bytes_verified,
        }
    }

    fn event(&mut self, name: &'static str, attributes: Vec<KeyValue>) {
        self.span.add_event(name, attributes);
    }
}

/// Attributes are signed.
fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(bytes: u64, took: std::time::Duration) -> f64 {
    bytes as f64 / took.as_secs_f64().max(1e-6)
}
