//! The data plane: one session per room and epoch between a P and a D, with frames in flight, last words, half-closes,
//! resets, black holes, and the moment in which each end lets go of the pages.

use innkeeper_room::ledger::{decode, prefill};
use innkeeper_room::{Epoch, Evidence, HelloReply, Reason, RoomId};

use crate::node::In;
use crate::remote::Ticket;
use crate::world::{Act, World, tell};

/// What travels on a data connection.
#[derive(Clone, Debug, Hash)]
pub(crate) enum DataMsg {
    Hello {
        token: u64,
    },
    Started,
    Progress(u64),
    Frame {
        slab: usize,
        tag: u64,
    },
    Manifest {
        right: bool,
    },
    /// Instead of frames and a manifest.
    Ticket(Ticket),
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
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(crate) struct End {
    /// A last word was said or heard, or the connection broke: nothing more is told.
    pub(crate) over: bool,
    /// It waits for the other end's close.
    pub(crate) draining: bool,
    /// It has let go of the pages.
    pub(crate) quiesced: bool,
    /// The letting go is on its way.
    pub(crate) leaving: bool,
}

/// A session.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Session {
    pub(crate) p: usize,
    pub(crate) p_life: u32,
    pub(crate) d: usize,
    pub(crate) d_life: u32,
    pub(crate) room: RoomId,
    pub(crate) epoch: Epoch,
    pub(crate) at_p: End,
    pub(crate) at_d: End,
    /// P: D is ready.
    pub(crate) ready: bool,
    pub(crate) sent: Vec<bool>,
    pub(crate) sent_now: u64,
    pub(crate) manifest_sent: bool,
    /// D: it may write these pages.
    pub(crate) grant: Option<Vec<usize>>,
    /// D: the room keeps it; before that its news waits in the lobby.
    pub(crate) kept: bool,
    pub(crate) lobby: Vec<decode::Event>,
    pub(crate) last: [u64; 2],
    pub(crate) held: Vec<(bool, DataMsg)>,
    pub(crate) hole_since: Option<u64>,
    /// Cut: nothing is sent any more.
    pub(crate) cut: bool,
}

impl World {
    pub(crate) fn sess_alive(&self, id: u64, at_d: bool) -> bool {
        self.sessions.get(&id).is_some_and(|s| {
            let (node, life) = if at_d { (s.d, s.d_life) } else { (s.p, s.p_life) };
            self.nodes[node].up && self.nodes[node].life == life
        })
    }

    /// Puts a message on the wire; order is kept.
    pub(crate) fn data_send(&mut self, id: u64, to_d: bool, msg: DataMsg) {
        let lat = self.latency(1, 6);
        let now = self.now;
        let Some(s) = self.sessions.get_mut(&id).filter(|s| !s.cut) else {
            return;
        };
        let extra = if matches!(msg, DataMsg::Frame { .. }) {
            if self.exact.is_some() { 0 } else { 3 }
        } else {
            0
        };
        let slot = &mut s.last[usize::from(to_d)];
        let at = (*slot + extra).max(now + lat);
        *slot = at;
        self.schedule(at, Act::Data { session: id, to_d, msg });
    }

    /// A message arrives, unless the link is a black hole.
    pub(crate) fn data_arrives(&mut self, id: u64, to_d: bool, msg: DataMsg) {
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
    pub(crate) fn dial(&mut self, p: usize, room: RoomId, epoch: Epoch) {
        let Some(wr) = self.nodes[p].rooms.get_mut(&room) else {
            return;
        };
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
            let broken = prefill::Event::Broken {
                room,
                epoch,
                unacked: false,
                refused: true,
            };
            self.schedule(self.now + after, Act::In(p, life, In::P(broken)));
            self.schedule(
                self.now + after,
                Act::In(p, life, In::P(prefill::Event::Quiesced { room, epoch })),
            );
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
            cut: false,
        };
        self.sessions.insert(id, s);
        if let Some(wr) = self.nodes[p].rooms.get_mut(&room) {
            wr.sessions.insert(epoch, id);
        }
        tell!(self, "P{p} dials D{d} for {room} epoch {}", epoch.0);
        self.data_send(id, true, DataMsg::Hello { token });
    }

    /// An end lets go of the pages: its permit goes back. `late` is how much later than usual.
    pub(crate) fn leave(&mut self, id: u64, at_d: bool, after: u64) {
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
    pub(crate) fn let_go(&mut self, node: usize, id: u64) {
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

    pub(crate) fn forget_session(&mut self, id: u64) {
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
    pub(crate) fn data_kill(&mut self, id: u64, at_d: bool) {
        let Some(s) = self.sessions.get(&id) else { return };
        let end = if at_d { s.at_d } else { s.at_p };
        if end.quiesced || end.leaving {
            return;
        }
        self.data_send(id, !at_d, DataMsg::Reset);
        let after = self.latency(0, 3);
        self.leave(id, at_d, after);
    }

    /// Says a last word, half-closes, and drains until the other end closes or the grace ends.
    pub(crate) fn data_word(&mut self, id: u64, at_d: bool, word: Option<DataMsg>) {
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
    pub(crate) fn data_in(&mut self, node: usize, id: u64, msg: DataMsg) {
        let Some(s) = self.sessions.get(&id) else { return };
        if s.d == node {
            self.at_d(node, id, msg)
        } else {
            self.at_p(node, id, msg)
        }
    }
}
