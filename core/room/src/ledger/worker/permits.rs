//! Permits: whoever may touch a page holds one. Pages go back when all are back; the fences are for those that do not come.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ids::{Epoch, RoomId};
use crate::ledger::worker::closing::{Closing, Stage};
use crate::ledger::worker::pinned::accused;
use crate::ledger::worker::{Accused, Key, Orders, Part, Table};
use crate::planted;
use crate::reason::PartEnd;
use crate::time::Moment;

impl<P: Part> Table<P> {
    /// The part is over: its pages stay in quarantine until every permit is back. `heard`: somebody else said that it is over.
    pub(super) fn close<E: Orders>(
        &mut self,
        room: RoomId,
        part: &P,
        end: PartEnd,
        heard: bool,
        now: Moment,
        out: &mut Vec<E>,
    ) {
        let base = part.base();
        let accused = accused(end, heard, base.spec.prefill == self.config.incarnation);
        // Two engines that are well finish a read that was given up, and only then let go.
        let reads_until = part.reads_until().filter(|_| accused == Accused::Own);
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
            back_by: reads_until.map_or(now, |until| until.max(now)),
            accused,
            stage: Stage::Asked,
        };
        self.deadlines
            .set(Key::Closing(room), closing.due(&self.config.settings));
        self.closing.insert(room, closing);
        self.release_if_clean(room, out);
    }

    pub(super) fn release_if_clean<E: Orders>(&mut self, room: RoomId, out: &mut Vec<E>) {
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
            if closing.pages > 0 {
                out.push(E::close_pages(room, keep));
            }
            out.extend(E::evict(gone));
        }
    }

    /// A reader's or sender's permit is back.
    pub(crate) fn session_back<E: Orders>(&mut self, room: RoomId, epoch: Epoch, out: &mut Vec<E>) {
        let held = if let Some(part) = self.edit(room) {
            part.base_mut().sessions.remove(&epoch)
        } else if let Some(closing) = self.closing.get_mut(&room) {
            let held = closing.sessions.remove(&epoch);
            self.release_if_clean(room, out);
            held
        } else {
            false
        };
        // A connection may be over more than once; of a ticket it is the word of an engine that is gone.
        self.fenced += u64::from(epoch == Epoch::TICKET && !held);
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

    /// The engine keeps the KV of a room that is over, for a reader who will not come: it holds the pages until it is told so.
    pub(crate) fn kept_in_vain<E: Orders>(&mut self, room: RoomId, out: &mut Vec<E>) {
        if let Some(closing) = self.closing.get_mut(&room).filter(|closing| closing.engine) {
            closing.sessions.insert(Epoch::TICKET);
            out.push(E::kill_session(room, Epoch::TICKET));
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
                let lost = self.lost_pages();
                if lost > 0 && u64::from(lost) * 4 >= u64::from(self.config.total_pages) {
                    self.fence("a quarter of the KV pages is in quarantine and does not come back", now);
                }
            }
            Stage::Fenced => {
                if closing.ends_with_process(self.config.engine) {
                    self.fence("KV pages or a permit were not given back in time", now);
                }
            }
        }
        let due = self
            .closing
            .get(&room)
            .and_then(|closing| closing.due(&self.config.settings));
        self.deadlines.set(Key::Closing(room), due);
    }

    /// Pages of overdue rooms that the end of this process would get back, and those of the prefix cache that such rooms may
    /// still read: they do not come back either, whoever else reads them.
    fn lost_pages(&self) -> u32 {
        let engine = self.config.engine;
        let lost = |closing: &&Closing| closing.stage >= Stage::Overdue && closing.ends_with_process(engine);
        let own: u32 = self.closing.values().filter(lost).map(|closing| closing.pages).sum();
        let shared: BTreeSet<_> = self.closing.values().filter(lost).flat_map(Closing::shared).collect();
        own.saturating_add(u32::try_from(shared.len()).unwrap_or(u32::MAX))
    }

    fn fence(&mut self, why: &'static str, now: Moment) {
        if self.gate.fenced.is_none() {
            self.gate.fenced = Some((now, why));
        }
    }
}
