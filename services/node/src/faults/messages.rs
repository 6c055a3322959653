//! Messages of rooms' streams that are lost, doubled or late.

use std::sync::PoisonError;

use innkeeper_room::{FromWorker, ToWorker};

use super::Faults;
use crate::config::{MessageAct, Way};

impl Faults {
    /// How often a message goes on: once, unless a test asked otherwise. Waits if it is to be late.
    pub(crate) async fn copies(&self, way: Way, kind: &'static str) -> usize {
        match self.take(way, kind) {
            None => 1,
            Some(MessageAct::Drop) => 0,
            Some(MessageAct::Duplicate) => 2,
            Some(MessageAct::Delay(late)) => {
                tokio::time::sleep(late).await;
                1
            }
        }
    }

    /// Each fault strikes once.
    fn take(&self, way: Way, kind: &str) -> Option<MessageAct> {
        if !self.on {
            return None;
        }
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let at = messages
            .iter()
            .position(|fault| fault.way == way && fault.kind == kind)?;
        let fault = messages.get_mut(at)?;
        if fault.skip > 0 {
            fault.skip -= 1;
            return None;
        }
        let act = fault.act;
        messages.remove(at);
        tracing::warn!(?way, kind, ?act, "a message meets its fault");
        Some(act)
    }
}

/// The kind of a message to a worker.
pub(crate) const fn kind_to(message: &ToWorker) -> &'static str {
    match message {
        ToWorker::Abort(_) => "abort",
        ToWorker::Committed => "committed",
        ToWorker::Taken(_) => "taken",
        ToWorker::Live => "live",
        ToWorker::Verdict(_) => "verdict",
        ToWorker::Unknown => "unknown",
    }
}

/// The kind of a worker's message.
pub(crate) const fn kind_from(message: &FromWorker) -> &'static str {
    match message {
        FromWorker::Admitted { .. } => "admitted",
        FromWorker::Refused(_) => "refused",
        FromWorker::State(_) => "state",
        FromWorker::Started { .. } => "started",
        FromWorker::Committed => "committed",
        FromWorker::Tokens { .. } => "tokens",
        FromWorker::Ended { .. } => "ended",
        FromWorker::Ask => "ask",
        FromWorker::Evidence(_) => "evidence",
        FromWorker::AlreadyEnded(_) => "already-ended",
        FromWorker::Unknown => "unknown",
    }
}
