//! The adversary: what it can do to the world, to whom, when, and for how long. Everything follows from the seed.

use innkeeper_room::ledger::{decode, prefill, router};
use innkeeper_room::{RequestKey, RoomId};

use crate::data::DataMsg;
use crate::node::{Brain, In};
use crate::world::{Act, ClientAct, World, tell};

/// One thing that the adversary does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    LoseMessage(usize),
    DuplicateMessage(usize),
    DelayControl(usize, u64),
    CutControl {
        w: usize,
        at_r: bool,
        at_w: bool,
    },
    ControlHole(usize),
    CutData {
        p: usize,
        d: usize,
        at_p: bool,
        at_d: bool,
    },
    DataHole {
        p: usize,
        d: usize,
    },
    Crash(usize, u64),
    Stop(usize),
    Hang(usize),
    Wedge(usize),
    EngineFails(usize),
    Slow(usize, u64),
    Abort(RequestKey),
    Gone(RequestKey),
    Revoke,
    StoreAway,
    StoreWiped,
    LateGrant(u64),
    DeafStore,
    LateQuiesce(usize, u64),
    Corrupt(usize),
    ActorDies(usize),
    Drain(usize),
    Stalls(RequestKey),
    /// The process of an engine is another one (only where engines are processes of their own, as what follows).
    EngineRestarts(usize),
    /// The client gives up so early that the engines lose the abort.
    EarlyAbort(RequestKey),
    /// The next read of D's engine takes longer than P's lease.
    LateRead(usize),
    /// An operator evicts a room. The explorer alone does it: seeded runs revoke leases, which comes to the same.
    Evict,
}

/// How many kinds there are for seeded runs, and how many more where engines are processes of their own.
pub(crate) const KINDS: u64 = 25;
const REMOTE_KINDS: u64 = 3;

impl Fault {
    /// Whether only the lease store is touched by it.
    pub(crate) const fn is_of_store(self) -> bool {
        matches!(
            self,
            Self::Revoke | Self::Evict | Self::StoreAway | Self::StoreWiped | Self::LateGrant(_) | Self::DeafStore
        )
    }

    /// Whether a request survives it where another pair exists: a worker or a link between workers is hurt, or R's own time.
    pub(crate) const fn leaves_another_pair(self) -> bool {
        !matches!(
            self,
            Self::Abort(_) | Self::EarlyAbort(_) | Self::Gone(_) | Self::Stalls(_) | Self::Crash(0, _)
        )
    }

    /// Whether nothing may come of it at all.
    pub(crate) const fn is_harmless(self) -> bool {
        matches!(self, Self::DuplicateMessage(_)) || (self.is_of_store() && !matches!(self, Self::Revoke | Self::Evict))
    }
}

impl World {
    /// Plans a fault of a kind.
    pub(crate) fn plan_fault(&mut self, kind: u64) {
        let (np, nd, n) = (
            self.shape.prefills as u64,
            self.shape.decodes as u64,
            self.nodes.len() as u64 - 1,
        );
        let mut to = |low: u64, high: u64| self.rng.between(low, high);
        let node = |index: u64| usize::try_from(index).unwrap_or(0);
        let w = node(to(1, n));
        let any = node(to(0, n));
        let (p, d) = (node(to(1, np)), node(to(np + 1, np + nd)));
        let ends = to(1, 3);
        let (one, other) = (ends & 1 > 0, ends & 2 > 0);
        let key = RequestKey(to(1, u64::from(self.shape.requests)));
        let ttl = self.settings.progress_ttl.0;
        let late = to(50, ttl * 3 / 2);
        let kinds = if self.shape.remote { KINDS + REMOTE_KINDS } else { KINDS };
        let fault = match kind % kinds {
            0 => Fault::LoseMessage(w),
            1 => Fault::DuplicateMessage(w),
            2 => Fault::DelayControl(w, to(20, ttl / 4)),
            3 => Fault::CutControl {
                w,
                at_r: one,
                at_w: other,
            },
            4 => Fault::ControlHole(w),
            5 => Fault::CutData {
                p,
                d,
                at_p: one,
                at_d: other,
            },
            6 => Fault::DataHole { p, d },
            7 => Fault::Crash(any, to(10, ttl)),
            8 => Fault::Stop(any),
            9 => Fault::Hang(any),
            10 => Fault::Wedge(w),
            11 => Fault::EngineFails(w),
            12 => Fault::Slow(w, to(2, 10)),
            13 => Fault::Abort(key),
            14 => Fault::Gone(key),
            15 => Fault::Revoke,
            16 => Fault::StoreAway,
            17 => Fault::StoreWiped,
            18 => Fault::LateGrant(to(50, self.settings.lease_ttl.0 * 3 / 2)),
            19 => Fault::DeafStore,
            20 => Fault::LateQuiesce(w, late),
            21 => Fault::Corrupt(p),
            22 => Fault::ActorDies(any),
            23 => Fault::Drain(w),
            24 => Fault::Stalls(key),
            25 => Fault::EngineRestarts(w),
            26 => Fault::EarlyAbort(key),
            _ => Fault::LateRead(d),
        };
        let early = matches!(
            fault,
            Fault::LateGrant(_)
                | Fault::LateRead(_)
                | Fault::Corrupt(_)
                | Fault::EngineFails(_)
                | Fault::LateQuiesce(..)
        );
        let begins = if early {
            self.rng.between(10, 400)
        } else {
            self.rng.between(10, 1500)
        };
        let lasts = match self.rng.between(0, 3) {
            0 => self.rng.between(20, 300),
            1 => self.rng.between(300, ttl),
            2 => self.rng.between(ttl, 3 * ttl / 2),
            _ => self.rng.between(3 * ttl / 2, 5 * ttl / 2),
        };
        self.inflict(fault, begins, lasts);
    }

    /// A fault begins then, and lasts for so long.
    pub(crate) fn inflict(&mut self, fault: Fault, begins: u64, lasts: u64) {
        self.faults.push(fault);
        self.open_faults += 1;
        self.schedule(begins, Act::Fault(fault));
        self.schedule(begins + lasts, Act::FaultOver(fault));
    }

    /// It happens.
    pub(crate) fn begin_fault(&mut self, fault: Fault) {
        tell!(self, "*** FAULT {fault:?}");
        self.touch(fault);
        match fault {
            Fault::LoseMessage(w) => self.with_ctl(w, |ctl| ctl.lose_next = true),
            Fault::DuplicateMessage(w) => self.with_ctl(w, |ctl| ctl.duplicate = true),
            Fault::DelayControl(w, ms) => self.with_ctl(w, |ctl| ctl.extra = ms),
            Fault::CutControl { w, at_r, at_w } => self.ctl_cut(w, at_r, at_w),
            Fault::ControlHole(w) => self.ctl_hole(w, true),
            Fault::CutData { p, d, at_p, at_d } => self.data_cut(p, d, at_p, at_d),
            Fault::DataHole { p, d } => self.data_hole(p, d, true),
            Fault::Crash(node, down) => self.crash(node, down),
            Fault::Stop(node) => self.stop(node),
            Fault::Hang(node) => self.hang(node),
            Fault::Wedge(w) => {
                self.nodes[w].engine.wedged = true;
                self.nodes[w].engine.remote.wedged_at = self.now;
            }
            Fault::EngineFails(w) => self.nodes[w].engine.fail_next = true,
            Fault::Slow(w, factor) => self.nodes[w].slow = factor,
            Fault::Abort(key) => self.schedule(self.now, Act::Client(ClientAct::Abort(key))),
            Fault::Gone(key) => self.schedule(self.now, Act::Client(ClientAct::Gone(key))),
            Fault::EngineRestarts(w) => self.engine_restarts(w),
            Fault::EarlyAbort(key) => {
                self.engines_lose_aborts(true);
                self.schedule(self.now, Act::Client(ClientAct::Abort(key)));
            }
            Fault::LateRead(d) => self.nodes[d].engine.remote.reads_late = true,
            Fault::Revoke => {
                let rooms: Vec<RoomId> = self.store.rooms.keys().copied().collect();
                if let Some(room) = self.rng.pick(&rooms) {
                    self.delete_room(room);
                }
            }
            Fault::Evict => self.evict(),
            Fault::StoreAway => self.store_away(true),
            Fault::StoreWiped => self.store_wiped(),
            Fault::LateGrant(ms) => self.store.late = ms,
            Fault::DeafStore => self.store.deaf = true,
            Fault::LateQuiesce(w, ms) => self.nodes[w].late = ms,
            Fault::Corrupt(p) => self.nodes[p].engine.corrupt_next = true,
            Fault::ActorDies(node) => self.actor_dies(node),
            Fault::Drain(w) => self.drain(w, false),
            Fault::Stalls(key) => self.schedule(self.now, Act::Client(ClientAct::Stalls(key))),
        }
    }

    /// From now on nobody hears anything from anybody, for ever.
    pub(crate) fn fall_silent(&mut self, deaf: bool) {
        tell!(
            self,
            "*** from now on nobody hears anything; pings and kernels find out: {}",
            !deaf
        );
        self.deaf = deaf;
        self.store_away(true);
        for w in 1..self.nodes.len() {
            self.ctl_hole(w, true);
            self.touched_nodes.insert(w);
        }
        let prefills = self.shape.prefills;
        for p in 1..=prefills {
            for d in prefills + 1..self.nodes.len() {
                self.data_hole(p, d, true);
                self.touched_links.insert((p, d));
            }
        }
    }

    /// It is over.
    pub(crate) fn end_fault(&mut self, fault: Fault) {
        match fault {
            Fault::LoseMessage(w) => self.with_ctl(w, |ctl| ctl.lose_next = false),
            Fault::DuplicateMessage(w) => self.with_ctl(w, |ctl| ctl.duplicate = false),
            Fault::DelayControl(w, _) => self.with_ctl(w, |ctl| ctl.extra = 0),
            Fault::ControlHole(w) => self.ctl_hole(w, false),
            Fault::DataHole { p, d } => self.data_hole(p, d, false),
            Fault::Crash(node, _) => self.restart(node),
            Fault::Stop(node) => self.go_on(node),
            Fault::Hang(node) => self.unhang(node),
            Fault::Wedge(w) => self.unwedge(w),
            Fault::EngineFails(w) => self.nodes[w].engine.fail_next = false,
            Fault::Slow(w, _) => self.nodes[w].slow = 1,
            Fault::StoreAway if self.store.away => self.store_away(false),
            Fault::LateGrant(_) => self.store.late = 0,
            Fault::DeafStore => self.store.deaf = false,
            Fault::LateQuiesce(w, _) => self.nodes[w].late = 0,
            Fault::Corrupt(p) => self.nodes[p].engine.corrupt_next = false,
            Fault::Drain(w) => self.drain(w, true),
            Fault::EarlyAbort(_) => self.engines_lose_aborts(false),
            Fault::LateRead(d) => self.nodes[d].engine.remote.reads_late = false,
            Fault::EngineRestarts(_)
            | Fault::StoreAway
            | Fault::CutControl { .. }
            | Fault::CutData { .. }
            | Fault::Abort(_)
            | Fault::Gone(_)
            | Fault::Stalls(_)
            | Fault::Revoke
            | Fault::Evict
            | Fault::StoreWiped
            | Fault::ActorDies(_) => return,
        }
        tell!(self, "*** over: {fault:?}");
    }

    /// Whoever the adversary touched may be blamed; nobody else.
    fn touch(&mut self, fault: Fault) {
        match fault {
            Fault::LoseMessage(w)
            | Fault::DuplicateMessage(w)
            | Fault::DelayControl(w, _)
            | Fault::CutControl { w, .. }
            | Fault::ControlHole(w)
            | Fault::Crash(w, _)
            | Fault::Stop(w)
            | Fault::Hang(w)
            | Fault::Wedge(w)
            | Fault::EngineFails(w)
            | Fault::Slow(w, _)
            | Fault::LateQuiesce(w, _)
            | Fault::Corrupt(w)
            | Fault::Drain(w)
            | Fault::EngineRestarts(w)
            | Fault::ActorDies(w) => {
                self.touched_nodes.insert(w);
            }
            Fault::LateRead(d) => {
                self.touched_nodes.insert(d);
            }
            Fault::CutData { p, d, .. } | Fault::DataHole { p, d } => {
                self.touched_links.insert((p, d));
            }
            Fault::Abort(_)
            | Fault::EarlyAbort(_)
            | Fault::Gone(_)
            | Fault::Stalls(_)
            | Fault::Revoke
            | Fault::Evict
            | Fault::StoreAway
            | Fault::StoreWiped
            | Fault::LateGrant(_)
            | Fault::DeafStore => {}
        }
    }

    fn engines_lose_aborts(&mut self, lose: bool) {
        for n in &mut self.nodes {
            n.engine.remote.loses_abort = lose;
        }
    }

    fn with_ctl(&mut self, w: usize, change: impl FnOnce(&mut crate::control::Ctl)) {
        if let Some(ctl) = self.ctl.get_mut(&w) {
            change(ctl);
        }
    }

    /// The process dies; another one starts at its address later.
    pub(crate) fn crash(&mut self, node: usize, down: u64) {
        if !self.nodes[node].up {
            return;
        }
        tell!(self, "{} dies", self.nodes[node].name());
        let life = self.nodes[node].life;
        self.nodes[node].up = false;
        self.nodes[node].stopped = None;
        self.engine_gone(node);
        let of_node: Vec<(u64, bool)> = self
            .sessions
            .iter()
            .filter_map(|(id, s)| {
                if s.p == node && s.p_life == life {
                    Some((*id, true))
                } else if s.d == node && s.d_life == life {
                    Some((*id, false))
                } else {
                    None
                }
            })
            .collect();
        for (id, to_d) in of_node {
            self.data_send(id, to_d, DataMsg::Reset);
        }
        let at = self.now + 3;
        let mut breaks = vec![];
        for (w, ctl) in &mut self.ctl {
            if node == 0 {
                ctl.up_r = false;
                breaks.push(Act::CtlBreak {
                    w: *w,
                    generation: ctl.generation,
                    at_r: false,
                });
            } else if *w == node {
                ctl.up_w = false;
                breaks.push(Act::CtlBreak {
                    w: *w,
                    generation: ctl.generation,
                    at_r: true,
                });
            }
        }
        for act in breaks {
            self.schedule(at, act);
        }
        if node == 0 {
            for client in self
                .clients
                .values_mut()
                .filter(|client| client.arrived && client.answer.is_none())
            {
                client.cut_off = true;
            }
        }
        self.schedule(self.now + down, Act::Restart(node));
    }

    fn stop(&mut self, node: usize) {
        if !self.nodes[node].up || self.nodes[node].stopped.is_some() {
            return;
        }
        let now = self.now;
        self.nodes[node].stopped = Some(now);
        if node == 0 {
            self.pauses += 1;
            self.router_paused += self.settings.progress_ttl.0 * 5 / 2 + 300;
            let all: Vec<usize> = self.ctl.keys().copied().collect();
            all.into_iter().for_each(|w| self.watch_silence(w, now, false));
        } else {
            self.pauses += 1;
            self.watch_silence(node, now, true);
        }
    }

    fn go_on(&mut self, node: usize) {
        let Some(since) = self.nodes[node].stopped.take() else {
            return;
        };
        let long = self.now - since > self.settings.ping_interval.0 + self.settings.ping_timeout.0;
        if node == 0 {
            self.router_runs_since = self.now;
        }
        let inbox = std::mem::take(&mut self.nodes[node].inbox);
        let life = self.nodes[node].life;
        if long && self.rng.one_in(2) {
            // Its own ping timers fire before the pongs are read.
            let of_node: Vec<(usize, u32)> = self
                .ctl
                .iter()
                .filter(|(w, _)| node == 0 || **w == node)
                .map(|(w, ctl)| (*w, ctl.generation))
                .collect();
            for (w, generation) in of_node {
                self.ctl_breaks(w, generation, node == 0);
                self.schedule(
                    self.now + 3,
                    Act::CtlBreak {
                        w,
                        generation,
                        at_r: node != 0,
                    },
                );
            }
        }
        for what in inbox {
            self.input(node, life, what);
        }
        self.engine_runs(node);
    }

    fn hang(&mut self, node: usize) {
        if self.nodes[node].up {
            self.nodes[node].hung = true;
            self.pauses += 1;
            if node == 0 {
                self.router_paused += self.settings.progress_ttl.0 * 5 / 2 + 300;
            }
        }
    }

    fn unhang(&mut self, node: usize) {
        self.nodes[node].hung = false;
        if node == 0 {
            self.router_runs_since = self.now;
        }
        let mailbox = std::mem::take(&mut self.nodes[node].mailbox);
        if self.nodes[node].stopped.is_some() {
            // It reached the ledger's mailbox before the process was stopped: it comes before what waits at its sockets.
            for what in mailbox.into_iter().rev() {
                self.nodes[node].inbox.push_front(what);
            }
            return;
        }
        let life = self.nodes[node].life;
        for what in mailbox {
            self.input(node, life, what);
        }
    }

    fn unwedge(&mut self, w: usize) {
        let engine = &mut self.nodes[w].engine;
        engine.wedged = false;
        if std::mem::take(&mut engine.finished_behind) {
            let (step, life) = (engine.step, self.nodes[w].life);
            self.schedule(self.now, Act::In(w, life, In::EngineStep(step)));
        }
        self.engine_runs(w);
    }

    /// A worker takes no more rooms; when its time is over it ends what is left, exits, and another one comes.
    fn drain(&mut self, w: usize, over: bool) {
        if !self.nodes[w].up || (over && !self.nodes[w].draining) {
            return;
        }
        self.nodes[w].draining = true;
        let event = match (&self.nodes[w].brain, over) {
            (Brain::P(_), false) => In::P(prefill::Event::Drain),
            (Brain::P(_), true) => In::P(prefill::Event::DrainOver),
            (Brain::D(_), false) => In::D(decode::Event::Drain),
            (Brain::D(_), true) => In::D(decode::Event::DrainOver),
            (Brain::R(_), _) => return,
        };
        self.input_now(w, event);
        if over {
            self.schedule(self.now + 600, Act::Exit(w, self.nodes[w].life));
        }
    }

    fn evict(&mut self) {
        let now = self.clock(0);
        let Brain::R(ledger) = &self.nodes[0].brain else { return };
        let rooms: Vec<RoomId> = ledger.rows(now).iter().map(|row| row.room).collect();
        if let Some(room) = self.rng.pick(&rooms).filter(|_| self.nodes[0].up) {
            self.input_now(0, In::R(router::Event::Evict { room }));
        }
    }

    fn actor_dies(&mut self, node: usize) {
        if !self.nodes[node].up {
            return;
        }
        let now = self.clock(node);
        let rooms: Vec<RoomId> = match &self.nodes[node].brain {
            Brain::R(ledger) => ledger.rows(now).iter().map(|row| row.room).collect(),
            Brain::P(ledger) => ledger.rows(now).iter().map(|row| row.room).collect(),
            Brain::D(ledger) => ledger.rows(now).iter().map(|row| row.room).collect(),
        };
        let Some(room) = self.rng.pick(&rooms) else { return };
        let ids: Vec<u64> = self.nodes[node]
            .rooms
            .get(&room)
            .map(|wr| wr.sessions.values().copied().collect())
            .unwrap_or_default();
        for id in ids {
            let at_d = matches!(self.nodes[node].brain, Brain::D(_));
            self.data_kill(id, at_d);
        }
        let event = match self.nodes[node].brain {
            Brain::R(_) => In::R(router::Event::ActorDied { room }),
            Brain::P(_) => In::P(prefill::Event::ActorDied { room }),
            Brain::D(_) => In::D(decode::Event::ActorDied { room }),
        };
        self.input_now(node, event);
    }
}
