//! What the adversary can do in a state of an exact world: every fault, against every node and link that takes part, for
//! a short time and for longer than every bound.

use innkeeper_room::RequestKey;

use crate::faults::Fault;
use crate::world::World;

/// A fault, and for how many ms.
pub(crate) type Blow = (Fault, u64);

impl World {
    /// All faults that can happen now.
    pub(crate) fn menu(&self) -> Vec<Blow> {
        let ttl = self.settings.progress_ttl.0;
        let (short, long) = (ttl * 3 / 4, ttl * 5 / 2);
        let mut blows = vec![];
        let workers = self.engaged();
        for w in &workers {
            self.against_worker(*w, short, long, &mut blows);
        }
        for node in std::iter::once(0).chain(workers.iter().copied()) {
            if !self.nodes[node].up {
                continue;
            }
            blows.extend([(Fault::Crash(node, 100), 100), (Fault::Crash(node, ttl), ttl)]);
            blows.push((Fault::ActorDies(node), 0));
            if self.nodes[node].stopped.is_none() && !self.nodes[node].hung {
                blows.extend([(Fault::Stop(node), short), (Fault::Stop(node), long)]);
                blows.extend([(Fault::Hang(node), short), (Fault::Hang(node), long)]);
            }
        }
        self.against_links(&workers, short, long, &mut blows);
        self.of_clients(&mut blows);
        self.of_store(long, &mut blows);
        blows
    }

    /// The workers of rooms that live; where none does, the first pair: workers that nobody has used are alike.
    fn engaged(&self) -> Vec<usize> {
        let of_rooms = (1..self.nodes.len()).filter(|w| !self.nodes[*w].rooms.is_empty());
        let mut engaged: Vec<usize> = of_rooms.collect();
        for first in [1, self.shape.prefills + 1] {
            let of_role = |w: &usize| (*w <= self.shape.prefills) == (first == 1);
            if !engaged.iter().any(of_role) {
                engaged.push(first);
            }
        }
        engaged.sort_unstable();
        engaged
    }

    fn against_worker(&self, w: usize, short: u64, long: u64, blows: &mut Vec<Blow>) {
        let ttl = self.settings.progress_ttl.0;
        blows.extend([
            (Fault::LoseMessage(w), ttl),
            (Fault::DuplicateMessage(w), ttl),
            (Fault::DelayControl(w, ttl / 4), short),
            (Fault::ControlHole(w), short),
            (Fault::ControlHole(w), long),
            (Fault::Wedge(w), short),
            (Fault::Wedge(w), long),
            (Fault::EngineFails(w), ttl),
            (Fault::LateQuiesce(w, short), long),
            (Fault::LateQuiesce(w, 3 * ttl / 2), long),
            (Fault::Drain(w), long),
        ]);
        for (at_r, at_w) in [(true, true), (true, false), (false, true)] {
            blows.push((Fault::CutControl { w, at_r, at_w }, 0));
        }
        if self.shape.remote {
            blows.push((Fault::EngineRestarts(w), 0));
        }
        match (self.shape.remote, w <= self.shape.prefills) {
            (false, true) => blows.push((Fault::Corrupt(w), long)),
            (true, false) => blows.push((Fault::LateRead(w), long)),
            _ => {}
        }
    }

    fn against_links(&self, workers: &[usize], short: u64, long: u64, blows: &mut Vec<Blow>) {
        for p in workers.iter().copied().filter(|w| *w <= self.shape.prefills) {
            for d in workers.iter().copied().filter(|w| *w > self.shape.prefills) {
                blows.extend([(Fault::DataHole { p, d }, short), (Fault::DataHole { p, d }, long)]);
                for (at_p, at_d) in [(true, true), (true, false), (false, true)] {
                    blows.push((Fault::CutData { p, d, at_p, at_d }, 0));
                }
            }
        }
    }

    fn of_clients(&self, blows: &mut Vec<Blow>) {
        for (key, client) in self.clients.iter().filter(|(_, client)| client.gave_up.is_none()) {
            let key: RequestKey = *key;
            blows.push((Fault::Abort(key), 0));
            if self.shape.remote {
                blows.push((Fault::EarlyAbort(key), self.settings.progress_ttl.0 / 2));
            }
            if client.arrived && client.answer.is_none() {
                blows.extend([(Fault::Gone(key), 0), (Fault::Stalls(key), 0)]);
            }
        }
    }

    fn of_store(&self, long: u64, blows: &mut Vec<Blow>) {
        let lease = self.settings.lease_ttl.0;
        if !self.store.rooms.is_empty() {
            blows.push((Fault::Revoke, 0));
        }
        blows.push((Fault::Evict, 0));
        if !self.store.away {
            blows.extend([(Fault::StoreAway, lease / 2), (Fault::StoreAway, 2 * lease)]);
            blows.push((Fault::StoreWiped, 0));
        }
        blows.extend([
            (Fault::LateGrant(lease / 2), long),
            (Fault::LateGrant(lease), long),
            (Fault::DeafStore, 2 * lease),
        ]);
    }
}
