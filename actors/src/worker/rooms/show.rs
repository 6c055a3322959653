//! The worker's look at its engine, and what it shows of itself.

use std::sync::Arc;

use innkeeper_room::Millis;
use innkeeper_room::ledger::EngineView;
use innkeeper_room::ledger::router::Load;
use ractor::ActorRef;

use super::{RoomsMessage, Show, State};
use crate::worker::craft::Craft;
use crate::worker::ledger::{Common, WorkerLedger};

impl<C: Craft> State<C> {
    pub(super) async fn period(&mut self, myself: &ActorRef<RoomsMessage<C>>) {
        self.look_next_door(myself).await;
        let status = self.parts.engine.status();
        let in_hand = status
            .in_hand
            .map(|hand| Millis(u64::try_from(hand.as_millis()).unwrap_or(u64::MAX)));
        let view = EngineView {
            progress: status.progress,
            in_hand,
            alive: self.parts.craft.alive(),
        };
        self.common(myself, Common::Engine(view)).await;
        let samples: Vec<_> = self
            .rooms
            .iter()
            .filter(|(_, entry)| !entry.ended)
            .filter_map(|(id, entry)| self.parts.craft.sample(*id, &entry.room))
            .collect();
        for sample in samples {
            self.step(myself, sample, None).await;
        }
        let now = self.parts.clock.now();
        self.reaper.tick(now);
        self.parts.signals.zombies.send_replace(self.reaper.zombies());
        let craft = Arc::clone(&self.parts.craft);
        self.rooms.retain(|_, entry| !(entry.ended && craft.idle(&entry.room)));
        let gauges = self.parts.ledger.gauges(now);
        self.parts.signals.loads.send_replace(Load {
            engine_progress: status.progress,
            engine_owes: in_hand.unwrap_or_default(),
            free_pages: gauges.pages.available(),
            rooms: gauges.room_permits,
            serving: self.serving,
        });
    }

    /// An engine that is a process of its own may be another one by now; and it is told what it holds of rooms that are over.
    async fn look_next_door(&mut self, myself: &ActorRef<RoomsMessage<C>>) {
        let engine = Arc::clone(&self.parts.engine);
        let Some(tickets) = engine.tickets() else { return };
        if tickets.reborn() {
            tracing::warn!("the engine is another process: the rooms that had begun with the former one end");
            self.common(myself, Common::EngineRestarted).await;
        }
        tickets.pinned(self.parts.ledger.gauges(self.parts.clock.now()).pinned);
    }

    pub(super) fn show(&self, show: Show) {
        let now = self.parts.clock.now();
        // A questioner that gave up is no failure of ours.
        match show {
            Show::Rows(answer) => drop(answer.send(self.parts.ledger.rows(now))),
            Show::Gauges(answer) => drop(answer.send((self.parts.ledger.gauges(now), self.reaper.zombies()))),
            Show::Evidence(room, answer) => drop(answer.send(self.parts.ledger.evidence(room, now))),
        }
    }
}
