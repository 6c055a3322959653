//! What a worker's tree tells: counted, logged, recorded, and made spans of.

use std::sync::{Arc, OnceLock};

use innkeeper_actors::hooks::{Broke, Hooks};
use innkeeper_actors::ports::OpenRoom;
use innkeeper_room::ledger::router::{Outcome, RoomEnd};
use innkeeper_room::{Evidence, FromWorker, PartEnd, RoomId, ToWorker};

use super::spans::PartSpans;
use crate::metrics::NodeMetrics;
use crate::recorder::Recorder;

/// The metrics need the tree, and the tree the metrics: what ends before both are there is nothing.
pub(super) struct WorkerHooks {
    node: String,
    metrics: OnceLock<Arc<NodeMetrics>>,
    spans: Option<PartSpans>,
    recorder: Recorder,
}

impl WorkerHooks {
    pub(super) fn new(node: String, spans: Option<PartSpans>, recorder: Recorder) -> Self {
        Self {
            node,
            metrics: OnceLock::new(),
            spans,
            recorder,
        }
    }

    pub(super) fn fill(&self, metrics: Arc<NodeMetrics>) {
        // Filled once, here.
        drop(self.metrics.set(metrics));
    }
}

impl Hooks for WorkerHooks {
    fn part_ended(&self, room: RoomId, end: PartEnd, evidence: &Evidence) {
        match end {
            PartEnd::HandedOver | PartEnd::Done => {
                tracing::debug!(%room, node = self.node, end = end.code(), "the part ended");
            }
            PartEnd::Failed(_) => tracing::info!(
                %room,
                node = self.node,
                end = end.code(),
                waited_for = evidence.waited_for.name(),
                waited_ms = evidence.waited.0,
                "the part ended"
            ),
        }
        if let Some(metrics) = self.metrics.get() {
            metrics.part_ended(end);
        }
    }

    fn room_ended(&self, _end: &RoomEnd) {}

    fn answered(&self, _outcome: &Outcome) {}

    fn part_opened(&self, open: &OpenRoom) {
        if let Some(metrics) = self.metrics.get() {
            metrics.part_opened(open.spec.room, open.spec.prompt_tokens);
        }
        if let Some(spans) = &self.spans {
            spans.opened(open);
        }
        self.recorder.opened(open);
    }

    fn part_says(&self, room: RoomId, message: &FromWorker) {
        if let Some(metrics) = self.metrics.get() {
            metrics.part_says(room, message);
        }
        if let Some(spans) = &self.spans {
            spans.says(room, message);
        }
        self.recorder.says(room, message);
    }

    fn part_hears(&self, room: RoomId, message: &ToWorker) {
        if let Some(spans) = &self.spans {
            spans.hears(room, message);
        }
        self.recorder.hears(room, message);
    }

    fn connection_broke(&self, room: RoomId, broke: &Broke) {
        if let Some(spans) = &self.spans {
            spans.broke(room, broke);
        }
        self.recorder.broke(room, broke);
    }

    fn degraded(&self, away: bool) {
        if let Some(metrics) = self.metrics.get() {
            metrics.degraded(away);
        }
    }
}
