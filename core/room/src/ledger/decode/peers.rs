use std::collections::BTreeMap;

use crate::ids::Incarnation;
use crate::settings::Settings;
use crate::time::Moment;

/// The prefill workers that rooms come from, and how many places each holds: no single one may take them all while there
/// are others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Peers {
    known: BTreeMap<Incarnation, Peer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Peer {
    rooms: u32,
    seen: Moment,
}

impl Peers {
    /// A room with this P is asked for: whether its share has a place. A P of which no room lives and none was asked for
    /// as long as a request may queue is known no more; so is one that was replaced.
    pub(super) fn asks(&mut self, peer: Incarnation, settings: &Settings, now: Moment) -> bool {
        self.known
            .retain(|_, known| known.rooms > 0 || now.since(known.seen) <= settings.queue_timeout);
        if !self.known.contains_key(&peer) && self.known.len() >= most(settings) {
            self.forget_oldest();
        }
        let asking = self.known.entry(peer).or_insert(Peer { rooms: 0, seen: now });
        asking.seen = now;
        let rooms = asking.rooms;
        self.known.len() == 1 || rooms < share(settings)
    }

    /// Nobody can make this grow by asking under ever new names: those with rooms are bounded by the table, and of the
    /// others the one that asked longest ago goes.
    fn forget_oldest(&mut self) {
        let idle = self.known.iter().filter(|(_, known)| known.rooms == 0);
        if let Some(oldest) = idle.min_by_key(|(_, known)| known.seen).map(|(peer, _)| *peer) {
            self.known.remove(&oldest);
        }
    }

    pub(super) fn opened(&mut self, peer: Incarnation, now: Moment) {
        self.known.entry(peer).or_insert(Peer { rooms: 0, seen: now }).rooms += 1;
    }

    pub(super) fn ended(&mut self, peer: Incarnation) {
        if let Some(known) = self.known.get_mut(&peer) {
            known.rooms = known.rooms.saturating_sub(1);
        }
    }

    /// Its key is gone: without rooms it is known no more.
    pub(super) fn gone(&mut self, peer: Incarnation) {
        if self.known.get(&peer).is_some_and(|known| known.rooms == 0) {
            self.known.remove(&peer);
        }
    }

    /// Rooms over all peers, for the invariants.
    pub(super) fn rooms(&self) -> u32 {
        self.known.values().map(|peer| peer.rooms).sum()
    }
}

/// How many are known at most: twice as many as can have a room.
const fn most(settings: &Settings) -> usize {
    (settings.permits as usize).saturating_mul(2)
}

/// The places that one of several may hold; at least one.
fn share(settings: &Settings) -> u32 {
    let share = u64::from(settings.permits) * u64::from(settings.peer_share_percent) / 100;
    u32::try_from(share).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_under_ever_new_names_makes_nothing_grow() {
        let settings = Settings {
            permits: 4,
            ..Settings::default()
        };
        let mut peers = Peers::default();
        assert!(peers.asks(Incarnation::new(1), &settings, Moment(0)));
        peers.opened(Incarnation::new(1), Moment(0));
        for name in 2..1000 {
            let _ = peers.asks(Incarnation::new(name), &settings, Moment(name));
        }
        assert_eq!(peers.known.len(), 8);
        assert_eq!(peers.rooms(), 1, "who has a room is not forgotten");
        assert!(peers.known.contains_key(&Incarnation::new(999)), "nor who asked last");
    }
}
