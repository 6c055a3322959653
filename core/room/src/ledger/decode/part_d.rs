//! D's part of a room: session and permit, coverage's progress, commit, tokens; and the timers that follow from them.
//! Its phase is never Transferring: D cannot know when P has sealed its last slab, so WaitingForInput lasts until the commit.

use crate::evidence::Owes;
use crate::ledger::Queues;
use crate::ledger::decode::SessionId;
use crate::ledger::worker::{Base, Env, LastWord, Part, Timer, TimerKind, Timers};
use crate::phase::Phase;
use crate::planted;
use crate::reason::{PartEnd, Reason};
use crate::time::{Millis, Moment};

/// The data connection of the current epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Link {
    /// There is none: before the first hello, or after it broke.
    Down,
    /// Its hello is not answered yet: the permits of the connection before it are not back. Since when.
    Quiescing(Moment),
    /// Waits for pages; told so if `told`.
    Waiting { told: bool },
    /// It was answered Ready and holds the write permit.
    Ready,
}

/// A read of KV by the engine itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pulling {
    since: Moment,
    within: Millis,
}

/// D's part of a room.
#[derive(Clone, Debug, Hash)]
pub(super) struct PartD {
    pub(super) base: Base,
    /// What P must show.
    pub(super) token: u64,
    pub(super) link: Link,
    pub(super) session: Option<SessionId>,
    /// Its place among those that wait for pages, taken at its first hello and kept over epochs.
    pub(super) place: Option<u64>,
    /// P said Started: chunk timer and absolute deadline run from here. A restart never resets them.
    pub(super) started: Option<Moment>,
    /// The last progress of P: bytes newly verified, or its engine's chunks and steps.
    pub(super) moved_at: Moment,
    pub(super) peer_progress: Option<u64>,
    /// The engine reads the KV itself.
    pub(super) pulling: Option<Pulling>,
    pub(super) committed: Option<Moment>,
    pub(super) taken: u32,
    /// The engine gave the last token.
    pub(super) finished: bool,
    /// Since when the engine owes the next token.
    engine_owes: Moment,
    /// Since when R owes: tokens told and not taken.
    router_owes: Option<Moment>,
    /// The session was killed after its last word.
    pub(super) word_over: bool,
}

impl PartD {
    pub(super) fn new(base: Base, token: u64) -> Self {
        let now = base.opened;
        Self {
            base,
            token,
            link: Link::Down,
            session: None,
            place: None,
            started: None,
            moved_at: now,
            peer_progress: None,
            pulling: None,
            committed: None,
            taken: 0,
            finished: false,
            engine_owes: now,
            router_owes: None,
            word_over: false,
        }
    }

    /// The phase follows from what happened: P's part says whether the time before Started is spent in a queue.
    pub(super) fn refresh_phase(&mut self, now: Moment) {
        let phase = if self.committed.is_some() {
            Phase::Decoding
        } else if self.started.is_some() {
            Phase::WaitingForInput
        } else if matches!(self.link, Link::Quiescing(_)) {
            Phase::Bootstrapping
        } else {
            Phase::Queued
        };
        self.base.enter(phase, now);
    }

    /// P has its turn and its pages. Only the first one counts.
    pub(super) fn start(&mut self, now: Moment) {
        if self.started.is_none() {
            self.started = Some(now);
            self.moved_at = now;
        }
        self.refresh_phase(now);
    }

    /// What a restart must never do: see `planted`.
    pub(super) fn restart_timers(&mut self, now: Moment) {
        self.moved_at = now;
        self.started = self.started.map(|_| now);
    }

    /// P's engine moved. What it had done before Started is no progress; of a count that is first heard of after Started
    /// nobody here knows how much of it is older, and a wedged engine must be found by P itself before it is accused: once.
    pub(super) fn peer_moved(&mut self, progress: u64, now: Moment) {
        let moved = match self.peer_progress {
            Some(before) => progress > before,
            None => self.started.is_some(),
        };
        if moved {
            self.moved_at = now;
        }
        self.peer_progress = Some(self.peer_progress.map_or(progress, |before| before.max(progress)));
    }

    pub(super) fn verified(&mut self, bytes: u64, now: Moment) {
        if bytes > self.base.counters.bytes_verified {
            self.base.counters.bytes_verified = bytes;
            self.moved_at = now;
        }
    }

    /// The engine reads the KV by a ticket, with a permit.
    pub(super) fn pull(&mut self, within: Millis, now: Moment) {
        self.start(now);
        self.pulling = Some(Pulling { since: now, within });
        self.base.engine = true;
    }

    /// D commits: the engine takes over, with a permit.
    pub(super) fn commit(&mut self, now: Moment) {
        self.start(now);
        self.committed = Some(now);
        self.engine_owes = now;
        self.base.engine = true;
        self.refresh_phase(now);
    }

    /// The engine made tokens. Returns position and number of the new ones.
    pub(super) fn made(&mut self, tokens: u32, now: Moment) -> Option<(u32, u32)> {
        let before = self.base.counters.tokens_made;
        if tokens <= before {
            return None;
        }
        self.base.counters.tokens_made = tokens;
        self.refresh_debts(false, now);
        Some((before, tokens - before))
    }

    /// R took the tokens before this position; it cannot take what was not made.
    pub(super) fn took(&mut self, position: u32, now: Moment) {
        let position = position.min(self.base.counters.tokens_made);
        if position > self.taken {
            self.taken = position;
            self.refresh_debts(true, now);
        }
    }

    /// Whether all tokens were made and taken.
    pub(super) const fn is_done(&self) -> bool {
        self.finished && self.taken >= self.base.counters.tokens_made
    }

    /// R owes while there are tokens it has not taken; else the engine owes the next one.
    fn refresh_debts(&mut self, taken: bool, now: Moment) {
        let untaken = self.base.counters.tokens_made > self.taken;
        self.router_owes = match (untaken, self.router_owes) {
            (false, _) => None,
            (true, Some(since)) if !taken => Some(since),
            (true, _) => Some(now),
        };
        if !untaken {
            self.engine_owes = now;
        }
    }

    fn input_budget(&self, env: &Env<'_>) -> Millis {
        // D knows neither when P sealed its last slab nor how many bytes there are. What was verified may have taken its
        // time at the floor's rate, after all the time that computing may take: so the deadline moves only with bytes.
        let verified = self.base.counters.bytes_verified;
        env.settings.prefill_budget(self.base.spec.prompt_tokens) + env.settings.transfer_budget(verified)
    }

    fn input_timers(&self, started: Moment, env: &Env<'_>, timers: &mut Timers) {
        if let Some(Pulling { since, within }) = self.pulling {
            // What P computes has been computed; while the engines read nothing can be seen to move.
            timers.end(since, within, Reason::TransferStalled, Owes::Prefill);
            return;
        }
        let reason = if self.link == Link::Down {
            Reason::PrefillLost
        } else {
            Reason::PrefillStalled
        };
        timers.end(self.moved_at, env.settings.progress_ttl, reason, Owes::Prefill);
        timers.end(started, self.input_budget(env), Reason::TransferStalled, Owes::Prefill);
    }

    fn decode_timers(&self, committed: Moment, env: &Env<'_>, timers: &mut Timers) {
        let settings = env.settings;
        let (reason, owes) = match self.router_owes {
            Some(since) => {
                timers.end(since, settings.progress_ttl, Reason::RouterStalled, Owes::Router);
                (Reason::RouterStalled, Owes::Router)
            }
            None => {
                let since = self.engine_owes.max(env.engine.moved_at());
                let behind = env.engine.is_behind(env.now);
                let reason = if behind { env.stalled } else { Reason::DecodeStalled };
                timers.end(since, settings.progress_ttl, reason, Owes::Decode);
                (Reason::DecodeStalled, Owes::Decode)
            }
        };
        timers.end(
            committed,
            settings.decode_budget(self.base.spec.max_tokens),
            reason,
            owes,
        );
        if !self.word_over && !self.base.sessions.is_empty() {
            // Twice the executor's own limit for a last word: then its permit will not come back by itself.
            let at = committed + settings.grace.scale(2, 1);
            timers.arm(Timer {
                at,
                since: committed,
                kind: TimerKind::LastWord,
            });
        }
    }
}

impl Part for PartD {
    fn base(&self) -> &Base {
        &self.base
    }

    fn base_mut(&mut self) -> &mut Base {
        &mut self.base
    }

    fn queue<'a>(&self, queues: &'a mut Queues) -> &'a mut u32 {
        if self.committed.is_some() {
            &mut queues.engine
        } else if self.base.pages > 0 {
            &mut queues.transfer
        } else {
            &mut queues.handshake
        }
    }

    fn timers(&self, env: &Env<'_>) -> Timers {
        let mut timers = Timers::default();
        match (self.committed, self.started) {
            (Some(committed), _) => self.decode_timers(committed, env, &mut timers),
            (None, Some(_)) if planted::no_transfer_deadline() => self.base.backstop(env, &mut timers),
            (None, Some(started)) => self.input_timers(started, env, &mut timers),
            (None, None) => self.base.backstop(env, &mut timers),
        }
        if let Link::Quiescing(since) = self.link {
            // This node's own debt: P's hello is not answered, because a reader here does not let go.
            timers.end(
                since,
                env.settings.handshake_ttl,
                Reason::HandshakeTimeout,
                Owes::Decode,
            );
        }
        self.base.timers(env, &mut timers);
        timers
    }

    fn absolute(&self, env: &Env<'_>) -> Moment {
        match (self.committed, self.started) {
            (Some(committed), _) => committed + env.settings.decode_budget(self.base.spec.max_tokens),
            (None, Some(started)) => match self.pulling {
                Some(Pulling { since, within }) => since + within,
                None => started + self.input_budget(env),
            },
            (None, None) => self.base.opened + self.base.spec.queue_left + env.settings.two_ttl(),
        }
    }

    fn waits_for_engine(&self) -> bool {
        let waits_for_step = self.committed.is_some() && self.router_owes.is_none() && !self.finished;
        let waits_for_pages = self.committed.is_none() && matches!(self.link, Link::Waiting { .. });
        let waits_for_read = self.committed.is_none() && self.pulling.is_some();
        waits_for_step || waits_for_pages || waits_for_read
    }

    fn reads_until(&self) -> Option<Moment> {
        let reads = self.pulling.filter(|_| self.committed.is_none());
        reads.map(|Pulling { since, within }| since + within)
    }

    fn last_word(&self, end: PartEnd, peer_said: bool) -> LastWord {
        if self.session.is_none() {
            return LastWord::Nothing;
        }
        if self.committed.is_some() {
            return LastWord::Spoken(self.base.epoch);
        }
        match end {
            PartEnd::Failed(_) if !peer_said => LastWord::Fail(self.base.epoch),
            PartEnd::Failed(_) | PartEnd::Done | PartEnd::HandedOver => LastWord::Finish(self.base.epoch),
        }
    }

    fn committed(&self) -> bool {
        self.committed.is_some()
    }

    fn token(&self) -> u64 {
        self.token
    }
}
