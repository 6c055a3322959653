use crate::ledger::EngineView;
use crate::time::{Millis, Moment};

/// Watches the engine: one that owes a chunk or step and finishes none for a progress TTL is wedged. One that owes nothing
/// cannot be; one that does not answer owes an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EngineWatch {
    ttl: Millis,
    progress: u64,
    moved_at: Moment,
    owes_since: Option<Moment>,
    /// Debts older than this do not count: the node was stopped until then.
    floor: Moment,
    alive: bool,
    wedged: bool,
}

impl EngineWatch {
    pub(crate) fn new(ttl: Millis, now: Moment) -> Self {
        Self {
            ttl,
            progress: 0,
            moved_at: now,
            owes_since: None,
            floor: now,
            alive: true,
            wedged: false,
        }
    }

    /// Takes a look. Counters are absolute: only an increase counts.
    pub(crate) fn observe(&mut self, view: EngineView, now: Moment) {
        let grew = view.progress > self.progress;
        if grew {
            self.progress = view.progress;
            self.moved_at = now;
        }
        self.alive = view.alive;
        let began = match view.in_hand {
            Some(in_hand) => Some((now - in_hand).max(self.floor)),
            None if view.alive => None,
            None => Some(now),
        };
        self.owes_since = match (began, self.owes_since) {
            (Some(_), Some(since)) if !grew => Some(since),
            (began, _) => began,
        };
        if grew || self.owes_since.is_none() {
            self.wedged = false;
        }
    }

    /// The node was stopped until now, and its engine with it: what it owes it owes from now on.
    pub(crate) fn restart(&mut self, now: Moment) {
        self.floor = now;
        self.owes_since = self.owes_since.map(|_| now);
    }

    /// It is another process now, which owes nothing yet. What the former one had not finished is nobody's debt any more.
    pub(crate) const fn another_life(&mut self, now: Moment) {
        self.floor = now;
        self.moved_at = now;
        self.owes_since = None;
        self.wedged = false;
    }

    /// When it will be wedged if nothing moves.
    pub(crate) fn due(&self) -> Option<Moment> {
        if self.wedged {
            None
        } else {
            self.owes_since.map(|since| since + self.ttl)
        }
    }

    /// If it is due, it is wedged until something moves; whether it is since now.
    pub(crate) fn wedge(&mut self, now: Moment) -> bool {
        let wedged = self.due().is_some_and(|due| due <= now);
        self.wedged |= wedged;
        wedged
    }

    pub(crate) const fn wedged(&self) -> bool {
        self.wedged
    }

    pub(crate) const fn alive(&self) -> bool {
        self.alive
    }

    /// When it last finished something.
    pub(crate) const fn moved_at(&self) -> Moment {
        self.moved_at
    }

    /// For how long it has owed what it has in hand; 0 if it owes nothing.
    pub(crate) fn owes(&self, now: Moment) -> Millis {
        self.owes_since.map_or(Millis(0), |since| now.since(since))
    }

    /// Whether a part whose own timer ran out waits for an engine that is itself behind, and not for its turn in it.
    pub(crate) fn is_behind(&self, now: Moment) -> bool {
        self.owes(now) >= self.ttl.scale(1, 2)
    }
}
