//! What the core shows of itself, and what it is.

use super::Core;
use super::request::{Request, State};
use crate::look::{Counts, Load};
use crate::standin::Kind;

/// All gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::standin) struct Gauges {
    pub(in crate::standin) work: Counts,
    pub(in crate::standin) load: Load,
    pub(in crate::standin) bootstrap: u64,
    pub(in crate::standin) transfer: u64,
    pub(in crate::standin) held: usize,
    pub(in crate::standin) external_tokens: u64,
    pub(in crate::standin) expired: u64,
    pub(in crate::standin) late_reads: u64,
}

impl Core {
    fn count(&self, is: impl Fn(&Request) -> bool) -> u64 {
        self.requests.values().filter(|request| is(request)).count() as u64
    }

    /// Gauges as they are.
    pub(super) fn live(&self) -> Gauges {
        let pulling = self.count(|request| !request.orphan && matches!(request.state, State::Pulling { .. }));
        let meeting = self.count(|request| request.state == State::Meeting);
        let held = self.pages.held();
        let prefill = self.config.kind == Kind::SglangPrefill;
        Gauges {
            load: Load {
                running: self.count(|request| matches!(request.state, State::Computing | State::Decoding)),
                waiting: self.count(|request| request.state == State::Waiting) + pulling,
                deferred: pulling,
                used: (held * 1_000_000 / self.pages.total().max(1)) as u64,
                inflight: self.count(|request| matches!(request.state, State::Inflight { .. } | State::Forgotten)),
                mark: 0,
            },
            bootstrap: if prefill { meeting } else { 0 },
            transfer: if prefill { 0 } else { meeting },
            held,
            ..self.counted
        }
    }

    /// Gauges as they are shown.
    pub(in crate::standin) fn gauges(&self) -> Gauges {
        if self.config.bugs.metrics_stale && self.config.kind == Kind::Vllm {
            self.shown
        } else {
            self.live()
        }
    }

    /// Pages in use, as they are.
    pub(in crate::standin) fn held(&self) -> usize {
        self.pages.held()
    }

    /// Prompts that are kept for a reader.
    pub(in crate::standin) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Requests in hand.
    pub(in crate::standin) fn requests(&self) -> usize {
        self.requests.len()
    }
}
