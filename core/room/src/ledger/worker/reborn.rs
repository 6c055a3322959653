//! The engine's process is another one.

use crate::ids::{Epoch, RoomId};
use crate::ledger::worker::{Base, EngineKind, Orders, Part, Table};
use crate::planted;
use crate::time::Moment;

impl<P: Part> Table<P> {
    /// Whoever touched a page as the former engine, or through it by a ticket, is gone with it: those permits are back, of rooms
    /// that live and of rooms that are over, whose pages come back by that. Returns the live rooms that had begun with it, which
    /// are to be ended: what they had there is lost. Those that only wait go on. Late words about the former life find no permit.
    ///
    /// An engine that ends with this process cannot be another one: there it changes nothing.
    pub(crate) fn engine_reborn<E: Orders>(&mut self, now: Moment, out: &mut Vec<E>) -> Vec<RoomId> {
        if self.config.engine == EngineKind::Own {
            self.fenced += 1;
            return vec![];
        }
        self.engine.another_life(now);
        let begun = |base: &Base| base.engine || base.sessions.contains(&Epoch::TICKET);
        let with_it = self.live.iter().filter(|(_, part)| begun(part.base()));
        let rooms: Vec<RoomId> = with_it.map(|(room, _)| *room).collect();
        if planted::restart_keeps_permits() {
            return rooms;
        }
        for room in &rooms {
            if let Some(part) = self.edit(*room) {
                let base = part.base_mut();
                base.engine = false;
                base.sessions.remove(&Epoch::TICKET);
            }
        }
        let over: Vec<RoomId> = self.closing.keys().copied().collect();
        for room in over {
            if let Some(closing) = self.closing.get_mut(&room) {
                closing.engine = false;
                closing.sessions.remove(&Epoch::TICKET);
            }
            self.release_if_clean(room, out);
        }
        self.engine_permits = 0;
        rooms
    }
}
