//! The two legs of a room at vLLM.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use innkeeper_room::{Millis, Moment};

use super::watcher::{Open, Watcher};
use crate::failure::RemoteError;
use crate::lease::{DecodeSide, Lease, Posted, Proof, age};
use crate::leg::{Leg, Piece, Prompt};
use crate::ticket::VllmTicket;
use crate::vllm::{Answer, Vllm};

/// Engines of prefill that are remembered to have been read from. A pair that is forgotten is only treated as cold.
const REMEMBERED: usize = 256;

/// One vLLM, as prefill's or as decode's.
pub struct VllmDriver {
    watcher: Arc<Watcher<Vllm>>,
    lease: Lease,
    /// Lives of prefill engines that this one has read from.
    warm: Mutex<VecDeque<String>>,
}

/// A prompt's KV that prefill's engine keeps for a reader. As long as it is held the engine owes: it must be able to serve the read.
pub struct Kept {
    /// Where it is.
    pub ticket: VllmTicket,
    posted: Posted,
    unfinished_at: Option<Moment>,
    watcher: Arc<Watcher<Vllm>>,
    _open: Open<Vllm>,
}

impl Kept {
    /// An upper bound of the lease's age now: what decode's worker asks for after its first token.
    #[must_use]
    pub fn lease_age(&self) -> Millis {
        age(self.posted, self.unfinished_at, self.watcher.now())
    }
}

/// A room that decode's engine has taken over: KV read in time, first token there.
pub struct Landed {
    /// The first tokens, and maybe the end.
    pub first: Piece,
    answer: Answer,
    watcher: Arc<Watcher<Vllm>>,
    open: Option<Open<Vllm>>,
}

impl Landed {
    /// What comes next; `None` after the last. May be given up and asked again. Dropping it ends the request.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn next(&mut self, limit: Duration) -> Result<Option<Piece>, RemoteError> {
        let piece = self.answer.next(limit).await?;
        match &piece {
            Some(piece) if piece.finish.is_some() => {
                self.watcher.answered();
                self.open = None;
            }
            Some(_) => self.watcher.evidence(),
            None => {}
        }
        Ok(piece)
    }
}

impl VllmDriver {
    /// Of the engine that `watcher` watches, where prefill's engines keep KV for `lease`.
    #[must_use]
    pub const fn new(watcher: Arc<Watcher<Vllm>>, lease: Lease) -> Self {
        Self {
            watcher,
            lease,
            warm: Mutex::new(VecDeque::new()),
        }
    }

    /// The watcher.
    #[must_use]
    pub const fn watcher(&self) -> &Arc<Watcher<Vllm>> {
        &self.watcher
    }

    /// Decode says Ready now: the beginning of what can be proven about the lease.
    #[must_use]
    pub fn ready(&self) -> DecodeSide {
        DecodeSide::ready(self.lease, self.watcher.now())
    }

    /// Leg 1, after decode's Ready. Dropping the future aborts it.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn prefill(&self, prompt: &Prompt, whole: Duration) -> Result<Kept, RemoteError> {
        let open = self.watcher.begin();
        let posted = Posted(self.watcher.now());
        let computed = self.watcher.engine().prefill(prompt, whole).await?;
        let unfinished_at = self.watcher.answered();
        Ok(Kept {
            ticket: computed.ticket,
            posted,
            unfinished_at,
            watcher: Arc::clone(&self.watcher),
            _open: open,
        })
    }

    /// Leg 2: reads, and gives the room only once the read is proven to have ended inside of the lease. `ask` asks prefill's
    /// worker for [`Kept::lease_age`]; `None`: it did not answer. Until then no token leaves this function, and when
    /// it fails, or is dropped, the request ends.
    ///
    /// # Errors
    /// [`RemoteError::Unproven`] before the leg is posted, if half of the lease is gone, or after its first token; and all
    /// others. No token within `budget` is [`crate::http::HttpError::Silent`].
    pub async fn pull<A: Future<Output = Option<Millis>>>(
        &self,
        leg: &Leg,
        ticket: &VllmTicket,
        ready: &DecodeSide,
        budget: Duration,
        ask: impl Fn() -> A,
    ) -> Result<Landed, RemoteError> {
        let age = ready.age(self.watcher.now());
        if !self.lease.may_begin(age) {
            // Since Ready the prompt was computed, and the lease began with its end: prefill's worker may know that it is younger.
            let age = ask().await.unwrap_or(age);
            if !self.lease.may_begin(age) {
                return Err(self.unproven(age));
            }
        }
        let open = self.watcher.begin();
        let began = tokio::time::Instant::now();
        let mut answer = self.watcher.engine().decode(leg, Some(ticket), budget).await?;
        let first = loop {
            let left = budget.saturating_sub(began.elapsed());
            match answer.next(left).await? {
                // The first event may carry the prompt's ids alone.
                Some(piece) if piece.tokens.is_empty() && piece.finish.is_none() => {}
                Some(piece) if !piece.tokens.is_empty() => break piece,
                Some(_) | None => return Err(RemoteError::Cut { what: "decode's leg" }),
            }
        };
        let now = self.watcher.now();
        self.watcher.evidence();
        if ready.first_token(now) == Proof::AskPrefill {
            let age = ask().await;
            if !age.is_some_and(|age| ready.answered(age)) {
                return Err(self.unproven(age.unwrap_or_else(|| ready.age(now))));
            }
        }
        self.met(ticket.engine_id());
        let ended = first.finish.is_some();
        if ended {
            self.watcher.answered();
        }
        Ok(Landed {
            first,
            answer,
            watcher: Arc::clone(&self.watcher),
            open: (!ended).then_some(open),
        })
    }

    /// Gives a ticket back that nobody will read, by this engine (decode's).
    ///
    /// # Errors
    /// [`RemoteError`]; then the lease is what is left.
    pub async fn release(&self, ticket: &VllmTicket) -> Result<(), RemoteError> {
        let engine = self.watcher.engine();
        engine.release(ticket).await?;
        if !self.is_warm(ticket.engine_id()) {
            // Their handshake begins now, and the notice leaves with the next step.
            let _aside = self.watcher.aside();
            engine.canary().await?;
            self.watcher.answered();
        }
        Ok(())
    }

    /// Whether this engine has read from that life of prefill's.
    #[must_use]
    pub fn is_warm(&self, engine_id: &str) -> bool {
        self.warm().iter().any(|known| known == engine_id)
    }

    fn met(&self, engine_id: &str) {
        let mut warm = self.warm();
        if !warm.iter().any(|known| known == engine_id) {
            if warm.len() >= REMEMBERED {
                warm.pop_front();
            }
            warm.push_back(engine_id.to_owned());
        }
    }

    fn warm(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.warm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    const fn unproven(&self, age: Millis) -> RemoteError {
        RemoteError::Unproven {
            age,
            lease: self.lease.0,
        }
    }
}
