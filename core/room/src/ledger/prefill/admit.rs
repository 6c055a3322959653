//! Places in the hello window, the engine's turn, and pages: the three things a room of P waits for.

use std::sync::Arc;

use crate::cache::BlockHash;
use crate::evidence::Owes;
use crate::ids::RoomId;
use crate::ledger::prefill::part_p::Stage;
use crate::ledger::prefill::{Effect, Ledger};
use crate::ledger::worker::{Ending, Orders};
use crate::message::FromWorker;
use crate::planted;
use crate::reason::PartEnd;
use crate::settings::Settings;
use crate::time::Moment;

impl Ledger {
    /// Gives out what is free. Each queue is first in, first out, and costs nothing when its head has to wait.
    pub(super) fn admit(&mut self, now: Moment, out: &mut Vec<Effect>) {
        self.admit_turns(now, out);
        self.admit_hellos(now, out);
    }

    /// The room waits for a place in the hello window.
    pub(super) fn queue_hello(&mut self, room: RoomId) {
        if let Some(part) = self.table.live.get(&room) {
            self.hello_queue.insert((part.base.seq, room));
        }
    }

    /// D is ready: the room waits for the engine's turn and for pages here. A wedged engine has no turns to give.
    pub(super) fn queue_turn(&mut self, room: RoomId, now: Moment, out: &mut Vec<Effect>) {
        if self.table.engine.wedged() {
            let how = Ending::Waited(Owes::Prefill, self.table.engine.moved_at());
            self.end(room, PartEnd::Failed(self.table.stalled()), how, now, out);
            return;
        }
        if let Some(part) = self.table.edit(room) {
            part.enter(Stage::Turn, now);
            self.turn_queue.insert((part.base.seq, room));
        }
    }

    fn admit_hellos(&mut self, now: Moment, out: &mut Vec<Effect>) {
        while self.window.len() < self.table.config.settings.hello_window as usize {
            let Some((_, room)) = self.hello_queue.pop_first() else {
                return;
            };
            self.window.insert(room);
            self.connect(room, now, out);
        }
    }

    /// The next epoch of a room; the retry after a broken connection waits a little, by the number of failures.
    pub(super) fn connect(&mut self, room: RoomId, now: Moment, out: &mut Vec<Effect>) {
        if let Some(part) = self.table.edit(room) {
            let after = Settings::retry_backoff(part.failures);
            let epoch = part.next_epoch(after, now);
            out.push(Effect::Connect { room, epoch, after });
        }
    }

    fn admit_turns(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let settings = &self.table.config.settings;
        let at_once = self.rate.rooms(settings.prefill_floor, settings.prefill_concurrency);
        while self.table.engine_permits < at_once {
            let Some((_, room)) = self.turn_queue.first().copied() else {
                return;
            };
            if !self.start(room, now, out) {
                return;
            }
            self.turn_queue.pop_first();
        }
    }

    /// Turn and pages are there, if the pages are: P starts. Nobody overtakes the room that waits longest.
    fn start(&mut self, room: RoomId, now: Moment, out: &mut Vec<Effect>) -> bool {
        let Some(base) = self.table.live.get(&room).map(|part| &part.base) else {
            return true;
        };
        let tokens = base.spec.prompt_tokens;
        // Looked at on every step while it waits: what cannot be, whatever the cache holds of it, is refused at once.
        let read = self.table.cache.counts();
        let least = self
            .table
            .config
            .pages(tokens)
            .saturating_sub(read.held + read.quarantined);
        if least > self.table.pages.available() {
            return false;
        }
        let blocks = Arc::clone(&base.blocks);
        let reuse = self.reusable(tokens, &blocks);
        let reused = u32::try_from(reuse.len()).unwrap_or(u32::MAX);
        let own = self.table.config.pages(tokens).saturating_sub(reused);
        if !self.table.hold(own, reuse, out) {
            return false;
        }
        self.table.engine_permits += 1;
        if reused > 0 {
            self.rate.reuses();
        }
        let reused_tokens = reused.saturating_mul(self.table.config.page_tokens);
        if let Some(part) = self.table.edit(room) {
            part.start(own, reused, now);
            let epoch = part.base.epoch;
            out.push(Effect::SayStarted { room, epoch });
            let reused = reused_tokens;
            out.push(Effect::tell(room, FromWorker::Started { epoch, reused }));
            let reuse = reuse.to_vec();
            out.push(Effect::Compute { room, tokens, reuse });
        }
        true
    }

    /// The prompt's pages that are in the prefix cache, without a gap. At least one token is computed: the first token of the
    /// answer follows from it, and its page is written.
    fn reusable<'a>(&self, tokens: u32, blocks: &'a [BlockHash]) -> &'a [BlockHash] {
        let computed = u32::from(!planted::shared_page_written());
        let most = tokens.saturating_sub(computed) / self.table.config.page_tokens.max(1);
        let blocks = blocks.get(..most as usize).unwrap_or(blocks);
        let reused = self.table.cache.reusable(blocks);
        blocks.get(..reused as usize).unwrap_or_default()
    }
}
