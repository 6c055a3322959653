//! The spans of one request, as the ledger sees it: it waits for admission, is tried, and its tokens pass.

use std::time::{Duration, SystemTime};

use innkeeper_actors::ports::NewRequest;
use innkeeper_node::telemetry::{Kept, Tracer, failed};
use innkeeper_room::ledger::router::{Outcome, RoomEnd};
use innkeeper_room::{RequestKey, RoomSpec, Verdict};
use opentelemetry::KeyValue;
use opentelemetry::trace::{Span as _, SpanContext, SpanKind};

use super::room::Room;

/// A wait that is shorter before an answer is no admission that was waited for.
const NO_WAIT: Duration = Duration::from_millis(1);

/// A request's spans.
pub(super) struct Request {
    tracer: Tracer,
    span: Kept,
    /// It has no room, since when.
    waits: Option<SystemTime>,
    attempt: Option<(u8, Kept)>,
    /// The attempt before, to be pointed at.
    last_attempt: Option<SpanContext>,
    stream: Option<Kept>,
    tokens: u64,
    rooms: u32,
    answered: bool,
}

impl Request {
    pub(super) fn begin(tracer: Tracer, parent: &SpanContext, key: RequestKey, what: &NewRequest) -> Self {
        let prompt = i64::try_from(what.work.prompt.len()).unwrap_or(i64::MAX);
        let attributes = vec![
            KeyValue::new("innkeeper.rid", what.rid.clone()),
            KeyValue::new("innkeeper.request", format!("{:016x}", key.0)),
            KeyValue::new("innkeeper.prompt_tokens", prompt),
            KeyValue::new("gen_ai.request.model", what.model.clone().unwrap_or_default()),
            KeyValue::new("gen_ai.request.max_tokens", i64::from(what.max_tokens)),
        ];
        let span = tracer.span("request", SpanKind::Internal, Some(parent), attributes);
        Self {
            tracer,
            span,
            waits: Some(SystemTime::now()),
            attempt: None,
            last_attempt: None,
            stream: None,
            tokens: 0,
            rooms: 0,
            answered: false,
        }
    }

    /// A room begins: the wait is over. A room after a refusal is of the same attempt.
    pub(super) fn room_begins(&mut self, spec: &RoomSpec, passed: u32) -> Room {
        self.admitted();
        let number = spec.attempt.0;
        if self.attempt.as_ref().is_none_or(|(running, _)| *running != number) {
            self.end_attempt(None);
            self.begin_attempt(number, passed);
        }
        self.rooms += 1;
        let parent = self
            .attempt
            .as_ref()
            .map_or(&self.span, |(_, attempt)| attempt)
            .span_context();
        Room::begin(&self.tracer, parent, spec)
    }

    fn begin_attempt(&mut self, number: u8, passed: u32) {
        let attributes = vec![
            KeyValue::new("innkeeper.attempt", i64::from(number)),
            KeyValue::new("innkeeper.passed_tokens", i64::from(passed)),
        ];
        if number > 1 && passed > 0 {
            self.span.add_event("migration", attributes.clone());
        } else if number > 1 {
            self.span.add_event("retry", attributes.clone());
        }
        let link = self.last_attempt.take().map(|before| (before, "previous attempt"));
        let attempt = self
            .tracer
            .step("attempt", self.span.span_context(), None, link, attributes);
        self.last_attempt = Some(attempt.span_context().clone());
        self.attempt = Some((number, attempt));
    }

    /// A room ended and blame is known. `refused`: no attempt was spent.
    pub(super) fn room_ended(&mut self, end: &RoomEnd, refused: bool) {
        self.rooms = self.rooms.saturating_sub(1);
        match end.verdict {
            Verdict::Done => self.end_attempt(None),
            Verdict::Failed(_) if refused => {}
            Verdict::Failed(reason) => {
                self.end_attempt(Some(format!("{}: blame {}", reason.code(), end.blame.label())));
            }
        }
        if !self.answered {
            self.waits = Some(SystemTime::now());
        }
        self.end_if_over();
    }

    /// Tokens pass the gate.
    pub(super) fn passed(&mut self, count: u32) {
        if count == 0 {
            return;
        }
        if self.stream.is_none() {
            self.span.add_event("first token", vec![]);
            self.stream = Some(self.tracer.step("stream", self.span.span_context(), None, None, vec![]));
        }
        self.tokens += u64::from(count);
    }

    pub(super) fn answered(&mut self, outcome: &Outcome) {
        let waited = self.waits.and_then(|since| since.elapsed().ok()).unwrap_or_default();
        if waited >= NO_WAIT {
            self.admitted();
        }
        self.waits = None;
        self.answered = true;
        let tokens = i64::try_from(self.tokens).unwrap_or(i64::MAX);
        let why = match outcome {
            Outcome::Done => None,
            Outcome::Failed { reason, blame, .. } => {
                self.span.set_attributes([
                    KeyValue::new("innkeeper.reason", reason.code()),
                    KeyValue::new("innkeeper.blame", blame.label()),
                ]);
                Some(format!("{}: blame {}", reason.code(), blame.label()))
            }
        };
        if let Some(mut stream) = self.stream.take() {
            stream.set_attribute(KeyValue::new("innkeeper.tokens", tokens));
            if let Some(why) = &why {
                failed(&mut stream, why.clone());
            }
            stream.end();
        }
        self.span.set_attribute(KeyValue::new("innkeeper.tokens", tokens));
        if let Some(why) = why {
            failed(&mut self.span, why);
        }
        self.end_if_over();
    }

    /// Whether it is answered and all its rooms are over.
    pub(super) const fn is_over(&self) -> bool {
        self.answered && self.rooms == 0
    }

    fn admitted(&mut self) {
        let Some(since) = self.waits.take() else { return };
        self.tracer
            .step("admission", self.span.span_context(), Some(since), None, vec![])
            .end();
    }

    fn end_attempt(&mut self, why: Option<String>) {
        let Some((_, mut attempt)) = self.attempt.take() else {
            return;
        };
        if let Some(why) = why {
            failed(&mut attempt, why);
        }
        attempt.end();
    }

    fn end_if_over(&mut self) {
        if self.is_over() {
            self.end_attempt(None);
            self.span.end();
        }
    }
}
