//! What happens in steps.

use std::time::{Duration, Instant};

use super::Core;
use super::request::{Kept, Out, Reach, Request, Role, State, Unsent, notice};
use crate::standin::{Kind, next_token};

impl Core {
    /// Whether anything is to be done.
    pub(in crate::standin) fn has_work(&self) -> bool {
        !self.requests.is_empty() || !self.aborts.is_empty()
    }

    /// How long the next step takes.
    pub(in crate::standin) fn pause(&self) -> Duration {
        let computing = self.requests.values().any(|request| request.state == State::Computing);
        if computing {
            self.config.chunk_time
        } else {
            self.config.step_time
        }
    }

    /// What happens between steps too.
    pub(in crate::standin) fn tick(&mut self, now: Instant) -> Vec<Reach> {
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
    pub(in crate::standin) fn step(&mut self, now: Instant) -> Vec<Reach> {
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
    pub(super) fn finish(&mut self, key: u64, out: Out) {
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
}
