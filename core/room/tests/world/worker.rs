//! The workers' executors: what a ledger orders is done here as the real actors do it, and answered as they answer it.

use std::collections::{BTreeMap, BTreeSet};

use innkeeper_room::ledger::router::Load;
use innkeeper_room::ledger::{EngineView, decode, prefill};
use innkeeper_room::{BlockHash, Counters, Epoch, FromWorker, Millis, RoomId, RoomSpec};

use crate::control::CtlMsg;
use crate::data::DataMsg;
use crate::node::{Brain, In, WRoom, names};
use crate::rules;
use crate::world::{Act, PAGE_TOKENS, World, tell};

impl World {
    // === steps ===

    /// One step of a prefill worker's ledger, and all that it orders.
    pub(crate) fn step_prefill(&mut self, p: usize, event: prefill::Event) {
        let now = self.clock(p);
        if !matches!(
            event,
            prefill::Event::Tick | prefill::Event::Engine(_) | prefill::Event::Sample { .. }
        ) {
            tell!(self, "P{p} <- {event:?}");
        }
        let (room, kind) = rules::of_prefill(&event);
        let before = self.before(p, room);
        let Brain::P(ledger) = &mut self.nodes[p].brain else {
            return;
        };
        let effects = ledger.step(event, now);
        let (stuck, violations) = (ledger.gauges(now).stuck, ledger.violations());
        self.judge(p, stuck, violations);
        let orders: Vec<_> = effects.iter().map(Into::into).collect();
        self.after(p, kind, &before, &orders);
        for effect in effects {
            self.do_prefill(p, effect);
        }
        self.after_step(p);
    }

    /// One step of a decode worker's ledger, and all that it orders.
    pub(crate) fn step_decode(&mut self, d: usize, event: decode::Event) {
        let now = self.clock(d);
        if !matches!(
            event,
            decode::Event::Tick | decode::Event::Engine(_) | decode::Event::PeerProgress { .. }
        ) {
            tell!(self, "D{d} <- {event:?}");
        }
        let (room, kind) = rules::of_decode(&event);
        let before = self.before(d, room);
        let Brain::D(ledger) = &mut self.nodes[d].brain else {
            return;
        };
        let effects = ledger.step(event, now);
        let (stuck, violations) = (ledger.gauges(now).stuck, ledger.violations());
        self.judge(d, stuck, violations);
        let orders: Vec<_> = effects.iter().map(Into::into).collect();
        self.after(d, kind, &before, &orders);
        for effect in effects {
            self.do_decode(d, effect);
        }
        self.after_step(d);
    }

    pub(crate) fn judge(&mut self, node: usize, stuck: u32, violations: Vec<innkeeper_room::Violation>) {
        if stuck > 0 {
            self.wrong(format!("{} has a stuck part", self.nodes[node].name()));
        }
        for violation in violations {
            self.wrong(format!("{}: {violation}", self.nodes[node].name()));
        }
    }

    pub(crate) fn after_step(&mut self, node: usize) {
        if self.nodes[node].up {
            self.set_alarm(node);
        }
    }

    pub(crate) fn do_prefill(&mut self, p: usize, effect: prefill::Effect) {
        tell!(self, "P{p} -> {effect:?}");
        match effect {
            prefill::Effect::Tell { room, message } => self.tell_router(p, room, message),
            prefill::Effect::Begin { .. } => {}
            prefill::Effect::Connect { room, epoch, after } => {
                if let Some(wr) = self.nodes[p].rooms.get_mut(&room) {
                    wr.dialing.insert(epoch);
                }
                let life = self.nodes[p].life;
                self.schedule(self.now + after.0, Act::In(p, life, In::Dial { room, epoch }));
            }
            prefill::Effect::SayStarted { room, epoch } => {
                if let Some(id) = self.session_of(p, room, epoch) {
                    self.data_send(id, true, DataMsg::Started);
                }
            }
            prefill::Effect::Compute { room, tokens, reuse } => self.compute(p, room, tokens, &reuse),
            prefill::Effect::CancelEngine { room } => self.cancel(p, room),
            prefill::Effect::SayFail {
                room,
                epoch,
                reason,
                evidence,
            } => match self.session_of(p, room, epoch) {
                Some(id) => self.data_word(id, false, Some(DataMsg::Fail(reason, Box::new(evidence)))),
                None => self.kill_p(p, room, epoch),
            },
            prefill::Effect::FinishSession { room, epoch } => match self.session_of(p, room, epoch) {
                Some(id) => self.data_word(id, false, None),
                None => self.kill_p(p, room, epoch),
            },
            prefill::Effect::KillSession {
                room,
                epoch: Epoch::TICKET,
            } => self.give_back(p, room),
            prefill::Effect::KillSession { room, epoch } => self.kill_p(p, room, epoch),
            prefill::Effect::ClosePages { room, keep } => self.close_pages(p, room, &keep),
            prefill::Effect::Evict { blocks } => self.uncache(p, &blocks),
            prefill::Effect::End { room } => self.end_room_at(p, room),
            prefill::Effect::Serving(serving) => self.nodes[p].serving = serving,
            prefill::Effect::Exit { why } => self.exit(p, why),
        }
    }

    pub(crate) fn do_decode(&mut self, d: usize, effect: decode::Effect) {
        tell!(self, "D{d} -> {effect:?}");
        match effect {
            decode::Effect::Tell { room, message } => self.tell_router(d, room, message),
            decode::Effect::Begin { .. } => {}
            // The engine takes them when it reads: until then they are only reserved.
            decode::Effect::OpenPages { .. } if self.shape.remote => {}
            decode::Effect::OpenPages { room, tokens } => {
                let pages = tokens.div_ceil(PAGE_TOKENS).max(1);
                if !self.nodes[d].pool.open(room, pages, &[]) {
                    self.wrong(format!("I7: D{d} has no {pages} pages for {room}"));
                }
            }
            decode::Effect::Reply {
                session,
                room,
                epoch,
                reply,
            } => self.reply(d, session.0, room, epoch, reply),
            decode::Effect::KillSession { room, epoch } => match self.session_of(d, room, epoch) {
                Some(id) => self.data_kill(id, true),
                None => self.d_event_soon(d, decode::Event::Quiesced { room, epoch }),
            },
            decode::Effect::SayCommitted { room, epoch } => {
                if let Some(id) = self.session_of(d, room, epoch) {
                    self.data_word(id, true, Some(DataMsg::Committed));
                }
            }
            decode::Effect::SayFail {
                room,
                epoch,
                reason,
                evidence,
            } => {
                if let Some(id) = self.session_of(d, room, epoch) {
                    self.data_word(id, true, Some(DataMsg::Fail(reason, Box::new(evidence))));
                }
            }
            decode::Effect::Decode { room } => self.decode(d, room),
            decode::Effect::Pull { room } => self.pull(d, room),
            decode::Effect::CancelEngine { room } => self.cancel(d, room),
            decode::Effect::ClosePages { room } => self.close_pages(d, room, &[]),
            decode::Effect::End { room } => self.end_room_at(d, room),
            decode::Effect::Serving(serving) => self.nodes[d].serving = serving,
            decode::Effect::Exit { why } => self.exit(d, why),
        }
    }

    // === rooms ===

    /// R opens a room here.
    pub(crate) fn open_at(&mut self, w: usize, spec: RoomSpec, token: u64, generation: u32) {
        let (room, fresh) = (spec.room, self.secret(spec.room));
        let stream = self.nodes[w].streams.get(&room);
        if stream.is_none_or(|stream| stream.generation != generation) {
            // The stream ended before the ledger could look at it: it hears of that next.
            tell!(self, "{} opens {room}, whose stream is gone", self.nodes[w].name());
        }
        let p = matches!(self.nodes[w].brain, Brain::P(_));
        let secret = if p { token } else { fresh };
        let names = if self.cached {
            names(spec.prompt_tokens, PAGE_TOKENS)
        } else {
            vec![]
        };
        let blocks = names.clone().into();
        let wr = WRoom {
            names,
            covered: vec![false; spec.prompt_tokens.div_ceil(PAGE_TOKENS).max(1) as usize],
            spec: spec.clone(),
            token: secret,
            sealed: 0,
            manifest: None,
            ticket: None,
            ticket_gone: false,
            ready_at: None,
            unfinished_at: None,
            counters: Counters::default(),
            sessions: BTreeMap::new(),
            fenced: Epoch(0),
            dialing: BTreeSet::new(),
            ended: false,
        };
        self.nodes[w].rooms.entry(room).or_insert(wr);
        if p {
            let decode_addr = String::new();
            self.step_prefill(
                w,
                prefill::Event::Open {
                    spec,
                    decode_addr,
                    token,
                    blocks,
                },
            );
        } else {
            self.step_decode(w, decode::Event::Open { spec, token: fresh });
        }
    }

    pub(crate) fn tell_router(&mut self, w: usize, room: RoomId, message: FromWorker) {
        if matches!(message, FromWorker::Ended { .. }) {
            let life = self.nodes[w].life;
            let ends = self.part_ends.entry((w, life, room)).or_insert(0);
            *ends += 1;
            if *ends > 1 {
                self.wrong(format!("I1: the part of {room} at {w} ends twice"));
            }
        }
        let refused = matches!(message, FromWorker::Refused(_));
        if let Some(stream) = self.nodes[w].streams.get(&room).copied() {
            self.ctl_send(w, stream.generation, false, CtlMsg::Said(room, Box::new(message)));
        }
        if refused {
            self.nodes[w].rooms.remove(&room);
            self.end_stream(w, room);
        }
    }

    pub(crate) fn end_stream(&mut self, w: usize, room: RoomId) {
        if let Some(stream) = self.nodes[w].streams.remove(&room) {
            self.ctl_send(w, stream.generation, false, CtlMsg::EndOfStream(room));
        }
    }

    pub(crate) fn end_room_at(&mut self, w: usize, room: RoomId) {
        self.end_stream(w, room);
        if let Some(wr) = self.nodes[w].rooms.get_mut(&room) {
            wr.ended = true;
        }
    }

    pub(crate) fn exit(&mut self, w: usize, why: &str) {
        tell!(self, "{} exits: {why}", self.nodes[w].name());
        self.crash(w, 500);
    }

    pub(crate) fn close_pages(&mut self, w: usize, room: RoomId, keep: &[(u32, BlockHash)]) {
        let life = self.nodes[w].life;
        let late = self.sessions.values().any(|s| {
            let writes = s.d == w && s.d_life == life && s.grant.is_some();
            let reads = s.p == w && s.p_life == life && !s.at_p.quiesced;
            s.room == room && (writes || reads)
        });
        if late && self.nodes[w].up {
            self.wrong(format!(
                "I6: {} gives back the pages of {room} while a session may touch them",
                self.nodes[w].name()
            ));
        }
        if self.nodes[w].engine.jobs.iter().any(|job| job.room == room) {
            self.wrong(format!(
                "I6: {} gives back the pages of {room} under its engine",
                self.nodes[w].name()
            ));
        }
        if self.shape.remote {
            if self.nodes[w].pool.of.contains_key(&room) {
                self.wrong(format!(
                    "I6: {}'s engine holds the pages of {room} that are given back",
                    self.nodes[w].name()
                ));
            }
            return;
        }
        if let Err(what) = self.nodes[w].pool.close(room, keep) {
            self.wrong(format!("{what}, at {}", self.nodes[w].name()));
        }
    }

    pub(crate) fn uncache(&mut self, p: usize, names: &[BlockHash]) {
        for name in names {
            if let Err(what) = self.nodes[p].pool.evict(*name) {
                self.wrong(format!("{what}, at P{p}"));
            }
        }
    }

    /// Every report period: the engine, the rooms' counters, the Load.
    pub(crate) fn worker_period(&mut self, w: usize) {
        let engine = &self.nodes[w].engine;
        let progress = engine.progress;
        // A canary that is not answered.
        let silent = (engine.wedged && engine.remote.owes()).then_some(engine.remote.wedged_at);
        let in_hand = engine.in_hand.or(silent).map(|since| Millis(self.now - since));
        let view = EngineView {
            progress,
            in_hand,
            alive: true,
        };
        if matches!(self.nodes[w].brain, Brain::P(_)) {
            self.step_prefill(w, prefill::Event::Engine(view));
            let rooms: Vec<RoomId> = self.nodes[w]
                .rooms
                .iter()
                .filter(|(_, wr)| !wr.ended)
                .map(|(room, _)| *room)
                .collect();
            for room in rooms {
                self.sample(w, room, progress);
            }
        } else {
            self.step_decode(w, decode::Event::Engine(view));
        }
        let now = self.clock(w);
        let gauges = match &self.nodes[w].brain {
            Brain::R(_) => return,
            Brain::P(ledger) => ledger.gauges(now),
            Brain::D(ledger) => ledger.gauges(now),
        };
        let pages = gauges.pages;
        let total = self.shape.pages_of(w);
        if pages.total() != total {
            self.wrong(format!("I7: {} has {pages:?} of {total}", self.nodes[w].name()));
        }
        let n = &self.nodes[w];
        let load = Load {
            engine_progress: progress,
            engine_owes: in_hand.unwrap_or_default(),
            free_pages: pages.available(),
            rooms: gauges.room_permits,
            serving: n.serving,
        };
        let (incarnation, up) = (n.incarnation, n.up);
        if let Some(generation) = self.ctl.get(&w).filter(|ctl| ctl.up_w && up).map(|ctl| ctl.generation) {
            self.ctl_send(w, generation, false, CtlMsg::Load(incarnation, load));
        }
        let pool = &self.nodes[w].pool;
        let idle: Vec<RoomId> = self.nodes[w]
            .rooms
            .iter()
            .filter(|(room, wr)| {
                wr.ended && wr.sessions.is_empty() && wr.dialing.is_empty() && !pool.of.contains_key(room)
            })
            .map(|(room, _)| *room)
            .collect();
        for room in idle {
            self.nodes[w].rooms.remove(&room);
        }
    }

    pub(crate) fn sample(&mut self, p: usize, room: RoomId, progress: u64) {
        let Some(wr) = self.nodes[p].rooms.get(&room) else {
            return;
        };
        let (counters, current) = (wr.counters, wr.sessions.values().next_back().copied());
        let mut unacked = false;
        if let Some(id) = current {
            let slow = self.settings.tcp_user_timeout.0 / 4;
            unacked = self
                .sessions
                .get(&id)
                .and_then(|s| s.hole_since)
                .is_some_and(|since| since + slow <= self.now);
            if self.sessions.get(&id).is_some_and(|s| s.ready && !s.at_p.over) {
                self.data_send(id, true, DataMsg::Progress(progress));
            }
        }
        self.step_prefill(
            p,
            prefill::Event::Sample {
                room,
                counters,
                unacked,
            },
        );
    }

    /// R asks what this node sees of a room.
    pub(crate) fn answer_evidence(&mut self, w: usize, room: RoomId, generation: u32, until: u64) {
        let now = self.clock(w);
        let seen = match &self.nodes[w].brain {
            Brain::R(_) => None,
            Brain::P(ledger) => ledger.evidence(room, now),
            Brain::D(ledger) => ledger.evidence(room, now),
        };
        if let Some(evidence) = seen.filter(|_| self.now <= until) {
            self.ctl_send(w, generation, false, CtlMsg::Evidence(room, Box::new(evidence)));
        }
    }
}
