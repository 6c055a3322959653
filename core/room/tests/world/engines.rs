//! The workers' engines, one chunk or step in hand at a time, and the sessions that the executors keep.

use innkeeper_room::ledger::{decode, prefill};
use innkeeper_room::{BlockHash, Counters, Epoch, HelloReply, RoomId};

use crate::data::DataMsg;
use crate::node::{Brain, In, Job};
use crate::world::{Act, PAGE_BYTES, PAGE_TOKENS, World};

impl World {
    // === sessions ===

    pub(crate) fn session_of(&self, w: usize, room: RoomId, epoch: Epoch) -> Option<u64> {
        self.nodes[w].rooms.get(&room)?.sessions.get(&epoch).copied()
    }

    pub(crate) fn kill_p(&mut self, p: usize, room: RoomId, epoch: Epoch) {
        let Some(wr) = self.nodes[p].rooms.get_mut(&room) else {
            return;
        };
        wr.fenced = wr.fenced.max(epoch);
        let ids: Vec<u64> = wr.sessions.range(..=epoch).map(|(_, id)| *id).collect();
        for id in ids {
            self.data_kill(id, false);
        }
    }

    pub(crate) fn d_event_soon(&mut self, d: usize, event: decode::Event) {
        let life = self.nodes[d].life;
        self.schedule(self.now, Act::In(d, life, In::D(event)));
    }

    pub(crate) fn reply(&mut self, d: usize, id: u64, room: RoomId, epoch: Epoch, reply: HelloReply) {
        let stays = matches!(reply, HelloReply::Ready | HelloReply::Wait);
        if !stays || !self.nodes[d].rooms.contains_key(&room) {
            if self.sessions.get(&id).is_some_and(|s| s.d == d) {
                self.data_word(id, true, Some(DataMsg::Reply(reply, vec![])));
                if let Some(s) = self.sessions.get_mut(&id) {
                    s.lobby.clear();
                }
            }
            return;
        }
        let Some(s) = self.sessions.get_mut(&id) else { return };
        let news = if std::mem::replace(&mut s.kept, true) {
            vec![]
        } else {
            std::mem::take(&mut s.lobby)
        };
        let gone = s.at_d.quiesced || s.at_d.leaving || s.at_d.over;
        if let Some(wr) = self.nodes[d].rooms.get_mut(&room)
            && !gone
        {
            wr.sessions.insert(epoch, id);
        }
        if reply == HelloReply::Ready && !gone {
            let pages = self.nodes[d].pool.of.get(&room).cloned();
            let now = self.now;
            if let Some(wr) = self.nodes[d].rooms.get_mut(&room) {
                wr.ready_at.get_or_insert(now);
            }
            let covered = self.nodes[d]
                .rooms
                .get(&room)
                .map(|wr| wr.covered.clone())
                .unwrap_or_default();
            if pages.is_none() && !self.shape.remote {
                self.wrong(format!("D{d} is Ready for {room} without pages"));
            }
            if let Some(s) = self.sessions.get_mut(&id) {
                s.grant = pages;
            }
            self.data_send(id, false, DataMsg::Reply(HelloReply::Ready, covered));
        } else if !gone {
            self.data_send(id, false, DataMsg::Reply(reply, vec![]));
        }
        let told_quiesced = news.iter().any(|event| matches!(event, decode::Event::Quiesced { .. }));
        for event in news {
            self.d_event_soon(d, event);
        }
        if gone && !told_quiesced && self.sessions.get(&id).is_some_and(|s| s.at_d.quiesced) {
            self.d_event_soon(d, decode::Event::Quiesced { room, epoch });
        }
    }

    // === engines ===

    pub(crate) fn compute(&mut self, p: usize, room: RoomId, tokens: u32, reuse: &[BlockHash]) {
        let pages = tokens.div_ceil(PAGE_TOKENS).max(1);
        if !self.nodes[p].pool.open(room, pages, reuse) {
            return self.wrong(format!(
                "I7: P{p} has no {pages} pages for {room}, {reuse:?} among them"
            ));
        }
        // Whatever is reused, the first token follows from one that is computed.
        let sealed = u32::try_from(reuse.len()).unwrap_or(u32::MAX);
        let done = (sealed * PAGE_TOKENS).min(tokens - 1);
        self.seal(p, room, sealed, 0);
        self.was_unfinished(p, room);
        self.nodes[p].engine.jobs.push_back(Job {
            room,
            done,
            total: tokens,
            cancel: false,
        });
        self.engine_go(p);
    }

    /// So many pages of a room are sealed.
    fn seal(&mut self, p: usize, room: RoomId, sealed: u32, computed: u32) {
        if let Some(wr) = self.nodes[p].rooms.get_mut(&room) {
            wr.sealed = wr.sealed.max(sealed);
            let tokens_computed = wr.counters.tokens_computed + computed;
            wr.counters.raise(Counters {
                tokens_computed,
                bytes_sealed: u64::from(sealed) * PAGE_BYTES,
                ..Counters::default()
            });
        }
    }

    pub(crate) fn decode(&mut self, d: usize, room: RoomId) {
        let Some(total) = self.nodes[d].rooms.get(&room).map(|wr| wr.spec.max_tokens) else {
            return;
        };
        self.d_event_soon(d, decode::Event::Made { room, tokens: 1 });
        if total <= 1 {
            if self.shape.remote {
                self.engine_lets_go(d, room);
            }
            return self.d_event_soon(d, decode::Event::EngineFinished { room });
        }
        self.nodes[d].engine.jobs.push_back(Job {
            room,
            done: 1,
            total,
            cancel: false,
        });
        self.engine_go(d);
    }

    pub(crate) fn cancel(&mut self, w: usize, room: RoomId) {
        if self.shape.remote {
            return self.abort(w, room);
        }
        match self.nodes[w].engine.jobs.iter_mut().find(|job| job.room == room) {
            Some(job) => job.cancel = true,
            None => self.engine_says(w, room, |room| {
                (
                    prefill::Event::EngineStopped { room },
                    decode::Event::EngineStopped { room },
                )
            }),
        }
    }

    pub(crate) fn engine_says(
        &mut self,
        w: usize,
        room: RoomId,
        event: impl Fn(RoomId) -> (prefill::Event, decode::Event),
    ) {
        let (p, d) = event(room);
        let what = if matches!(self.nodes[w].brain, Brain::P(_)) {
            In::P(p)
        } else {
            In::D(d)
        };
        let life = self.nodes[w].life;
        self.schedule(self.now, Act::In(w, life, what));
    }

    /// Takes the next chunk or step in hand.
    pub(crate) fn engine_go(&mut self, w: usize) {
        let took = self.step_takes() * self.nodes[w].slow;
        let now = self.now;
        let n = &mut self.nodes[w];
        if n.engine.in_hand.is_some() || n.engine.jobs.is_empty() {
            return;
        }
        n.engine.in_hand = Some(now);
        n.engine.step += 1;
        let (step, life) = (n.engine.step, n.life);
        self.schedule(now + took, Act::In(w, life, In::EngineStep(step)));
    }

    /// The chunk or step in hand is finished.
    pub(crate) fn engine_step(&mut self, w: usize, step: u64) {
        let engine = &mut self.nodes[w].engine;
        if engine.step != step || engine.in_hand.is_none() {
            return;
        }
        if engine.wedged {
            engine.finished_behind = true;
            return;
        }
        engine.in_hand = None;
        engine.progress += 1;
        let fails = std::mem::take(&mut engine.fail_next);
        let (cancelled, jobs): (Vec<Job>, Vec<Job>) =
            std::mem::take(&mut engine.jobs).into_iter().partition(|job| job.cancel);
        engine.jobs = jobs.into();
        for job in cancelled {
            if self.shape.remote {
                self.engine_lets_go(w, job.room);
            }
            self.engine_says(w, job.room, |room| {
                (
                    prefill::Event::EngineStopped { room },
                    decode::Event::EngineStopped { room },
                )
            });
        }
        self.check_aborts(w);
        if fails && let Some(job) = self.nodes[w].engine.jobs.pop_front() {
            if self.shape.remote {
                self.engine_lets_go(w, job.room);
            }
            self.engine_says(w, job.room, |room| {
                (
                    prefill::Event::EngineFailed { room },
                    decode::Event::EngineFailed { room },
                )
            });
        }
        if matches!(self.nodes[w].brain, Brain::P(_)) {
            self.chunk(w)
        } else {
            self.tokens(w)
        }
        self.engine_go(w);
    }

    pub(crate) fn chunk(&mut self, p: usize) {
        const CHUNK: u32 = 8;
        let Some(mut job) = self.nodes[p].engine.jobs.pop_front() else {
            return;
        };
        let room = job.room;
        let from = job.done;
        job.done = (job.done + CHUNK).min(job.total);
        let finished = job.done == job.total;
        let sealed = if finished {
            job.total.div_ceil(PAGE_TOKENS).max(1)
        } else {
            job.done / PAGE_TOKENS
        };
        let pool = &self.nodes[p].pool;
        let (pages, shared) = (pool.of.get(&room).cloned().unwrap_or_default(), pool.shared(room));
        if pages.len() < sealed as usize {
            return self.wrong(format!("I6: P{p} computes {room} without its pages"));
        }
        if ((from / PAGE_TOKENS) as usize) < shared {
            return self.wrong(format!("I6: P{p} writes {room}'s KV into a page that others read"));
        }
        if pages
            .iter()
            .take(shared)
            .enumerate()
            .any(|(at, page)| !pool.may_read(room, at, *page))
        {
            return self.wrong(format!("I6: P{p} computes {room} from a page that went"));
        }
        let tags: Vec<u64> = self.nodes[p]
            .rooms
            .get(&room)
            .map(|wr| (0..sealed as usize).map(|at| wr.tag(at)).collect())
            .unwrap_or_default();
        for (page, tag) in pages.iter().zip(tags).skip(shared) {
            self.nodes[p].pool.tag[*page] = tag;
        }
        if finished && !self.shape.remote && std::mem::take(&mut self.nodes[p].engine.corrupt_next) {
            self.corrupt(p, &pages, shared);
        }
        if self.shape.remote {
            return self.remote_chunk(p, job, finished);
        }
        let bad = pages.iter().any(|page| self.nodes[p].pool.bad.contains(page));
        self.seal(p, room, sealed, job.done - from);
        let current = self.nodes[p].rooms.get_mut(&room).and_then(|wr| {
            if finished {
                wr.manifest = Some(!bad);
            }
            wr.sessions.values().next_back().copied()
        });
        if finished {
            let bytes = u64::from(sealed) * PAGE_BYTES;
            self.engine_says(p, room, |room| {
                (prefill::Event::Sealed { room, bytes }, decode::Event::Tick)
            });
        } else {
            self.nodes[p].engine.jobs.push_back(job);
        }
        if let Some(id) = current {
            self.pump(id);
        }
    }

    /// The last moment at which a prompt was certainly not computed.
    fn was_unfinished(&mut self, p: usize, room: RoomId) {
        let now = self.now;
        if let Some(wr) = self.nodes[p].rooms.get_mut(&room).filter(|_| self.shape.remote) {
            wr.unfinished_at = Some(now);
        }
    }

    /// Nothing is seen of a chunk but that there was one, until the last.
    fn remote_chunk(&mut self, p: usize, job: Job, finished: bool) {
        if finished {
            return self.keep(p, job.room, job.total);
        }
        self.was_unfinished(p, job.room);
        self.nodes[p].engine.jobs.push_back(job);
    }

    /// A page of the room is not what was sealed any more: one of the cache stays so, until it goes. In a world of chance it is
    /// one of the room's own: with several faults P may not hear what D found, and the next room would fail of it as well.
    fn corrupt(&mut self, p: usize, pages: &[usize], shared: usize) {
        let at = if self.exact.is_some() && shared > 0 {
            0
        } else {
            pages.len() - 1
        };
        self.nodes[p].pool.bad.insert(pages[at]);
    }

    pub(crate) fn tokens(&mut self, d: usize) {
        let mut jobs = std::mem::take(&mut self.nodes[d].engine.jobs);
        for job in &mut jobs {
            job.done += 1;
            let (room, tokens) = (job.room, job.done);
            let owned = self.nodes[d]
                .pool
                .of
                .get(&room)
                .is_some_and(|pages| pages.iter().all(|page| self.nodes[d].pool.owner[*page] == Some(room)));
            if !owned {
                self.wrong(format!("I6: D{d}'s engine reads pages that are not {room}'s"));
            }
            if job.done >= job.total && self.shape.remote {
                self.engine_lets_go(d, room);
            }
            self.engine_says(d, room, |room| {
                (prefill::Event::Tick, decode::Event::Made { room, tokens })
            });
            if job.done >= job.total {
                self.engine_says(d, room, |room| {
                    (prefill::Event::Tick, decode::Event::EngineFinished { room })
                });
            }
        }
        jobs.retain(|job| job.done < job.total);
        self.nodes[d].engine.jobs = jobs;
    }
}
