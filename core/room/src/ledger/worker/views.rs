use crate::evidence::Evidence;
use crate::ids::RoomId;
use crate::invariant::{Invariant, Violation};
use crate::ledger::worker::closing::Closing;
use crate::ledger::worker::{Env, Key, Part, Table};
use crate::ledger::{Gauges, RoomRow};
use crate::time::{Millis, Moment};

/// A live part this much older than its absolute deadline is counted as stuck.
const STUCK_SLACK: Millis = Millis(1000);

/// A prefix cache of at most so many pages, read by at most so many rooms, is checked page by page.
const WALKED: u32 = 64;

impl<P: Part> Table<P> {
    /// One row per live part.
    pub(crate) fn rows(&self, now: Moment) -> Vec<RoomRow> {
        self.live.values().map(|part| self.row_of(part, now)).collect()
    }

    pub(crate) fn row(&self, room: RoomId, now: Moment) -> Option<RoomRow> {
        self.live.get(&room).map(|part| self.row_of(part, now))
    }

    fn row_of(&self, part: &P, now: Moment) -> RoomRow {
        let env = self.env(now);
        let base = part.base();
        let (deadline_ms, budget_ms) = budget(part, &env, now);
        RoomRow {
            room: base.spec.room,
            request: base.spec.request,
            attempt: base.spec.attempt,
            phase: base.phase,
            epoch: base.epoch,
            age_ms: now.since(base.opened),
            phase_age_ms: now.since(base.phase_since),
            deadline_ms,
            budget_ms,
            prefill: base.spec.prefill,
            decode: base.spec.decode,
            owner: base.spec.router,
            owes: part.debt(&env).0,
            leased: false,
        }
    }

    pub(crate) fn gauges(&self, now: Moment) -> Gauges {
        let env = self.env(now);
        let mut gauges = Gauges {
            pages: self.pages,
            room_permits: count(self.live.len() + self.closing.len()),
            engine_permits: self.engine_permits,
            quarantined_rooms: count(self.closing.len()),
            fenced: self.fenced,
            pinned: self.pinned(),
            ..Gauges::default()
        };
        for part in self.live.values() {
            gauges.session_permits += count(part.base().sessions.len());
            // Judged by the last step: after a stop of this node nothing is overdue before its grace is over.
            gauges.stuck += u32::from(!self.in_grace() && part.absolute(&env) + STUCK_SLACK < now.min(self.now));
            *part.queue(&mut gauges.queues) += 1;
            let base = part.base();
            gauges.count_phase(base.phase, now.since(base.phase_since));
            let (left, whole) = budget(part, &env, now);
            gauges.count_budget(left, whole);
        }
        gauges.session_permits += self
            .closing
            .values()
            .map(|closing| count(closing.sessions.len()))
            .sum::<u32>();
        gauges
    }

    /// What this node sees, or at its end saw, of a room.
    pub(crate) fn evidence(&self, room: RoomId, now: Moment) -> Option<Evidence> {
        let live = self.live.get(&room).map(|part| {
            let env = self.env(now);
            let (owes, since) = part.debt(&env);
            part.base().evidence(&env, owes, since)
        });
        live.or_else(|| self.ended.get(&room).map(|gone| gone.evidence))
    }

    /// Whether a drain is over: no room is left, and nobody touches a page.
    pub(crate) fn drained(&self) -> bool {
        (self.gate.draining || self.gate.fenced.is_some()) && self.live.is_empty() && self.closing.is_empty()
    }

    /// The invariants of a worker. Complete between two steps.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        let now = self.now;
        let mut found = Vec::new();
        self.check_rooms(now, &mut found);
        self.check_sums(&mut found);
        let remembered = self.config.settings.remembered_rooms as usize;
        check(&mut found, self.ended.len() <= remembered, Invariant::I4, || {
            format!(
                "{} ended rooms are remembered, more than {remembered}",
                self.ended.len()
            )
        });
        found
    }

    fn check_rooms(&self, now: Moment, found: &mut Vec<Violation>) {
        let env = self.env(now);
        for (room, part) in &self.live {
            let forgotten = self.ended.get(room).is_none() && !self.closing.contains_key(room);
            check(found, forgotten, Invariant::I1, || {
                format!("{room} lives and has ended")
            });
            let timers = part.timers(&env);
            let phase = part.base().phase;
            check(found, timers.bound().is_some(), Invariant::I2, || {
                format!("{room} in {phase} has no armed timer")
            });
            // The queue may be early (the engine moved since): the timer is computed anew when it is due. Never late.
            let queued = self.deadlines.get(Key::Room(*room));
            let in_time = queued.is_some_and(|at| timers.first().is_some_and(|timer| at <= timer.at));
            check(found, in_time, Invariant::I2, || {
                format!("{room} in {phase} is queued for {queued:?}: {timers:?}")
            });
            check(found, !phase.is_terminal(), Invariant::I1, || {
                format!("{room} lives in {phase}")
            });
        }
        for (room, closing) in &self.closing {
            check(found, !closing.is_clean(), Invariant::I6, || {
                format!("{room} is clean and keeps its pages")
            });
        }
    }

    fn check_sums(&self, found: &mut Vec<Violation>) {
        let held: u32 = self.live.values().map(|part| part.base().pages).sum();
        let quarantined: u32 = self.closing.values().map(|closing| closing.pages).sum();
        let (pages, shared) = (self.pages, self.cache.counts());
        let fits = pages.total() == self.config.total_pages
            && pages.held == held + shared.held
            && pages.quarantined == quarantined + shared.quarantined
            && pages.cached == shared.cached;
        check(found, fits, Invariant::I7, || {
            format!(
                "{pages:?} of {}: own are held {held}, quarantined {quarantined}; in the cache {shared:?}",
                self.config.total_pages
            )
        });
        // All of it is walked where it is small: in tests and worlds. Debug builds check after every step.
        let few = self.live.len() + self.closing.len() <= WALKED as usize;
        if self.cache.len() <= WALKED && few {
            let live = self.live.values().map(|part| part.base().shared());
            let wrong = self.cache.wrong(live, self.closing.values().map(Closing::shared));
            check(found, wrong.is_none(), Invariant::I7, || wrong.unwrap_or_default());
        }
        let live = self.live.values().filter(|part| part.base().engine).count();
        let closing = self
            .closing
            .values()
            .filter(|closing: &&Closing| closing.engine)
            .count();
        let engines = count(live + closing);
        check(found, engines == self.engine_permits, Invariant::I7, || {
            format!("{engines} engine permits are out, {} are counted", self.engine_permits)
        });
    }
}

/// What is left of the wait that ends the part if nothing moves, and how long that wait may be as a whole.
fn budget<P: Part>(part: &P, env: &Env<'_>, now: Moment) -> (Millis, Millis) {
    let bound = part.timers(env).bound();
    bound.map_or((Millis(0), Millis(0)), |timer| {
        (timer.at.since(now), timer.at.since(timer.since))
    })
}

fn check(found: &mut Vec<Violation>, holds: bool, invariant: Invariant, what: impl FnOnce() -> String) {
    if !holds {
        found.push(Violation::new(invariant, what()));
    }
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}
