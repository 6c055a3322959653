//! P's part of a room: turn, epoch, counters, and the timers that follow from them.

use crate::evidence::Owes;
use crate::ids::Epoch;
use crate::ledger::Queues;
use crate::ledger::worker::{Base, Env, LastWord, Part, Timers};
use crate::message::Counters;
use crate::phase::Phase;
use crate::planted;
use crate::reason::{PartEnd, Reason};
use crate::time::{Millis, Moment};

/// Where P's part stands; finer than its phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// Queued: waits for a place in the hello window.
    Window,
    /// Bootstrapping: said hello.
    Hello,
    /// Queued: D told it to wait for D's pages; the connection idles.
    PagesAtDecode,
    /// Queued: D is ready; waits for the engine's turn and for pages here.
    Turn,
    /// WaitingForInput: the engine computes.
    /// (Optimistic prefill would be a flag here, "computes before Ready"; it is off, and nothing sets it.)
    Computing,
    /// Transferring: the last slab is sealed, `outstanding` bytes of it were not verified then.
    Sending { sealed: Moment, outstanding: u64 },
}

/// The data connection of the current epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Link {
    /// There is none.
    Down,
    /// Hello was said, or will be at this moment after the backoff.
    Hello(Moment),
    /// D told it to wait.
    Waiting,
    /// D is ready.
    Ready,
}

/// A connection that broke while this node was finding out that it had been stopped: judged after the grace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct HeldBreak {
    pub(super) epoch: Epoch,
    pub(super) unacked: bool,
}

/// P's part of a room.
#[derive(Clone, Debug, Hash)]
pub(super) struct PartP {
    pub(super) base: Base,
    pub(super) stage: Stage,
    pub(super) link: Link,
    /// Epochs that broke while the room was not Queued.
    pub(super) spent: u32,
    /// All epochs that broke: for the backoff.
    pub(super) failures: u32,
    pub(super) started: Option<Moment>,
    /// The last slab that was sealed, or Started.
    chunk_at: Moment,
    /// Since when D owes: bytes handed over and not verified, or the commit. Armed exactly while the debt exists.
    ack_at: Option<Moment>,
    /// Since when this node owes sealed bytes, the window being open.
    handover_at: Option<Moment>,
    /// The engine keeps the KV, and D's engine may take this long to read it.
    read_within: Option<Millis>,
    pub(super) held: Option<HeldBreak>,
}

impl PartP {
    pub(super) fn new(base: Base) -> Self {
        let chunk_at = base.opened;
        Self {
            base,
            stage: Stage::Window,
            link: Link::Down,
            spent: 0,
            failures: 0,
            started: None,
            chunk_at,
            ack_at: None,
            handover_at: None,
            read_within: None,
            held: None,
        }
    }

    pub(super) fn enter(&mut self, stage: Stage, now: Moment) {
        self.stage = stage;
        let phase = match stage {
            Stage::Window | Stage::PagesAtDecode | Stage::Turn => Phase::Queued,
            Stage::Hello => Phase::Bootstrapping,
            Stage::Computing => Phase::WaitingForInput,
            Stage::Sending { .. } => Phase::Transferring,
        };
        self.base.enter(phase, now);
    }

    /// Whether the part computes or sends: what it waits for then is no queue.
    pub(super) const fn is_started(&self) -> bool {
        matches!(self.stage, Stage::Computing | Stage::Sending { .. })
    }

    /// Begins the next epoch: its sender holds a permit from now on.
    pub(super) fn next_epoch(&mut self, after: Millis, now: Moment) -> Epoch {
        let epoch = self.base.epoch.next();
        self.base.epoch = epoch;
        self.base.sessions.insert(epoch);
        self.link = Link::Hello(now + after);
        if planted::restart_is_progress() {
            self.chunk_at = now;
            self.ack_at = self.ack_at.map(|_| now);
            self.handover_at = self.handover_at.map(|_| now);
        }
        if !self.is_started() {
            self.enter(Stage::Hello, now);
        }
        epoch
    }

    /// P has its turn and its pages.
    pub(super) fn start(&mut self, own: u32, reused: u32, now: Moment) {
        self.base.pages = own;
        self.base.reused = reused;
        self.base.engine = true;
        self.started = Some(now);
        self.chunk_at = now;
        self.enter(Stage::Computing, now);
    }

    /// Takes newer counters; only an increase counts. Returns how many tokens were computed.
    pub(super) fn sample(&mut self, newer: Counters, now: Moment) -> u32 {
        let before = self.base.counters;
        self.base.counters.raise(newer);
        let after = self.base.counters;
        if after.bytes_sealed > before.bytes_sealed || after.tokens_computed > before.tokens_computed {
            self.chunk_at = now;
        }
        self.refresh_debts(before, now);
        after.tokens_computed - before.tokens_computed
    }

    /// The engine sealed the last slab. Returns how many tokens it has computed since the last sample.
    pub(super) fn sealed(&mut self, bytes: u64, page_tokens: u32, now: Moment) -> u32 {
        let before = self.base.counters;
        self.base.counters.bytes_sealed = before.bytes_sealed.max(bytes);
        let reused = self.base.reused.saturating_mul(page_tokens);
        let computed = self.base.spec.prompt_tokens.saturating_sub(reused);
        self.base.counters.tokens_computed = before.tokens_computed.max(computed);
        let outstanding = bytes.saturating_sub(before.bytes_verified);
        self.enter(
            Stage::Sending {
                sealed: now,
                outstanding,
            },
            now,
        );
        self.refresh_debts(before, now);
        self.base.counters.tokens_computed - before.tokens_computed
    }

    /// The engine keeps the KV for D's engine, which has the right to read it from now on.
    pub(super) fn kept(&mut self, read_within: Millis, now: Moment) {
        self.read_within = Some(read_within);
        self.base.sessions.insert(Epoch::TICKET);
        self.ack_at = None;
        self.handover_at = None;
        let stage = Stage::Sending {
            sealed: now,
            outstanding: 0,
        };
        self.enter(stage, now);
    }

    /// Arms the ack and the handover timer exactly while their debts exist, and restarts them on progress.
    fn refresh_debts(&mut self, before: Counters, now: Moment) {
        if self.read_within.is_some() {
            // Engines that read from each other show nothing meanwhile: only the read's deadline is armed.
            return;
        }
        let Counters {
            bytes_sealed: sealed,
            bytes_sent: sent,
            bytes_verified: verified,
            ..
        } = self.base.counters;
        let all_sealed = matches!(self.stage, Stage::Sending { .. });
        let unverified = sent > verified;
        // Once all bytes are verified D owes the commit.
        let decode_owes = self.is_started() && (unverified || (all_sealed && sent >= sealed));
        let prefill_owes = all_sealed && !decode_owes;
        let verified_grew = verified > before.bytes_verified;
        let sent_grew = sent > before.bytes_sent;
        self.ack_at = armed(self.ack_at, decode_owes, verified_grew, now);
        self.handover_at = armed(self.handover_at, prefill_owes, verified_grew || sent_grew, now);
    }

    /// Who owes in Transferring.
    const fn transfer_debtor(&self) -> Owes {
        if self.handover_at.is_some() {
            Owes::Prefill
        } else {
            Owes::Decode
        }
    }

    fn transfer_budget(&self, outstanding: u64, env: &Env<'_>) -> Millis {
        match self.read_within {
            // D's own deadline, which began later, comes first: it knows more.
            Some(limit) => limit + env.settings.report_period.scale(2, 1),
            None => env.settings.transfer_budget(outstanding),
        }
    }

    fn compute_timers(&self, env: &Env<'_>, timers: &mut Timers) {
        let since = self.chunk_at.max(env.engine.moved_at());
        let reason = if env.engine.is_behind(env.now) {
            env.stalled
        } else {
            Reason::PrefillStalled
        };
        timers.end(since, env.settings.progress_ttl, reason, Owes::Prefill);
        let started = self.started.unwrap_or(self.chunk_at);
        let budget = env.settings.prefill_budget(self.base.spec.prompt_tokens);
        timers.end(started, budget, Reason::PrefillStalled, Owes::Prefill);
    }
}

fn armed(old: Option<Moment>, owed: bool, moved: bool, now: Moment) -> Option<Moment> {
    match (owed, old) {
        (false, _) => None,
        (true, Some(since)) if !moved => Some(since),
        (true, _) => Some(now),
    }
}

impl Part for PartP {
    fn base(&self) -> &Base {
        &self.base
    }

    fn base_mut(&mut self) -> &mut Base {
        &mut self.base
    }

    fn queue<'a>(&self, queues: &'a mut Queues) -> &'a mut u32 {
        match self.stage {
            Stage::Window | Stage::Hello | Stage::PagesAtDecode => &mut queues.handshake,
            Stage::Turn => &mut queues.turn,
            Stage::Computing => &mut queues.engine,
            Stage::Sending { .. } => &mut queues.transfer,
        }
    }

    fn timers(&self, env: &Env<'_>) -> Timers {
        let mut timers = Timers::default();
        if let Link::Hello(said) = self.link
            && !planted::no_handshake_deadline()
        {
            timers.end(said, env.settings.handshake_ttl, Reason::HandshakeTimeout, Owes::Decode);
        }
        match self.stage {
            Stage::Window | Stage::Hello | Stage::PagesAtDecode | Stage::Turn => self.base.backstop(env, &mut timers),
            Stage::Computing => self.compute_timers(env, &mut timers),
            Stage::Sending { .. } if planted::no_transfer_deadline() => self.base.backstop(env, &mut timers),
            Stage::Sending { sealed, outstanding } => {
                let budget = self.transfer_budget(outstanding, env);
                timers.end(sealed, budget, Reason::TransferStalled, self.transfer_debtor());
            }
        }
        if let Some(since) = self.ack_at.filter(|_| !planted::no_transfer_deadline()) {
            timers.end(since, env.settings.progress_ttl, Reason::TransferStalled, Owes::Decode);
        }
        if let Some(since) = self.handover_at {
            timers.end(since, env.settings.progress_ttl, Reason::TransferStalled, Owes::Prefill);
        }
        self.base.timers(env, &mut timers);
        timers
    }

    fn absolute(&self, env: &Env<'_>) -> Moment {
        match self.stage {
            Stage::Window | Stage::Hello | Stage::PagesAtDecode | Stage::Turn => {
                self.base.opened + self.base.spec.queue_left + env.settings.two_ttl()
            }
            Stage::Computing => {
                let started = self.started.unwrap_or(self.base.phase_since);
                started + env.settings.prefill_budget(self.base.spec.prompt_tokens)
            }
            Stage::Sending { sealed, outstanding } => sealed + self.transfer_budget(outstanding, env),
        }
    }

    fn waits_for_engine(&self) -> bool {
        match self.stage {
            Stage::Turn | Stage::Computing => true,
            Stage::Window | Stage::Hello | Stage::PagesAtDecode => false,
            // An engine that stands still serves no read.
            Stage::Sending { .. } => self.read_within.is_some(),
        }
    }

    fn reads_until(&self) -> Option<Moment> {
        match (self.stage, self.read_within) {
            (Stage::Sending { sealed, .. }, Some(within)) => Some(sealed + within),
            _ => None,
        }
    }

    fn last_word(&self, end: PartEnd, peer_said: bool) -> LastWord {
        match (self.link, end) {
            (Link::Down, _) => LastWord::Nothing,
            (_, PartEnd::Failed(_)) if !peer_said => LastWord::Fail(self.base.epoch),
            (_, PartEnd::Failed(_) | PartEnd::HandedOver | PartEnd::Done) => LastWord::Finish(self.base.epoch),
        }
    }

    fn committed(&self) -> bool {
        false
    }

    fn token(&self) -> u64 {
        0
    }
}
