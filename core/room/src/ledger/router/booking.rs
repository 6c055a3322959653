//! What rooms take of a worker, booked by R from the room's begin to the end of the worker's part: a room is opened where its
//! pages are, and what does not fit waits at R, where it can still be shed, passed by others, or go elsewhere.
//!
//! The worker's own word stays the last one: a report says how many pages are really free, and what R has not booked of the
//! others belongs to somebody else (another router, or quarantine).

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{Role, RoomId};
use crate::request::Request;
use crate::settings::Settings;
use crate::spec::RoomSpec;

use super::members::Member;
use super::{Ledger, MemberInfo};

/// What a room takes of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Booking {
    /// KV pages: at D for prompt and answer, at P for the prompt.
    pub(super) pages: u32,
    /// Prompt tokens that P still has to compute; none at D.
    pub(super) tokens: u32,
}

/// All that R has booked at one worker.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Books {
    rooms: BTreeMap<RoomId, Booking>,
    pages: u64,
    tokens: u64,
    /// Pages that were given back since the worker's last report, which may still count them as taken.
    returned: u64,
    /// Pages that are taken at the worker, and not by rooms of this router.
    foreign: u64,
}

impl Booking {
    /// Of a room with so many tokens of prompt and of answer.
    fn of(info: &MemberInfo, prompt: u32, answer: u32) -> Self {
        let pages = |tokens: u32| tokens.div_ceil(info.page_tokens.max(1));
        match info.role {
            Role::Decode => Self {
                pages: pages(prompt.saturating_add(answer)),
                tokens: 0,
            },
            Role::Prefill | Role::Router => Self {
                pages: pages(prompt),
                tokens: prompt,
            },
        }
    }
}

impl Books {
    fn book(&mut self, room: RoomId, booking: Booking) {
        self.free(room);
        self.rooms.insert(room, booking);
        self.pages += u64::from(booking.pages);
        self.tokens += u64::from(booking.tokens);
    }

    /// The room's part is over there.
    pub(super) fn free(&mut self, room: RoomId) {
        let Some(booking) = self.rooms.remove(&room) else {
            return;
        };
        self.pages -= u64::from(booking.pages);
        self.tokens -= u64::from(booking.tokens);
        self.returned += u64::from(booking.pages);
    }

    /// P has computed the room's prompt; whether that is news.
    fn computed(&mut self, room: RoomId) -> bool {
        let Some(booking) = self.rooms.get_mut(&room).filter(|booking| booking.tokens > 0) else {
            return false;
        };
        self.tokens -= u64::from(std::mem::take(&mut booking.tokens));
        true
    }

    /// The worker reports so many free pages of all that it has. What R gave back since the report before may be in either
    /// count: taken for given back, a room more waits at the worker for a moment; the next report knows.
    fn reported(&mut self, total: u32, free: u32) {
        let taken = u64::from(total.saturating_sub(free));
        let known = self.pages + std::mem::take(&mut self.returned);
        self.foreign = taken.saturating_sub(known);
    }

    /// Pages and prompt tokens that are booked.
    pub(super) const fn booked(&self) -> (u64, u64) {
        (self.pages, self.tokens)
    }

    /// Whether exactly these rooms are booked, and the sums are theirs.
    fn is_true(&self, rooms: &BTreeSet<RoomId>) -> bool {
        let sum = |what: fn(&Booking) -> u32| self.rooms.values().map(|booking| u64::from(what(booking))).sum::<u64>();
        self.rooms.keys().eq(rooms)
            && self.pages == sum(|booking| booking.pages)
            && self.tokens == sum(|booking| booking.tokens)
    }
}

impl Member {
    /// Books a room that begins.
    pub(super) fn book(&mut self, spec: &RoomSpec) {
        let booking = Booking::of(&self.info, spec.prompt_tokens, spec.max_tokens);
        self.books.book(spec.room, booking);
    }

    /// Whether what a room takes is there. A worker without any room takes every room that it can hold at all.
    /// `foreign`: whether what is taken there by others counts.
    fn can_book(&self, booking: Booking, settings: &Settings, foreign: bool) -> bool {
        let (pages, tokens) = self.books.booked();
        let percent = u64::from(settings.page_booking_percent);
        let most_pages = u64::from(self.info.pages) * percent / 100;
        let most_tokens = u64::from(settings.prefill_booking_tokens);
        let others = if foreign { self.books.foreign } else { 0 };
        let pages_fit = percent == 0 || pages + others + u64::from(booking.pages) <= most_pages;
        let tokens_fit = most_tokens == 0 || tokens == 0 || tokens + u64::from(booking.tokens) <= most_tokens;
        pages_fit && tokens_fit
    }

    /// The worker's report is compared with the books.
    pub(super) fn reconcile(&mut self, free_pages: u32) {
        self.books.reported(self.info.pages, free_pages);
    }

    /// Whether what is booked is the sum over its live rooms.
    pub(super) fn books_are_true(&self) -> bool {
        self.books.is_true(&self.rooms)
    }
}

impl Ledger {
    /// Whether a worker has the pages for a request, and if it is P the time for its prompt. While those that wait for pages are
    /// passed over, pages that others hold there do not count: two routers that each take back at once what they themselves give
    /// back would else keep for ever what they happen to have. At the worker's own queue all routers are equal.
    pub(super) fn can_book(&self, request: &Request, member: &Member) -> bool {
        let booking = Booking::of(&member.info, request.prompt(), request.remaining());
        member.can_book(booking, &self.settings, !self.lets_pass(&request.arrival.model))
    }

    /// P has computed all of a room's prompt: another one may be booked.
    pub(super) fn prompt_computed(&mut self, room: RoomId) {
        let Some(node) = self.rooms.get(&room).map(|found| found.spec.prefill) else {
            return;
        };
        if let Some(member) = self.members.get_mut(&node)
            && member.books.computed(room)
        {
            self.pump = true;
        }
    }
}
