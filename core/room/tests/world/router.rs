//! The router's executor: what its ledger orders is done here as the real actors do it.

use innkeeper_room::ledger::RoomRow;
use innkeeper_room::ledger::router::{Effect, Event, MemberInfo, Policies, Policy, Side};
use innkeeper_room::{FromWorker, Incarnation, Phase, RoomId, RoomSpec};

use crate::control::{CtlMsg, RNode, RStream};
use crate::node::{Brain, In, index_of};
use crate::rules;
use crate::store::StoreAct;
use crate::world::{Act, World, tell};

impl World {
    // === the router's executor ===

    /// One step of the router's ledger, and all that it orders.
    pub(crate) fn step_router(&mut self, event: Event) {
        let now = self.clock(0);
        let tokens_at = match &event {
            Event::FromWorker {
                message: FromWorker::Tokens { position, .. },
                ..
            } => Some(*position),
            _ => None,
        };
        if !matches!(event, Event::Tick | Event::Load { .. }) {
            tell!(self, "R <- {event:?}");
        }
        if let Event::MemberUp(info) = &event {
            self.note_member(&info.clone());
        }
        if let Event::FromWorker { room, .. } = &event {
            self.heard.insert(*room, self.now);
        }
        if let Event::Load { incarnation, load } = &event {
            let first = !self.engines_heard.contains_key(incarnation);
            let heard = self.engines_heard.entry(*incarnation).or_insert((0, self.now));
            let steps = load.engine_progress > heard.0;
            if steps {
                *heard = (load.engine_progress, self.now);
            }
            // Engines of others show steps, and nothing of a room: those are what its rooms have reported.
            if self.shape.remote
                && (steps || first)
                && let Brain::R(ledger) = &self.nodes[0].brain
            {
                let rows = ledger.rows(now).into_iter();
                let waits = rows.filter(|row| [row.prefill, row.decode].contains(incarnation));
                self.moved.extend(waits.map(|row| row.room));
            }
        }
        if let Event::FromWorker { room, message, .. } = &event
            && rules::is_progress(message)
        {
            self.moved.insert(*room);
        }
        let (room, kind) = rules::of_router(&event);
        let before = self.before(0, room);
        let Brain::R(ledger) = &mut self.nodes[0].brain else {
            return;
        };
        let effects = ledger.step(event, now);
        let rows = ledger.rows(now);
        let violations = ledger.violations();
        if ledger.gauges(now).stuck > 0 {
            self.wrong("R has a stuck room".into());
        }
        for violation in violations {
            self.wrong(format!("R: {violation}"));
        }
        self.check_silence(&rows);
        let orders: Vec<_> = effects.iter().map(Into::into).collect();
        self.after(0, kind, &before, &orders);
        for effect in effects {
            self.do_router(effect, tokens_at);
        }
        self.set_alarm(0);
    }

    /// I2: a room in which somebody owes and of which R hears nothing ends within TTL + 1 s. A step of an engine that it
    /// may wait for is something.
    pub(crate) fn check_silence(&mut self, rows: &[RoomRow]) {
        let ttl = self.settings.progress_ttl.0 + 1000;
        for row in rows.iter().filter(|row| row.phase != Phase::Queued) {
            // While engines of others read from each other nothing can be seen to move: the read's own deadline rules.
            let reads = self.shape.remote && row.phase == Phase::Transferring;
            let bound = if reads { ttl.max(row.budget_ms.0 + 1000) } else { ttl };
            let since = self
                .heard
                .get(&row.room)
                .copied()
                .unwrap_or(0)
                .max(self.router_runs_since);
            let since = [row.prefill, row.decode]
                .iter()
                .filter_map(|node| self.engines_heard.get(node))
                .map(|(_, at)| *at)
                .fold(since, u64::max);
            if since + bound < self.now {
                self.wrong(format!(
                    "I2: room {} lives in silence since {since} ms in {}",
                    row.room, row.phase
                ));
            }
        }
    }

    /// Routers choose by other policies from now on, which the seed says, and by prompts that begin alike.
    pub(crate) fn choose_by(&mut self, seed: u64) {
        let of = |number: u64| {
            let all = Policy::ALL;
            all[usize::try_from(number).unwrap_or(0) % all.len()]
        };
        self.policies = Policies {
            prefill: of(seed),
            decode: of(seed / 6 + 1),
        };
        self.r_event(Event::Policies(self.policies));
    }

    pub(crate) fn do_router(&mut self, effect: Effect, tokens_at: Option<u32>) {
        if let Effect::Begin { spec, .. } = &effect {
            let next = self.story_rooms.len() + 1;
            self.story_rooms.entry(spec.room).or_insert(next);
        }
        tell!(self, "R -> {effect:?}");
        match effect {
            Effect::AnswerAbort { .. } => {}
            Effect::Begin { spec, passed, .. } => {
                self.heard.insert(spec.room, self.now);
                let client = self.clients.get(&spec.request);
                let whole = client.map(|client| (client.prompt + client.tokens, client.max_tokens - client.tokens));
                if whole != Some((spec.prompt_tokens, spec.max_tokens)) {
                    self.wrong(format!("{} does not go on where its request is: {spec:?}", spec.room));
                }
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
            Effect::Grant { spec } => self.store_send(StoreAct::Grant {
                sent: self.clock(0),
                spec: Box::new(spec),
            }),
            Effect::Renew { room } => {
                self.check_renewal(room);
                self.store_send(StoreAct::Renew {
                    sent: self.clock(0),
                    room,
                });
            }
            Effect::Revoke { room } => self.store_send(StoreAct::Revoke { room }),
            Effect::Pass {
                request,
                room,
                skip,
                count,
            } => self.pass(request, room, tokens_at, skip, count),
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
            Effect::Canary { .. } => unreachable!("there are none in this world"),
            Effect::Drop { incarnation } => {
                self.router.nodes.remove(&incarnation);
            }
        }
    }

    pub(crate) fn ask_node(&mut self, node: Incarnation, msg: CtlMsg) {
        if let Some(known) = self.router.nodes.get(&node).copied() {
            let generation = self.ctl.get(&known.w).map_or(0, |ctl| ctl.generation);
            self.ctl_send(known.w, generation, true, msg);
        }
    }

    pub(crate) fn stream_to(&self, room: RoomId, side: Side) -> Option<(usize, u32)> {
        let stream = self
            .router
            .streams
            .get(&(room, side))
            .filter(|stream| !stream.closing)?;
        let (spec, _) = self.router.rooms.get(&room)?;
        let w = index_of(match side {
            Side::Prefill => spec.prefill,
            Side::Decode => spec.decode,
        });
        Some((w, stream.generation))
    }

    pub(crate) fn open_stream(&mut self, spec: RoomSpec, side: Side, token: u64) {
        let (room, life) = (spec.room, self.nodes[0].life);
        let meant = match side {
            Side::Prefill => spec.prefill,
            Side::Decode => spec.decode,
        };
        let known = self.router.nodes.get(&meant).copied();
        let hole = known.is_some_and(|node| self.ctl.get(&node.w).is_some_and(|ctl| ctl.hole_since.is_some()));
        let connected =
            known.is_some_and(|node| self.ctl.get(&node.w).is_some_and(|ctl| ctl.up_r) || self.connect(node.w));
        let Some(node) = known.filter(|_| connected) else {
            let after = if hole { self.settings.connect_timeout.0 } else { 3 };
            let ended = Event::StreamEnded {
                room,
                side,
                broken: true,
            };
            return self.schedule(self.now + after, Act::In(0, life, In::R(ended)));
        };
        let generation = self.ctl.get(&node.w).map_or(0, |ctl| ctl.generation);
        self.router.streams.insert(
            (room, side),
            RStream {
                generation,
                closing: false,
            },
        );
        self.ctl_send(
            node.w,
            generation,
            true,
            CtlMsg::Open {
                spec: Box::new(spec),
                token,
            },
        );
    }

    /// A stream that R closed and whose other end did not: reset.
    pub(crate) fn stream_grace(&mut self, room: RoomId, side: Side, generation: u32) {
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
    pub(crate) fn pass(
        &mut self,
        request: innkeeper_room::RequestKey,
        room: RoomId,
        tokens_at: Option<u32>,
        skip: u32,
        count: u32,
    ) {
        let passed = self.router.rooms.get(&room).map_or(0, |(_, passed)| *passed);
        let at = passed + tokens_at.unwrap_or(u32::MAX / 2) + skip;
        let Some(client) = self.clients.get_mut(&request) else {
            return;
        };
        let expected = client.tokens;
        client.tokens += count;
        let stops = client
            .stops_after
            .is_some_and(|after| expected < after && client.tokens >= after);
        if stops {
            let life = self.nodes[0].life;
            let after = self.latency(0, 20);
            self.schedule(self.now + after, Act::In(0, life, In::R(Event::Satisfied { request })));
        }
        if at != expected {
            self.wrong(format!(
                "I10: request {} gets position {at}, expected {expected}",
                request.0
            ));
        }
        if self.clients.get(&request).is_some_and(|client| client.answer.is_some()) {
            self.wrong(format!("I10: request {} gets tokens after its answer", request.0));
        }
    }

    /// A member appeared: R keeps a node stream to it.
    pub(crate) fn note_member(&mut self, info: &MemberInfo) {
        let w = index_of(info.incarnation);
        self.router
            .nodes
            .entry(info.incarnation)
            .or_insert(RNode { w, up: false });
        if !self.ctl.get(&w).is_some_and(|ctl| ctl.up_r) {
            let life_changed = self.connect(w);
            if !life_changed {
                self.retry_soon(w);
            }
        }
    }
}
