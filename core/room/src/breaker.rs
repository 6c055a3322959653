//! Breakers: a node or a link that was blamed for several rooms in a row is avoided, until a probe has come through.
//!
//! Only blame counts, so who merely waited for a silent peer is never avoided for it. A breaker is an opinion on where to
//! go, never a verdict: where nothing else is left, the avoided are used.

use std::collections::BTreeMap;

use crate::ids::{Incarnation, RoomId};
use crate::reason::Blame;
use crate::time::{Millis, Moment};

/// What can be avoided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// A worker.
    Node(Incarnation),
    /// The data plane between two workers that are both well.
    Link {
        /// At one end.
        prefill: Incarnation,
        /// At the other.
        decode: Incarnation,
    },
}

impl Party {
    /// Whom a blame makes avoidable. Routers and clients are not chosen by anybody.
    #[must_use]
    pub const fn blamed(blame: Blame) -> Option<Self> {
        match blame {
            Blame::Prefill(node) | Blame::Decode(node) => Some(Self::Node(node)),
            Blame::Link { prefill, decode } => Some(Self::Link { prefill, decode }),
            Blame::Nobody | Blame::Router(_) | Blame::Client => None,
        }
    }

    /// All that a room at this pair depends on.
    #[must_use]
    pub const fn of_pair(prefill: Incarnation, decode: Incarnation) -> [Self; 3] {
        [Self::Node(prefill), Self::Node(decode), Self::Link { prefill, decode }]
    }

    /// Whether it goes with this node.
    #[must_use]
    pub fn names(self, node: Incarnation) -> bool {
        match self {
            Self::Node(own) => own == node,
            Self::Link { prefill, decode } => prefill == node || decode == node,
        }
    }
}

/// How a party stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BreakerState {
    /// It is used.
    Closed,
    /// It is avoided, and the next room there decides.
    HalfOpen,
    /// It is avoided.
    Open,
}

impl BreakerState {
    /// As `innkeeper ps` has it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Breaker {
    /// Rooms in a row that it was blamed for.
    failures: u32,
    /// When the last of them failed. What began before proves nothing.
    failed_at: Moment,
    /// Times in a row that it opened: each time for twice as long.
    opened: u32,
    /// Avoided until then, half open from then on.
    until: Option<Moment>,
    /// The room that decides.
    probe: Option<RoomId>,
}

/// The breakers of all parties. A party without failures has none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Breakers {
    parties: BTreeMap<Party, Breaker>,
    failures: u32,
    open_for: Millis,
}

/// A breaker opens for at most this many times its first time.
const LONGEST: u32 = 3;

impl Breakers {
    /// Opens after `failures` in a row (0: never), for `open_for` at first.
    #[must_use]
    pub const fn new(failures: u32, open_for: Millis) -> Self {
        Self {
            parties: BTreeMap::new(),
            failures,
            open_for,
        }
    }

    /// How a party stands.
    #[must_use]
    pub fn state(&self, party: Party, now: Moment) -> BreakerState {
        match self.parties.get(&party).and_then(|breaker| breaker.until) {
            None => BreakerState::Closed,
            Some(until) if until <= now => BreakerState::HalfOpen,
            Some(_) => BreakerState::Open,
        }
    }

    /// How a pair stands: as the worst of its parties.
    #[must_use]
    pub fn pair(&self, prefill: Incarnation, decode: Incarnation, now: Moment) -> BreakerState {
        if self.parties.is_empty() {
            return BreakerState::Closed;
        }
        let states = Party::of_pair(prefill, decode).map(|party| self.state(party, now));
        states.into_iter().max().unwrap_or(BreakerState::Closed)
    }

    /// Whether a party was blamed since it was last proven.
    #[must_use]
    pub fn is_suspect(&self, party: Party) -> bool {
        self.parties.contains_key(&party)
    }

    /// Whether a room already probes one of the pair's parties.
    #[must_use]
    pub fn is_probed(&self, prefill: Incarnation, decode: Incarnation) -> bool {
        let probed = |party| self.parties.get(&party).is_some_and(|breaker| breaker.probe.is_some());
        !self.parties.is_empty() && Party::of_pair(prefill, decode).into_iter().any(probed)
    }

    /// A room begins there: it decides for what is half open.
    pub fn begin(&mut self, prefill: Incarnation, decode: Incarnation, room: RoomId, now: Moment) {
        for party in Party::of_pair(prefill, decode) {
            if let Some(breaker) = self.parties.get_mut(&party)
                && breaker.until.is_some_and(|until| until <= now)
            {
                breaker.probe.get_or_insert(room);
            }
        }
    }

    /// A room failed and the party is blamed for it.
    pub fn failed(&mut self, party: Party, room: RoomId, now: Moment) {
        if self.failures == 0 {
            return;
        }
        let breaker = self.parties.entry(party).or_insert(Breaker {
            failures: 0,
            failed_at: now,
            opened: 0,
            until: None,
            probe: None,
        });
        breaker.failures = breaker.failures.saturating_add(1);
        breaker.failed_at = now;
        let opens = match breaker.until {
            None => breaker.failures >= self.failures,
            // Rooms that were there before it opened fail one after the other: they say nothing new.
            Some(_) => breaker.probe == Some(room),
        };
        if opens {
            let times = 1_u64 << breaker.opened.min(LONGEST);
            breaker.until = Some(now + self.open_for.scale(times, 1));
            breaker.opened = breaker.opened.saturating_add(1);
            breaker.probe = None;
        }
    }

    /// A room that began at `began` has proven the party.
    pub fn proven(&mut self, party: Party, began: Moment) {
        if self
            .parties
            .get(&party)
            .is_some_and(|breaker| breaker.failed_at <= began)
        {
            self.parties.remove(&party);
        }
    }

    /// A room is over: what it did not decide is open to the next one.
    pub fn over(&mut self, room: RoomId) {
        for breaker in self.parties.values_mut() {
            if breaker.probe == Some(room) {
                breaker.probe = None;
            }
        }
    }

    /// The node is gone, and its links with it.
    pub fn forget(&mut self, node: Incarnation) {
        self.parties.retain(|party, _| !party.names(node));
    }

    /// Parties that wait for a room that decides, and have none.
    #[must_use]
    pub fn unprobed(&self, now: Moment) -> Vec<Party> {
        let waits = |breaker: &Breaker| breaker.probe.is_none() && breaker.until.is_some_and(|until| until <= now);
        self.parties
            .iter()
            .filter(|(_, breaker)| waits(breaker))
            .map(|(party, _)| *party)
            .collect()
    }

    /// How many nodes and how many links are avoided.
    #[must_use]
    pub fn avoided(&self) -> (u32, u32) {
        let mut avoided = (0, 0);
        for (party, breaker) in &self.parties {
            match party {
                Party::Node(_) => avoided.0 += u32::from(breaker.until.is_some()),
                Party::Link { .. } => avoided.1 += u32::from(breaker.until.is_some()),
            }
        }
        avoided
    }

    /// The peers to which the node's links are avoided.
    #[must_use]
    pub fn avoided_peers(&self, node: Incarnation) -> Vec<Incarnation> {
        let peer = |(party, breaker): (&Party, &Breaker)| match party {
            Party::Link { prefill, decode } if breaker.until.is_some() && *prefill == node => Some(*decode),
            Party::Link { prefill, decode } if breaker.until.is_some() && *decode == node => Some(*prefill),
            Party::Link { .. } | Party::Node(_) => None,
        };
        self.parties.iter().filter_map(peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: Incarnation = Incarnation::new(1);
    const D: Incarnation = Incarnation::new(2);
    const NODE: Party = Party::Node(D);

    fn breakers() -> Breakers {
        Breakers::new(3, Millis(100))
    }

    fn room(number: u64) -> RoomId {
        RoomId::from_random(number)
    }

    fn fail(breakers: &mut Breakers, times: u64, at: u64) {
        (0..times).for_each(|number| breakers.failed(NODE, room(number), Moment(at)));
    }

    #[test]
    fn three_in_a_row_open_it_and_a_probe_closes_it() {
        let mut breakers = breakers();
        fail(&mut breakers, 2, 10);
        assert_eq!(breakers.state(NODE, Moment(10)), BreakerState::Closed);
        fail(&mut breakers, 1, 10);
        assert_eq!(breakers.pair(P, D, Moment(10)), BreakerState::Open);
        assert_eq!(breakers.pair(D, P, Moment(109)), BreakerState::Open);
        assert_eq!(breakers.state(NODE, Moment(110)), BreakerState::HalfOpen);
        assert_eq!(breakers.unprobed(Moment(110)), [NODE]);
        breakers.begin(P, D, room(50), Moment(110));
        assert!(breakers.is_probed(P, D) && breakers.unprobed(Moment(110)).is_empty());
        breakers.proven(NODE, Moment(110));
        assert_eq!(breakers.state(NODE, Moment(111)), BreakerState::Closed);
    }

    #[test]
    fn a_probe_that_fails_opens_it_for_twice_as_long() {
        let mut breakers = breakers();
        fail(&mut breakers, 3, 0);
        breakers.begin(P, D, room(50), Moment(100));
        breakers.failed(NODE, room(50), Moment(120));
        assert_eq!(breakers.state(NODE, Moment(319)), BreakerState::Open);
        assert_eq!(breakers.state(NODE, Moment(320)), BreakerState::HalfOpen);
    }

    #[test]
    fn a_probe_that_says_nothing_leaves_it_to_the_next_one() {
        let mut breakers = breakers();
        fail(&mut breakers, 3, 0);
        breakers.begin(P, D, room(50), Moment(100));
        breakers.over(room(50));
        assert_eq!(breakers.unprobed(Moment(100)), [NODE]);
    }

    #[test]
    fn what_began_before_the_failure_proves_nothing_and_old_failures_add_nothing() {
        let mut breakers = breakers();
        fail(&mut breakers, 3, 10);
        breakers.proven(NODE, Moment(9));
        assert_eq!(breakers.state(NODE, Moment(20)), BreakerState::Open);
        fail(&mut breakers, 40, 60);
        assert_eq!(
            breakers.state(NODE, Moment(110)),
            BreakerState::HalfOpen,
            "not for longer"
        );
    }

    #[test]
    fn a_success_between_failures_begins_the_count_anew() {
        let mut breakers = breakers();
        fail(&mut breakers, 2, 10);
        breakers.proven(NODE, Moment(11));
        fail(&mut breakers, 2, 12);
        assert_eq!(breakers.state(NODE, Moment(12)), BreakerState::Closed);
    }

    #[test]
    fn a_node_that_goes_takes_its_links_along() {
        let mut breakers = breakers();
        let link = Party::Link { prefill: P, decode: D };
        (0..3).for_each(|number| breakers.failed(link, room(number), Moment(1)));
        assert_eq!((breakers.avoided(), breakers.avoided_peers(D)), ((0, 1), vec![P]));
        breakers.forget(D);
        assert_eq!((breakers.avoided(), breakers.is_suspect(link)), ((0, 0), false));
    }

    #[test]
    fn zero_switches_it_off() {
        let mut breakers = Breakers::new(0, Millis(100));
        fail(&mut breakers, 100, 1);
        assert_eq!(breakers.state(NODE, Moment(1)), BreakerState::Closed);
    }
}
