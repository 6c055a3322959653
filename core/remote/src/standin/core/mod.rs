//! The engine's core: requests, pages, leases and gauges. It moves only in steps.
//!
//! ```text
//! request  what is asked of it, and what becomes of that
//! step     what happens in steps
//! kv       what goes from one engine to another
//! gauges   what it shows of itself, and what it is
//! ```

mod gauges;
mod kv;
mod request;
mod step;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use gauges::Gauges;
pub(super) use request::{Ask, Out, Reach, Role, TicketOf};
use request::{Kept, Request, State, Unsent};

use super::Config;
use super::pages::Pages;

/// The core.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) config: Config,
    pub(super) engine_id: String,
    pages: Pages,
    requests: BTreeMap<u64, Request>,
    next_key: u64,
    kept: HashMap<String, Kept>,
    /// Engines that this one has shaken hands with.
    met: HashSet<String>,
    /// Tickets that were given back before the first contact with their engine.
    unsent: Vec<Unsent>,
    notices: Vec<String>,
    aborts: Vec<u64>,
    tombstones: HashSet<String>,
    /// Something was computed, begun or ended since the last step.
    moved: bool,
    counted: Gauges,
    shown: Gauges,
}

impl Core {
    pub(super) fn new(config: Config, engine_id: String) -> Self {
        Self {
            pages: Pages::new(config.pages, config.page_tokens),
            config,
            engine_id,
            requests: BTreeMap::new(),
            next_key: 0,
            kept: HashMap::new(),
            met: HashSet::new(),
            unsent: vec![],
            notices: vec![],
            aborts: vec![],
            tombstones: HashSet::new(),
            moved: false,
            counted: Gauges::default(),
            shown: Gauges::default(),
        }
    }

    /// Takes a request in; its number.
    pub(super) fn submit(&mut self, ask: Ask) -> u64 {
        self.next_key += 1;
        let key = self.next_key;
        if self.tombstones.remove(&ask.id) {
            self.aborts.push(key);
        }
        let request = Request {
            ask,
            pages: vec![],
            computed: 0,
            produced: vec![],
            state: State::Waiting,
            orphan: false,
        };
        self.requests.insert(key, request);
        key
    }

    /// Its client has gone.
    pub(super) fn abort(&mut self, key: u64) {
        self.aborts.push(key);
    }

    /// Somebody asks for an abort by id; whether there was one.
    pub(super) fn abort_id(&mut self, id: &str) -> bool {
        let found: Vec<_> = self
            .requests
            .iter()
            .filter(|(_, request)| !request.orphan && request.ask.id.starts_with(id))
            .map(|(key, _)| *key)
            .collect();
        self.aborts.extend(&found);
        let kept = (!self.config.bugs.close_after_finish_ignored)
            .then(|| self.kept.keys().find(|kept| kept.contains(id)).cloned())
            .flatten();
        self.notices.extend(kept.clone());
        let known = !found.is_empty() || kept.is_some();
        if !known && !self.config.bugs.early_abort_lost {
            self.tombstones.insert(id.to_owned());
        }
        known
    }

    pub(super) fn lives(&self, id: &str) -> bool {
        self.requests
            .values()
            .any(|request| !request.orphan && request.ask.id == id)
    }

    /// Ends everything, as a process does that minds having been stopped.
    pub(super) fn abort_all(&mut self) {
        self.aborts.extend(self.requests.keys());
    }

    /// Ends all leases now.
    pub(super) fn expire(&mut self, now: Instant) {
        for kept in self.kept.values_mut() {
            kept.until = now;
        }
    }

    /// Other requests come, use every free page, and go.
    pub(super) fn reuse_free_pages(&mut self) {
        let size = self.pages.page_tokens();
        let tokens = (self.pages.total() - self.pages.held()) * size;
        if let Some(taken) = self.pages.take(tokens) {
            self.pages.fill(&taken, &vec![7; tokens]);
            self.pages.give_back(&taken);
        }
    }
}
