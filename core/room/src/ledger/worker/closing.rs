use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cache::BlockHash;
use crate::ids::Epoch;
use crate::ledger::worker::Accused;
use crate::planted;
use crate::settings::Settings;
use crate::time::{Millis, Moment};

/// A room that is over but which somebody might still touch: its pages are in quarantine until every permit is back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Closing {
    /// Those that are its own.
    pub(crate) pages: u32,
    /// As in [`crate::ledger::worker::Base`].
    pub(crate) blocks: Arc<[BlockHash]>,
    pub(crate) reused: u32,
    pub(crate) sealed: bool,
    /// It was handed over: D has verified every byte of it.
    pub(crate) handed_over: bool,
    /// Epochs whose reader or sender has not given its permit back.
    pub(crate) sessions: BTreeSet<Epoch>,
    /// The engine has not given its permit back.
    pub(crate) engine: bool,
    pub(crate) since: Moment,
    /// When an engine that may still touch its pages should have let go of them, and who is to blame if it has not.
    pub(crate) back_by: Moment,
    pub(crate) accused: Accused,
    pub(crate) stage: Stage,
}

/// How far the fences of a closing room went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Stage {
    /// Asked to stop; after the grace the sessions are killed.
    Asked,
    /// Killed; after a TTL they are destroyed once more, and the engine is asked again.
    Killed,
    /// Destroyed; after 2 TTL the pages count against the quarter of the pool that may be given up.
    Destroyed,
    /// Overdue; after the fence time the process is given up, if its end would help.
    Overdue,
    /// The process is given up, or its end would not help.
    Fenced,
}

impl Stage {
    /// When, from the end of the part, this stage is over.
    fn over(self, settings: &Settings) -> Option<Millis> {
        let late = settings.two_ttl();
        match self {
            Self::Asked => Some(settings.grace.min(settings.progress_ttl)),
            Self::Killed => Some(settings.progress_ttl),
            Self::Destroyed => Some(late),
            Self::Overdue => Some(settings.fence_after.max(late)),
            Self::Fenced => None,
        }
    }

    pub(crate) const fn next(self) -> Self {
        match self {
            Self::Asked => Self::Killed,
            Self::Killed => Self::Destroyed,
            Self::Destroyed => Self::Overdue,
            Self::Overdue | Self::Fenced => Self::Fenced,
        }
    }
}

impl Closing {
    /// Whether everything is back.
    pub(crate) fn is_clean(&self) -> bool {
        self.sessions.is_empty() && !self.engine
    }

    /// The pages of the prefix cache that somebody of it may still read.
    pub(crate) fn shared(&self) -> &[BlockHash] {
        self.blocks.get(..self.reused as usize).unwrap_or_default()
    }

    /// Whether its pages may be read by others: they are whole, and they are right.
    pub(crate) fn is_good(&self) -> bool {
        self.sealed && (self.handed_over || planted::failed_room_published())
    }

    /// This node was stopped for so long: nobody was late meanwhile.
    pub(crate) fn shift(&mut self, by: Millis, now: Moment) {
        self.since = (self.since + by).min(now);
        self.back_by = (self.back_by + by).min(self.back_by.max(now));
    }

    pub(crate) fn due(&self, settings: &Settings) -> Option<Moment> {
        self.stage.over(settings).map(|after| self.since + after)
    }
}
