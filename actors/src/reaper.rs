//! Clean-up of actors whose room is over. The ledger has ended the part before; this only makes sure that the actor goes:
//! it was told to stop, after a grace it is killed, after another it is counted as a zombie.

use std::collections::BTreeMap;

use innkeeper_room::{Millis, Moment};
use ractor::{ActorCell, ActorId};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Told,
    Killed,
    Zombie,
}

/// Actors on their way out.
pub struct Reaper {
    grace: Millis,
    leaving: BTreeMap<ActorId, (ActorCell, Stage, Moment)>,
}

impl Reaper {
    /// Nobody is leaving. The grace must be longer than a last word may take to be drained.
    #[must_use]
    pub fn new(grace: Millis) -> Self {
        Self {
            grace,
            leaving: BTreeMap::new(),
        }
    }

    /// The actor was told to stop.
    pub fn told(&mut self, actor: ActorCell, now: Moment) {
        self.leaving
            .insert(actor.get_id(), (actor, Stage::Told, now + self.grace));
    }

    /// The actor is gone.
    pub fn gone(&mut self, actor: ActorId) {
        self.leaving.remove(&actor);
    }

    /// Kills those whose grace is over, and counts those whom killing did not end.
    pub fn tick(&mut self, now: Moment) {
        for (actor, stage, until) in self.leaving.values_mut() {
            if now < *until {
                continue;
            }
            match stage {
                Stage::Told => {
                    actor.kill();
                    *stage = Stage::Killed;
                    *until = now + self.grace;
                }
                Stage::Killed => {
                    tracing::error!(actor = %actor.get_id(), "an actor of an ended room survived its kill: a blocked thread");
                    *stage = Stage::Zombie;
                }
                Stage::Zombie => {}
            }
        }
    }

    /// Actors that killing did not end.
    #[must_use]
    pub fn zombies(&self) -> u32 {
        let zombies = self
            .leaving
            .values()
            .filter(|(_, stage, _)| *stage == Stage::Zombie)
            .count();
        u32::try_from(zombies).unwrap_or(u32::MAX)
    }

    /// Actors on their way out.
    #[must_use]
    pub fn leaving(&self) -> usize {
        self.leaving.len()
    }
}
