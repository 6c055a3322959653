//! What the router's ledger orders, executed.

use std::sync::Arc;

use innkeeper_room::ledger::router::{Effect, Event, Outcome, RoomEnd, Side};
use innkeeper_room::{RequestKey, RoomId, RoomSpec, Token, Work};
use ractor::ActorRef;

use super::{Entry, RoomsMessage, State};
use crate::ports::{NodeQuestion, OpenRoom, RequestEvent, Target};
use crate::router::request::RequestMessage;
use crate::router::room::{Command, RouterRoom, revoke_late};

impl State {
    /// One step of the ledger, and the execution of all that it orders. `tokens` are those of the message in hand.
    pub(super) async fn step(&mut self, myself: &ActorRef<RoomsMessage>, event: Event, tokens: &[Token]) {
        let hooks = Arc::clone(&self.parts.hooks);
        hooks.told(&event);
        let room = event.room();
        let effects = self.parts.ledger.step(event, self.parts.shared.clock.now());
        if let Some((room, phase)) = room.and_then(|room| Some((room, self.parts.ledger.phase(room)?))) {
            hooks.room_phase(room, phase);
        }
        for effect in effects {
            hooks.ordered(&effect);
            self.execute(myself, effect, tokens).await;
        }
    }

    async fn execute(&mut self, myself: &ActorRef<RoomsMessage>, effect: Effect, tokens: &[Token]) {
        match effect {
            Effect::AnswerAbort { ticket, answer } => {
                if let Some(asker) = self.tickets.remove(&ticket) {
                    // An asker that gave up is no failure of ours.
                    let _ = asker.send(answer);
                }
            }
            Effect::Begin { spec, .. } => self.begin(myself, spec).await,
            Effect::Open {
                spec,
                side,
                decode_addr,
                token,
                passed,
            } => {
                self.open(spec, side, decode_addr, token, passed);
            }
            Effect::Tell { room, side, message } => self.order(room, Command::Tell(side, message)),
            Effect::AskEvidence { room, node, .. } => self.nodes.ask_evidence(node, room),
            Effect::CloseStream { room, side } => self.order(room, Command::Close(side)),
            Effect::Who { incarnation } => self.nodes.ask(incarnation, NodeQuestion::Who),
            Effect::Grant { spec } => self.order(spec.room, Command::Grant),
            Effect::Renew { room } => self.order(room, Command::Renew),
            Effect::Revoke { room } if !self.rooms.contains_key(&room) => revoke_late(&self.parts.shared, room),
            Effect::Revoke { room } => self.order(room, Command::Revoke),
            Effect::Pass {
                request, skip, count, ..
            } => self.pass(request, skip, count, tokens),
            Effect::Answer { request, outcome } => self.answer(request, outcome),
            Effect::Ended(end) => self.ended(&end),
            Effect::End { room } => self.end(room),
            Effect::Canary {
                prefill,
                decode,
                prompt_tokens,
            } => {
                // Behind what is in hand: a step within a step is none. A dead `rooms` sends none.
                drop(myself.cast(RoomsMessage::Canary((prefill, decode), prompt_tokens)));
            }
            Effect::Drop { incarnation } => self.nodes.drop_node(incarnation),
        }
    }

    async fn begin(&mut self, myself: &ActorRef<RoomsMessage>, spec: RoomSpec) {
        let (key, id) = (spec.request, spec.room);
        self.ensure_actor(myself, key).await;
        let Some(entry) = self.requests.get_mut(&key) else {
            return;
        };
        entry.live_rooms += 1;
        entry.last_room = Some(id);
        entry.attempts = entry.attempts.max(spec.attempt);
        let room = Arc::new(RouterRoom::new(spec, Arc::clone(&self.parts.shared)));
        if let Some(actor) = &entry.actor {
            // A dead actor is heard of by supervision, which ends the room.
            drop(actor.cast(RequestMessage::Begin(Arc::clone(&room))));
        }
        self.rooms.insert(id, (key, room));
    }

    fn open(&self, spec: RoomSpec, side: Side, decode_addr: String, token: u64, passed: u32) {
        let id = spec.room;
        let meant = match side {
            Side::Prefill => spec.prefill,
            Side::Decode => spec.decode,
        };
        let Some(entry) = self.requests.get(&spec.request) else {
            return;
        };
        let mut work = entry.continued(passed);
        if side == Side::Decode {
            // Whose prompt it is concerns who keeps prompts, and that is P.
            work.tenant = 0;
        }
        if let Some(traceparent) = self.parts.hooks.traceparent(id) {
            work.traceparent = traceparent;
        }
        // A worker that is not known any more refuses the connection of an address that nobody has.
        let unknown = || Target {
            incarnation: meant,
            control: String::new(),
        };
        let target = self.nodes.target(meant).unwrap_or_else(unknown);
        let open = OpenRoom {
            spec,
            work: Arc::new(work),
            decode_addr,
            token,
        };
        self.order(id, Command::Open(side, target, Box::new(open)));
    }

    fn order(&self, id: RoomId, command: Command) {
        let Some((key, room)) = self.rooms.get(&id) else { return };
        let actor = self.requests.get(key).and_then(|entry| entry.actor.as_ref());
        let Some(actor) = actor else {
            return room.execute(command);
        };
        if let Err(ractor::MessagingErr::SendErr(RequestMessage::Do(_, command))) =
            actor.cast(RequestMessage::Do(id, command))
        {
            room.execute(command);
        }
    }

    fn pass(&mut self, request: RequestKey, skip: u32, count: u32, tokens: &[Token]) {
        let Some(entry) = self.requests.get_mut(&request) else {
            return;
        };
        let passing: Vec<_> = tokens
            .iter()
            .skip(skip as usize)
            .take(count as usize)
            .cloned()
            .collect();
        entry.passed.extend(passing.iter().map(|token| token.id));
        if passing.iter().any(|token| entry.work.stop_ids.contains(&token.id)) {
            self.end_token = Some(request);
        }
        // The channel holds all tokens of the request; a closed one is a client that left, which is heard of by its control.
        drop(entry.events.try_send(RequestEvent::Tokens(passing)));
    }

    /// P has so much of the prompt already. What counts is what the request's first room that began did not compute.
    pub(super) fn reused(&mut self, room: RoomId, tokens: u32) {
        let entry = self.rooms.get(&room).and_then(|(key, _)| self.requests.get_mut(key));
        let Some(entry) = entry else { return };
        let told = std::mem::replace(&mut entry.reused, true);
        let prompt = u32::try_from(entry.work.prompt.len()).unwrap_or(u32::MAX);
        if tokens > 0 && !told {
            // The channel has room to spare for it; a closed one is a client that left.
            drop(entry.events.try_send(RequestEvent::Reused(tokens.min(prompt))));
        }
    }

    /// Rooms of canaries are no client's: what became of them is in the canary's answer.
    fn ended(&self, end: &RoomEnd) {
        if self.requests.get(&end.request).is_none_or(|entry| !entry.canary) {
            self.parts.hooks.room_ended(end);
        }
    }

    fn answer(&mut self, key: RequestKey, outcome: Outcome) {
        let Some(entry) = self.requests.get_mut(&key) else {
            return self.parts.hooks.answered(&outcome);
        };
        if entry.canary {
            self.parts.hooks.canary(&outcome);
        } else {
            self.parts.hooks.answered(&outcome);
        }
        let answered = RequestEvent::Answered {
            outcome,
            room: entry.last_room,
            attempts: entry.attempts,
        };
        drop(entry.events.try_send(answered));
        entry.answered = true;
        self.forget_if_over(key);
    }

    fn end(&mut self, id: RoomId) {
        let Some((key, room)) = self.rooms.remove(&id) else {
            return;
        };
        let mut actor = None;
        if let Some(entry) = self.requests.get_mut(&key) {
            entry.live_rooms = entry.live_rooms.saturating_sub(1);
            actor = entry.actor.as_ref();
        }
        // Behind all that is still to be said on its streams, which the room's actor ends as it goes.
        if actor.is_none_or(|actor| actor.cast(RequestMessage::RoomOver(id)).is_err()) {
            room.close_all();
        }
        self.forget_if_over(key);
    }

    /// A request goes when it is answered and all its rooms are over.
    fn forget_if_over(&mut self, key: RequestKey) {
        if !self
            .requests
            .get(&key)
            .is_some_and(|entry| entry.answered && entry.live_rooms == 0)
        {
            return;
        }
        if let Some(actor) = self.requests.remove(&key).and_then(|entry| entry.actor)
            && actor.cast(RequestMessage::Leave).is_ok()
        {
            self.reaper.told(actor.get_cell(), self.parts.shared.clock.now());
        }
    }
}

impl Entry {
    /// The work of the next room: the prompt is followed by the tokens that have passed the gate.
    fn continued(&self, passed: u32) -> Work {
        let passed_ids = self.passed.iter().copied().take(passed as usize);
        Work {
            prompt: self.work.prompt.iter().copied().chain(passed_ids).collect(),
            start_position: self.work.start_position + passed,
            ..self.work.clone()
        }
    }
}
