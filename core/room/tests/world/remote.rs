//! Engines that are processes of their own, and the drivers between them and the ledgers: prompts whose KV is kept under a
//! lease, reads by ticket, aborts that come before their leg and are lost, and pages that stay with an aborted read until
//! the other engine runs on or dies. The pool is the engine's here: the ledger only counts what it has reserved, and each
//! time an engine takes pages it shows whether the ledger was right.

use std::collections::BTreeMap;

use innkeeper_room::ledger::{decode, prefill};
use innkeeper_room::{Counters, Epoch, Millis, Reason, RoomId};

use crate::data::DataMsg;
use crate::node::{Brain, In, index_of};
use crate::world::{Act, PAGE_TOKENS, World, tell};

/// How long an engine keeps KV that nobody has read, in ms.
const LEASE: u64 = 1500;

/// A bug of the drivers here: `PLANTED` chooses it, as in `src/planted.rs`.
fn planted(bug: &str) -> bool {
    let compiled = match bug {
        "bug-abort-once" => cfg!(feature = "bug-abort-once"),
        "bug-commit-unproven" => cfg!(feature = "bug-commit-unproven"),
        _ => false,
    };
    compiled || (cfg!(feature = "bugs-by-name") && std::env::var("PLANTED").is_ok_and(|chosen| chosen == bug))
}

/// What D's engine reads by: where the KV is, in which life of which engine.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Ticket {
    p: usize,
    life: u32,
    pages: Vec<usize>,
}

/// KV that is kept for a reader.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Kept {
    since: u64,
    /// The ledger wants it back.
    wanted: bool,
}

/// A read under way: it holds the reader's pages until it has ended, aborted or not.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Read {
    ticket: Ticket,
    aborted: bool,
    /// It would have ended, but one of the two engines stands still.
    waits: bool,
}

/// What an engine holds beside its jobs.
#[derive(Clone, Default, Hash)]
pub(crate) struct Remote {
    /// The life of its process.
    pub(crate) life: u32,
    pub(crate) kept: BTreeMap<RoomId, Kept>,
    pub(crate) reads: BTreeMap<RoomId, Read>,
    /// Legs that are to be aborted, and since when.
    pub(crate) aborts: BTreeMap<RoomId, u64>,
    /// The next abort comes before its leg, and is lost.
    pub(crate) loses_abort: bool,
    /// The next read takes longer than the lease.
    pub(crate) reads_late: bool,
    pub(crate) wedged_at: u64,
}

impl Remote {
    /// Whether somebody waits for something of it, and its canaries are asked for.
    pub(crate) fn owes(&self) -> bool {
        !self.kept.is_empty() || !self.reads.is_empty()
    }
}

impl World {
    /// What happens at an engine, or between two drivers.
    pub(crate) fn of_remote(&mut self, w: usize, life: u32, what: &RemoteIn) {
        if self.nodes[w].engine.remote.life != life {
            return;
        }
        match *what {
            RemoteIn::ReadOver(room) => self.read_over(w, room),
            RemoteIn::LeaseOver(room) => self.lease_over(w, room),
            RemoteIn::GiveBack { room, p, p_life } => self.give_back_at(w, room, p, p_life),
            RemoteIn::GivenBack(room) => self.free_kept(w, room),
            RemoteIn::AbortAgain(room) => self.abort_leg(w, room),
        }
    }

    fn soon(&mut self, w: usize, after: u64, what: RemoteIn) {
        let (life, engine) = (self.nodes[w].life, self.nodes[w].engine.remote.life);
        self.schedule(self.now + after, Act::In(w, life, In::Remote(engine, what)));
    }

    /// It makes no step: its process stands still, alone or with its worker.
    fn is_frozen(&self, w: usize) -> bool {
        self.nodes[w].engine.wedged || self.nodes[w].stopped.is_some()
    }

    // === prefill ===

    /// The prompt is computed: the KV stays where it is until it is read, given back, or its lease is over.
    pub(crate) fn keep(&mut self, p: usize, room: RoomId, tokens: u32) {
        let read_within = Millis(self.settings.progress_ttl.0);
        let now = self.now;
        let remote = &mut self.nodes[p].engine.remote;
        remote.aborts.remove(&room);
        let life = remote.life;
        remote.kept.insert(
            room,
            Kept {
                since: now,
                wanted: false,
            },
        );
        let pages = self.nodes[p].pool.of.get(&room).cloned().unwrap_or_default();
        let ticket = Ticket { p, life, pages };
        let current = self.nodes[p].rooms.get_mut(&room).and_then(|wr| {
            wr.counters.raise(Counters {
                tokens_computed: tokens,
                ..Counters::default()
            });
            wr.ticket = Some(ticket);
            wr.sessions.values().next_back().copied()
        });
        self.soon(p, LEASE, RemoteIn::LeaseOver(room));
        let kept = move |room| (prefill::Event::Kept { room, read_within }, decode::Event::Tick);
        self.engine_says(p, room, kept);
        if let Some(id) = current {
            self.pump(id);
        }
    }

    /// P says its ticket, once on each connection.
    pub(crate) fn pump_ticket(&mut self, id: u64) {
        let Some(s) = self.sessions.get(&id) else { return };
        if !s.ready || s.manifest_sent || s.at_p.over || s.at_p.quiesced || !self.sess_alive(id, false) {
            return;
        }
        let ticket = self.nodes[s.p].rooms.get(&s.room).and_then(|wr| wr.ticket.clone());
        if let Some(ticket) = ticket {
            if let Some(s) = self.sessions.get_mut(&id) {
                s.manifest_sent = true;
            }
            self.data_send(id, true, DataMsg::Ticket(ticket));
        }
    }

    /// The ledger wants a ticket back: P cannot do that itself, the room's D has to.
    pub(crate) fn give_back(&mut self, p: usize, room: RoomId) {
        let Some(kept) = self.nodes[p].engine.remote.kept.get_mut(&room) else {
            return self.p_quiesced(p, room);
        };
        kept.wanted = true;
        let p_life = self.nodes[p].engine.remote.life;
        let Some(d) = self.nodes[p].rooms.get(&room).map(|wr| index_of(wr.spec.decode)) else {
            return;
        };
        if self.nodes[d].up && self.links.get(&(p, d)).copied().flatten().is_none() {
            let after = self.latency(1, 6);
            self.soon(d, after, RemoteIn::GiveBack { room, p, p_life });
        }
    }

    /// D gives a ticket back that it does not read by: and never will.
    fn give_back_at(&mut self, d: usize, room: RoomId, p: usize, p_life: u32) {
        if let Some(wr) = self.nodes[d].rooms.get_mut(&room) {
            wr.ticket_gone = true;
        }
        let reads = self.nodes[d].engine.remote.reads.contains_key(&room);
        if reads || self.is_frozen(d) || self.nodes[p].engine.remote.life != p_life {
            return;
        }
        let after = self.latency(1, 6);
        self.soon(p, after, RemoteIn::GivenBack(room));
    }

    fn lease_over(&mut self, p: usize, room: RoomId) {
        let kept = self.nodes[p].engine.remote.kept.get(&room);
        if kept.is_some_and(|kept| kept.since + LEASE <= self.now) {
            tell!(self, "P{p}'s engine keeps {room} no longer");
            self.free_kept(p, room);
        }
    }

    /// The engine lets go of what it kept, if it makes steps; the driver says so if the ledger waits for it.
    fn free_kept(&mut self, p: usize, room: RoomId) {
        if self.nodes[p].engine.wedged {
            return;
        }
        let Some(kept) = self.nodes[p].engine.remote.kept.remove(&room) else {
            return;
        };
        self.let_go_of_pages(p, room);
        if kept.wanted {
            self.p_quiesced(p, room);
        }
    }

    fn p_quiesced(&mut self, p: usize, room: RoomId) {
        let epoch = Epoch::TICKET;
        self.engine_says(p, room, move |room| {
            (prefill::Event::Quiesced { room, epoch }, decode::Event::Tick)
        });
    }

    fn let_go_of_pages(&mut self, w: usize, room: RoomId) {
        if let Err(what) = self.nodes[w].pool.close(room, &[]) {
            self.wrong(format!("{what}, at the engine of {}", self.nodes[w].name()));
        }
    }

    // === decode ===

    /// D's engine reads, into pages of its own.
    pub(crate) fn pull(&mut self, d: usize, room: RoomId) {
        let Some(wr) = self.nodes[d].rooms.get(&room) else {
            return;
        };
        let pages = (wr.spec.prompt_tokens + wr.spec.max_tokens)
            .div_ceil(PAGE_TOKENS)
            .max(1);
        let Some(ticket) = wr.ticket.clone().filter(|_| !wr.ticket_gone) else {
            return self.d_ended(d, room, Reason::KvUnproven);
        };
        if !self.nodes[d].pool.open(room, pages, &[]) {
            return self.wrong(format!("I7: D{d}'s engine has no {pages} pages for {room}"));
        }
        let read = Read {
            ticket,
            aborted: false,
            waits: false,
        };
        let remote = &mut self.nodes[d].engine.remote;
        remote.reads.insert(room, read);
        let late = std::mem::take(&mut remote.reads_late);
        let took = match (late, self.exact) {
            (true, _) => LEASE + 300,
            (false, Some(exact)) => exact.step,
            (false, None) => self.rng.between(5, 60),
        };
        self.soon(d, took, RemoteIn::ReadOver(room));
    }

    fn d_ended(&mut self, d: usize, room: RoomId, reason: Reason) {
        self.engine_says(d, room, move |room| {
            (prefill::Event::Tick, decode::Event::EngineEnded { room, reason })
        });
    }

    /// The read has ended, if both engines make steps.
    fn read_over(&mut self, d: usize, room: RoomId) {
        let Some(read) = self.nodes[d].engine.remote.reads.get(&room).cloned() else {
            return;
        };
        let p = read.ticket.p;
        let gone = !self.nodes[p].up || self.nodes[p].engine.remote.life != read.ticket.life;
        if self.is_frozen(d) || (!gone && self.is_frozen(p)) {
            if let Some(read) = self.nodes[d].engine.remote.reads.get_mut(&room) {
                read.waits = true;
            }
            return;
        }
        if gone {
            self.engine_lets_go(d, room);
            return match read.aborted {
                true => self.engine_says(d, room, |room| {
                    (prefill::Event::Tick, decode::Event::EngineStopped { room })
                }),
                false => self.d_ended(d, room, Reason::TransferLost),
            };
        }
        let pages = self.nodes[d].pool.of.get(&room).cloned().unwrap_or_default();
        for (to, from) in pages.iter().zip(&read.ticket.pages) {
            self.nodes[d].pool.tag[*to] = self.nodes[p].pool.tag[*from];
        }
        // Prefill's engine is told by the read itself.
        self.free_kept(p, room);
        if read.aborted {
            self.engine_lets_go(d, room);
            self.engine_says(d, room, |room| {
                (prefill::Event::Tick, decode::Event::EngineStopped { room })
            });
        } else if self.is_proven(d, p, room) || planted("bug-commit-unproven") {
            self.commit_read(d, room, &pages);
        } else {
            self.engine_lets_go(d, room);
            self.d_ended(d, room, Reason::KvUnproven);
        }
    }

    /// Whether the read certainly ended inside the lease: since D's own Ready, or else since P was certainly not finished,
    /// which only P can say.
    fn is_proven(&self, d: usize, p: usize, room: RoomId) -> bool {
        let fresh = |since: Option<u64>| since.is_some_and(|since| self.now - since < LEASE * 4 / 5);
        let ready = self.nodes[d].rooms.get(&room).and_then(|wr| wr.ready_at);
        let asked = self.links.get(&(p, d)).copied().flatten().is_none() && !self.is_frozen(p);
        let begun = self.nodes[p].rooms.get(&room).and_then(|wr| wr.unfinished_at);
        fresh(ready) || (asked && fresh(begun))
    }

    fn commit_read(&mut self, d: usize, room: RoomId, pages: &[usize]) {
        let Some(wr) = self.nodes[d].rooms.get(&room) else {
            return;
        };
        let prompt = pages.iter().take(wr.covered.len()).enumerate();
        let foreign = prompt
            .filter(|(at, page)| self.nodes[d].pool.tag[**page] != wr.tag(*at))
            .count();
        if foreign > 0 {
            self.wrong(format!("I6: D{d} commits {room} with {foreign} foreign pages"));
        }
        self.nodes[d].engine.remote.reads.remove(&room);
        self.engine_says(d, room, |room| (prefill::Event::Tick, decode::Event::Pulled { room }));
        self.decode(d, room);
    }

    // === both ===

    /// A leg has ended: what it held is the engine's again.
    pub(crate) fn engine_lets_go(&mut self, w: usize, room: RoomId) {
        let remote = &mut self.nodes[w].engine.remote;
        remote.aborts.remove(&room);
        remote.reads.remove(&room);
        self.let_go_of_pages(w, room);
    }

    /// The ledger wants a leg to stop: the driver says so until the leg has ended.
    pub(crate) fn abort(&mut self, w: usize, room: RoomId) {
        let engine = &mut self.nodes[w].engine;
        let leg = engine.jobs.iter().any(|job| job.room == room) || engine.remote.reads.contains_key(&room);
        if !leg {
            return self.engine_says(w, room, |room| {
                (
                    prefill::Event::EngineStopped { room },
                    decode::Event::EngineStopped { room },
                )
            });
        }
        let now = self.now;
        let again = engine.remote.aborts.contains_key(&room);
        engine.remote.aborts.entry(room).or_insert(now);
        if !again {
            self.abort_leg(w, room);
        }
    }

    fn abort_leg(&mut self, w: usize, room: RoomId) {
        let engine = &mut self.nodes[w].engine;
        if !engine.remote.aborts.contains_key(&room) {
            return;
        }
        if std::mem::take(&mut engine.remote.loses_abort) {
            tell!(self, "the engine of {} loses the abort of {room}", self.nodes[w].name());
        } else if let Some(job) = engine.jobs.iter_mut().find(|job| job.room == room) {
            job.cancel = true;
        } else if let Some(read) = engine.remote.reads.get_mut(&room) {
            read.aborted = true;
        }
        if !planted("bug-abort-once") {
            let again = self.settings.report_period.0;
            self.soon(w, again, RemoteIn::AbortAgain(room));
        }
    }

    /// A leg that is to be aborted makes no more than a few steps.
    pub(crate) fn check_aborts(&mut self, w: usize) {
        let step = self.exact.map_or(60, |exact| exact.step) * self.nodes[w].slow;
        let most = 2 * self.settings.report_period.0 + 2 * step;
        let engine = &self.nodes[w].engine;
        let late = engine.jobs.iter().map(|job| job.room).find(|room| {
            engine
                .remote
                .aborts
                .get(room)
                .is_some_and(|since| since + most < self.now)
        });
        if let Some(room) = late.filter(|_| self.pauses == 0) {
            self.wrong(format!(
                "{}'s engine runs on with {room}, which was aborted",
                self.nodes[w].name()
            ));
        }
    }

    /// The engine makes steps again: what it is late with comes at once.
    pub(crate) fn engine_runs(&mut self, w: usize) {
        let lapsed: Vec<RoomId> = self.nodes[w].engine.remote.kept.keys().copied().collect();
        for room in lapsed {
            self.soon(w, 0, RemoteIn::LeaseOver(room));
        }
        self.reads_go_on(|at, read| at == w || read.ticket.p == w);
    }

    /// The engine's process is gone: whoever reads from it finds out.
    pub(crate) fn engine_gone(&mut self, w: usize) {
        self.reads_go_on(|_, read| read.ticket.p == w);
    }

    fn reads_go_on(&mut self, which: impl Fn(usize, &Read) -> bool) {
        let mut due = vec![];
        for n in &self.nodes {
            let reads = n.engine.remote.reads.iter();
            due.extend(
                reads
                    .filter(|(_, read)| which(n.index, read))
                    .map(|(room, _)| (n.index, *room)),
            );
        }
        for (d, room) in due {
            let waits = |read: &Read| read.waits || read.ticket.life != self.nodes[read.ticket.p].engine.remote.life;
            let gone = |read: &Read| !self.nodes[read.ticket.p].up;
            let ends = self.nodes[d].engine.remote.reads.get(&room);
            if ends.is_some_and(|read| waits(read) || gone(read)) {
                self.soon(d, 0, RemoteIn::ReadOver(room));
            }
        }
    }

    /// The engine's process is another one. Its driver has ended every leg when it says so.
    pub(crate) fn engine_restarts(&mut self, w: usize) {
        if !self.nodes[w].up {
            return;
        }
        let engine = &mut self.nodes[w].engine;
        engine.jobs.clear();
        engine.in_hand = None;
        engine.finished_behind = false;
        engine.wedged = false;
        engine.step += 1;
        engine.remote = Remote {
            life: engine.remote.life + 1,
            ..Remote::default()
        };
        self.nodes[w].pool = crate::node::Pool::new(self.shape.pages_of(w));
        self.engine_gone(w);
        let event = match self.nodes[w].brain {
            Brain::R(_) => return,
            Brain::P(_) => In::P(prefill::Event::EngineRestarted),
            Brain::D(_) => In::D(decode::Event::EngineRestarted),
        };
        self.input_now(w, event);
    }
}

/// What happens at an engine, or between two drivers.
#[derive(Clone, Debug, Hash)]
pub(crate) enum RemoteIn {
    ReadOver(RoomId),
    LeaseOver(RoomId),
    /// P's driver asks D's to give a ticket back.
    GiveBack {
        room: RoomId,
        p: usize,
        p_life: u32,
    },
    GivenBack(RoomId),
    AbortAgain(RoomId),
}
