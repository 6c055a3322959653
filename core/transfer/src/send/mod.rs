//! P's end of a session: the handle, and the task behind it.

mod read;
mod run;
mod write;

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use innkeeper_room::{Evidence, Manifest, Millis, Reason, SlabMeta};
use tokio_util::sync::CancellationToken;

pub(crate) use run::SendTask;

use crate::port::SendSession;
use crate::sabotage::Sabotage;
use crate::session::Signals;

/// More slabs than any room has: a bound, not a limit that anybody meets.
const MAX_SLABS: usize = 1 << 20;

/// What the handle and the task share.
#[derive(Debug)]
pub(crate) struct SendShared {
    pub(crate) signals: Signals,
    orders: Mutex<Orders>,
    sabotage: Sabotage,
}

/// What the owner asked for and the task has not done yet.
#[derive(Debug, Default)]
struct Orders {
    started: bool,
    progress: Option<u64>,
    lease_age: Option<Option<Millis>>,
    /// Bounded by the room's slabs: each is taken once.
    slabs: VecDeque<SlabMeta>,
    known: HashSet<u32>,
    manifest: Option<Manifest>,
    last: Option<LastWord>,
}

/// How the owner wants it to end.
#[derive(Clone, Copy, Debug)]
enum LastWord {
    Fail(Reason, Evidence),
    Finish,
}

impl SendShared {
    pub(crate) fn new(kill: CancellationToken, sabotage: Sabotage) -> Self {
        Self {
            signals: Signals::new(kill),
            orders: Mutex::new(Orders::default()),
            sabotage,
        }
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        // Held for assignments only, which do not panic.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.orders());
        self.signals.wake.notify_one();
    }

    fn say(&self, word: LastWord) {
        if self.sabotage.is_deaf() {
            return;
        }
        self.order(|orders| {
            orders.last.get_or_insert(word);
        });
        self.signals.last.cancel();
    }
}

impl SendSession for SendShared {
    fn started(&self) {
        self.order(|orders| orders.started = true);
    }

    fn submit(&self, slab: SlabMeta) {
        self.order(|orders| {
            if orders.known.len() < MAX_SLABS && orders.known.insert(slab.id.0) {
                orders.slabs.push_back(slab);
            }
        });
    }

    fn manifest(&self, manifest: Manifest) {
        self.order(|orders| orders.manifest = Some(manifest));
    }

    fn progress(&self, engine: u64) {
        self.order(|orders| orders.progress = Some(engine));
    }

    fn lease_age(&self, age: Option<Millis>) {
        self.order(|orders| orders.lease_age = Some(age));
    }

    fn fail(&self, reason: Reason, evidence: Evidence) {
        self.say(LastWord::Fail(reason, evidence));
    }

    fn finish(&self) {
        self.say(LastWord::Finish);
    }

    fn kill(&self) {
        if !self.sabotage.is_deaf() {
            self.signals.kill.cancel();
        }
    }

    fn unacked(&self) -> bool {
        self.signals.probe.unacked()
    }
}
