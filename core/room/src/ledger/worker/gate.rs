use crate::ledger::worker::EngineWatch;
use crate::time::Moment;

/// Whether this node takes new rooms, and the last fence.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Gate {
    pub(crate) draining: bool,
    /// Since when, and why, pages or permits are given up: only the end of the process gets them back.
    pub(crate) fenced: Option<(Moment, &'static str)>,
    /// The Exit was ordered; it is ordered once.
    pub(crate) exited: bool,
    /// What was last told is "not serving". A node begins serving.
    told_closed: bool,
}

impl Gate {
    /// Whether new rooms are taken.
    pub(crate) const fn open(&self, engine: &EngineWatch) -> bool {
        !self.draining && self.fenced.is_none() && engine.alive() && !engine.wedged()
    }

    /// What is to be told, if it changed.
    pub(crate) fn change(&mut self, engine: &EngineWatch) -> Option<bool> {
        let open = self.open(engine);
        if open != self.told_closed {
            return None;
        }
        self.told_closed = !open;
        Some(open)
    }
}
