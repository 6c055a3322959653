//! What is due, and the end of a step: states, deadlines, serving, exit.

use crate::ids::RoomId;
use crate::ledger::worker::{Env, Key, Orders, Part, Table, Timer};
use crate::message::FromWorker;
use crate::time::Moment;

impl<P: Part> Table<P> {
    /// The timer of a room that is due. What the room waits for may have moved since it was queued: then there is none, and
    /// the room is queued anew at the end of the step.
    pub(crate) fn first_timer(&mut self, room: RoomId, now: Moment) -> Option<Timer> {
        self.touched.push(room);
        let timer = self.live.get(&room)?.timers(&self.env(now)).first()?;
        (timer.at <= now).then_some(timer)
    }

    /// Tells states that changed, sets deadlines, tells whether the node serves, and gives the process up if need be.
    pub(crate) fn settle<E: Orders>(&mut self, now: Moment, out: &mut Vec<E>) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for room in touched {
            let Some(part) = self.live.get_mut(&room) else { continue };
            if part.base().moved_on() {
                out.push(E::tell(room, FromWorker::State(part.base_mut().take_state(now))));
            }
            let env = Env {
                settings: &self.config.settings,
                engine: &self.engine,
                stalled: self.config.engine.stalled(),
                now,
            };
            self.deadlines
                .set(Key::Room(room), part.timers(&env).first().map(|timer| timer.at));
        }
        self.deadlines.set(Key::Engine, self.engine.due());
        if let Some(serving) = self.gate.change(&self.engine) {
            out.push(E::serving(serving));
        }
        self.exit_if_fenced(out);
    }

    fn exit_if_fenced<E: Orders>(&mut self, out: &mut Vec<E>) {
        let Some((since, why)) = self.gate.fenced else { return };
        if self.gate.exited {
            return;
        }
        if self.live.is_empty() {
            self.gate.exited = true;
            self.deadlines.set(Key::Fence, None);
            out.push(E::exit(why));
        } else {
            // The rooms that are left get 2 TTL to finish; then they end and the process with them.
            self.deadlines
                .set(Key::Fence, Some(since + self.config.settings.two_ttl()));
        }
    }

    /// Reports the counters of a part whose report is due.
    pub(crate) fn report<E: Orders>(&mut self, room: RoomId, now: Moment, out: &mut Vec<E>) {
        if let Some(part) = self.edit(room) {
            let state = part.base_mut().take_state(now);
            out.push(E::tell(room, FromWorker::State(state)));
        }
    }

    /// What a part that ended in the step of a stop is told to be: after a stop this node accuses nobody.
    pub(crate) fn overdue_or_cut(&self, now: Moment) -> Vec<RoomId> {
        let env = self.env(now);
        let judged = |part: &P| part.base().cut || part.timers(&env).bound().is_some_and(|timer| timer.at <= now);
        self.live
            .iter()
            .filter(|(_, part)| judged(part))
            .map(|(room, _)| *room)
            .collect()
    }

    /// Rooms that wait for this node's engine.
    pub(crate) fn waiting_for_engine(&self) -> Vec<RoomId> {
        self.live
            .iter()
            .filter(|(_, part)| part.waits_for_engine())
            .map(|(room, _)| *room)
            .collect()
    }
}
