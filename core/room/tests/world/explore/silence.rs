//! I2 from visited states: everything falls silent, only timers fire, and everything ends within its bound.

use std::collections::BTreeMap;

use innkeeper_room::Phase;

use crate::explore::{Choice, Explorer};
use crate::node::Brain;
use crate::world::World;

/// How long the end of everything took, in ms from the moment of silence, by the phase of the room at R.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closures {
    /// How many states were left in silence.
    pub(crate) run: u64,
    /// Until every request was answered, and until nothing lived anywhere.
    pub(crate) longest: BTreeMap<&'static str, (u64, u64)>,
    visited: u64,
}

impl Closures {
    /// The longest of both.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.run += other.run;
        for (phase, (answered, over)) in &other.longest {
            let longest = self.longest.entry(phase).or_default();
            *longest = (longest.0.max(*answered), longest.1.max(*over));
        }
    }
}

impl Explorer<'_> {
    /// Leaves some of the visited states in silence, once with pings and kernels that find out and once without.
    pub(super) fn silence(&mut self, world: &World) {
        self.seen.closures.visited += 1;
        let healthy = self.path.is_empty();
        if !healthy && !self.seen.closures.visited.is_multiple_of(self.case.silence_every) {
            return;
        }
        if world.all_answered()
            || world
                .nodes
                .iter()
                .any(|node| !node.up || node.stopped.is_some() || node.hung)
        {
            return;
        }
        for deaf in [false, true] {
            let phase = world.phase_at_router();
            let mut silent = world.clone();
            silent.fall_silent(deaf);
            let (answered, over) = silent.check_closure();
            self.seen.closures.run += 1;
            let longest = self.seen.closures.longest.entry(phase).or_default();
            longest.0 = longest.0.max(answered);
            longest.1 = longest.1.max(over);
            if let Some(error) = silent.errors.first() {
                let what = error.clone();
                self.path.push((world.steps, Choice::Silence(deaf)));
                self.wrong(what);
                self.path.pop();
                return;
            }
        }
    }
}

impl World {
    fn phase_at_router(&self) -> &'static str {
        let Brain::R(ledger) = &self.nodes[0].brain else {
            return "";
        };
        let rows = ledger.rows(self.clock(0));
        let phase = rows.iter().map(|row| row.phase).max().unwrap_or(Phase::Queued);
        if rows.is_empty() { "no room" } else { phase.name() }
    }
}
