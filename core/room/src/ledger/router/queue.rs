//! What waits for a pair, and who is next: classes share by weights, tenants within a class share evenly, both by tokens, and
//! a tenant's own requests come in the order of their arrival.
//!
//! Both levels are deficit round robin in its self-clocked form: the head of each line has a mark, which is where its line
//! stood, plus what it costs; the smallest mark is next, and becomes the clock. So a large request waits until the others
//! have had as much, nobody starves, looking changes nothing, and who has nothing waiting is not remembered.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::class::Class;
use crate::ids::RequestKey;
use crate::time::Moment;

/// A token's length on the clock of classes, so that weights divide it.
const SCALE: u64 = 1000;

/// All that waits, by model.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Queue {
    models: BTreeMap<Option<String>, Shelf>,
    /// Requests by class.
    waiting: [u32; 3],
}

/// What waits for workers of one model.
#[derive(Clone, Debug, Default, Hash)]
struct Shelf {
    /// Since when there is always somebody who waits for pages alone.
    short_since: Option<Moment>,
    clock: u64,
    lines: [Line; 3],
}

/// A class.
#[derive(Clone, Debug, Default, Hash)]
struct Line {
    /// Where it stands on its shelf's clock.
    stands: u64,
    clock: u64,
    tenants: BTreeMap<String, Lane>,
    /// The marks of all tenants' heads.
    marks: BTreeSet<(u64, String)>,
    tokens: u64,
}

/// A tenant with something waiting.
#[derive(Clone, Debug, Default, Hash)]
struct Lane {
    /// Where it stands on its line's clock.
    stands: u64,
    /// Costs.
    waiting: BTreeMap<RequestKey, u64>,
    tokens: u64,
}

/// A request that is passed over: what it costs, and where its tenant stood.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifted {
    cost: u64,
    stands: u64,
}

/// Where a request waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) model: &'a Option<String>,
    pub(super) class: Class,
    pub(super) tenant: &'a str,
}

impl Lane {
    fn head(&self) -> Option<(RequestKey, u64)> {
        self.waiting.first_key_value().map(|(key, cost)| (*key, *cost))
    }

    fn mark(&self) -> Option<u64> {
        self.head().map(|(_, cost)| self.stands.saturating_add(cost))
    }

    /// The one that came last, of those that never had a room.
    fn newest(&self) -> Option<RequestKey> {
        let mut fresh = self.waiting.iter().rev().filter(|(_, cost)| **cost > 0);
        fresh.next().map(|(key, _)| *key)
    }
}

impl Line {
    fn head(&self) -> Option<(&str, RequestKey, u64)> {
        let (_, tenant) = self.marks.first()?;
        let (key, cost) = self.tenants.get(tenant)?.head()?;
        Some((tenant, key, cost))
    }

    /// Changes a tenant's lane, and its mark with it.
    fn change(&mut self, tenant: &str, change: impl FnOnce(&mut Lane)) {
        let (clock, fresh) = (self.clock, || tenant.to_owned());
        let lane = self.tenants.entry(fresh()).or_insert_with(|| Lane {
            stands: clock,
            ..Lane::default()
        });
        let (before, tokens) = (lane.mark(), lane.tokens);
        change(lane);
        let after = lane.mark();
        self.tokens = self.tokens - tokens + lane.tokens;
        if let Some(mark) = before {
            self.marks.remove(&(mark, fresh()));
        }
        match after {
            Some(mark) => drop(self.marks.insert((mark, fresh()))),
            None => drop(self.tenants.remove(tenant)),
        }
    }

    fn push(&mut self, tenant: &str, key: RequestKey, cost: u64) -> bool {
        let mut fresh = false;
        self.change(tenant, |lane| {
            let old = lane.waiting.insert(key, cost);
            fresh = old.is_none();
            lane.tokens = lane.tokens - old.unwrap_or(0) + cost;
        });
        fresh
    }

    /// Puts one back that was only passed over: nothing of its tenant's place has changed.
    fn put_back(&mut self, tenant: &str, key: RequestKey, lifted: Lifted) {
        self.change(tenant, |lane| {
            if lane.waiting.is_empty() {
                lane.stands = lifted.stands;
            }
            lane.waiting.insert(key, lifted.cost);
            lane.tokens += lifted.cost;
        });
    }

    /// Takes a request out; `served`: its turn has come, and its line has had what it costs.
    fn take(&mut self, tenant: &str, key: RequestKey, served: bool) -> Option<u64> {
        let lane = self.tenants.get(tenant)?;
        let cost = *lane.waiting.get(&key)?;
        let stands = lane.stands.saturating_add(cost);
        self.change(tenant, |lane| {
            lane.waiting.remove(&key);
            lane.tokens -= cost;
            if served {
                lane.stands = stands;
            }
        });
        if served {
            self.clock = self.clock.max(stands);
        }
        Some(cost)
    }

    /// The tenant with the most tokens waiting that may be given up, with them and its last request.
    fn fullest(&self) -> Option<(u64, &str, RequestKey)> {
        let lanes = self.tenants.iter();
        lanes
            .filter_map(|(tenant, lane)| Some((lane.tokens, tenant.as_str(), lane.newest()?)))
            .max()
    }
}

impl Shelf {
    /// Whose turn it is: the class, and what it is next.
    fn next(&self, weights: [u32; 3]) -> Option<(u64, Class)> {
        let marks = Class::ALL.into_iter().filter_map(|class| {
            let line = &self.lines[class.index()];
            let (_, _, cost) = line.head()?;
            Some((line.stands.saturating_add(length(cost, class, weights)), class))
        });
        marks.min()
    }
}

fn length(cost: u64, class: Class, weights: [u32; 3]) -> u64 {
    cost.saturating_mul(SCALE) / u64::from(weights[class.index()].max(1))
}

impl Queue {
    /// Puts a request where it waits; what it costs in tokens.
    pub(super) fn push(&mut self, place: Place<'_>, key: RequestKey, cost: u64) {
        let shelf = self.models.entry(place.model.clone()).or_default();
        let line = &mut shelf.lines[place.class.index()];
        if line.tenants.is_empty() {
            line.stands = line.stands.max(shelf.clock);
        }
        if line.push(place.tenant, key, cost) {
            self.waiting[place.class.index()] += 1;
        }
    }

    /// The models for which somebody waits.
    pub(super) fn models(&self) -> Vec<Option<String>> {
        self.models.keys().cloned().collect()
    }

    /// Who is next of a model.
    pub(super) fn next(&self, model: &Option<String>, weights: [u32; 3]) -> Option<RequestKey> {
        let shelf = self.models.get(model)?;
        let (_, class) = shelf.next(weights)?;
        shelf.lines[class.index()].head().map(|(_, key, _)| key)
    }

    /// The next one has its pair: its tenant and its class have had what it costs.
    pub(super) fn serve(&mut self, place: Place<'_>, key: RequestKey, weights: [u32; 3]) {
        let Some(shelf) = self.models.get_mut(place.model) else {
            return;
        };
        let line = &mut shelf.lines[place.class.index()];
        let Some(cost) = line.take(place.tenant, key, true) else {
            return;
        };
        line.stands = line.stands.saturating_add(length(cost, place.class, weights));
        shelf.clock = shelf.clock.max(line.stands);
        self.left(place);
    }

    /// Passes over a request for a moment, so that others can be looked at: it must be put back in the same step.
    pub(super) fn lift(&mut self, place: Place<'_>, key: RequestKey) -> Option<Lifted> {
        let shelf = self.models.get_mut(place.model)?;
        let line = &mut shelf.lines[place.class.index()];
        let stands = line.tenants.get(place.tenant)?.stands;
        let cost = line.take(place.tenant, key, false)?;
        self.waiting[place.class.index()] -= 1;
        Some(Lifted { cost, stands })
    }

    /// Puts back what was passed over, where it was.
    pub(super) fn put_back(&mut self, place: Place<'_>, key: RequestKey, lifted: Lifted) {
        let shelf = self.models.entry(place.model.clone()).or_default();
        shelf.lines[place.class.index()].put_back(place.tenant, key, lifted);
        self.waiting[place.class.index()] += 1;
    }

    /// The one that is next leaves without having been served.
    pub(super) fn drop_next(&mut self, model: &Option<String>, weights: [u32; 3]) {
        let next = self.models.get(model).and_then(|shelf| {
            let (_, class) = shelf.next(weights)?;
            let (tenant, key, _) = shelf.lines[class.index()].head()?;
            Some((class, tenant.to_owned(), key))
        });
        if let Some((class, tenant, key)) = next {
            let tenant = tenant.as_str();
            self.remove(Place { model, class, tenant }, key);
        }
    }

    /// Somebody of this model waits for pages alone.
    pub(super) fn is_short(&mut self, model: &Option<String>, now: Moment) {
        if let Some(shelf) = self.models.get_mut(model) {
            shelf.short_since.get_or_insert(now);
        }
    }

    /// Since when there always was somebody who does.
    pub(super) fn short_since(&self, model: &Option<String>) -> Option<Moment> {
        self.models.get(model).and_then(|shelf| shelf.short_since)
    }

    /// Nobody of this model waits for pages alone.
    pub(super) fn is_not_short(&mut self, model: &Option<String>) {
        if let Some(shelf) = self.models.get_mut(model) {
            shelf.short_since = None;
        }
    }

    /// A request waits no longer, for another reason; whether it did.
    pub(super) fn remove(&mut self, place: Place<'_>, key: RequestKey) -> bool {
        let line = self.models.get_mut(place.model).map(|shelf| &mut shelf.lines);
        let taken = line.and_then(|lines| lines[place.class.index()].take(place.tenant, key, false));
        if taken.is_some() {
            self.left(place);
        }
        taken.is_some()
    }

    fn left(&mut self, place: Place<'_>) {
        self.waiting[place.class.index()] -= 1;
        let empty = |shelf: &Shelf| shelf.lines.iter().all(|line| line.tenants.is_empty());
        if self.models.get(place.model).is_some_and(empty) {
            self.models.remove(place.model);
        }
    }

    /// Whether a request waits here.
    pub(super) fn contains(&self, place: Place<'_>, key: RequestKey) -> bool {
        let lane = self
            .models
            .get(place.model)
            .and_then(|shelf| shelf.lines[place.class.index()].tenants.get(place.tenant));
        lane.is_some_and(|lane| lane.waiting.contains_key(&key))
    }

    /// How many requests wait, by class.
    pub(super) const fn waiting(&self) -> [u32; 3] {
        self.waiting
    }

    /// How many requests wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.iter().map(|count| *count as usize).sum()
    }

    /// How many tokens wait, by class.
    pub(super) fn tokens(&self) -> [u64; 3] {
        Class::ALL.map(|class| {
            let lines = self.models.values().map(|shelf| &shelf.lines[class.index()]);
            lines.map(|line| line.tokens).sum()
        })
    }

    /// Tenants with something waiting, in any class.
    pub(super) fn tenants(&self) -> usize {
        let lines = self.models.values().flat_map(|shelf| &shelf.lines);
        let names: BTreeSet<&String> = lines.flat_map(|line| line.tenants.keys()).collect();
        names.len()
    }

    /// Tokens that are served before a request that would come now is: of its own tenant all, of each other tenant and class
    /// as much as they get meanwhile.
    pub(super) fn ahead(&self, place: Place<'_>, cost: u64, weights: [u32; 3]) -> u64 {
        let Some(shelf) = self.models.get(place.model) else {
            return 0;
        };
        let line = &shelf.lines[place.class.index()];
        let own = line.tenants.get(place.tenant).map_or(0, |lane| lane.tokens);
        let share = own.saturating_add(cost);
        let others = line
            .tenants
            .iter()
            .filter(|(tenant, _)| tenant.as_str() != place.tenant);
        let in_class: u64 = own + others.map(|(_, lane)| lane.tokens.min(share)).sum::<u64>();
        let mine = u64::from(weights[place.class.index()].max(1));
        let of_others = Class::ALL
            .into_iter()
            .filter(|class| *class != place.class)
            .map(|class| {
                let theirs = u64::from(weights[class.index()]);
                let meanwhile = in_class.saturating_add(cost).saturating_mul(theirs) / mine;
                shelf.lines[class.index()].tokens.min(meanwhile)
            });
        in_class.saturating_add(of_others.sum())
    }

    /// Who gives up its place for a request that comes while the queue is full: the last one of the tenant with the most
    /// waiting, in the least urgent class; nobody, if that would be the one that comes.
    pub(super) fn displaced_by(&self, place: Place<'_>, cost: u64) -> Option<RequestKey> {
        let fullest = |class: Class| {
            let lines = self.models.values().map(move |shelf| &shelf.lines[class.index()]);
            lines.filter_map(Line::fullest).max()
        };
        let lower = Class::ALL.into_iter().rev().take_while(|class| *class > place.class);
        if let Some((_, _, key)) = lower.filter_map(fullest).next() {
            return Some(key);
        }
        let (tokens, tenant, key) = fullest(place.class)?;
        let own = self
            .models
            .get(place.model)
            .and_then(|shelf| shelf.lines[place.class.index()].tenants.get(place.tenant))
            .map_or(0, |lane| lane.tokens);
        (tenant != place.tenant && tokens > own.saturating_add(cost)).then_some(key)
    }

    /// Everybody who waits.
    pub(super) fn keys(&self) -> impl Iterator<Item = RequestKey> {
        let lines = self.models.values().flat_map(|shelf| &shelf.lines);
        let lanes = lines.flat_map(|line| line.tenants.values());
        lanes.flat_map(|lane| lane.waiting.keys().copied())
    }

    /// Whether counts, sums and marks are those of what waits.
    pub(super) fn is_true(&self) -> bool {
        let counted = Class::ALL.map(|class| {
            let lines = self.models.values().map(|shelf| &shelf.lines[class.index()]);
            let lanes = lines.flat_map(|line| line.tenants.values());
            lanes
                .map(|lane| u32::try_from(lane.waiting.len()).unwrap_or(u32::MAX))
                .sum::<u32>()
        });
        let right = |line: &Line| {
            let marks: BTreeSet<_> = line
                .tenants
                .iter()
                .filter_map(|(tenant, lane)| Some((lane.mark()?, tenant.clone())))
                .collect();
            let lanes = line.tenants.values();
            marks == line.marks
                && marks.len() == line.tenants.len()
                && line.tokens == lanes.clone().map(|lane| lane.tokens).sum::<u64>()
                && lanes
                    .clone()
                    .all(|lane| lane.tokens == lane.waiting.values().sum::<u64>())
        };
        counted == self.waiting && self.models.values().flat_map(|shelf| &shelf.lines).all(right)
    }
}
