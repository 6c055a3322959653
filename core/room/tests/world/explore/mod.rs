//! The model checker: a search over all states of an exact world, by the production `step` functions. At every state the
//! adversary may strike, and at every state the canonical order of an instant may be left, each as often as the budget
//! says. Every state is judged by the ledgers' own invariants and the world's oracle; from visited states everything falls
//! silent and only timers fire (I2). Time passes only when nothing can happen (urgency), so that a timer fires only on a
//! real stall, and blame can be judged.

mod cases;
mod fingerprint;
mod menu;
mod order;
mod silence;
mod tests;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use cases::Case;

use crate::explore::menu::Blow;
use crate::explore::silence::Closures;
use crate::world::{Act, World};

/// What the search may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Faults.
    pub(crate) faults: u8,
    /// Deviations from the canonical order.
    pub(crate) lags: u8,
}

/// A decision that is not "go on".
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {
    /// What is next falls behind.
    Lag,
    /// The adversary strikes.
    Blow(Blow),
    /// Nobody hears anything any more; pings and kernels find out or (`true`) do not. The end of a run.
    Silence(bool),
}

/// The decisions of a run: before which step, and what.
pub(crate) type Path = Vec<(u64, Choice)>;

/// A run that went wrong.
#[derive(Debug)]
pub(crate) struct Counterexample {
    pub(crate) path: Path,
    pub(crate) what: String,
}

/// What a search has seen.
#[derive(Default)]
pub(crate) struct Seen {
    states: HashSet<u64>,
    /// Transitions taken.
    pub(crate) steps: u64,
    /// Runs that came to rest.
    pub(crate) ends: u64,
    /// Runs after which the world was asked to serve again.
    pub(crate) healed: u64,
    /// The longest run in steps.
    pub(crate) deepest: u64,
    /// How requests ended.
    pub(crate) closures: Closures,
}

impl Seen {
    /// Different states.
    pub(crate) fn states(&self) -> usize {
        self.states.len()
    }
}

/// One search.
pub(crate) struct Explorer<'a> {
    case: &'a Case,
    pub(crate) seen: Seen,
    path: Path,
    /// At most so many states.
    limit: usize,
    /// The first thing that went wrong.
    found: Option<Counterexample>,
}

impl<'a> Explorer<'a> {
    pub(crate) fn new(case: &'a Case, limit: usize) -> Self {
        Self {
            case,
            seen: Seen::default(),
            path: vec![],
            limit,
            found: None,
        }
    }

    /// Searches; the first run that goes wrong, if one does.
    pub(crate) fn search(&mut self, budget: Budget) -> Option<Counterexample> {
        let world = self.case.world(false);
        if catch_unwind(AssertUnwindSafe(|| self.run(world, budget))).is_err() {
            self.wrong("a ledger panicked".into());
        }
        self.found.take()
    }

    fn wrong(&mut self, what: String) {
        if self.found.is_none() {
            self.found = Some(Counterexample {
                path: self.path.clone(),
                what,
            });
        }
    }

    fn over(&self) -> bool {
        self.found.is_some() || self.seen.states.len() >= self.limit
    }

    /// Goes on in the canonical order until rest or a known state, and branches off at every state on the way.
    fn run(&mut self, mut world: World, budget: Budget) {
        let salt = u64::from(budget.faults) << 8 | u64::from(budget.lags);
        let mut watch = Rest::default();
        while !self.over() {
            if !self.seen.states.insert(world.fingerprint(salt)) {
                return;
            }
            self.silence(&world);
            self.branch(&world, budget);
            if watch.rests(&mut world) {
                return self.at_rest(world);
            }
            world.step();
            self.seen.steps += 1;
            self.seen.deepest = self.seen.deepest.max(world.steps);
            if let Some(error) = world.errors.first() {
                return self.wrong(error.clone());
            }
        }
    }

    fn branch(&mut self, world: &World, budget: Budget) {
        if budget.lags > 0 && world.can_lag() {
            let lags = budget.lags - 1;
            self.take(world, Choice::Lag, Budget { lags, ..budget });
        }
        if budget.faults > 0 && !world.is_quiet() {
            let faults = budget.faults - 1;
            for blow in world.menu() {
                if self.case.only.is_some_and(|only| !only(&blow.0)) {
                    continue;
                }
                self.take(world, Choice::Blow(blow), Budget { faults, ..budget });
            }
        }
    }

    fn take(&mut self, world: &World, choice: Choice, left: Budget) {
        if self.over() {
            return;
        }
        let mut world = world.clone();
        self.path.push((world.steps, choice));
        world.choose(choice);
        self.run(world, left);
        self.path.pop();
    }

    fn at_rest(&mut self, mut world: World) {
        self.seen.ends += 1;
        world.check_answers();
        world.check_blame();
        if self.seen.ends % self.case.heal_every == 1 || self.case.heal_every == 1 {
            self.seen.healed += 1;
            world.check_heals();
        }
        if let Some(error) = world.errors.first() {
            self.wrong(error.clone());
        }
    }
}

/// Whether a world has come to rest: everything answered and given back, and no fault lasts.
#[derive(Default)]
struct Rest {
    due: Option<u64>,
}

impl Rest {
    fn rests(&mut self, world: &mut World) -> bool {
        if !world.all_answered() || world.open_faults > 0 {
            return false;
        }
        if world.is_quiet() {
            return true;
        }
        let ttl = world.settings.progress_ttl.0;
        let clean = (2 * ttl).max(world.settings.lease_ttl.0 + 1000) + 1000;
        let due = *self.due.get_or_insert(world.now + clean);
        if world.now > due {
            world.check_clean();
            if world.errors.is_empty() {
                world.wrong("nothing is left, and yet it does not rest".into());
            }
        }
        false
    }
}

impl World {
    /// A decision is carried out.
    pub(crate) fn choose(&mut self, choice: Choice) {
        match choice {
            Choice::Lag => {
                if let Some((_, act)) = self.queue.first_key_value() {
                    crate::world::tell!(self, "    (late: {act:?})");
                }
                self.lag();
            }
            Choice::Blow((fault, lasts)) => {
                self.faults.push(fault);
                self.open_faults += 1;
                self.schedule(self.now + lasts, Act::FaultOver(fault));
                self.begin_fault(fault);
            }
            Choice::Silence(deaf) => {
                self.fall_silent(deaf);
                self.check_closure();
            }
        }
    }

    /// Tells the story of a run.
    pub(crate) fn replay(case: &Case, path: &[(u64, Choice)]) -> Self {
        let mut world = case.world(true);
        let mut path = path.iter().peekable();
        let mut watch = Rest::default();
        loop {
            while let Some((_, choice)) = path.next_if(|(step, _)| *step == world.steps) {
                world.choose(*choice);
                if matches!(choice, Choice::Silence(_)) {
                    return world;
                }
            }
            if watch.rests(&mut world) {
                break;
            }
            world.step();
            if !world.errors.is_empty() {
                return world;
            }
        }
        world.check_answers();
        world.check_blame();
        world.check_heals();
        world
    }
}
