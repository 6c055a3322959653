//! More comes than fits: who is refused at once, and what is said of when to come again. What is refused here has cost no
//! page anywhere.

use super::admission::RETRY_AFTER;
use super::queue::Place;
use super::{Arrival, Ledger, Outcome};
use crate::class::Class;
use crate::ids::RequestKey;
use crate::reason::{Blame, Reason};
use crate::request::Request;
use crate::time::{Millis, Moment};

/// Nobody is sent away for longer: by then everything may be otherwise.
const LONGEST_AWAY: Millis = Millis::from_secs(60);

/// A rate is renewed after so much time in which somebody waited, if enough went on by then …
const SAMPLE: Millis = Millis(500);
/// … which is this many requests, so that one large one is no rate …
const ENOUGH: u32 = 4;
/// … or at the latest after this, so that workers that take nothing are noticed.
const LONG_SAMPLE: Millis = Millis::from_secs(5);

/// Requests that were refused because more came than fits, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shed {
    /// The router held as many as it may, or as many waited as may wait.
    pub queue_full: u64,
    /// They would have waited beyond their queue deadline.
    pub predicted_wait: u64,
    /// They gave up their place in a full queue to a more urgent one, or to a tenant that had less there.
    pub displaced: u64,
}

/// A rate of a queue that has been empty for so long says nothing of the next one.
const FORGET: Millis = Millis::from_secs(30);

/// How fast the queue goes down, measured while somebody waits.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Drain {
    /// Since when nobody waits.
    empty_since: Option<Moment>,
    /// When it was last looked at, if somebody waited then.
    since: Option<Moment>,
    /// Of the sample in hand.
    busy: Millis,
    tokens: u64,
    requests: u32,
    /// Tokens per second.
    rate: Option<u64>,
}

impl Drain {
    /// A request went on from the queue to a pair.
    fn went_on(&mut self, cost: u64) {
        // What had a room before costs nothing here, and is no part of a rate.
        if self.since.is_some() && cost > 0 {
            self.tokens += cost;
            self.requests += 1;
        }
    }

    /// Time passes; whether somebody waits from now on. `longest`: a longer gap is a clock that stood.
    fn look(&mut self, now: Moment, waits: bool, longest: Millis) {
        if let Some(since) = self.since.take() {
            self.busy = self.busy + now.since(since).min(longest);
        }
        self.since = waits.then_some(now);
        if !waits {
            self.empty_since.get_or_insert(now);
        } else if let Some(since) = self.empty_since.take()
            && now.since(since) > FORGET
        {
            *self = Self {
                since: self.since,
                ..Self::default()
            };
        }
        let enough = self.busy >= SAMPLE && self.requests >= ENOUGH;
        if enough || self.busy >= LONG_SAMPLE {
            if self.requests == 0 && self.rate.is_none() {
                // Long rooms, or workers that take nothing: that nothing went on yet says not how long it will take.
                self.busy = Millis(0);
                return;
            }
            let sample = self.tokens.saturating_mul(1000) / self.busy.0.max(1);
            self.rate = Some(self.rate.map_or(sample, |rate| (rate * 3 + sample) / 4));
            (self.busy, self.tokens, self.requests) = (Millis(0), 0, 0);
        }
    }

    /// How long so many tokens take; `None` as long as nothing is known.
    fn wait(&self, tokens: u64) -> Option<Millis> {
        let rate = self.rate?.max(1);
        Some(Millis(tokens.saturating_mul(1000) / rate))
    }
}

impl Ledger {
    /// Where a request waits.
    pub(super) fn place_of(request: &Request) -> Place<'_> {
        place(&request.arrival)
    }

    /// Whether an arrival can be taken, and who gives up a place for it. `Err`: it is refused now.
    pub(super) fn let_in(&mut self, arrival: &Arrival) -> Result<(), Millis> {
        // A canary waits for nobody, and is needed most when there is most to do: it tells who serves again.
        if arrival.pair.is_some() {
            return Ok(());
        }
        let cost = cost(arrival);
        if self.predicts_too_long(arrival, cost) {
            self.shed.predicted_wait += 1;
            return Err(self.come_again(arrival, cost));
        }
        let full = self.requests.len() >= self.settings.max_requests as usize
            || self.queue.len() >= self.settings.max_queued as usize;
        if !full {
            return Ok(());
        }
        let Some(victim) = self.queue.displaced_by(place(arrival), cost) else {
            self.shed.queue_full += 1;
            return Err(self.come_again(arrival, cost));
        };
        self.displace(victim);
        Ok(())
    }

    /// It would wait longer than it may: saying so now is worth more than saying so then. An eighth of the deadline is left for
    /// the room's own beginning, and for a rate that was measured a moment ago.
    fn predicts_too_long(&self, arrival: &Arrival, cost: u64) -> bool {
        let longest = self.settings.queue_limit(arrival.class).scale(7, 8);
        let predicts = self.settings.predict_wait > 0;
        predicts && self.predicted(place(arrival), cost).is_some_and(|wait| wait > longest)
    }

    /// How long a request would wait that came now.
    fn predicted(&self, place: Place<'_>, cost: u64) -> Option<Millis> {
        self.drain.wait(self.queue.ahead(place, cost, self.settings.weights()))
    }

    /// The same for one of a class, from a tenant with nothing waiting, that costs as much as those that wait.
    pub(super) fn predicted_for(&self, class: Class) -> Millis {
        let models = self.queue.models();
        let mean = self.queue.tokens().iter().sum::<u64>() / self.queue.len().max(1) as u64;
        let waits = models.iter().filter_map(|model| {
            let place = Place {
                model,
                class,
                tenant: "",
            };
            self.predicted(place, mean)
        });
        waits.max().unwrap_or(Millis(0))
    }

    fn displace(&mut self, victim: RequestKey) {
        self.shed.displaced += 1;
        let Some(request) = self.requests.get(&victim) else {
            return;
        };
        let arrival = request.arrival.clone();
        let retry_after = Some(self.come_again(&arrival, cost(&arrival)));
        self.answer(
            victim,
            Outcome::Failed {
                reason: Reason::Overloaded,
                blame: Blame::Nobody,
                retry_after,
            },
        );
    }

    /// When to come again: when what waits now has been served. Spread by the request's number, so that those who were
    /// refused together do not come again together.
    pub(super) fn come_again(&self, arrival: &Arrival, cost: u64) -> Millis {
        let wait = self.predicted(place(arrival), cost).unwrap_or(RETRY_AFTER);
        let wait = wait.max(RETRY_AFTER).min(LONGEST_AWAY);
        wait + wait.scale(arrival.request.0 % 8, 16)
    }

    /// Says how fast the queue goes down. Nothing is measured if nothing follows from it.
    pub(super) fn measure_drain(&mut self) {
        if self.settings.predict_wait > 0 {
            let longest = self.settings.report_period.scale(2, 1);
            self.drain.look(self.now, self.queue.len() > 0, longest);
        }
    }

    /// A request has its pair.
    pub(super) fn went_on(&mut self, cost: u64) {
        self.drain.went_on(cost);
    }
}

fn place(arrival: &Arrival) -> Place<'_> {
    Place {
        model: &arrival.model,
        class: arrival.class,
        tenant: &arrival.client,
    }
}

fn cost(arrival: &Arrival) -> u64 {
    u64::from(arrival.prompt_tokens) + u64::from(arrival.max_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_time_in_which_somebody_waits() {
        let mut drain = Drain::default();
        let longest = Millis(1000);
        drain.went_on(1_000_000);
        assert_eq!(drain.wait(1000), None, "nobody waited: that is no rate");
        drain.look(Moment(0), true, longest);
        for step in 1..=10 {
            drain.went_on(50);
            drain.look(Moment(step * 100), true, longest);
        }
        // 500 tokens a second.
        assert_eq!(drain.wait(1000), Some(Millis(2000)));
        drain.look(Moment(1000), false, longest);
        drain.look(Moment(30_000), true, longest);
        assert_eq!(drain.wait(1000), Some(Millis(2000)), "an empty queue tells nothing");
        (0..10).for_each(|_| drain.went_on(0));
        drain.look(Moment(30_900), true, longest);
        assert_eq!(drain.wait(1000), Some(Millis(2000)), "a second attempt is no rate");
        drain.look(Moment(31_000), false, longest);
        drain.look(Moment(40_000), false, longest);
        drain.look(Moment(62_000), true, longest);
        assert_eq!(drain.wait(1000), None, "an old rate is none");
    }

    #[test]
    fn workers_that_take_nothing_are_noticed() {
        let mut drain = Drain::default();
        drain.look(Moment(0), true, Millis(1000));
        for step in 1..=5 {
            (0..4).for_each(|_| drain.went_on(250));
            drain.look(Moment(step * 1000), true, Millis(1000));
        }
        assert_eq!(drain.wait(1000), Some(Millis(1000)));
        for step in 6..=25 {
            drain.look(Moment(step * 1000), true, Millis(1000));
        }
        assert!(drain.wait(1000) > Some(Millis(2500)), "{:?}", drain.wait(1000));
        let mut fresh = Drain::default();
        (0..60).for_each(|step| fresh.look(Moment(step * 1000), true, Millis(1000)));
        assert_eq!(
            fresh.wait(1000),
            None,
            "one that never saw anything go on knows no rate"
        );
        // A clock that stood is no time in which nothing was taken.
        let mut stood = drain.clone();
        stood.look(Moment(1_000_000), true, Millis(1000));
        assert_eq!(stood.wait(1000), drain.wait(1000));
    }
}
