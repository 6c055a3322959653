//! How connections end: cuts that one end sees or both, black holes, pings and kernels that find a silence, and R's retries.

use innkeeper_room::RoomId;
use innkeeper_room::ledger::router::{Event, Side};

use crate::control::side_of;
use crate::data::DataMsg;
use crate::node::{Brain, In, index_of};
use crate::world::{Act, World, tell};

impl World {
    /// One end sees the connection broken.
    pub(crate) fn ctl_breaks(&mut self, w: usize, generation: u32, at_r: bool) {
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
            let mut events: Vec<Event> = gone
                .iter()
                .map(|room| Event::StreamEnded {
                    room: *room,
                    side,
                    broken: true,
                })
                .collect();
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
                if self.pauses == 0 {
                    // A signal: the part ends within 250 ms.
                    self.schedule(self.now + 250, Act::MustBeOver { w, life, room });
                }
            }
        }
    }

    /// A part whose owner is gone must have ended by now.
    pub(crate) fn must_be_over(&mut self, w: usize, life: u32, room: RoomId) {
        let now = self.clock(w);
        let lives = match &self.nodes[w].brain {
            Brain::R(_) => false,
            Brain::P(ledger) => ledger.row(room, now).is_some(),
            Brain::D(ledger) => ledger.row(room, now).is_some(),
        };
        if lives && self.nodes[w].up && self.nodes[w].life == life && self.pauses == 0 {
            self.wrong(format!(
                "I2: {room} lives at {w} 250 ms after its owner's connection broke"
            ));
        }
    }

    pub(crate) fn stream_leads_to(&self, room: RoomId, side: Side, w: usize) -> bool {
        self.router.rooms.get(&room).is_some_and(|(spec, _)| {
            index_of(match side {
                Side::Prefill => spec.prefill,
                Side::Decode => spec.decode,
            }) == w
        })
    }

    pub(crate) fn retry_soon(&mut self, w: usize) {
        let Some(ctl) = self.ctl.get_mut(&w) else { return };
        if !std::mem::replace(&mut ctl.retrying, true) {
            let after = self.rng.between(50, 200);
            self.schedule(self.now + after, Act::CtlRetry(w));
        }
    }

    /// R tries to connect.
    pub(crate) fn ctl_retry(&mut self, w: usize) {
        if let Some(ctl) = self.ctl.get_mut(&w) {
            ctl.retrying = false;
        }
        let wanted = self.router.nodes.values().any(|node| node.w == w);
        if wanted && !self.ctl.get(&w).is_some_and(|ctl| ctl.up_r) && !self.connect(w) {
            self.retry_soon(w);
        }
    }

    /// A new connection, if both ends are there.
    pub(crate) fn connect(&mut self, w: usize) -> bool {
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
            self.schedule(
                at,
                Act::CtlBreak {
                    w,
                    generation: old.0,
                    at_r: false,
                },
            );
        }
        true
    }

    /// Cuts the connection at one end or both.
    pub(crate) fn ctl_cut(&mut self, w: usize, at_r: bool, at_w: bool) {
        let Some(generation) = self.ctl.get(&w).map(|ctl| ctl.generation) else {
            return;
        };
        let late = self.settings.ping_interval.0 + self.settings.ping_timeout.0;
        for (sees, end) in [(at_r, true), (at_w, false)] {
            let after = if sees { 0 } else { late };
            self.schedule(
                self.now + after,
                Act::CtlBreak {
                    w,
                    generation,
                    at_r: end,
                },
            );
        }
        if let Some(ctl) = self.ctl.get_mut(&w) {
            // What is under way is lost with it.
            ctl.held.clear();
        }
    }

    /// The connection becomes a black hole, or is none any more.
    pub(crate) fn ctl_hole(&mut self, w: usize, hole: bool) {
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
        // What was held comes first, in order.
        for act in held {
            if let Act::Ctl {
                w,
                generation,
                to_w,
                msg,
            } = act
            {
                self.ctl_arrives(w, generation, to_w, msg);
            }
        }
        // An end that gave up answers what still comes with a reset.
        if up_r != up_w {
            self.schedule(
                now + 2,
                Act::CtlBreak {
                    w,
                    generation,
                    at_r: up_r,
                },
            );
        }
    }

    /// The end at R (or at the worker) hears nothing from now on: its ping timeout is due then.
    pub(crate) fn watch_silence(&mut self, w: usize, since: u64, at_r: bool) {
        let generation = self.ctl.get(&w).map_or(0, |ctl| ctl.generation);
        let wait = self.settings.ping_timeout.0 + self.rng.between(0, self.settings.ping_interval.0);
        self.schedule(
            self.now + wait,
            Act::PingDue {
                w,
                generation,
                at_r,
                since,
            },
        );
    }

    /// A ping was not answered, if the silence lasts.
    pub(crate) fn ping_due(&mut self, w: usize, generation: u32, at_r: bool, since: u64) {
        let other = if at_r { w } else { 0 };
        let observer = if at_r { 0 } else { w };
        let hole = self.ctl.get(&w).is_some_and(|ctl| ctl.hole_since == Some(since));
        let silent = !self.deaf && (hole || self.nodes[other].stopped == Some(since));
        if silent && self.nodes[observer].stopped.is_none() && self.nodes[observer].up {
            self.ctl_breaks(w, generation, at_r);
            // The reset that follows is seen by the other end once it can see anything.
            if self.ctl.get(&w).is_some_and(|ctl| ctl.hole_since.is_none()) {
                self.schedule(
                    self.now + 3,
                    Act::CtlBreak {
                        w,
                        generation,
                        at_r: !at_r,
                    },
                );
            }
        }
    }

    /// The link between a pair becomes a black hole, or is none any more.
    pub(crate) fn data_hole(&mut self, p: usize, d: usize, hole: bool) {
        let since = hole.then_some(self.now);
        self.links.insert((p, d), since);
        let ids: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(_, s)| s.p == p && s.d == d)
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            let Some(s) = self.sessions.get_mut(&id) else { continue };
            s.hole_since = since;
            if hole {
                let after = self.settings.tcp_user_timeout.0 + self.rng.between(0, 100);
                self.schedule(
                    self.now + after,
                    Act::DataTimeout {
                        session: id,
                        since: self.now,
                    },
                );
            } else {
                let held = std::mem::take(&mut s.held);
                for (to_d, msg) in held {
                    self.data_arrives(id, to_d, msg);
                }
            }
        }
    }

    /// The connection is cut; an end that is not told finds out by its keepalive.
    pub(crate) fn data_cut(&mut self, p: usize, d: usize, at_p: bool, at_d: bool) {
        let ids: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(_, s)| s.p == p && s.d == d)
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            if let Some(s) = self.sessions.get_mut(&id) {
                s.cut = true;
            }
            for (told, to_d) in [(at_p, false), (at_d, true)] {
                if told {
                    self.data_arrives(id, to_d, DataMsg::Reset);
                } else {
                    let at = self.now + self.settings.tcp_user_timeout.0;
                    self.schedule(
                        at,
                        Act::Data {
                            session: id,
                            to_d,
                            msg: DataMsg::TimedOut(false),
                        },
                    );
                }
            }
        }
    }

    /// Both kernels give up a connection on which nothing was heard.
    pub(crate) fn data_timeout(&mut self, id: u64, since: u64) {
        let Some(s) = self.sessions.get(&id) else { return };
        if s.hole_since == Some(since) && !self.deaf {
            self.data_arrives(id, true, DataMsg::TimedOut(true));
            self.data_arrives(id, false, DataMsg::TimedOut(true));
        }
    }
}
