//! The control plane: one connection per worker, shared by its node stream and its rooms' streams. Breaks are seen by one
//! end or both; silence is found by pings.

use std::collections::BTreeMap;

use innkeeper_room::ledger::router::{Effect, Event, Load, MemberInfo, Side};
use innkeeper_room::{Evidence, FromWorker, Incarnation, RoomId, RoomSpec, ToWorker};

use crate::node::{Brain, In, index_of};
use crate::store::StoreAct;
use crate::world::{Act, World, tell};

/// What travels on a control connection.
#[derive(Clone, Debug)]
pub enum CtlMsg {
    Open { spec: Box<RoomSpec>, token: u64 },
    Say(RoomId, ToWorker),
    EndOfStream(RoomId),
    Who,
    AskEvidence(RoomId),
    Said(RoomId, Box<FromWorker>),
    Load(Incarnation, Load),
    Identity { asked: Incarnation, answered: Incarnation },
    Evidence(RoomId, Box<Evidence>),
}

/// The connection to one worker's address.
#[derive(Debug, Default)]
pub struct Ctl {
    pub generation: u32,
    pub up_r: bool,
    pub up_w: bool,
    pub w_life: u32,
    pub r_life: u32,
    pub hole_since: Option<u64>,
    pub extra: u64,
    pub duplicate: bool,
    pub lose_next: bool,
    last: [u64; 2],
    held: Vec<Act>,
    retrying: bool,
}

/// R's end of a room's stream.
#[derive(Clone, Copy, Debug)]
pub struct RStream {
    pub generation: u32,
    pub closing: bool,
}

/// What the router's executor keeps.
#[derive(Default)]
pub struct RouterSide {
    pub nodes: BTreeMap<Incarnation, RNode>,
    pub streams: BTreeMap<(RoomId, Side), RStream>,
    pub rooms: BTreeMap<RoomId, (RoomSpec, u32)>,
}

/// A worker that the router keeps a node stream to.
#[derive(Clone, Copy, Debug)]
pub struct RNode {
    pub w: usize,
    pub up: bool,
}

fn side_of(world: &World, w: usize) -> Side {
    if w <= world.shape.prefills { Side::Prefill } else { Side::Decode }
}

impl World {
    // === the connection ===

    /// Sends a message; order is kept.
    pub fn ctl_send(&mut self, w: usize, generation: u32, to_w: bool, msg: CtlMsg) {
        let lat = self.rng.between(1, 6);
        let now = self.now;
        let Some(ctl) = self.ctl.get_mut(&w) else { return };
        let up = if to_w { ctl.up_r } else { ctl.up_w };
        if ctl.generation != generation || !up {
            return;
        }
        let extra = ctl.extra;
        let slot = &mut ctl.last[usize::from(to_w)];
        let at = (now + lat + extra).max(*slot);
        *slot = at;
        let is_room = matches!(msg, CtlMsg::Say(..) | CtlMsg::Said(..));
        let twice = is_room && std::mem::take(&mut ctl.duplicate);
        let lost = is_room && std::mem::take(&mut ctl.lose_next);
        if lost {
            let (CtlMsg::Say(room, _) | CtlMsg::Said(room, _)) = msg else { return };
            tell!(self, "a message of {room} to or from {w} is lost: its stream breaks");
            return self.break_stream(w, room);
        }
        self.schedule(at, Act::Ctl { w, generation, to_w, msg: msg.clone() });
        if twice {
            self.schedule(at, Act::Ctl { w, generation, to_w, msg });
        }
    }

    /// One stream is reset; both ends see it.
    fn break_stream(&mut self, w: usize, room: RoomId) {
        let side = side_of(self, w);
        let life = self.nodes[w].life;
        if self.nodes[w].streams.remove(&room).is_some() {
            self.worker_stream_ended(w, life, room, 3);
        }
        if self.router.streams.remove(&(room, side)).is_some() {
            let life = self.nodes[0].life;
            let ended = Event::StreamEnded { room, side, broken: false };
            self.schedule(self.now + 4, Act::In(0, life, In::R(ended)));
        }
    }

    fn worker_stream_ended(&mut self, w: usize, life: u32, room: RoomId, after: u64) {
        let event = match self.nodes[w].brain {
            Brain::P(_) => In::P(innkeeper_room::ledger::prefill::Event::StreamEnded { room }),
            Brain::D(_) => In::D(innkeeper_room::ledger::decode::Event::StreamEnded { room }),
            Brain::R(_) => return,
        };
        self.schedule(self.now + after, Act::In(w, life, event));
    }

    /// A message arrives, unless the connection is a black hole or gone.
    pub fn ctl_arrives(&mut self, w: usize, generation: u32, to_w: bool, msg: CtlMsg) {
        let Some(ctl) = self.ctl.get_mut(&w) else { return };
        if ctl.generation != generation {
            return;
        }
        if ctl.hole_since.is_some() {
            ctl.held.push(Act::Ctl { w, generation, to_w, msg });
            return;
        }
        let (up, life) = if to_w { (ctl.up_w, ctl.w_life) } else { (ctl.up_r, ctl.r_life) };
        if !up {
            return;
        }
        if to_w { self.at_worker(w, life, generation, msg) } else { self.at_router(w, life, generation, msg) }
    }

    fn at_worker(&mut self, w: usize, life: u32, generation: u32, msg: CtlMsg) {
        let p = w <= self.shape.prefills;
        match msg {
            CtlMsg::Open { spec, token } => {
                self.nodes[w].streams.insert(spec.room, crate::node::WStream { generation });
                self.input(w, life, In::Open { spec, token, generation });
            }
            CtlMsg::Say(room, message) => {
                if self.nodes[w].streams.contains_key(&room) {
                    let event = if p {
                        In::P(innkeeper_room::ledger::prefill::Event::FromRouter { room, message })
                    } else {
                        In::D(innkeeper_room::ledger::decode::Event::FromRouter { room, message })
                    };
                    self.input(w, life, event);
                }
            }
            CtlMsg::EndOfStream(room) => {
                if self.nodes[w].streams.contains_key(&room) {
                    self.worker_stream_ended(w, life, room, 0);
                }
            }
            CtlMsg::Who => {
                if self.nodes[w].stopped.is_none() && self.nodes[w].up {
                    let answered = self.nodes[w].incarnation;
                    let asked = answered;
                    self.ctl_send(w, generation, false, CtlMsg::Identity { asked, answered });
                }
            }
            CtlMsg::AskEvidence(room) => {
                let until = self.now + self.settings.blame_wait.0;
                self.input(w, life, In::Evidence { room, generation, until });
            }
            CtlMsg::Said(..) | CtlMsg::Load(..) | CtlMsg::Identity { .. } | CtlMsg::Evidence(..) => {}
        }
    }

    fn at_router(&mut self, w: usize, life: u32, generation: u32, msg: CtlMsg) {
        let side = side_of(self, w);
        let known = |world: &Self, room| {
            world.router.streams.get(&(room, side)).is_some_and(|stream| stream.generation == generation)
        };
        match msg {
            CtlMsg::Said(room, message) => {
                if known(self, room) {
                    self.input(0, life, In::R(Event::FromWorker { room, side, message: *message }));
                }
            }
            CtlMsg::EndOfStream(room) => {
                if known(self, room) {
                    self.router.streams.remove(&(room, side));
                    self.input(0, life, In::R(Event::StreamEnded { room, side, broken: false }));
                }
            }
            CtlMsg::Load(incarnation, load) => self.hear_load(w, life, incarnation, load),
            CtlMsg::Identity { answered, .. } => {
                let asked: Vec<Incarnation> =
                    self.router.nodes.iter().filter(|(_, node)| node.w == w).map(|(inc, _)| *inc).collect();
                for asked in asked {
                    self.input(0, life, In::R(Event::WhoAnswered { asked, answered }));
                }
            }
            CtlMsg::Evidence(room, evidence) => {
                let message = FromWorker::Evidence(*evidence);
                self.input(0, life, In::R(Event::FromWorker { room, side, message }));
            }
            CtlMsg::Open { .. } | CtlMsg::Say(..) | CtlMsg::Who | CtlMsg::AskEvidence(_) => {}
        }
    }

    fn hear_load(&mut self, w: usize, life: u32, incarnation: Incarnation, load: Load) {
        let mut events = vec![];
        for (meant, node) in self.router.nodes.iter_mut().filter(|(_, node)| node.w == w) {
            if *meant == incarnation {
                if !std::mem::replace(&mut node.up, true) {
                    events.push(Event::NodeUp { incarnation });
                }
                events.push(Event::Load { incarnation, load });
            } else {
                node.up = false;
                events.push(Event::NodeDown { incarnation: *meant });
            }
        }
        for event in events {
            self.input(0, life, In::R(event));
        }
    }

    /// One end sees the connection broken.
    pub fn ctl_breaks(&mut self, w: usize, generation: u32, at_r: bool) {
        let Some(ctl) = self.ctl.get_mut(&w) else { return };
        if at_r {
            if ctl.generation != generation || !std::mem::take(&mut ctl.up_r) {
                return;
            }
            let life = ctl.r_life;
            tell!(self, "R sees the control connection to {w} broken");
            let side = side_of(self, w);
            let gone: Vec<RoomId> = self
                .router
                .streams
                .iter()
                .filter(|((_, s), stream)| *s == side && stream.generation == generation)
                .filter(|((room, _), _)| self.stream_leads_to(*room, side, w))
                .map(|((room, _), _)| *room)
                .collect();
            let mut events: Vec<Event> =
                gone.iter().map(|room| Event::StreamEnded { room: *room, side, broken: true }).collect();
            let mut downs = vec![];
            for (meant, node) in self.router.nodes.iter_mut().filter(|(_, node)| node.w == w) {
                if std::mem::take(&mut node.up) {
                    downs.push(Event::NodeDown { incarnation: *meant });
                }
            }
            if self.rng.one_in(2) {
                events.splice(0..0, downs);
            } else {
                events.extend(downs);
            }
            for room in gone {
                self.router.streams.remove(&(room, side));
            }
            for event in events {
                self.input(0, life, In::R(event));
            }
            self.retry_soon(w);
        } else {
            let life = ctl.w_life;
            if ctl.generation == generation {
                ctl.up_w = false;
            }
            tell!(self, "{} sees its control connection broken", self.nodes[w].name());
            let gone: Vec<RoomId> = self.nodes[w]
                .streams
                .iter()
                .filter(|(_, stream)| stream.generation == generation)
                .map(|(room, _)| *room)
                .collect();
            for room in gone {
                self.nodes[w].streams.remove(&room);
                self.worker_stream_ended(w, life, room, 0);
            }
        }
    }

    fn stream_leads_to(&self, room: RoomId, side: Side, w: usize) -> bool {
        self.router.rooms.get(&room).is_some_and(|(spec, _)| {
            index_of(match side {
                Side::Prefill => spec.prefill,
                Side::Decode => spec.decode,
            }) == w
        })
    }

    fn retry_soon(&mut self, w: usize) {
        let Some(ctl) = self.ctl.get_mut(&w) else { return };
        if !std::mem::replace(&mut ctl.retrying, true) {
            let after = self.rng.between(50, 200);
            self.schedule(self.now + after, Act::CtlRetry(w));
        }
    }

    /// R tries to connect.
    pub fn ctl_retry(&mut self, w: usize) {
        if let Some(ctl) = self.ctl.get_mut(&w) {
            ctl.retrying = false;
        }
        let wanted = self.router.nodes.values().any(|node| node.w == w);
        if wanted && !self.ctl.get(&w).is_some_and(|ctl| ctl.up_r) && !self.connect(w) {
            self.retry_soon(w);
        }
    }

    /// A new connection, if both ends are there.
    fn connect(&mut self, w: usize) -> bool {
        let reachable = self.nodes[w].up && self.nodes[w].stopped.is_none();
        let r_runs = self.nodes[0].up && self.nodes[0].stopped.is_none();
        let (w_life, r_life) = (self.nodes[w].life, self.nodes[0].life);
        let Some(ctl) = self.ctl.get_mut(&w) else { return false };
        if ctl.up_r && ctl.r_life == r_life {
            return true;
        }
        if !reachable || !r_runs || ctl.hole_since.is_some() {
            return false;
        }
        let old = (ctl.generation, ctl.up_w, ctl.w_life);
        ctl.generation += 1;
        ctl.up_r = true;
        ctl.up_w = true;
        ctl.w_life = w_life;
        ctl.r_life = r_life;
        ctl.last = [0, 0];
        ctl.held.clear();
        tell!(self, "R connects to {}", self.nodes[w].name());
        if old.1 && old.2 == w_life {
            // The old connection is half open at the worker, which finds out by its pings.
            let at = self.now + self.settings.ping_interval.0 + self.settings.ping_timeout.0;
            self.schedule(at, Act::CtlBreak { w, generation: old.0, at_r: false });
        }
        true
    }

    /// Cuts the connection at one end or both.
    pub fn ctl_cut(&mut self, w: usize, at_r: bool, at_w: bool) {
        let Some(generation) = self.ctl.get(&w).map(|ctl| ctl.generation) else { return };
        let late = self.settings.ping_interval.0 + self.settings.ping_timeout.0;
        for (sees, end) in [(at_r, true), (at_w, false)] {
            let after = if sees { 0 } else { late };
            self.schedule(self.now + after, Act::CtlBreak { w, generation, at_r: end });
        }
        if let Some(ctl) = self.ctl.get_mut(&w) {
            // What is under way is lost with it.
            ctl.held.clear();
        }
    }

    /// The connection becomes a black hole, or is none any more.
    pub fn ctl_hole(&mut self, w: usize, hole: bool) {
        let now = self.now;
        let Some(ctl) = self.ctl.get_mut(&w) else { return };
        if hole {
            ctl.hole_since = Some(now);
            self.watch_silence(w, now, true);
            self.watch_silence(w, now, false);
            return;
        }
        ctl.hole_since = None;
        let held = std::mem::take(&mut ctl.held);
        let generation = ctl.generation;
        let (up_r, up_w) = (ctl.up_r, ctl.up_w);
        for (step, act) in held.into_iter().enumerate() {
            self.schedule(now + 1 + step as u64 / 8, act);
        }
        // An end that gave up answers what still comes with a reset.
        if up_r != up_w {
            self.schedule(now + 2, Act::CtlBreak { w, generation, at_r: up_r });
        }
    }

    /// The end at R (or at the worker) hears nothing from now on: its ping timeout is due then.
    pub fn watch_silence(&mut self, w: usize, since: u64, at_r: bool) {
        let generation = self.ctl.get(&w).map_or(0, |ctl| ctl.generation);
        let wait = self.settings.ping_timeout.0 + self.rng.between(0, self.settings.ping_interval.0);
        self.schedule(self.now + wait, Act::PingDue { w, generation, at_r, since });
    }

    /// A ping was not answered, if the silence lasts.
    pub fn ping_due(&mut self, w: usize, generation: u32, at_r: bool, since: u64) {
        let other = if at_r { w } else { 0 };
        let observer = if at_r { 0 } else { w };
        let silent = self.ctl.get(&w).is_some_and(|ctl| ctl.hole_since == Some(since))
            || self.nodes[other].stopped == Some(since);
        if silent && self.nodes[observer].stopped.is_none() && self.nodes[observer].up {
            self.ctl_breaks(w, generation, at_r);
            // The reset that follows is seen by the other end once it can see anything.
            if self.ctl.get(&w).is_some_and(|ctl| ctl.hole_since.is_none()) {
                self.schedule(self.now + 3, Act::CtlBreak { w, generation, at_r: !at_r });
            }
        }
    }

    // === the router's executor ===

    /// One step of the router's ledger, and all that it orders.
    pub fn step_router(&mut self, event: Event) {
        let now = self.clock(0);
        let tokens_at = match &event {
            Event::FromWorker { message: FromWorker::Tokens { position, .. }, .. } => Some(*position),
            _ => None,
        };
        if !matches!(event, Event::Tick | Event::Load { .. }) {
            tell!(self, "R <- {event:?}");
        }
        if let Event::MemberUp(info) = &event {
            self.note_member(&info.clone());
        }
        let Brain::R(ledger) = &mut self.nodes[0].brain else { return };
        let effects = ledger.step(event, now);
        let violations = ledger.violations();
        if ledger.gauges(now).stuck > 0 {
            self.wrong("R has a stuck room".into());
        }
        for violation in violations {
            self.wrong(format!("R: {violation}"));
        }
        for effect in effects {
            self.do_router(effect, tokens_at);
        }
        self.set_alarm(0);
    }

    fn do_router(&mut self, effect: Effect, tokens_at: Option<u32>) {
        tell!(self, "R -> {effect:?}");
        match effect {
            Effect::AnswerAbort { .. } => {}
            Effect::Begin { spec, passed } => {
                self.router.rooms.insert(spec.room, (spec, passed));
            }
            Effect::Open { spec, side, token, .. } => self.open_stream(spec, side, token),
            Effect::Tell { room, side, message } => {
                if let Some((w, generation)) = self.stream_to(room, side) {
                    self.ctl_send(w, generation, true, CtlMsg::Say(room, message));
                }
            }
            Effect::CloseStream { room, side } => {
                if let Some((w, generation)) = self.stream_to(room, side) {
                    self.ctl_send(w, generation, true, CtlMsg::EndOfStream(room));
                    if let Some(stream) = self.router.streams.get_mut(&(room, side)) {
                        stream.closing = true;
                    }
                    let at = self.now + self.settings.grace.0;
                    self.schedule(at, Act::StreamGrace { room, side, generation });
                }
            }
            Effect::AskEvidence { room, node, .. } => self.ask_node(node, CtlMsg::AskEvidence(room)),
            Effect::Who { incarnation } => self.ask_node(incarnation, CtlMsg::Who),
            Effect::Grant { spec } => self.store_send(StoreAct::Grant { sent: self.clock(0), spec: Box::new(spec) }),
            Effect::Renew { room } => self.store_send(StoreAct::Renew { sent: self.clock(0), room }),
            Effect::Revoke { room } => self.store_send(StoreAct::Revoke { room }),
            Effect::Pass { request, room, skip, count } => self.pass(request, room, tokens_at, skip, count),
            Effect::Answer { request, outcome } => self.answered(request, outcome),
            Effect::Ended(end) => self.room_ended(&end),
            Effect::End { room } => {
                for side in Side::BOTH {
                    if let Some((w, generation)) = self.stream_to(room, side) {
                        self.ctl_send(w, generation, true, CtlMsg::EndOfStream(room));
                        let at = self.now + self.settings.grace.0;
                        self.schedule(at, Act::StreamGrace { room, side, generation });
                        if let Some(stream) = self.router.streams.get_mut(&(room, side)) {
                            stream.closing = true;
                        }
                    }
                }
            }
            Effect::Drop { incarnation } => {
                self.router.nodes.remove(&incarnation);
            }
        }
    }

    fn ask_node(&mut self, node: Incarnation, msg: CtlMsg) {
        if let Some(known) = self.router.nodes.get(&node).copied() {
            let generation = self.ctl.get(&known.w).map_or(0, |ctl| ctl.generation);
            self.ctl_send(known.w, generation, true, msg);
        }
    }

    fn stream_to(&self, room: RoomId, side: Side) -> Option<(usize, u32)> {
        let stream = self.router.streams.get(&(room, side)).filter(|stream| !stream.closing)?;
        let (spec, _) = self.router.rooms.get(&room)?;
        let w = index_of(match side {
            Side::Prefill => spec.prefill,
            Side::Decode => spec.decode,
        });
        Some((w, stream.generation))
    }

    fn open_stream(&mut self, spec: RoomSpec, side: Side, token: u64) {
        let (room, life) = (spec.room, self.nodes[0].life);
        let meant = match side {
            Side::Prefill => spec.prefill,
            Side::Decode => spec.decode,
        };
        let known = self.router.nodes.get(&meant).copied();
        let hole = known.is_some_and(|node| self.ctl.get(&node.w).is_some_and(|ctl| ctl.hole_since.is_some()));
        let connected = known.is_some_and(|node| self.ctl.get(&node.w).is_some_and(|ctl| ctl.up_r) || self.connect(node.w));
        let Some(node) = known.filter(|_| connected) else {
            let after = if hole { self.settings.connect_timeout.0 } else { 3 };
            let ended = Event::StreamEnded { room, side, broken: true };
            return self.schedule(self.now + after, Act::In(0, life, In::R(ended)));
        };
        let generation = self.ctl.get(&node.w).map_or(0, |ctl| ctl.generation);
        self.router.streams.insert((room, side), RStream { generation, closing: false });
        self.ctl_send(node.w, generation, true, CtlMsg::Open { spec: Box::new(spec), token });
    }

    /// A stream that R closed and whose other end did not: reset.
    pub fn stream_grace(&mut self, room: RoomId, side: Side, generation: u32) {
        let closing = self
            .router
            .streams
            .get(&(room, side))
            .is_some_and(|stream| stream.closing && stream.generation == generation);
        if !closing {
            return;
        }
        let w = self.router.rooms.get(&room).map(|(spec, _)| {
            index_of(match side {
                Side::Prefill => spec.prefill,
                Side::Decode => spec.decode,
            })
        });
        if let Some(w) = w {
            self.break_stream(w, room);
        }
    }

    /// Tokens pass to the client: exactly once, in order.
    fn pass(
        &mut self,
        request: innkeeper_room::RequestKey,
        room: RoomId,
        tokens_at: Option<u32>,
        skip: u32,
        count: u32,
    ) {
        let passed = self.router.rooms.get(&room).map_or(0, |(_, passed)| *passed);
        let at = passed + tokens_at.unwrap_or(u32::MAX / 2) + skip;
        let Some(client) = self.clients.get_mut(&request) else { return };
        let expected = client.tokens;
        client.tokens += count;
        if at != expected {
            self.wrong(format!("I10: request {} gets position {at}, expected {expected}", request.0));
        }
        if self.clients.get(&request).is_some_and(|client| client.answer.is_some()) {
            self.wrong(format!("I10: request {} gets tokens after its answer", request.0));
        }
    }

    /// A member appeared: R keeps a node stream to it.
    fn note_member(&mut self, info: &MemberInfo) {
        let w = index_of(info.incarnation);
        self.router.nodes.entry(info.incarnation).or_insert(RNode { w, up: false });
        if !self.ctl.get(&w).is_some_and(|ctl| ctl.up_r) {
            let life_changed = self.connect(w);
            if !life_changed {
                self.retry_soon(w);
            }
        }
    }
}
