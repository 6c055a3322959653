//! The span of one room on its router. What happens to the room are its events; the workers' spans are below it.

use innkeeper_node::telemetry::{Kept, Tracer, failed};
use innkeeper_room::ledger::router::{Event, RoomEnd, Side};
use innkeeper_room::{Epoch, Evidence, FromWorker, Phase, Reason, RoomSpec, Verdict};
use opentelemetry::KeyValue;
use opentelemetry::trace::{Span as _, SpanContext, SpanKind};

/// A room's span.
pub(super) struct Room {
    span: Kept,
    phase: Phase,
    epoch: Epoch,
    refused: bool,
}

impl Room {
    pub(super) fn begin(tracer: &Tracer, parent: &SpanContext, spec: &RoomSpec) -> Self {
        let attributes = vec![
            KeyValue::new("innkeeper.room", spec.room.to_string()),
            KeyValue::new("innkeeper.attempt", i64::from(spec.attempt.0)),
            KeyValue::new("innkeeper.prefill", spec.prefill.to_string()),
            KeyValue::new("innkeeper.decode", spec.decode.to_string()),
            KeyValue::new("innkeeper.prompt_tokens", i64::from(spec.prompt_tokens)),
            KeyValue::new("innkeeper.max_tokens", i64::from(spec.max_tokens)),
        ];
        Self {
            span: tracer.span("room", SpanKind::Client, Some(parent), attributes),
            phase: Phase::Queued,
            epoch: Epoch(0),
            refused: false,
        }
    }

    /// What its workers follow.
    pub(super) fn context(&self) -> &SpanContext {
        self.span.span_context()
    }

    pub(super) fn phase(&mut self, phase: Phase) {
        if self.phase != phase {
            self.phase = phase;
            self.event("phase", vec![KeyValue::new("innkeeper.phase", phase.name())]);
        }
    }

    pub(super) fn told(&mut self, event: &Event) {
        match event {
            Event::FromWorker { side, message, .. } => self.worker_says(*side, message),
            Event::StreamEnded { side, broken: true, .. } => self.event("control stream broke", vec![of(*side)]),
            Event::LeaseGranted { .. } => self.event("lease granted", vec![]),
            Event::LeaseFailed { exists, .. } => {
                self.event("lease not granted", vec![KeyValue::new("innkeeper.exists", *exists)]);
            }
            Event::LeaseRenewed { .. } => self.event("lease renewed", vec![]),
            Event::RenewFailed { not_found, .. } => {
                self.event("lease not renewed", vec![KeyValue::new("innkeeper.gone", *not_found)]);
            }
            Event::DoorGone { .. } => self.event("lease lost: its door is gone", vec![]),
            Event::DoorAbsent { .. } => self.event("lease lapsed: its door is absent", vec![]),
            Event::ActorDied { .. } => self.event("its actor died", vec![]),
            _ => {}
        }
    }

    fn worker_says(&mut self, side: Side, message: &FromWorker) {
        match message {
            FromWorker::Admitted { .. } => self.event("admitted", vec![of(side)]),
            FromWorker::Refused(refusal) => {
                self.refused = true;
                let why = KeyValue::new("innkeeper.refusal", format!("{refusal:?}"));
                self.event("refused", vec![of(side), why]);
            }
            FromWorker::State(state) if side == Side::Prefill && state.epoch > self.epoch => {
                let restart = self.epoch > Epoch(0);
                self.epoch = state.epoch;
                if restart {
                    self.event(
                        "restart",
                        vec![KeyValue::new("innkeeper.epoch", i64::from(state.epoch.0))],
                    );
                }
            }
            FromWorker::Started { .. } => self.event("started", vec![of(side)]),
            FromWorker::Committed => self.event("committed", vec![of(side)]),
            FromWorker::Ask => self.event("a worker asks whether the room lives", vec![of(side)]),
            FromWorker::Ended { end, evidence, .. } => {
                let mut attributes = vec![of(side), KeyValue::new("innkeeper.end", end.code())];
                attributes.extend(seen(evidence));
                self.event("part ended", attributes);
            }
            FromWorker::State(_)
            | FromWorker::Tokens { .. }
            | FromWorker::Evidence(_)
            | FromWorker::AlreadyEnded(_)
            | FromWorker::Unknown => {}
        }
    }

    /// Its verdict, with who is to be looked at and on what evidence. Whether a worker had refused it.
    pub(super) fn end(mut self, end: &RoomEnd) -> bool {
        let (verdict, blame) = (end.verdict.code(), end.blame.label());
        let mut attributes = vec![
            KeyValue::new("innkeeper.verdict", verdict),
            KeyValue::new("innkeeper.blame", blame),
            KeyValue::new("innkeeper.phase", self.phase.name()),
        ];
        attributes.extend(
            end.blame
                .node()
                .map(|node| KeyValue::new("innkeeper.blame.node", node.to_string())),
        );
        self.span.set_attributes(attributes.clone());
        for (side, evidence) in [(Side::Prefill, &end.prefill), (Side::Decode, &end.decode)] {
            if let Some(evidence) = evidence.filter(|_| end.verdict != Verdict::Done) {
                let mut saw = vec![of(side)];
                saw.extend(seen(&evidence));
                self.event("evidence", saw);
            }
        }
        match end.verdict {
            Verdict::Done => self.event("verdict", attributes),
            Verdict::Failed(reason) => {
                self.event("verdict", attributes.clone());
                // What the client wanted is none.
                if !matches!(reason, Reason::Aborted | Reason::ClientStalled) && !self.refused {
                    self.event("eviction", attributes);
                }
                failed(&mut self.span, format!("{}: blame {blame}", reason.code()));
            }
        }
        self.span.end();
        self.refused
    }

    fn event(&mut self, name: &'static str, attributes: Vec<KeyValue>) {
        self.span.add_event(name, attributes);
    }
}

fn of(side: Side) -> KeyValue {
    let side = match side {
        Side::Prefill => "prefill",
        Side::Decode => "decode",
    };
    KeyValue::new("innkeeper.side", side)
}

fn seen(evidence: &Evidence) -> [KeyValue; 4] {
    let waited = i64::try_from(evidence.waited.0).unwrap_or(i64::MAX);
    [
        KeyValue::new("innkeeper.waited_for", evidence.waited_for.name()),
        KeyValue::new("innkeeper.waited_ms", waited),
        KeyValue::new("innkeeper.data_link_broken", evidence.data_link_broken),
        KeyValue::new("innkeeper.was_stopped", evidence.was_stopped),
    ]
}
