//! Pages that only the end of an *engine's* process gets back: which, since when, and whose engine that should be.
//!
//! This is a view and not an order. It is a state that ends by itself when a permit comes back, and the fence that acts on it
//! weighs it against others that the ledger does not know (what was restarted, how often, whether a restart is under way): so
//! it must be told anew each time in any case, and an order would need a second one that takes it back. It goes where the
//! gauges go, with every report period; a report that is lost is made good by the next one.

use crate::ids::Epoch;
use crate::ledger::worker::closing::Closing;
use crate::ledger::worker::{EngineKind, Part, Table};
use crate::reason::{PartEnd, Reason};
use crate::time::Moment;

/// Who is to blame for pages that do not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accused {
    /// The other engine of the room: its own worker restarts it.
    Peer,
    /// This engine, or nobody in particular.
    Own,
}

/// Pages of rooms that are over, which an engine of its own process may still touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pinned {
    /// How many, of all such rooms.
    pub pages: u32,
    /// Since when the oldest of them should have been back, by the clock of the ledger's steps. It may be still to come: a read
    /// that was given up may last as long as it might have lasted otherwise.
    pub since: Moment,
    /// Whom the oldest room accuses.
    pub accused: Accused,
}

/// Whom a part accuses that ended so. `heard`: the peer or the router said it, and not this node.
pub(super) const fn accused(end: PartEnd, heard: bool, at_prefill: bool) -> Accused {
    let PartEnd::Failed(reason) = end else {
        return Accused::Own;
    };
    let is_gone = match reason {
        Reason::PrefillLost => !at_prefill,
        Reason::DecodeLost => at_prefill,
        _ => false,
    };
    // Had it been this node's engine, the part would have ended here before anybody could say so.
    let is_ill = heard
        && matches!(
            reason,
            Reason::EngineWedged | Reason::EngineStalled | Reason::EngineRestarted
        );
    if is_gone || is_ill { Accused::Peer } else { Accused::Own }
}

impl Closing {
    /// Whether an engine may still touch its pages: this node's, or the other one by a ticket.
    fn is_pinned(&self) -> bool {
        self.engine || self.sessions.contains(&Epoch::TICKET)
    }

    /// Whether the end of the worker's process would get something of it back. A remote engine outlives the worker, with all
    /// the pages that it holds; what moves bytes for the worker itself does not.
    pub(crate) fn ends_with_process(&self, engine: EngineKind) -> bool {
        match engine {
            EngineKind::Own => true,
            EngineKind::Remote => self.sessions.iter().any(|epoch| *epoch != Epoch::TICKET),
        }
    }
}

impl<P: Part> Table<P> {
    /// The pages that only an engine's end gets back; none with an engine that ends with the worker.
    pub(super) fn pinned(&self) -> Option<Pinned> {
        if self.config.engine == EngineKind::Own {
            return None;
        }
        let pinned = || self.closing.values().filter(|closing| closing.is_pinned());
        let oldest = pinned().min_by_key(|closing| closing.back_by)?;
        Some(Pinned {
            pages: pinned().map(|closing| closing.pages).sum(),
            since: oldest.back_by,
            accused: oldest.accused,
        })
    }
}
