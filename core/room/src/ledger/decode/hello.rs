//! Hellos: who is answered what, and pages in the order of the first hellos.

use crate::evidence::Owes;
use crate::ids::{Epoch, Incarnation, RoomId};
use crate::ledger::decode::part_d::{Link, PartD};
use crate::ledger::decode::{Effect, Ledger, SessionId};
use crate::ledger::worker::{Ending, Gone};
use crate::message::HelloReply;
use crate::planted;
use crate::reason::PartEnd;
use crate::time::Moment;

/// What a peer said on a new connection.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Hello {
    pub(super) room: RoomId,
    pub(super) epoch: Epoch,
    pub(super) token: u64,
    pub(super) prefill: Incarnation,
    pub(super) decode: Incarnation,
    pub(super) session: SessionId,
}

impl Ledger {
    /// A hello never creates state: it is answered from what there is.
    pub(super) fn hello(&mut self, hello: Hello, now: Moment, out: &mut Vec<Effect>) {
        let refusal = self.refused(&hello).map(|reply| match reply {
            HelloReply::Unknown if planted::unknown_room_waits() => HelloReply::Wait,
            HelloReply::Committed if planted::commit_not_sticky() => HelloReply::Unknown,
            told => told,
        });
        if let Some(reply) = refusal {
            self.table.fenced += u64::from(matches!(reply, HelloReply::Unknown | HelloReply::Stale));
            out.push(reply_to(&hello, reply));
            return;
        }
        self.new_session(&hello, now, out);
        self.answer(hello.room, now, out);
    }

    /// The answer that is the session's last word, if it is not taken.
    fn refused(&self, hello: &Hello) -> Option<HelloReply> {
        if hello.decode != self.table.config.incarnation {
            return Some(HelloReply::Unknown);
        }
        let Some(part) = self.table.live.get(&hello.room) else {
            let gone = self
                .table
                .ended
                .get(&hello.room)
                .filter(|gone| gone.token == hello.token);
            return Some(gone.map_or(HelloReply::Unknown, reply_of_ended));
        };
        if part.token != hello.token || part.base.spec.prefill != hello.prefill {
            Some(HelloReply::Unknown)
        } else if part.committed.is_some() {
            Some(HelloReply::Committed)
        } else if hello.epoch <= part.base.epoch {
            Some(HelloReply::Stale)
        } else {
            None
        }
    }

    /// The connection of a higher epoch takes the place of the one before it, which is destroyed.
    fn new_session(&mut self, hello: &Hello, now: Moment, out: &mut Vec<Effect>) {
        let room = hello.room;
        let Some(part) = self.table.edit(room) else { return };
        if part.session.is_some() {
            out.push(Effect::KillSession {
                room,
                epoch: part.base.epoch,
            });
        }
        part.base.epoch = hello.epoch;
        if planted::restart_is_progress() {
            part.restart_timers(now);
        }
        part.session = Some(hello.session);
        part.link = Link::Waiting { told: false };
        let place = part.place;
        self.leave_page_queue(room, place);
    }

    /// Answers the hello of the current session as soon as it can be: when the permits of the sessions before it are back,
    /// and the pages are there.
    pub(super) fn answer(&mut self, room: RoomId, now: Moment, out: &mut Vec<Effect>) {
        let next_place = self.next_place;
        let wedged = self.table.engine.wedged();
        let Some(part) = self.table.edit(room) else { return };
        if !part.base.sessions.is_empty() {
            part.link = Link::Quiescing(now);
            part.refresh_phase(now);
        } else if part.base.pages > 0 {
            ready(part, now, out);
        } else if wedged {
            // Pages come back by steps, and there are none.
            let how = Ending::Waited(Owes::Decode, self.table.engine.moved_at());
            self.end(room, PartEnd::Failed(self.table.stalled()), how, now, out);
        } else {
            let place = *part.place.get_or_insert(next_place);
            part.link = Link::Waiting { told: false };
            part.refresh_phase(now);
            self.next_place += u64::from(place == next_place);
            self.page_queue.insert((place, room));
            self.admit(now, out);
            self.tell_wait(room, out);
        }
    }

    fn tell_wait(&mut self, room: RoomId, out: &mut Vec<Effect>) {
        let Some(part) = self.table.edit(room) else { return };
        if let (Link::Waiting { told: false }, Some(session)) = (part.link, part.session) {
            part.link = Link::Waiting { told: true };
            out.push(Effect::Reply {
                session,
                room,
                epoch: part.base.epoch,
                reply: HelloReply::Wait,
            });
        }
    }

    /// Gives out pages, in full, in order. The head waits until its pages are there; a smaller room does not overtake it,
    /// or large ones would wait for ever.
    pub(super) fn admit(&mut self, now: Moment, out: &mut Vec<Effect>) {
        while let Some((place, room)) = self.page_queue.first().copied() {
            let Some(tokens) = self.table.live.get(&room).map(reserved_tokens) else {
                self.page_queue.remove(&(place, room));
                continue;
            };
            let pages = self.table.config.pages(tokens);
            if !self.table.pages.hold(pages) {
                return;
            }
            self.page_queue.remove(&(place, room));
            if let Some(part) = self.table.edit(room) {
                part.base.pages = pages;
                out.push(Effect::OpenPages { room, tokens });
                ready(part, now, out);
            }
        }
    }

    pub(super) fn leave_page_queue(&mut self, room: RoomId, place: Option<u64>) {
        if let Some(place) = place {
            self.page_queue.remove(&(place, room));
        }
    }
}

/// Prompt and all tokens: a decode never waits for memory.
fn reserved_tokens(part: &PartD) -> u32 {
    part.base.spec.prompt_tokens.saturating_add(part.base.spec.max_tokens)
}

/// The session gets the write permit.
fn ready(part: &mut PartD, now: Moment, out: &mut Vec<Effect>) {
    let Some(session) = part.session else { return };
    let (room, epoch) = (part.base.spec.room, part.base.epoch);
    part.base.sessions.insert(epoch);
    part.base.link_broken = false;
    part.link = Link::Ready;
    part.refresh_phase(now);
    out.push(Effect::Reply {
        session,
        room,
        epoch,
        reply: HelloReply::Ready,
    });
}

fn reply_to(hello: &Hello, reply: HelloReply) -> Effect {
    Effect::Reply {
        session: hello.session,
        room: hello.room,
        epoch: hello.epoch,
        reply,
    }
}

/// Commit is sticky: however a committed room ended, P's part of it is done.
const fn reply_of_ended(gone: &Gone) -> HelloReply {
    match gone.end {
        PartEnd::Done | PartEnd::HandedOver => HelloReply::Committed,
        PartEnd::Failed(_) if gone.committed => HelloReply::Committed,
        PartEnd::Failed(reason) => HelloReply::Ended(reason),
    }
}
