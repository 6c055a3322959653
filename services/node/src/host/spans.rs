//! A worker's spans: one per part, below the span of its room on the router; below it one per phase, and one per epoch in
//! which bytes move. All is read from what the part and its router say to each other; the ledger knows nothing of it.

mod part;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use innkeeper_actors::hooks::Broke;
use innkeeper_actors::ports::OpenRoom;
use innkeeper_room::{FromWorker, Layout, Role, RoomId, ToWorker};
use opentelemetry::KeyValue;
use opentelemetry::trace::SpanKind;

use crate::telemetry::{Tracer, parse};
use part::Part;

/// The spans of a worker's live parts.
pub(super) struct PartSpans {
    tracer: Tracer,
    role: Role,
    layout: Arc<Layout>,
    parts: Mutex<HashMap<RoomId, Part>>,
}

impl PartSpans {
    pub(super) fn new(tracer: Tracer, role: Role, layout: Layout) -> Self {
        Self {
            tracer,
            role,
            layout: Arc::new(layout),
            parts: Mutex::default(),
        }
    }

    /// Only what belongs to a sampled trace gets spans: a room that nobody traces must not begin traces of its own.
    pub(super) fn opened(&self, open: &OpenRoom) {
        let Some(parent) = parse(&open.work.traceparent).filter(opentelemetry::trace::SpanContext::is_sampled) else {
            return;
        };
        let spec = &open.spec;
        let name = match self.role {
            Role::Prefill => "prefill room",
            Role::Decode | Role::Router => "decode room",
        };
        let attributes = vec![
            KeyValue::new("innkeeper.room", spec.room.to_string()),
            KeyValue::new("innkeeper.attempt", i64::from(spec.attempt.0)),
            KeyValue::new("innkeeper.rid", open.work.request_id.to_string()),
            KeyValue::new("innkeeper.prompt_tokens", i64::from(spec.prompt_tokens)),
            KeyValue::new("innkeeper.max_tokens", i64::from(spec.max_tokens)),
        ];
        let span = self.tracer.span(name, SpanKind::Server, Some(&parent), attributes);
        let part = Part::new(self.tracer.clone(), self.role, Arc::clone(&self.layout), span);
        self.parts().insert(spec.room, part);
    }

    pub(super) fn says(&self, room: RoomId, message: &FromWorker) {
        let mut parts = self.parts();
        if let FromWorker::Ended { end, evidence, relayed } = message {
            if let Some(part) = parts.remove(&room) {
                drop(parts);
                part.end(*end, evidence, *relayed);
            }
        } else if let Some(part) = parts.get_mut(&room) {
            part.says(message);
        }
    }

    pub(super) fn hears(&self, room: RoomId, message: &ToWorker) {
        if let Some(part) = self.parts().get_mut(&room) {
            part.hears(message);
        }
    }

    pub(super) fn broke(&self, room: RoomId, broke: &Broke) {
        if let Some(part) = self.parts().get_mut(&room) {
            part.broke(broke);
        }
    }

    fn parts(&self) -> MutexGuard<'_, HashMap<RoomId, Part>> {
        // Nothing is half done when something under the lock panics.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
