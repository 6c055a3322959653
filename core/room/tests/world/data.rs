//! The data plane: one session per room and epoch between a P and a D, with frames in flight, last words, half-closes,
//! resets, black holes, and the moment in which each end lets go of the pages.

use innkeeper_room::ledger::{decode, prefill};
use innkeeper_room::{Counters, Epoch, Evidence, HelloReply, Reason, RoomId};

use crate::node::In;
use crate::world::{Act, PAGE_BYTES, World, tell};

/// What travels on a data connection.
#[derive(Clone, Debug)]
pub enum DataMsg {
    Hello { token: u64 },
    Started,
    Progress(u64),
    Frame { slab: usize, tag: u64 },
    Manifest { right: bool },
    Fail(Reason, Box<Evidence>),
    Reply(HelloReply, Vec<bool>),
    Verified(u64),
    Committed,
    Eof,
    Reset,
    /// The local kernel found the connection dead. `true`: bytes were unacknowledged.
    TimedOut(bool),
}

/// One end of a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct End {
    /// A last word was said or heard, or the connection broke: nothing more is told.
    pub over: bool,
    /// It waits for the other end's close.
    pub draining: bool,
    /// It has let go of the pages.
    pub quiesced: bool,
    /// The letting go is on its way.
    pub leaving: bool,
}

/// A session.
#[derive(Debug)]
pub struct Session {
    pub p: usize,
    pub p_life: u32,
    pub d: usize,
    pub d_life: u32,
    pub room: RoomId,
    pub epoch: Epoch,
    pub at_p: End,
    pub at_d: End,
    /// P: D is ready.
    pub ready: bool,
    pub sent: Vec<bool>,
    pub sent_now: u64,
    pub manifest_sent: bool,
    /// D: it may write these pages.
    pub grant: Option<Vec<usize>>,
    /// D: the room keeps it; before that its news waits in the lobby.
    pub kept: bool,
    pub lobby: Vec<decode::Event>,
    pub last: [u64; 2],
    pub held: Vec<(bool, DataMsg)>,
    pub hole_since: Option<u64>,
}

impl World {
    fn sess_alive(&self, id: u64, at_d: bool) -> bool {
        self.sessions.get(&id).is_some_and(|s| {
            let (node, life) = if at_d { (s.d, s.d_life) } else { (s.p, s.p_life) };
            self.nodes[node].up && self.nodes[node].life == life
        })
    }

    /// Puts a message on the wire; order is kept.
    pub fn data_send(&mut self, id: u64, to_d: bool, msg: DataMsg) {
        let lat = self.rng.between(1, 6);
        let now = self.now;
        let Some(s) = self.sessions.get_mut(&id) else { return };
        let extra = if matches!(msg, DataMsg::Frame { .. }) { 3 } else { 0 };
        let slot = &mut s.last[usize::from(to_d)];
        let at = (*slot + extra).max(now + lat);
        *slot = at;
        self.schedule(at, Act::Data { session: id, to_d, msg });
    }

    /// A message arrives, unless the link is a black hole.
    pub fn data_arrives(&mut self, id: u64, to_d: bool, msg: DataMsg) {
        let Some(s) = self.sessions.get_mut(&id) else { return };
        if s.hole_since.is_some() && !matches!(msg, DataMsg::TimedOut(_)) {
            s.held.push((to_d, msg));
            return;
        }
        let (node, life) = if to_d { (s.d, s.d_life) } else { (s.p, s.p_life) };
        if !self.sess_alive(id, to_d) {
            // The machine answers for the dead process.
            if !matches!(msg, DataMsg::Reset | DataMsg::TimedOut(_)) {
                self.data_send(id, !to_d, DataMsg::Reset);
            }
            return;
        }
        self.input(node, life, In::Data { session: id, msg });
    }

    /// P dials.
    pub fn dial(&mut self, p: usize, room: RoomId, epoch: Epoch) {
        let Some(wr) = self.nodes[p].rooms.get_mut(&room) else { return };
        if !wr.dialing.remove(&epoch) {
            return;
        }
        let (token, d) = (wr.token, crate::node::index_of(wr.spec.decode));
        let fenced = epoch <= wr.fenced;
        if fenced {
            return self.p_event(p, prefill::Event::Quiesced { room, epoch });
        }
        let hole = self.links.get(&(p, d)).copied().flatten();
        let refused = !self.nodes[d].up;
        if refused || hole.is_some() {
            let after = if refused { 3 } else { self.settings.connect_timeout.0 };
            let life = self.nodes[p].life;
            let broken = prefill::Event::Broken { room, epoch, unacked: false, refused: true };
            self.schedule(self.now + after, Act::In(p, life, In::P(broken)));
            self.schedule(self.now + after, Act::In(p, life, In::P(prefill::Event::Quiesced { room, epoch })));
            return;
        }
        self.next_session += 1;
        let id = self.next_session;
        let s = Session {
            p,
            p_life: self.nodes[p].life,
            d,
            d_life: self.nodes[d].life,
            room,
            epoch,
            at_p: End::default(),
            at_d: End::default(),
            ready: false,
            sent: vec![],
            sent_now: 0,
            manifest_sent: false,
            grant: None,
            kept: false,
            lobby: vec![],
            last: [0, 0],
            held: vec![],
            hole_since: None,
        };
        self.sessions.insert(id, s);
        if let Some(wr) = self.nodes[p].rooms.get_mut(&room) {
            wr.sessions.insert(epoch, id);
        }
        tell!(self, "P{p} dials D{d} for {room} epoch {}", epoch.0);
        self.data_send(id, true, DataMsg::Hello { token });
    }

    /// An end lets go of the pages: its permit goes back. `late` is how much later than usual.
    fn leave(&mut self, id: u64, at_d: bool, after: u64) {
        let Some(s) = self.sessions.get_mut(&id) else { return };
        let (node, life) = if at_d { (s.d, s.d_life) } else { (s.p, s.p_life) };
        let end = if at_d { &mut s.at_d } else { &mut s.at_p };
        end.over = true;
        if end.leaving || end.quiesced {
            return;
        }
        end.leaving = true;
        let late = self.nodes[node].late;
        if late == 0 && at_d {
            // The permit is taken back under the pages' own lock.
            if let Some(s) = self.sessions.get_mut(&id) {
                s.grant = None;
            }
        }
        self.schedule(self.now + after + late, Act::In(node, life, In::LetGo { session: id }));
    }

    /// The moment in which an end has let go.
    pub fn let_go(&mut self, node: usize, id: u64) {
        let Some(s) = self.sessions.get_mut(&id) else { return };
        let (at_d, room, epoch, kept) = (s.d == node, s.room, s.epoch, s.kept);
        if (if at_d { s.at_d } else { s.at_p }).quiesced {
            return;
        }
        if at_d {
            s.at_d.quiesced = true;
            s.grant = None;
        } else {
            s.at_p.quiesced = true;
        }
        if let Some(wr) = self.nodes[node].rooms.get_mut(&room)
            && wr.sessions.get(&epoch) == Some(&id)
        {
            wr.sessions.remove(&epoch);
        }
        if !at_d {
            self.p_event(node, prefill::Event::Quiesced { room, epoch });
        } else if kept {
            self.d_event(node, decode::Event::Quiesced { room, epoch });
        } else if let Some(s) = self.sessions.get_mut(&id) {
            s.lobby.push(decode::Event::Quiesced { room, epoch });
        }
        self.forget_session(id);
    }

    fn forget_session(&mut self, id: u64) {
        let over = |world: &Self, at_d: bool| {
            let Some(s) = world.sessions.get(&id) else { return true };
            let end = if at_d { s.at_d } else { s.at_p };
            end.quiesced || !world.sess_alive(id, at_d)
        };
        if over(self, false) && over(self, true) && self.sessions.get(&id).is_some_and(|s| s.kept || s.lobby.is_empty())
        {
            self.sessions.remove(&id);
        }
    }

    /// Destroys one end at once.
    pub fn data_kill(&mut self, id: u64, at_d: bool) {
        let Some(s) = self.sessions.get(&id) else { return };
        let end = if at_d { s.at_d } else { s.at_p };
        if end.quiesced || end.leaving {
            return;
        }
        self.data_send(id, !at_d, DataMsg::Reset);
        let after = self.rng.between(0, 3);
        self.leave(id, at_d, after);
    }

    /// Says a last word, half-closes, and drains until the other end closes or the grace ends.
    pub fn data_word(&mut self, id: u64, at_d: bool, word: Option<DataMsg>) {
        let Some(s) = self.sessions.get_mut(&id) else { return };
        let end = if at_d { &mut s.at_d } else { &mut s.at_p };
        if end.over || end.quiesced {
            return;
        }
        end.over = true;
        end.draining = true;
        if let Some(word) = word {
            self.data_send(id, !at_d, word);
        }
        self.data_send(id, !at_d, DataMsg::Eof);
        let grace = self.settings.grace.0;
        let Some(s) = self.sessions.get_mut(&id) else { return };
        if at_d {
            s.grant = None;
        }
        let (node, life) = if at_d { (s.d, s.d_life) } else { (s.p, s.p_life) };
        let late = self.nodes[node].late;
        self.schedule(self.now + grace + late, Act::In(node, life, In::LetGo { session: id }));
    }

    /// Something arrived and is read by the session's task.
    pub fn data_in(&mut self, node: usize, id: u64, msg: DataMsg) {
        let Some(s) = self.sessions.get(&id) else { return };
        if s.d == node { self.at_d(node, id, msg) } else { self.at_p(node, id, msg) }
    }

    fn at_p(&mut self, p: usize, id: u64, msg: DataMsg) {
        let Some(s) = self.sessions.get_mut(&id) else { return };
        let (room, epoch, end) = (s.room, s.epoch, s.at_p);
        if end.quiesced {
            return;
        }
        if end.over {
            if end.draining && !end.leaving && matches!(msg, DataMsg::Eof | DataMsg::Reset | DataMsg::TimedOut(_)) {
                self.leave(id, false, 0);
            }
            return;
        }
        match msg {
            DataMsg::Reply(HelloReply::Ready, covered) => {
                s.ready = true;
                s.sent_now = covered.iter().filter(|c| **c).count() as u64 * PAGE_BYTES;
                s.sent = covered;
                self.p_event(p, prefill::Event::Reply { room, epoch, reply: HelloReply::Ready });
                self.pump(id);
            }
            DataMsg::Reply(HelloReply::Wait, _) => {
                self.p_event(p, prefill::Event::Reply { room, epoch, reply: HelloReply::Wait });
            }
            DataMsg::Reply(reply, _) => {
                self.p_event(p, prefill::Event::Reply { room, epoch, reply });
                self.data_word(id, false, None);
            }
            DataMsg::Verified(bytes) => {
                if let Some(wr) = self.nodes[p].rooms.get_mut(&room) {
                    wr.counters.raise(Counters { bytes_verified: bytes, ..Counters::default() });
                }
                self.pump(id);
            }
            DataMsg::Committed => {
                self.p_event(p, prefill::Event::Committed { room, epoch });
                self.data_word(id, false, None);
            }
            DataMsg::Fail(reason, evidence) => {
                self.p_event(p, prefill::Event::PeerFailed { room, epoch, reason, evidence: *evidence });
                self.data_word(id, false, None);
            }
            DataMsg::Eof | DataMsg::Reset | DataMsg::TimedOut(_) => {
                let unacked = matches!(msg, DataMsg::TimedOut(true));
                self.p_event(p, prefill::Event::Broken { room, epoch, unacked, refused: false });
                self.data_kill(id, false);
            }
            DataMsg::Hello { .. }
            | DataMsg::Started
            | DataMsg::Progress(_)
            | DataMsg::Frame { .. }
            | DataMsg::Manifest { .. } => {}
        }
    }

    fn at_d(&mut self, d: usize, id: u64, msg: DataMsg) {
        let Some(s) = self.sessions.get_mut(&id) else { return };
        let (room, epoch, end) = (s.room, s.epoch, s.at_d);
        if end.quiesced {
            return;
        }
        if end.over {
            // A writer that lets go late writes what arrives meanwhile.
            if let (DataMsg::Frame { slab, tag }, true) = (&msg, s.grant.is_some()) {
                let (slab, tag) = (*slab, *tag);
                self.write(d, id, slab, tag);
            }
            if end.draining && !end.leaving && matches!(msg, DataMsg::Eof | DataMsg::Reset | DataMsg::TimedOut(_)) {
                self.leave(id, true, 0);
            }
            return;
        }
        match msg {
            DataMsg::Hello { token } => {
                let (p, d_inc) = (s.p, self.nodes[d].incarnation);
                let prefill = crate::node::incarnation(p, s.p_life);
                let meant = self.nodes[p].rooms.get(&room).map_or(d_inc, |wr| wr.spec.decode);
                let session = decode::SessionId(id);
                self.input_now(d, In::D(decode::Event::Hello { room, epoch, token, prefill, decode: meant, session }));
            }
            DataMsg::Started => self.d_news(d, id, decode::Event::Started { room, epoch }),
            DataMsg::Progress(progress) => self.d_news(d, id, decode::Event::PeerProgress { room, epoch, progress }),
            DataMsg::Frame { slab, tag } => {
                if let Some(bytes) = self.write(d, id, slab, tag) {
                    self.d_news(d, id, decode::Event::Verified { room, epoch, bytes });
                    self.data_send(id, false, DataMsg::Verified(bytes));
                }
            }
            DataMsg::Manifest { right } => {
                let complete = self.nodes[d].rooms.get(&room).is_some_and(|wr| wr.covered.iter().all(|c| *c));
                let tags = s.grant.as_ref().is_some_and(|pages| {
                    let prompt = self.nodes[d].rooms.get(&room).map_or(0, |wr| wr.covered.len());
                    pages.iter().take(prompt).all(|page| self.nodes[d].pool.tag[*page] == room.get())
                });
                s.grant = None;
                if right && complete && !tags {
                    self.wrong(format!("I6: D{d} would commit {room} with foreign bytes"));
                }
                let event = if right && complete {
                    decode::Event::Complete { room, epoch }
                } else {
                    decode::Event::Corrupt { room, epoch }
                };
                self.d_news(d, id, event);
            }
            DataMsg::Fail(reason, evidence) => {
                self.d_news(d, id, decode::Event::PeerFailed { room, epoch, reason, evidence: *evidence });
                self.data_word(id, true, None);
            }
            DataMsg::Eof | DataMsg::Reset | DataMsg::TimedOut(_) => {
                self.d_news(d, id, decode::Event::Broken { room, epoch });
                self.data_kill(id, true);
            }
            DataMsg::Reply(..) | DataMsg::Verified(_) | DataMsg::Committed => {}
        }
    }

    /// D's news of a session waits in the lobby until the room keeps it.
    fn d_news(&mut self, d: usize, id: u64, event: decode::Event) {
        let Some(s) = self.sessions.get_mut(&id) else { return };
        if s.kept { self.d_event(d, event) } else { s.lobby.push(event) }
    }

    /// A frame is written under the session's permit. Bytes verified over all epochs.
    fn write(&mut self, d: usize, id: u64, slab: usize, tag: u64) -> Option<u64> {
        let s = self.sessions.get(&id)?;
        let (room, page) = (s.room, *s.grant.as_ref()?.get(slab)?);
        if self.nodes[d].pool.owner[page] != Some(room) {
            let owner = self.nodes[d].pool.owner[page];
            self.wrong(format!("I6: D{d} writes {room}'s KV into a page of {owner:?}"));
        }
        self.nodes[d].pool.tag[page] = tag;
        let wr = self.nodes[d].rooms.get_mut(&room)?;
        *wr.covered.get_mut(slab)? = true;
        Some(wr.covered.iter().filter(|c| **c).count() as u64 * PAGE_BYTES)
    }

    /// P sends what is sealed, what D lacks, and what the window takes; then the manifest.
    pub fn pump(&mut self, id: u64) {
        const WINDOW: u64 = 4 * PAGE_BYTES;
        loop {
            let Some(s) = self.sessions.get(&id) else { return };
            let (p, room) = (s.p, s.room);
            if !s.ready || s.at_p.over || s.at_p.quiesced || !self.sess_alive(id, false) {
                return;
            }
            let Some(wr) = self.nodes[p].rooms.get(&room) else { return };
            let next = (0..wr.sealed as usize).find(|slab| !s.sent.get(*slab).copied().unwrap_or(true));
            let Some(slab) = next else {
                if let (Some(right), false) = (wr.manifest, s.manifest_sent) {
                    if let Some(s) = self.sessions.get_mut(&id) {
                        s.manifest_sent = true;
                    }
                    self.data_send(id, true, DataMsg::Manifest { right });
                }
                return;
            };
            if s.sent_now.saturating_sub(wr.counters.bytes_verified) >= WINDOW {
                return;
            }
            let page = self.nodes[p].pool.of.get(&room).and_then(|pages| pages.get(slab)).copied();
            let Some(page) = page else {
                return self.wrong(format!("I6: P{p} reads pages of {room}, which has none"));
            };
            if self.nodes[p].pool.owner[page] != Some(room) {
                self.wrong(format!("I6: P{p} reads a page of another room for {room}"));
            }
            let tag = self.nodes[p].pool.tag[page];
            if let Some(s) = self.sessions.get_mut(&id) {
                s.sent[slab] = true;
                s.sent_now += PAGE_BYTES;
                let sent = s.sent_now;
                if let Some(wr) = self.nodes[p].rooms.get_mut(&room) {
                    wr.counters.raise(Counters { bytes_sent: sent, ..Counters::default() });
                }
            }
            self.data_send(id, true, DataMsg::Frame { slab, tag });
        }
    }

    /// The link between a pair becomes a black hole, or is none any more.
    pub fn data_hole(&mut self, p: usize, d: usize, hole: bool) {
        let since = hole.then_some(self.now);
        self.links.insert((p, d), since);
        let ids: Vec<u64> =
            self.sessions.iter().filter(|(_, s)| s.p == p && s.d == d).map(|(id, _)| *id).collect();
        for id in ids {
            let Some(s) = self.sessions.get_mut(&id) else { continue };
            s.hole_since = since;
            if hole {
                let after = self.settings.tcp_user_timeout.0 + self.rng.between(0, 100);
                self.schedule(self.now + after, Act::DataTimeout { session: id, since: self.now });
            } else {
                let held = std::mem::take(&mut s.held);
                for (to_d, msg) in held {
                    self.data_send(id, to_d, msg);
                }
            }
        }
    }

    /// Both kernels give up a connection on which nothing was heard.
    pub fn data_timeout(&mut self, id: u64, since: u64) {
        let Some(s) = self.sessions.get(&id) else { return };
        if s.hole_since == Some(since) {
            self.data_arrives(id, true, DataMsg::TimedOut(true));
            self.data_arrives(id, false, DataMsg::TimedOut(true));
        }
    }
}
