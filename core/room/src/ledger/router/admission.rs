//! The front door: who is answered at once, who waits, and how waiting requests come to a pair.

use super::placement::Placement;
use super::queue::Lifted;
use super::{Arrival, Effect, Ledger, Outcome, Timer};
use crate::ids::RequestKey;
use crate::reason::{Blame, Reason};
use crate::request::{Request, Stage};
use crate::time::Millis;

/// When a client that got no worker may come again: a worker that starts registers, and is connected, within this.
pub(super) const RETRY_AFTER: Millis = Millis(1000);

/// How many waiting requests one step looks at, so that a long queue never makes the ledger late.
const LOOK_AT_MOST: usize = 64;

/// What became of the request that was next.
enum Tried {
    /// It is in the queue no more.
    Gone,
    /// Others are looked at; it is put back then. Whether it waits for pages alone.
    PassedOver(Option<Lifted>, bool),
    /// All others wait behind it.
    Stop,
}

impl Ledger {
    /// A request arrived: it is answered at once, or it waits from now on under its deadlines.
    pub(super) fn arrive(&mut self, arrival: Arrival) {
        let key = arrival.request;
        if self.requests.contains_key(&key) || self.ended.get(&key).is_some() {
            // The caller's numbers never repeat; an answer would go to the other request of that number.
            self.fenced += 1;
            return;
        }
        if self.tombstones.covers(&arrival.rid, self.now) {
            return self.turn_away(arrival, Reason::Aborted);
        }
        if self.draining {
            return self.turn_away(arrival, Reason::Draining);
        }
        if let Err(retry_after) = self.let_in(&arrival) {
            return self.turn_away_until(arrival, Reason::Overloaded, Some(retry_after));
        }
        let nothing_to_do = arrival.max_tokens == 0;
        self.by_rid.entry(arrival.rid.clone()).or_default().insert(key);
        self.requests
            .insert(key, Request::new(arrival, self.now, &self.settings));
        self.dirty.insert(Timer::Request(key));
        if nothing_to_do {
            self.answer(key, Outcome::Done);
        } else {
            self.make_ready(key);
        }
    }

    /// Answers an arrival that never becomes a live request.
    fn turn_away(&mut self, arrival: Arrival, reason: Reason) {
        self.turn_away_until(arrival, reason, retry_after(reason));
    }

    fn turn_away_until(&mut self, arrival: Arrival, reason: Reason, retry_after: Option<Millis>) {
        if let Some(pair) = &arrival.pair {
            self.canaries.remove(pair);
        }
        self.remember_request(arrival.request, arrival.rid);
        let outcome = Outcome::Failed {
            reason,
            blame: Blame::Nobody,
            retry_after,
        };
        self.push(Effect::Answer {
            request: arrival.request,
            outcome,
        });
    }

    /// Puts a waiting request where it is tried.
    pub(super) fn make_ready(&mut self, key: RequestKey) {
        let Some(request) = self.requests.get(&key) else { return };
        self.queue.push(Self::place_of(request), key, request.cost());
        self.pump = true;
    }

    fn unready(&mut self, key: RequestKey) {
        let Some(request) = self.requests.get(&key) else { return };
        if self.queue.remove(Self::place_of(request), key) {
            // Who was behind it may be next.
            self.pump = true;
        }
    }

    /// Tries waiting requests, if something happened that may let one go on.
    pub(super) fn admit(&mut self) {
        if std::mem::take(&mut self.pump) {
            for model in self.queue.models() {
                self.admit_model(&model);
            }
        }
        self.measure_drain();
    }

    fn admit_model(&mut self, model: &Option<String>) {
        let mut passed_over = vec![];
        let (mut looked_at, mut went, mut short) = (0, false, false);
        while looked_at < LOOK_AT_MOST
            && let Some(key) = self.queue.next(model, self.settings.weights())
        {
            looked_at += 1;
            match self.try_one(key, model) {
                Tried::Gone => went = true,
                Tried::PassedOver(lifted, for_pages) => {
                    short |= for_pages;
                    passed_over.extend(lifted.map(|lifted| (key, lifted)));
                }
                Tried::Stop => {
                    // Who waits behind it, and for what, is not known: the time runs on.
                    short = true;
                    break;
                }
            }
        }
        for (key, lifted) in passed_over {
            if let Some(request) = self.requests.get(&key) {
                self.queue.put_back(Self::place_of(request), key, lifted);
            }
        }
        if !short {
            self.queue.is_not_short(model);
        }
        // The rest is looked at in the next step, which the next report brings.
        self.pump |= went && looked_at == LOOK_AT_MOST;
    }

    /// Tries the one that is next.
    fn try_one(&mut self, key: RequestKey, model: &Option<String>) -> Tried {
        let weights = self.settings.weights();
        let Some(request) = self.requests.get(&key) else {
            // Not reached: what waits is live. One that is not would stop all others for good.
            self.queue.drop_next(model, weights);
            return Tried::Gone;
        };
        match self.place(request) {
            Placement::Pair { prefill, decode } => {
                let cost = request.cost();
                self.queue.serve(Self::place_of(request), key, weights);
                self.went_on(cost);
                self.begin(key, prefill, decode);
            }
            Placement::Wait { .. } if !self.any_place(model.as_ref()) => return Tried::Stop,
            Placement::Wait { pages: true } => return self.waits_for_pages(key, model),
            // A worker that has refused it is asked again after a moment.
            Placement::Wait { pages: false } if !request.refused.is_empty() => self.try_later(key),
            // It waits for certain workers: others may go elsewhere meanwhile.
            Placement::Wait { pages: false } => return Tried::PassedOver(self.lift(key), false),
            Placement::Never(Reason::NoPrefillWorker | Reason::NoDecodeWorker) if self.recovers() => {
                self.try_later(key);
            }
            Placement::Never(reason) => self.give_up(key, reason),
            Placement::Exhausted => self.give_up(key, Reason::NoDecodeWorker),
        }
        Tried::Gone
    }

    /// One that is next waits for pages alone. All others wait behind it, or it would never get as many as it needs: others
    /// would go on taking those that come back. But that for a progress TTL only, and then for as long it is passed over, in
    /// turn, or those that ask for much could stop the whole fleet. The time is the queue's, not the request's: many such
    /// requests stop it no longer than one.
    fn waits_for_pages(&mut self, key: RequestKey, model: &Option<String>) -> Tried {
        self.queue.is_short(model, self.now);
        if self.lets_pass(model) {
            Tried::PassedOver(self.lift(key), true)
        } else {
            Tried::Stop
        }
    }

    /// Whether what waits for pages alone is passed over now.
    pub(super) fn lets_pass(&self, model: &Option<String>) -> bool {
        self.queue.short_since(model).is_some_and(|since| {
            let turns = self.now.since(since).0 / self.settings.progress_ttl.0.max(1);
            !turns.is_multiple_of(2)
        })
    }

    fn lift(&mut self, key: RequestKey) -> Option<Lifted> {
        let request = self.requests.get(&key)?;
        self.queue.lift(Self::place_of(request), key)
    }

    /// R has just been stopped: its connections broke because of that, and are made again.
    pub(super) fn recovers(&self) -> bool {
        self.recovers_until.is_some_and(|until| self.now < until)
    }

    /// Back to admission: there are places, but not for this one now.
    fn try_later(&mut self, key: RequestKey) {
        self.unready(key);
        let (now, period) = (self.now, self.settings.report_period);
        if let Some(request) = self.request_mut(key) {
            request.requeue(now, Some(now + period));
        }
    }

    /// Nothing can be tried: the answer is the failure that brought it here, if one did.
    fn give_up(&mut self, key: RequestKey, reason: Reason) {
        let Some(request) = self.requests.get(&key) else { return };
        let (reason, blame) = request.failure.unwrap_or((reason, Blame::Nobody));
        self.answer(
            key,
            Outcome::Failed {
                reason,
                blame,
                retry_after: retry_after(reason),
            },
        );
    }

    /// Answers a live request, once: it is none from now on. Its room, if one lives, is the caller's to end.
    pub(super) fn answer(&mut self, key: RequestKey, outcome: Outcome) {
        if self.take_request(key).is_some() {
            self.push(Effect::Answer { request: key, outcome });
        }
    }

    /// Ends a live request with an error, and its room with the same reason.
    pub(super) fn end_request(&mut self, key: RequestKey, reason: Reason, blame: Blame) {
        let Some(request) = self.take_request(key) else { return };
        let retry_after = match reason {
            Reason::QueueTimeout => Some(self.come_again(&request.arrival, request.cost())),
            reason => retry_after(reason),
        };
        if let Stage::Running(room) = request.stage {
            self.fail(room, reason, None, None);
        }
        let outcome = Outcome::Failed {
            reason,
            blame,
            retry_after,
        };
        self.push(Effect::Answer { request: key, outcome });
    }

    fn take_request(&mut self, key: RequestKey) -> Option<Request> {
        self.unready(key);
        let request = self.requests.remove(&key)?;
        if let Some(pair) = &request.arrival.pair {
            self.canaries.remove(pair);
        }
        self.dirty.insert(Timer::Request(key));
        if let Some(keys) = self.by_rid.get_mut(&request.arrival.rid) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_rid.remove(&request.arrival.rid);
            }
        }
        self.remember_request(key, request.arrival.rid.clone());
        Some(request)
    }

    fn remember_request(&mut self, key: RequestKey, rid: String) {
        let until = self.now + self.settings.request_timeout;
        self.ended_rids.insert(rid.clone(), key);
        if let Some((old, (old_rid, _))) = self.ended.insert(key, (rid, until))
            && self.ended_rids.get(&old_rid) == Some(&old)
        {
            self.ended_rids.remove(&old_rid);
        }
    }

    pub(super) fn drain_over(&mut self) {
        self.draining = true;
        let keys: Vec<RequestKey> = self.requests.keys().copied().collect();
        for key in keys {
            self.end_request(key, Reason::Draining, Blame::Nobody);
        }
    }
}

/// When to come again, where waiting helps.
pub(super) fn retry_after(reason: Reason) -> Option<Millis> {
    matches!(reason.http_status(), 429 | 503).then_some(RETRY_AFTER)
}

/// When to come again after a failure that the empty bucket did not let try again.
pub(super) const fn retry_after_spent() -> Option<Millis> {
    Some(RETRY_AFTER)
}
