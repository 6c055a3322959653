//! The engine's core: requests, pages, leases and gauges. It moves only in steps.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use super::pages::Pages;
use super::{Chooser, Config, Kind, next_token};
use crate::look::{Counts, Load};

/// What a request tells its HTTP side. Bounded by the tokens that were asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Out {
    Token(u32),
    Done {
        reason: &'static str,
        ticket: Option<String>,
    },
    Error(String),
}

/// What a request is for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Role {
    /// Computes and answers.
    Plain,
    /// vLLM: computes, and keeps the KV.
    Keep,
    /// vLLM: reads the KV and answers.
    Pull(TicketOf),
    /// SGLang: computes, and hands the KV over in a room.
    HandOver(u64),
    /// SGLang: takes KV in a room, and answers.
    TakeIn(u64),
}

/// A ticket as the engine reads it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TicketOf {
    pub(super) engine: String,
    pub(super) request: String,
    pub(super) blocks: Vec<u32>,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) id: String,
    pub(super) role: Role,
    pub(super) prompt: Vec<u32>,
    pub(super) max_tokens: usize,
    pub(super) stop_ids: Vec<u32>,
    pub(super) chooser: Chooser,
    pub(super) out: UnboundedSender<Out>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// In the queue.
    Waiting,
    /// SGLang: waits for the other engine (at prefill), or for its KV (at decode).
    Meeting,
    /// vLLM: reads, until then at the earliest.
    Pulling {
        until: Instant,
    },
    Computing,
    /// SGLang: computed, not handed over.
    Inflight {
        since: Instant,
    },
    Decoding,
}

#[derive(Debug)]
struct Request {
    ask: Ask,
    pages: Vec<u32>,
    computed: usize,
    produced: Vec<u32>,
    state: State,
    /// Nobody waits for it any more, but its pages are still written to.
    orphan: bool,
}

#[derive(Debug)]
struct Kept {
    pages: Vec<u32>,
    until: Instant,
}

/// A notice that waits for the first contact, and for a step of this engine.
#[derive(Debug)]
struct Unsent {
    ticket: TicketOf,
    /// When the first contact is over.
    at: Instant,
    /// A step was made since.
    stepped: bool,
}

/// Something in another engine that is to be touched once this one is unlocked.
#[derive(Debug, PartialEq)]
pub(super) enum Reach {
    /// Tell it that a ticket will not be read, or has been.
    Notice { engine: String, request: String },
    /// Read its pages.
    Read { key: u64, ticket: TicketOf },
    /// See whether decode's engine is in the room.
    Meet { key: u64, room: u64 },
    /// Give decode's engine the KV.
    HandOver { key: u64, room: u64, since: Instant },
}

/// All gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Gauges {
    pub(super) work: Counts,
    pub(super) load: Load,
    pub(super) bootstrap: u64,
    pub(super) transfer: u64,
    pub(super) held: usize,
    pub(super) external_tokens: u64,
    pub(super) expired: u64,
    pub(super) late_reads: u64,
}

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

    /// A ticket of another engine was given back here. Known engines are told at once.
    pub(super) fn give_back(&mut self, ticket: TicketOf, now: Instant) -> Option<Reach> {
        if self.config.bugs.notice_lost {
            return None;
        }
        if self.met.contains(&ticket.engine) {
            return Some(notice(ticket));
        }
        self.unsent.push(Unsent {
            ticket,
            at: now + self.config.wire_up,
            stepped: false,
        });
        None
    }

    /// Another engine has read the KV of a request, or will not.
    pub(super) fn hear(&mut self, request: String) {
        self.notices.push(request);
    }

    /// Another engine reads pages: whatever is in them now, unless it is too late and this is a good engine.
    pub(super) fn read(&mut self, ticket: &TicketOf) -> Result<Vec<Vec<u32>>, String> {
        if !self.kept.contains_key(&ticket.request) {
            self.counted.late_reads += 1;
            if !self.config.bugs.late_pull_foreign {
                return Err("the blocks are not kept any more".to_owned());
            }
        }
        Ok(ticket.blocks.iter().map(|block| self.pages.content(*block)).collect())
    }

    /// Whether anything is to be done.
    pub(super) fn has_work(&self) -> bool {
        !self.requests.is_empty() || !self.aborts.is_empty()
    }

    /// How long the next step takes.
    pub(super) fn pause(&self) -> Duration {
        let computing = self.requests.values().any(|request| request.state == State::Computing);
        if computing {
            self.config.chunk_time
        } else {
            self.config.step_time
        }
    }

    /// What happens between steps too.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<Reach> {
        for request in std::mem::take(&mut self.notices) {
            if let Some(kept) = self.kept.remove(&request) {
                self.pages.give_back(&kept.pages);
            }
        }
        let over: Vec<_> = self
            .kept
            .iter()
            .filter(|(_, kept)| kept.until <= now)
            .map(|(id, _)| id.clone())
            .collect();
        for id in over {
            if let Some(kept) = self.kept.remove(&id) {
                self.counted.expired += 1;
                self.pages.give_back(&kept.pages);
            }
        }
        let unsent = std::mem::take(&mut self.unsent);
        let leaves = |unsent: &Unsent| unsent.stepped && unsent.at <= now;
        let (ready, unsent): (Vec<_>, Vec<_>) = unsent.into_iter().partition(leaves);
        self.unsent = unsent;
        let met = ready.iter().map(|unsent| unsent.ticket.engine.clone());
        self.met.extend(met);
        ready.into_iter().map(|unsent| notice(unsent.ticket)).collect()
    }

    /// One step.
    pub(super) fn step(&mut self, now: Instant) -> Vec<Reach> {
        let mut reach = vec![];
        for unsent in &mut self.unsent {
            unsent.stepped = true;
        }
        for key in std::mem::take(&mut self.aborts) {
            self.end_aborted(key);
        }
        self.admit(now);
        self.chunk(now);
        let keys: Vec<_> = self.requests.keys().copied().collect();
        for key in keys {
            reach.extend(self.advance(key, now));
        }
        if std::mem::take(&mut self.moved) {
            // A step in which nothing was computed is none, and publishes nothing.
            self.counted.work.steps += 1;
            self.shown = self.live();
        }
        reach
    }

    fn end_aborted(&mut self, key: u64) {
        let pinned = self.config.bugs.aborted_pull_pinned;
        let Some(request) = self.requests.get_mut(&key) else {
            return;
        };
        if matches!(request.state, State::Pulling { .. }) && pinned {
            request.orphan = true;
            return;
        }
        let out = match self.config.kind {
            Kind::Vllm => Out::Done {
                reason: "abort",
                ticket: None,
            },
            Kind::SglangPrefill | Kind::SglangDecode => Out::Error("Aborted by AbortReq.".to_owned()),
        };
        self.finish(key, out);
    }

    /// The request is over: its pages go back.
    fn finish(&mut self, key: u64, out: Out) {
        if let Some(request) = self.requests.remove(&key) {
            self.moved = true;
            // Whoever asked may have gone.
            drop(request.ask.out.send(out));
            self.pages.give_back(&request.pages);
        }
    }

    fn admit(&mut self, now: Instant) {
        let busy = |request: &&Request| request.state != State::Waiting;
        let mut running = self.requests.values().filter(busy).count();
        for request in self.requests.values_mut() {
            if request.state != State::Waiting || running >= self.config.max_seqs {
                continue;
            }
            let answer = match request.ask.role {
                Role::Keep | Role::HandOver(_) => 0,
                Role::Plain | Role::Pull(_) | Role::TakeIn(_) => request.ask.max_tokens,
            };
            let Some(pages) = self.pages.take(request.ask.prompt.len() + answer) else {
                continue;
            };
            request.pages = pages;
            self.moved = true;
            running += 1;
            request.state = match &request.ask.role {
                Role::Plain | Role::Keep => State::Computing,
                Role::Pull(_) if self.config.bugs.recomputes => State::Computing,
                Role::Pull(ticket) => {
                    let first = !self.met.contains(&ticket.engine);
                    let wire_up = if first { self.config.wire_up } else { Duration::ZERO };
                    State::Pulling {
                        until: now + wire_up + self.config.pull_time,
                    }
                }
                Role::HandOver(_) | Role::TakeIn(_) => State::Meeting,
            };
        }
    }

    /// A chunk of the request that has waited longest.
    fn chunk(&mut self, now: Instant) {
        let first = self
            .requests
            .iter_mut()
            .find(|(_, request)| request.state == State::Computing);
        let Some((key, request)) = first else { return };
        let key = *key;
        self.moved = true;
        let total = request.ask.prompt.len();
        request.computed = (request.computed + self.config.chunk).min(total);
        if request.computed < total {
            return;
        }
        self.pages.fill(&request.pages, &request.ask.prompt);
        self.counted.work.prompt_tokens += total as u64;
        match request.ask.role {
            Role::Keep => self.keep(key, now),
            Role::HandOver(_) => request.state = State::Inflight { since: now },
            Role::Plain | Role::Pull(_) | Role::TakeIn(_) => request.state = State::Decoding,
        }
    }

    fn keep(&mut self, key: u64, now: Instant) {
        let Some(request) = self.requests.get_mut(&key) else {
            return;
        };
        let id = format!("{}-{key:08x}", request.ask.id);
        let pages = std::mem::take(&mut request.pages);
        let ticket = serde_json::json!({
            "do_remote_prefill": true, "do_remote_decode": false,
            "remote_block_ids": [pages], "remote_engine_id": self.engine_id, "remote_request_id": id,
            "remote_host": "127.0.0.1", "remote_port": 5600, "tp_size": 1,
            "remote_num_tokens": request.ask.prompt.len(), "remote_blocks_expiry_time": null, "transfer_mode": "pull",
        });
        let until = now + self.config.lease;
        self.kept.insert(id, Kept { pages, until });
        self.counted.work.output_tokens += 1;
        self.counted.work.finished += 1;
        let out = Out::Done {
            reason: "length",
            ticket: Some(ticket.to_string()),
        };
        self.finish(key, out);
    }

    fn advance(&mut self, key: u64, now: Instant) -> Option<Reach> {
        let request = self.requests.get(&key)?;
        match (&request.ask.role, request.state) {
            (Role::Pull(ticket), State::Pulling { until }) if until <= now => Some(Reach::Read {
                key,
                ticket: ticket.clone(),
            }),
            (Role::HandOver(room), State::Meeting) => Some(Reach::Meet { key, room: *room }),
            (Role::HandOver(room), State::Inflight { since }) => Some(Reach::HandOver {
                key,
                room: *room,
                since,
            }),
            (_, State::Decoding) => {
                self.decode(key);
                None
            }
            _ => None,
        }
    }

    fn decode(&mut self, key: u64) {
        let Some(request) = self.requests.get_mut(&key) else {
            return;
        };
        let prompt = self.pages.tokens(&request.pages).take(request.ask.prompt.len());
        let context = prompt.chain(request.produced.iter().copied());
        let token = next_token(context, request.produced.len(), request.ask.chooser);
        request.produced.push(token);
        self.moved = true;
        self.counted.work.output_tokens += 1;
        drop(request.ask.out.send(Out::Token(token)));
        let stopped = request.ask.stop_ids.contains(&token);
        if stopped || request.produced.len() >= request.ask.max_tokens {
            self.counted.work.finished += 1;
            let reason = if stopped { "stop" } else { "length" };
            self.finish(key, Out::Done { reason, ticket: None });
        }
    }

    /// A read has ended.
    pub(super) fn read_done(&mut self, key: u64, read: Result<Vec<Vec<u32>>, String>) -> Option<Reach> {
        let request = self.requests.get_mut(&key)?;
        let Role::Pull(ticket) = request.ask.role.clone() else {
            return None;
        };
        match read {
            Ok(content) if !request.orphan => {
                self.met.insert(ticket.engine.clone());
                self.counted.external_tokens += request.ask.prompt.len() as u64;
                request.state = State::Decoding;
                for (page, content) in request.pages.iter().zip(content) {
                    self.pages.put(*page, content);
                }
                Some(notice(ticket))
            }
            Ok(_) => {
                self.finish(key, Out::Error("aborted".to_owned()));
                Some(notice(ticket))
            }
            Err(why) => {
                self.finish(key, Out::Error(format!("KV load failed: {why}")));
                None
            }
        }
    }

    /// Decode's engine is in the room.
    pub(super) fn met(&mut self, key: u64) {
        if let Some(request) = self.requests.get_mut(&key) {
            request.state = State::Computing;
        }
    }

    /// Whether a request of this room waits for its KV here.
    pub(super) fn waits_in(&self, room: u64) -> bool {
        self.requests
            .values()
            .any(|request| request.ask.role == Role::TakeIn(room) && request.state == State::Meeting)
    }

    /// The KV of a request that is in flight.
    pub(super) fn in_flight(&self, key: u64) -> Vec<Vec<u32>> {
        let pages = self.requests.get(&key).map(|request| request.pages.clone());
        pages
            .unwrap_or_default()
            .into_iter()
            .map(|page| self.pages.content(page))
            .collect()
    }

    /// Prefill's part is over: the KV was taken, or it will not be.
    pub(super) fn handed_over(&mut self, key: u64, taken: Result<(), String>) {
        match taken {
            Ok(()) => {
                self.counted.work.finished += 1;
                let reason = "length";
                self.finish(key, Out::Done { reason, ticket: None });
            }
            Err(why) => self.finish(key, Out::Error(why)),
        }
    }

    /// Takes the KV of a room in; `Err`: prefill has given up. Whether anybody waited for it.
    pub(super) fn take_in(&mut self, room: u64, content: Result<Vec<Vec<u32>>, String>) -> bool {
        let waiting = self
            .requests
            .iter_mut()
            .find(|(_, request)| request.ask.role == Role::TakeIn(room) && request.state == State::Meeting);
        let Some((key, request)) = waiting else { return false };
        match content {
            Ok(content) => {
                for (page, content) in request.pages.iter().zip(content) {
                    self.pages.put(*page, content);
                }
                request.state = State::Decoding;
            }
            Err(why) => {
                let key = *key;
                self.finish(key, Out::Error(why));
            }
        }
        true
    }

    /// Ends everything, as a process does that minds having been stopped.
    pub(super) fn abort_all(&mut self) {
        self.aborts.extend(self.requests.keys());
    }

    fn count(&self, is: impl Fn(&Request) -> bool) -> u64 {
        self.requests.values().filter(|request| is(request)).count() as u64
    }

    /// Gauges as they are.
    fn live(&self) -> Gauges {
        let pulling = self.count(|request| !request.orphan && matches!(request.state, State::Pulling { .. }));
        let meeting = self.count(|request| request.state == State::Meeting);
        let held = self.pages.held();
        let prefill = self.config.kind == Kind::SglangPrefill;
        Gauges {
            load: Load {
                running: self.count(|request| matches!(request.state, State::Computing | State::Decoding)),
                waiting: self.count(|request| request.state == State::Waiting) + pulling,
                deferred: pulling,
                used: (held * 1_000_000 / self.pages.total().max(1)) as u64,
                inflight: self.count(|request| matches!(request.state, State::Inflight { .. })),
                mark: 0,
            },
            bootstrap: if prefill { meeting } else { 0 },
            transfer: if prefill { 0 } else { meeting },
            held,
            ..self.counted
        }
    }

    /// Gauges as they are shown.
    pub(super) fn gauges(&self) -> Gauges {
        if self.config.bugs.metrics_stale && self.config.kind == Kind::Vllm {
            self.shown
        } else {
            self.live()
        }
    }

    /// Pages in use, as they are.
    pub(super) fn held(&self) -> usize {
        self.pages.held()
    }

    /// Prompts that are kept for a reader.
    pub(super) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Requests in hand.
    pub(super) fn requests(&self) -> usize {
        self.requests.len()
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

fn notice(ticket: TicketOf) -> Reach {
    Reach::Notice {
        engine: ticket.engine,
        request: ticket.request,
    }
}
