//! Which of prefill's legs have been computed. The engine only counts those that are and still wait for decode to take their
//! KV. It computes in the order of arrival (`--schedule-policy fcfs`, its default), so they are the oldest of the legs
//! that were open when it was asked: see [`handed_over_next`].
//!
//! A leg that was posted, or a canary that was sent, while the question was out may be in the count or not. So nothing but
//! what was open before it is marked, and canaries, which pass the same queue, are taken off. What is marked is
//! right; what is not marked yet is marked by the next look, or has ended by then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;

use super::gauges::handed_over_next;
use crate::look::Look;

/// Legs of one engine in the order in which they were posted, without a clock and without I/O.
#[derive(Clone, Debug, Default)]
pub struct Order {
    posted: u64,
    /// Those without an answer, and whether each is known to be computed.
    open: BTreeMap<u64, bool>,
    /// Of these, those that nobody waits for any more: they are counted until the engine is seen without any.
    lost: BTreeSet<u64>,
    canaries_sent: u64,
    canaries_out: u64,
}

/// What was so when a look was asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    open: Vec<u64>,
    canaries_sent: u64,
    canaries_out: u64,
}

impl Order {
    /// A leg is posted; its number.
    pub fn posted(&mut self) -> u64 {
        self.posted += 1;
        self.open.insert(self.posted, false);
        self.posted
    }

    /// It was answered, in whatever way.
    pub fn over(&mut self, leg: u64) {
        self.open.remove(&leg);
    }

    /// It was given up without an answer: for all that is known the engine has it still.
    pub fn lost(&mut self, leg: u64) {
        self.lost.insert(leg);
    }

    /// A canary goes out.
    pub const fn canary_sent(&mut self) {
        self.canaries_sent += 1;
        self.canaries_out += 1;
    }

    /// It came back, or was given up.
    pub const fn canary_back(&mut self) {
        self.canaries_out = self.canaries_out.saturating_sub(1);
    }

    /// A look is asked for now.
    #[must_use]
    pub fn asked(&self) -> Asked {
        Asked {
            open: self.open.keys().copied().collect(),
            canaries_sent: self.canaries_sent,
            canaries_out: self.canaries_out,
        }
    }

    /// What the engine shows. Whether a leg is newly known to be computed.
    pub fn shown(&mut self, asked: &Asked, look: &Look) -> bool {
        if look.load.inflight == 0 {
            let gone = std::mem::take(&mut self.lost);
            let (gone, later): (BTreeSet<u64>, BTreeSet<u64>) =
                gone.into_iter().partition(|leg| asked.open.contains(leg));
            self.lost = later;
            self.open.retain(|leg, _| !gone.contains(leg));
            return false;
        }
        let canaries = asked.canaries_out + (self.canaries_sent - asked.canaries_sent);
        let mut look = look.clone();
        look.load.inflight = look.load.inflight.saturating_sub(canaries);
        let computed = handed_over_next(asked.open.len(), &look);
        let mut new = false;
        for leg in asked.open.iter().take(computed) {
            if let Some(known) = self.open.get_mut(leg) {
                new |= !std::mem::replace(known, true);
            }
        }
        new
    }

    /// Whether a leg is open and known to be computed.
    #[must_use]
    pub fn is_computed(&self, leg: u64) -> bool {
        self.open.get(&leg).copied().unwrap_or_default()
    }
}

/// The order, shared by all who ask one engine.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(Arc<watch::Sender<Order>>);

impl Shared {
    /// A place for a leg that is about to be posted.
    pub(super) fn turn(&self) -> Turn {
        let mut leg = 0;
        self.quietly(|order| leg = order.posted());
        Turn {
            leg,
            order: self.clone(),
            answered: true,
        }
    }

    /// A canary is out until this is dropped.
    pub(super) fn canary(&self) -> Canary {
        self.quietly(Order::canary_sent);
        Canary(self.clone())
    }

    /// A look is asked for now.
    pub(super) fn asked(&self) -> Asked {
        self.0.borrow().asked()
    }

    /// What it shows: wakes those whose legs are computed.
    pub(super) fn shown(&self, asked: &Asked, look: &Look) {
        self.0.send_if_modified(|order| order.shown(asked, look));
    }

    /// A change that nobody waits for.
    fn quietly(&self, change: impl FnOnce(&mut Order)) {
        self.0.send_if_modified(|order| {
            change(order);
            false
        });
    }
}

/// A leg's place in the order. Dropping it says that the leg was answered.
#[derive(Debug)]
pub struct Turn {
    leg: u64,
    order: Shared,
    answered: bool,
}

impl Turn {
    /// Returns when a look shows that the prompt is computed. May be given up and asked again.
    pub async fn computed(&self) {
        // The sender is ours: it is not gone.
        let mut order = self.order.0.subscribe();
        drop(order.wait_for(|order| order.is_computed(self.leg)).await);
    }

    /// The leg was given up without an answer: the engine may count it still.
    pub fn lost(mut self) {
        self.answered = false;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (leg, answered) = (self.leg, self.answered);
        self.order.quietly(|order| {
            if answered {
                order.over(leg);
            } else {
                order.lost(leg);
            }
        });
    }
}

/// A canary that is out.
#[derive(Debug)]
pub(super) struct Canary(Shared);

impl Drop for Canary {
    fn drop(&mut self) {
        self.0.quietly(Order::canary_back);
    }
}

#[cfg(test)]
mod tests;
