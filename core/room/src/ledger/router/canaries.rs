//! Whom to avoid, and how that is found out without a client: a canary is a small request of the router's own, for one pair,
//! through everything that a real one goes through. It tells an idle pair's engine, data plane and link as honest or not,
//! and decides for a party that is half open.

use super::members::Member;
use super::{Effect, Ledger};
use crate::breaker::{BreakerState, Party};
use crate::ids::{Incarnation, Role, RoomId};
use crate::reason::{Blame, Verdict};
use crate::time::{Millis, Moment};

/// A prefill worker and a decode worker.
pub(super) type Pair = (Incarnation, Incarnation);

impl Ledger {
    /// How a pair stands, for a request that is no canary. With canaries no client is the guinea pig.
    pub(super) fn avoids(&self, prefill: Incarnation, decode: Incarnation) -> bool {
        match self.breakers.pair(prefill, decode, self.now) {
            BreakerState::Closed => false,
            BreakerState::Open => true,
            BreakerState::HalfOpen => {
                self.settings.canary_period > Millis(0) || self.breakers.is_probed(prefill, decode)
            }
        }
    }

    /// The same of one worker alone.
    pub(super) fn avoids_node(&self, node: Incarnation) -> bool {
        match self.breakers.state(Party::Node(node), self.now) {
            BreakerState::Closed => false,
            BreakerState::Open => true,
            BreakerState::HalfOpen => self.settings.canary_period > Millis(0),
        }
    }

    /// A room is over and blame is known.
    pub(super) fn judge_parties(&mut self, id: RoomId, verdict: Verdict, blame: Blame) {
        let Some(room) = self.rooms.get(&id) else { return };
        let (pair, began) = ((room.spec.prefill, room.spec.decode), room.began);
        let committed = room.committed;
        if committed {
            // Its KV went over.
            self.breakers.proven(Party::Node(pair.0), began);
            let (prefill, decode) = pair;
            self.breakers.proven(Party::Link { prefill, decode }, began);
        }
        if verdict == Verdict::Done {
            self.breakers.proven(Party::Node(pair.1), began);
            self.looked_at(pair);
        }
        if let Blame::Prefill(node) | Blame::Decode(node) = blame {
            // One that fails at once is the least loaded: no prompt may lead there for what it was sent and lost.
            self.chooser.forget(node);
        }
        if let Some(party) = Party::blamed(blame)
            && self.members.keys().filter(|node| party.names(**node)).count() == party.nodes()
        {
            self.breakers.failed(party, id, self.now);
        }
        self.breakers.over(id);
    }

    /// The pair was just seen to serve, or is being looked at.
    fn looked_at(&mut self, pair: Pair) {
        let now = self.now;
        for node in [pair.0, pair.1] {
            if let Some(member) = self.members.get_mut(&node) {
                member.looked_at = now;
            }
        }
        // After the commit a room may outlive its prefill worker: of a node that is gone nothing is kept.
        let both = self.members.contains_key(&pair.0) && self.members.contains_key(&pair.1);
        if both && self.settings.canary_period > Millis(0) {
            self.looked.insert(pair, now);
        }
    }

    /// A node is gone.
    pub(super) fn forget_parties(&mut self, node: Incarnation) {
        self.breakers.forget(node);
        self.looked.retain(|pair, _| pair.0 != node && pair.1 != node);
    }

    /// Sends the canaries that are due: for what is half open, and for nodes that nobody has used for a period.
    pub(super) fn send_canaries(&mut self) {
        if self.settings.canary_period == Millis(0) || self.draining || self.recovers() || self.now < self.canary_at {
            return;
        }
        self.canary_at = self.now + self.settings.report_period;
        for party in self.breakers.unprobed(self.now) {
            self.send_canary(party, true);
        }
        let (now, settings) = (self.now, &self.settings);
        let due = |(node, member): (&Incarnation, &Member)| {
            let suspect = self.breakers.is_suspect(Party::Node(*node));
            let period = if suspect {
                settings.breaker_open.min(settings.canary_period)
            } else {
                settings.canary_period
            };
            (member.usable() && member.looked_at + period <= now).then_some(*node)
        };
        let idle: Vec<Incarnation> = self.members.iter().filter_map(due).collect();
        for node in idle {
            self.send_canary(Party::Node(node), false);
        }
    }

    /// Sends one through the party, with the peer that was not looked at for longest.
    fn send_canary(&mut self, party: Party, probes: bool) {
        let Some((prefill, decode)) = self.pair_of(party, probes) else {
            return;
        };
        let page = [prefill, decode].map(|node| self.members.get(&node).map_or(1, |member| member.info.page_tokens));
        self.canaries.insert((prefill, decode));
        self.looked_at((prefill, decode));
        self.push(Effect::Canary {
            prefill,
            decode,
            prompt_tokens: page[0].max(page[1]).max(1),
        });
    }

    fn pair_of(&self, party: Party, probes: bool) -> Option<Pair> {
        let of = |role: Role| {
            let fits = move |member: &&Member| member.info.role == role && member.usable();
            self.members.values().filter(fits)
        };
        let mut best: Option<(BreakerState, Option<Moment>, Pair)> = None;
        for prefill in of(Role::Prefill) {
            for decode in of(Role::Decode) {
                let pair = (prefill.info.incarnation, decode.info.incarnation);
                if !Party::of_pair(pair.0, pair.1).contains(&party) || !self.takes_canary(prefill, decode) {
                    continue;
                }
                let state = self.breakers.pair(pair.0, pair.1, self.now);
                let found = (state, self.looked.get(&pair).copied(), pair);
                if (probes || state == BreakerState::Closed) && best.is_none_or(|best| found < best) {
                    best = Some(found);
                }
            }
        }
        best.map(|(_, _, pair)| pair)
    }

    /// Both have a place, and none of them has a canary.
    fn takes_canary(&self, prefill: &Member, decode: &Member) -> bool {
        let open_window = self.settings.open_window;
        let busy = |node: Incarnation| self.canaries.iter().any(|pair| pair.0 == node || pair.1 == node);
        prefill.info.class == decode.info.class
            && prefill.has_place(open_window)
            && decode.has_place(open_window)
            && !busy(prefill.info.incarnation)
            && !busy(decode.info.incarnation)
    }
}

impl Party {
    const fn nodes(self) -> usize {
        match self {
            Self::Node(_) => 1,
            Self::Link { .. } => 2,
        }
    }
}
