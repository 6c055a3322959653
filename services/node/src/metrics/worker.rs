//! What a worker's parts tell of themselves, measured.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Instant;

use innkeeper_room::{Evidence, FromWorker, PartEnd, Phase, Reason, Role, RoomId};

use super::NodeMetrics;
use super::counted::PhaseLabels;

/// Live parts by their room.
pub(super) type Parts = HashMap<RoomId, InPhase>;

/// Where a room or part is, and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct InPhase {
    phase: Phase,
    since: Instant,
    /// When the engine had its turn: KV flows from then on.
    started: Option<Instant>,
    /// Tokens of the prompt; of a router's room 0.
    prompt: u32,
}

impl InPhase {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Queued,
            since: Instant::now(),
            started: None,
            prompt: 0,
        }
    }

    pub(super) const fn phase(&self) -> Phase {
        self.phase
    }

    /// Another phase; the one that is over is measured.
    pub(super) fn enter(&mut self, phase: Phase, metrics: &NodeMetrics) {
        if self.phase == phase {
            return;
        }
        let now = self.leave(metrics);
        self.phase = phase;
        self.since = now;
        if phase == Phase::WaitingForInput {
            self.started = self.started.or(Some(now));
        }
    }

    /// The phase is over and nothing follows.
    pub(super) fn leave(&self, metrics: &NodeMetrics) -> Instant {
        let now = Instant::now();
        let labels = PhaseLabels {
            phase: self.phase.name(),
        };
        let phases = &metrics.counted.phases;
        phases
            .get_or_create(&labels)
            .observe(now.duration_since(self.since).as_secs_f64());
        now
    }
}

impl NodeMetrics {
    /// A part begins, for a prompt of so many tokens.
    pub fn part_opened(&self, room: RoomId, prompt: u32) {
        let part = InPhase {
            prompt,
            ..InPhase::new()
        };
        self.parts().insert(room, part);
    }

    /// A part says something.
    pub fn part_says(&self, room: RoomId, message: &FromWorker) {
        match message {
            FromWorker::State(state) => {
                if let Some(part) = self.parts().get_mut(&room) {
                    part.enter(state.phase, self);
                }
            }
            FromWorker::Ended { end, evidence, .. } => {
                let part = self.parts().remove(&room);
                if let Some(part) = part {
                    let now = part.leave(self);
                    self.count_end(&part, *end, evidence, now);
                }
            }
            FromWorker::Started { reused, .. } => {
                let prompt = self.parts().get(&room).map_or(0, |part| part.prompt);
                self.counted.prefix_queries.inc_by(prompt.into());
                self.counted.prefix_hits.inc_by(u64::from(*reused));
            }
            FromWorker::Admitted { .. }
            | FromWorker::Refused(_)
            | FromWorker::Committed
            | FromWorker::Tokens { .. }
            | FromWorker::Ask
            | FromWorker::Evidence(_)
            | FromWorker::AlreadyEnded(_)
            | FromWorker::Unknown => {}
        }
    }

    fn count_end(&self, part: &InPhase, end: PartEnd, evidence: &Evidence, now: Instant) {
        let counted = &self.counted;
        match (end, part.phase) {
            // What was sent is looked at every report period; a commit says that it was all.
            (PartEnd::HandedOver, _) => self.count_transfer(part, evidence.counters.bytes_sealed, now),
            (PartEnd::Failed(Reason::Aborted | Reason::ClientStalled), _) => {
                counted.aborted_parts.inc();
            }
            (PartEnd::Failed(_), Phase::Queued | Phase::Bootstrapping) => {
                counted.bootstrap_failed.inc();
            }
            (PartEnd::Failed(_), Phase::WaitingForInput | Phase::Transferring) => {
                counted.transfer_failed.inc();
            }
            (PartEnd::Done | PartEnd::Failed(_), _) => {}
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    fn count_transfer(&self, part: &InPhase, bytes: u64, now: Instant) {
        if self.role != Role::Prefill {
            return;
        }
        let counted = &self.counted;
        counted.transferred.inc_by(bytes);
        let took = |since: Instant| now.duration_since(since).as_secs_f64();
        if let Some(started) = part.started {
            let rate = bytes as f64 / took(started).max(1e-6);
            counted.transfer_rate.observe(rate);
            counted.transfer_speed.observe(rate / 1e9);
        }
        counted.transfer_size.observe(bytes as f64 / 1e6);
        // A part that commits within one step was never told to be transferring.
        let last = if part.phase == Phase::Transferring {
            took(part.since)
        } else {
            0.0
        };
        counted.transfer_latency.observe(last * 1e3);
    }

    fn parts(&self) -> std::sync::MutexGuard<'_, Parts> {
        // Nothing is half done when something under the lock panics.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
