//! The control plane: one connection per worker, shared by its node stream and its rooms' streams. Breaks are seen by one
//! end or both; silence is found by pings.

use std::collections::BTreeMap;

use innkeeper_room::ledger::router::{Event, Load, Side};
use innkeeper_room::{Evidence, FromWorker, Incarnation, RoomId, RoomSpec, ToWorker};

use crate::node::{Brain, In};
use crate::world::{Act, World, tell};

/// What travels on a control connection.
#[derive(Clone, Debug, Hash)]
pub(crate) enum CtlMsg {
    Open { spec: Box<RoomSpec>, token: u64 },
    Say(RoomId, ToWorker),
    EndOfStream(RoomId),
    Who,
    AskEvidence(RoomId),
    Said(RoomId, Box<FromWorker>),
    Load(Incarnation, Load),
    Identity(Incarnation),
    Evidence(RoomId, Box<Evidence>),
}

/// The connection to one worker's address.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Ctl {
    pub(crate) generation: u32,
    pub(crate) up_r: bool,
    pub(crate) up_w: bool,
    pub(crate) w_life: u32,
    pub(crate) r_life: u32,
    pub(crate) hole_since: Option<u64>,
    pub(crate) extra: u64,
    pub(crate) duplicate: bool,
    pub(crate) lose_next: bool,
    pub(crate) last: [u64; 2],
    pub(crate) held: Vec<Act>,
    pub(crate) retrying: bool,
}

/// R's end of a room's stream.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct RStream {
    pub(crate) generation: u32,
    pub(crate) closing: bool,
}

/// What the router's executor keeps.
#[derive(Clone, Default, Hash)]
pub(crate) struct RouterSide {
    pub(crate) nodes: BTreeMap<Incarnation, RNode>,
    pub(crate) streams: BTreeMap<(RoomId, Side), RStream>,
    pub(crate) rooms: BTreeMap<RoomId, (RoomSpec, u32)>,
}

/// A worker that the router keeps a node stream to.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct RNode {
    pub(crate) w: usize,
    pub(crate) up: bool,
}

/// Which side of a room a worker is.
pub(crate) fn side_of(world: &World, w: usize) -> Side {
    if w <= world.shape.prefills {
        Side::Prefill
    } else {
        Side::Decode
    }
}

impl World {
    // === the connection ===

    /// Sends a message; order is kept.
    pub(crate) fn ctl_send(&mut self, w: usize, generation: u32, to_w: bool, msg: CtlMsg) {
        let lat = self.latency(1, 6);
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
            let (CtlMsg::Say(room, _) | CtlMsg::Said(room, _)) = msg else {
                return;
            };
            tell!(self, "a message of {room} to or from {w} is lost: its stream breaks");
            return self.break_stream(w, room);
        }
        self.schedule(
            at,
            Act::Ctl {
                w,
                generation,
                to_w,
                msg: msg.clone(),
            },
        );
        if twice {
            self.schedule(
                at,
                Act::Ctl {
                    w,
                    generation,
                    to_w,
                    msg,
                },
            );
        }
    }

    /// One stream is reset; both ends see it.
    pub(crate) fn break_stream(&mut self, w: usize, room: RoomId) {
        let side = side_of(self, w);
        let life = self.nodes[w].life;
        // An Open that is still under way is followed by the reset.
        let generation = self.ctl.get(&w).map_or(0, |ctl| ctl.generation);
        self.ctl_send(w, generation, true, CtlMsg::EndOfStream(room));
        if self.nodes[w].streams.remove(&room).is_some() {
            self.worker_stream_ended(w, life, room, 3);
        }
        if self.router.streams.remove(&(room, side)).is_some() {
            let life = self.nodes[0].life;
            let ended = Event::StreamEnded {
                room,
                side,
                broken: false,
            };
            self.schedule(self.now + 4, Act::In(0, life, In::R(ended)));
        }
    }

    pub(crate) fn worker_stream_ended(&mut self, w: usize, life: u32, room: RoomId, after: u64) {
        let event = match self.nodes[w].brain {
            Brain::P(_) => In::P(innkeeper_room::ledger::prefill::Event::StreamEnded { room }),
            Brain::D(_) => In::D(innkeeper_room::ledger::decode::Event::StreamEnded { room }),
            Brain::R(_) => return,
        };
        self.schedule(self.now + after, Act::In(w, life, event));
    }

    /// A message arrives, unless the connection is a black hole or gone.
    pub(crate) fn ctl_arrives(&mut self, w: usize, generation: u32, to_w: bool, msg: CtlMsg) {
        let Some(ctl) = self.ctl.get_mut(&w) else { return };
        if ctl.generation != generation {
            return;
        }
        if ctl.hole_since.is_some() {
            ctl.held.push(Act::Ctl {
                w,
                generation,
                to_w,
                msg,
            });
            return;
        }
        let (up, life) = if to_w {
            (ctl.up_w, ctl.w_life)
        } else {
            (ctl.up_r, ctl.r_life)
        };
        if !up {
            return;
        }
        if to_w {
            self.at_worker(w, life, generation, msg)
        } else {
            self.at_router(w, life, generation, msg)
        }
    }

    pub(crate) fn at_worker(&mut self, w: usize, life: u32, generation: u32, msg: CtlMsg) {
        let p = w <= self.shape.prefills;
        match msg {
            CtlMsg::Open { spec, token } => {
                self.nodes[w]
                    .streams
                    .insert(spec.room, crate::node::WStream { generation });
                self.input(
                    w,
                    life,
                    In::Open {
                        spec,
                        token,
                        generation,
                    },
                );
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
                    self.ctl_send(w, generation, false, CtlMsg::Identity(answered));
                }
            }
            CtlMsg::AskEvidence(room) => {
                let until = self.now + self.settings.blame_wait.0;
                self.input(
                    w,
                    life,
                    In::Evidence {
                        room,
                        generation,
                        until,
                    },
                );
            }
            CtlMsg::Said(..) | CtlMsg::Load(..) | CtlMsg::Identity(_) | CtlMsg::Evidence(..) => {}
        }
    }

    pub(crate) fn at_router(&mut self, w: usize, life: u32, generation: u32, msg: CtlMsg) {
        let side = side_of(self, w);
        let known = |world: &Self, room| {
            world
                .router
                .streams
                .get(&(room, side))
                .is_some_and(|stream| stream.generation == generation)
        };
        match msg {
            CtlMsg::Said(room, message) => {
                if known(self, room) {
                    self.input(
                        0,
                        life,
                        In::R(Event::FromWorker {
                            room,
                            side,
                            message: *message,
                        }),
                    );
                }
            }
            CtlMsg::EndOfStream(room) => {
                if known(self, room) {
                    self.router.streams.remove(&(room, side));
                    self.input(
                        0,
                        life,
                        In::R(Event::StreamEnded {
                            room,
                            side,
                            broken: false,
                        }),
                    );
                }
            }
            CtlMsg::Load(incarnation, load) => self.hear_load(w, life, incarnation, load),
            CtlMsg::Identity(answered) => {
                let asked: Vec<Incarnation> = self
                    .router
                    .nodes
                    .iter()
                    .filter(|(_, node)| node.w == w)
                    .map(|(inc, _)| *inc)
                    .collect();
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

    pub(crate) fn hear_load(&mut self, w: usize, life: u32, incarnation: Incarnation, load: Load) {
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
}
