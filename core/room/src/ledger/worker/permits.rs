//! Permits: whoever may touch a page holds one. Pages go back when all are back; the fences are for those that do not come.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ids::{Epoch, RoomId};
use crate::ledger::worker::closing::{Closing, Stage};
use crate::ledger::worker::{Base, Key, Orders, Part, Table};
use crate::planted;
use crate::reason::PartEnd;
use crate::time::Moment;

impl<P: Part> Table<P> {
    /// The part is over: its pages stay in quarantine until every permit is back.
    pub(super) fn close<E: Orders>(&mut self, room: RoomId, base: &Base, end: PartEnd, now: Moment, out: &mut Vec<E>) {
        let closing = Closing {
            pages: base.pages,
            blocks: Arc::clone(&base.blocks),
            reused: base.reused,
            sealed: base.sealed,
            handed_over: end == PartEnd::HandedOver,
            sessions: if planted::pages_reused_early() {
                BTreeSet::new()
            } else {
                base.sessions.clone()
            },
            engine: base.engine,
            since: now,
            stage: Stage::Asked,
        };
        self.deadlines
            .set(Key::Closing(room), closing.due(&self.config.settings));
        self.closing.insert(room, closing);
        self.release_if_clean(room, out);
    }

    fn release_if_clean<E: Orders>(&mut self, room: RoomId, out: &mut Vec<E>) {
        if !self.closing.get(&room).is_some_and(Closing::is_clean) {
            return;
        }
        if let Some(closing) = self.closing.remove(&room) {
            self.deadlines.set(Key::Closing(room), None);
            let mut gone = self.cache.let_go(closing.shared(), &mut self.pages);
            let mut keep = vec![];
            if closing.is_good() {
                let (kept, displaced) = self.cache.publish(&closing.blocks, closing.reused, &mut self.pages);
                keep = kept;
                gone.extend(displaced);
            }
            let kept = u32::try_from(keep.len()).unwrap_or(u32::MAX);
            self.pages.release(closing.pages.saturating_sub(kept));
            if closing.stage >= Stage::Overdue {
                self.overdue_pages = self.overdue_pages.saturating_sub(closing.pages);
            }
            if closing.pages > 0 {
                out.push(E::close_pages(room, keep));
            }
            out.extend(E::evict(gone));
        }
    }

    /// A reader's or sender's permit is back.
    pub(crate) fn session_back<E: Orders>(&mut self, room: RoomId, epoch: Epoch, out: &mut Vec<E>) {
        if let Some(part) = self.edit(room) {
            part.base_mut().sessions.remove(&epoch);
        } else if let Some(closing) = self.closing.get_mut(&room) {
            closing.sessions.remove(&epoch);
            self.release_if_clean(room, out);
        }
    }

    /// The engine has sealed the last of the room's pages, and gives its permit back next.
    pub(crate) fn all_sealed(&mut self, room: RoomId) {
        if let Some(part) = self.live.get_mut(&room) {
            let base = part.base_mut();
            base.sealed |= base.engine;
        } else if let Some(closing) = self.closing.get_mut(&room) {
            closing.sealed |= closing.engine;
        }
    }

    /// The engine's permit is back; whether it was out.
    pub(crate) fn engine_back<E: Orders>(&mut self, room: RoomId, out: &mut Vec<E>) -> bool {
        let held = if let Some(part) = self.edit(room) {
            std::mem::take(&mut part.base_mut().engine)
        } else if let Some(closing) = self.closing.get_mut(&room) {
            let held = std::mem::take(&mut closing.engine);
            self.release_if_clean(room, out);
            held
        } else {
            false
        };
        if held && !planted::turn_not_released() {
            self.engine_permits = self.engine_permits.saturating_sub(1);
        } else {
            self.fenced += 1;
        }
        held
    }

    /// The next fence of a closing room.
    pub(crate) fn escalate<E: Orders>(&mut self, room: RoomId, now: Moment, out: &mut Vec<E>) {
        let Some(closing) = self.closing.get_mut(&room) else {
            return;
        };
        closing.stage = closing.stage.next();
        match closing.stage {
            Stage::Asked => {}
            Stage::Killed | Stage::Destroyed => {
                out.extend(closing.sessions.iter().map(|epoch| E::kill_session(room, *epoch)));
                if closing.engine {
                    out.push(E::cancel_engine(room));
                }
            }
            Stage::Overdue => {
                self.overdue_pages += closing.pages;
                let lost = self.overdue_pages + self.overdue_shared();
                if lost > 0 && u64::from(lost) * 4 >= u64::from(self.config.total_pages) {
                    self.fence("a quarter of the KV pages is in quarantine and does not come back", now);
                }
            }
            Stage::Fenced => self.fence("KV pages or a permit were not given back in time", now),
        }
        let due = self
            .closing
            .get(&room)
            .and_then(|closing| closing.due(&self.config.settings));
        self.deadlines.set(Key::Closing(room), due);
    }

    /// Pages of the prefix cache that overdue rooms may still read: they do not come back either, whoever else reads them.
    fn overdue_shared(&self) -> u32 {
        let overdue = self.closing.values().filter(|closing| closing.stage >= Stage::Overdue);
        let shared: BTreeSet<_> = overdue.flat_map(Closing::shared).collect();
        u32::try_from(shared.len()).unwrap_or(u32::MAX)
    }

    fn fence(&mut self, why: &'static str, now: Moment) {
        if self.gate.fenced.is_none() {
            self.gate.fenced = Some((now, why));
        }
    }
}
