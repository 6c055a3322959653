//! The two ends of a session: what each does with what arrives, what P sends, and what D writes into its pages.

use innkeeper_room::ledger::{decode, prefill};
use innkeeper_room::{Counters, Epoch, HelloReply, RoomId};

use crate::data::DataMsg;
use crate::node::In;
use crate::world::{PAGE_BYTES, World};

impl World {
    pub(crate) fn at_p(&mut self, p: usize, id: u64, msg: DataMsg) {
        let Some(s) = self.sessions.get_mut(&id) else { return };
        let (room, epoch, end) = (s.room, s.epoch, s.at_p);
        if end.quiesced {
            return;
        }
        if end.over {
            if end.leaving && self.nodes[p].late > 0 {
                self.late_sender(p, room, epoch, &msg);
            }
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
                self.p_event(
                    p,
                    prefill::Event::Reply {
                        room,
                        epoch,
                        reply: HelloReply::Ready,
                    },
                );
                self.pump(id);
            }
            DataMsg::Reply(HelloReply::Wait, _) => {
                self.p_event(
                    p,
                    prefill::Event::Reply {
                        room,
                        epoch,
                        reply: HelloReply::Wait,
                    },
                );
            }
            DataMsg::Reply(reply, _) => {
                self.p_event(p, prefill::Event::Reply { room, epoch, reply });
                self.data_word(id, false, None);
            }
            DataMsg::Verified(bytes) => {
                if let Some(wr) = self.nodes[p].rooms.get_mut(&room) {
                    wr.counters.raise(Counters {
                        bytes_verified: bytes,
                        ..Counters::default()
                    });
                }
                self.pump(id);
            }
            DataMsg::Committed => {
                self.p_event(p, prefill::Event::Committed { room, epoch });
                self.data_word(id, false, None);
            }
            DataMsg::Fail(reason, evidence) => {
                self.p_event(
                    p,
                    prefill::Event::PeerFailed {
                        room,
                        epoch,
                        reason,
                        evidence: *evidence,
                    },
                );
                self.data_word(id, false, None);
            }
            DataMsg::Eof | DataMsg::Reset | DataMsg::TimedOut(_) => {
                let unacked = matches!(msg, DataMsg::TimedOut(true));
                self.p_event(
                    p,
                    prefill::Event::Broken {
                        room,
                        epoch,
                        unacked,
                        refused: false,
                    },
                );
                self.data_kill(id, false);
            }
            DataMsg::Hello { .. }
            | DataMsg::Started
            | DataMsg::Progress(_)
            | DataMsg::Frame { .. }
            | DataMsg::Manifest { .. }
            | DataMsg::Ticket(_) => {}
        }
    }

    pub(crate) fn at_d(&mut self, d: usize, id: u64, msg: DataMsg) {
        let Some(s) = self.sessions.get_mut(&id) else { return };
        let (room, epoch, end) = (s.room, s.epoch, s.at_d);
        if end.quiesced {
            return;
        }
        if end.over {
            if s.grant.is_some() {
                self.late_writer(d, id, &msg);
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
                self.input_now(
                    d,
                    In::D(decode::Event::Hello {
                        room,
                        epoch,
                        token,
                        prefill,
                        decode: meant,
                        session,
                    }),
                );
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
                let complete = self.nodes[d]
                    .rooms
                    .get(&room)
                    .is_some_and(|wr| wr.covered.iter().all(|c| *c));
                let (tag, room_here) = (&self.nodes[d].pool.tag, self.nodes[d].rooms.get(&room));
                let tags = s.grant.as_ref().zip(room_here).is_some_and(|(pages, wr)| {
                    let mut prompt = pages.iter().take(wr.covered.len()).enumerate();
                    prompt.all(|(at, page)| tag[*page] == wr.tag(at))
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
            DataMsg::Ticket(ticket) => {
                if let Some(wr) = self.nodes[d].rooms.get_mut(&room) {
                    wr.ticket = Some(ticket);
                }
                let read_within = self.settings.progress_ttl;
                let event = decode::Event::Ticket {
                    room,
                    epoch,
                    read_within,
                };
                self.d_news(d, id, event);
            }
            DataMsg::Fail(reason, evidence) => {
                self.d_news(
                    d,
                    id,
                    decode::Event::PeerFailed {
                        room,
                        epoch,
                        reason,
                        evidence: *evidence,
                    },
                );
                self.data_word(id, true, None);
            }
            DataMsg::Eof | DataMsg::Reset | DataMsg::TimedOut(_) => {
                self.d_news(d, id, decode::Event::Broken { room, epoch });
                self.data_kill(id, true);
            }
            DataMsg::Reply(..) | DataMsg::Verified(_) | DataMsg::Committed => {}
        }
    }

    /// A reader that lets go late writes what arrives meanwhile, and tells of it: the ledger fences its epoch.
    pub(crate) fn late_writer(&mut self, d: usize, id: u64, msg: &DataMsg) {
        let Some(s) = self.sessions.get(&id) else { return };
        let (room, epoch) = (s.room, s.epoch);
        match msg {
            DataMsg::Frame { slab, tag } => {
                if let Some(bytes) = self.write(d, id, *slab, *tag) {
                    self.d_news(d, id, decode::Event::Verified { room, epoch, bytes });
                }
            }
            DataMsg::Manifest { .. } => self.d_news(d, id, decode::Event::Complete { room, epoch }),
            _ => {}
        }
    }

    /// A sender that lets go late still hears D: the ledger fences its epoch.
    pub(crate) fn late_sender(&mut self, p: usize, room: RoomId, epoch: Epoch, msg: &DataMsg) {
        match msg {
            DataMsg::Reply(reply, _) => self.p_event(
                p,
                prefill::Event::Reply {
                    room,
                    epoch,
                    reply: *reply,
                },
            ),
            DataMsg::Committed => self.p_event(p, prefill::Event::Committed { room, epoch }),
            DataMsg::Fail(reason, evidence) => {
                self.p_event(
                    p,
                    prefill::Event::PeerFailed {
                        room,
                        epoch,
                        reason: *reason,
                        evidence: **evidence,
                    },
                );
            }
            _ => {}
        }
    }

    /// D's news of a session waits in the lobby until the room keeps it.
    pub(crate) fn d_news(&mut self, d: usize, id: u64, event: decode::Event) {
        let Some(s) = self.sessions.get_mut(&id) else { return };
        if s.kept {
            self.d_event(d, event)
        } else {
            s.lobby.push(event)
        }
    }

    /// A frame is written under the session's permit. Bytes verified over all epochs.
    pub(crate) fn write(&mut self, d: usize, id: u64, slab: usize, tag: u64) -> Option<u64> {
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
    pub(crate) fn pump(&mut self, id: u64) {
        const WINDOW: u64 = 4 * PAGE_BYTES;
        if self.shape.remote {
            return self.pump_ticket(id);
        }
        loop {
            let Some(s) = self.sessions.get(&id) else { return };
            let (p, room) = (s.p, s.room);
            if !s.ready || s.at_p.over || s.at_p.quiesced || !self.sess_alive(id, false) {
                return;
            }
            let Some(wr) = self.nodes[p].rooms.get(&room) else {
                return;
            };
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
            let page = self.nodes[p]
                .pool
                .of
                .get(&room)
                .and_then(|pages| pages.get(slab))
                .copied();
            let Some(page) = page else {
                return self.wrong(format!("I6: P{p} reads pages of {room}, which has none"));
            };
            if !self.nodes[p].pool.may_read(room, slab, page) {
                self.wrong(format!("I6: P{p} reads a page of another room for {room}"));
            }
            let tag = self.nodes[p].pool.tag[page];
            if let Some(s) = self.sessions.get_mut(&id) {
                s.sent[slab] = true;
                s.sent_now += PAGE_BYTES;
                let sent = s.sent_now;
                if let Some(wr) = self.nodes[p].rooms.get_mut(&room) {
                    wr.counters.raise(Counters {
                        bytes_sent: sent,
                        ..Counters::default()
                    });
                }
            }
            self.data_send(id, true, DataMsg::Frame { slab, tag });
        }
    }
}
