//! A router's spans.
//!
//! ```text
//! http      the HTTP request: it ends with the last byte of the answer
//! request   what the ledger makes of it: request ─ admission · attempt ─ room · stream
//! ```
//! Workers follow the span of their room: its context travels in Open. All is read from what the ledger is told and what it
//! orders; the ledger itself knows nothing of it.

mod http;
mod request;
mod room;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use innkeeper_actors::ports::NewRequest;
use innkeeper_node::telemetry::{Tracer, parse, text};
use innkeeper_room::ledger::router::{Effect, Event};
use innkeeper_room::{FromWorker, Phase, RequestKey, RoomId};

use crate::front::{Route, ServerSpan};
use http::HttpSpan;
use request::Request;
use room::Room;

/// The spans of a router's live requests.
pub(crate) struct RequestSpans {
    tracer: Tracer,
    live: Mutex<Live>,
}

#[derive(Default)]
struct Live {
    requests: HashMap<RequestKey, Request>,
    rooms: HashMap<RoomId, Room>,
}

impl RequestSpans {
    pub(crate) fn new(tracer: Tracer) -> Self {
        Self {
            tracer,
            live: Mutex::default(),
        }
    }

    /// The span of an HTTP request; it follows the caller's, if that sent one.
    pub(crate) fn http(&self, route: Route, rid: &str, model: &str, caller: Option<&str>) -> Arc<dyn ServerSpan> {
        Arc::new(HttpSpan::begin(&self.tracer, route, rid, model, caller))
    }

    /// Only what belongs to a sampled trace gets spans; a request without a trace begins none below the front door.
    pub(crate) fn arrived(&self, key: RequestKey, what: &NewRequest) {
        let parent = parse(&what.work.traceparent).filter(opentelemetry::trace::SpanContext::is_sampled);
        if let Some(parent) = parent {
            let request = Request::begin(self.tracer.clone(), &parent, key, what);
            self.live().requests.insert(key, request);
        }
    }

    /// What the workers of a room follow; `None` if it has no span.
    pub(crate) fn traceparent(&self, room: RoomId) -> Option<String> {
        self.live().rooms.get(&room).map(|room| text(room.context()))
    }

    pub(crate) fn told(&self, event: &Event) {
        let Some(id) = event.room() else { return };
        // Most of all events, and of no interest here.
        if let Event::FromWorker {
            message: FromWorker::Tokens { .. },
            ..
        } = event
        {
            return;
        }
        if let Some(room) = self.live().rooms.get_mut(&id) {
            room.told(event);
        }
    }

    pub(crate) fn phase(&self, id: RoomId, phase: Phase) {
        if let Some(room) = self.live().rooms.get_mut(&id) {
            room.phase(phase);
        }
    }

    pub(crate) fn ordered(&self, effect: &Effect) {
        if !matches!(
            effect,
            Effect::Begin { .. } | Effect::Ended(_) | Effect::Pass { .. } | Effect::Answer { .. }
        ) {
            return;
        }
        let mut live = self.live();
        let Live { requests, rooms } = &mut *live;
        match effect {
            Effect::Begin { spec, passed, .. } => {
                if let Some(request) = requests.get_mut(&spec.request) {
                    rooms.insert(spec.room, request.room_begins(spec, *passed));
                }
            }
            Effect::Ended(end) => {
                let refused = rooms.remove(&end.room).is_some_and(|room| room.end(end));
                if let Some(request) = requests.get_mut(&end.request) {
                    request.room_ended(end, refused);
                    if request.is_over() {
                        requests.remove(&end.request);
                    }
                }
            }
            Effect::Pass { request, count, .. } => {
                if let Some(request) = requests.get_mut(request) {
                    request.passed(*count);
                }
            }
            Effect::Answer { request: key, outcome } => {
                if let Some(request) = requests.get_mut(key) {
                    request.answered(outcome);
                    if request.is_over() {
                        requests.remove(key);
                    }
                }
            }
            _ => {}
        }
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        // Nothing is half done when something under the lock panics.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
