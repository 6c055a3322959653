//! The rooms behind one HTTP request: tokens in, pieces of text and ends out.
//!
//! A session owns its requests' streams, and whoever owns the session may drop it at any time: that is the abort.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use innkeeper_actors::ports::{RequestEvent, RequestStream};
use innkeeper_room::ledger::router::Outcome;
use innkeeper_room::{Reason, Settings};
use tokio::time::Instant;

use super::answer::{Assembler, Finish, Piece};
use super::error::{ApiError, RoomFailure};
use super::plan::ChoicePlan;
use super::state::{FrontState, Metrics, RequestEnd, Route, ServerSpan};

/// What a session says next.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// Tokens came. The piece may be empty: they were held back.
    Piece {
        /// For which choice.
        choice: usize,
        /// What became final.
        piece: Piece,
    },
    /// A choice is complete.
    Finished {
        /// Which.
        choice: usize,
        /// Why.
        finish: Finish,
    },
    /// The request failed: all of its choices are given up.
    Failed(RoomFailure),
    /// All choices are complete.
    Done,
}

/// What is counted for the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Tokens produced so far, of all choices.
    pub(crate) produced: u64,
    /// Tokens of the prompts that were not computed; each prompt counts once, as its first choice has it.
    pub(crate) cached: u64,
}

/// The rooms behind one HTTP request.
pub(crate) struct Session {
    choices: Vec<Choice>,
    steps: VecDeque<Step>,
    open: usize,
    /// The router's tree answers every request by then, with a margin; if it does not, it is broken.
    deadline: Instant,
    /// How long the answer may come after the last token: the ledger says both in one breath.
    grace: Duration,
    record: Record,
}

struct Choice {
    stream: Option<RequestStream>,
    /// The first of its prompt.
    first: bool,
    assembler: Assembler,
    /// All tokens are here; the router's answer is awaited until then.
    closing: Option<Instant>,
    last_tokens: Option<Instant>,
}

/// Reports the end of an HTTP request exactly once: dropped early, it was aborted by its client.
pub(crate) struct Record {
    metrics: Arc<dyn Metrics>,
    span: Option<Arc<dyn ServerSpan>>,
    route: Route,
    begun: Instant,
    prompt_tokens: u64,
    counted: Counted,
    reported: bool,
}

impl Record {
    pub(crate) fn new(state: &FrontState, route: Route, span: Option<Arc<dyn ServerSpan>>) -> Self {
        let metrics = Arc::clone(&state.metrics);
        Self {
            metrics,
            span,
            route,
            begun: Instant::now(),
            prompt_tokens: 0,
            counted: Counted::default(),
            reported: false,
        }
    }

    pub(crate) fn report(&mut self, outcome: &'static str) {
        if std::mem::replace(&mut self.reported, true) {
            return;
        }
        let end = RequestEnd {
            route: self.route,
            outcome,
            took: self.begun.elapsed(),
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.counted.produced,
        };
        self.metrics.ended(&end);
        if let Some(span) = &self.span {
            span.ended(&end);
        }
    }
}

impl Record {
    /// The request never got as far as a room, or failed there.
    pub(crate) fn refused(mut self, error: &ApiError) {
        self.report(error.outcome());
    }

    /// Somebody else reports the request.
    pub(crate) fn dismiss(mut self) {
        self.reported = true;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.report(Reason::Aborted.code());
    }
}

impl Session {
    /// Submits every choice.
    pub(crate) fn submit(state: &FrontState, plans: Vec<ChoicePlan>, prompt_tokens: u64, mut record: Record) -> Self {
        record.prompt_tokens = prompt_tokens;
        let open = |plan: ChoicePlan| Choice {
            stream: Some(state.port.submit(plan.request)),
            first: plan.first,
            assembler: Assembler::new(Arc::clone(&state.tokenizer), plan.wanted),
            closing: None,
            last_tokens: None,
        };
        let choices: Vec<Choice> = plans.into_iter().map(open).collect();
        let limit = answer_limit(&state.settings);
        Self {
            open: choices.len(),
            choices,
            steps: VecDeque::new(),
            deadline: Instant::now() + limit,
            grace: state.settings.grace.duration(),
            record,
        }
    }

    /// What was counted so far.
    pub(crate) const fn counted(&self) -> Counted {
        self.record.counted
    }

    /// The next step. May be dropped and asked again: nothing gets lost.
    pub(crate) async fn next(&mut self) -> Step {
        loop {
            if let Some(step) = self.steps.pop_front() {
                return step;
            }
            if self.open == 0 {
                self.record.report("done");
                return Step::Done;
            }
            let closing = self.choices.iter().filter_map(|choice| choice.closing).min();
            let wake = closing.map_or(self.deadline, |closing| closing.min(self.deadline));
            let event = tokio::time::timeout_at(wake, std::future::poll_fn(|cx| poll_any(&mut self.choices, cx)));
            match event.await {
                Ok((at, event)) => self.hear(at, event),
                Err(_) => self.overdue(),
            }
        }
    }

    /// The client's socket takes nothing any more: every room behind it may go.
    pub(crate) fn stalled(&mut self) {
        for stream in self.choices.iter().filter_map(|choice| choice.stream.as_ref()) {
            stream.control.stalled();
        }
        self.record.report(Reason::ClientStalled.code());
        self.give_up();
    }

    fn hear(&mut self, at: usize, event: Option<RequestEvent>) {
        match event {
            Some(RequestEvent::Reused(tokens)) if self.choices[at].first => {
                self.record.counted.cached += u64::from(tokens);
            }
            Some(RequestEvent::Reused(_)) => {}
            Some(RequestEvent::Tokens(tokens)) => self.tokens(at, tokens),
            Some(RequestEvent::Answered {
                outcome: Outcome::Done, ..
            }) => self.complete(at),
            // The client has all it asked for: what became of the room after that is not its concern.
            Some(RequestEvent::Answered { .. }) | None if self.choices[at].closing.is_some() => self.complete(at),
            Some(RequestEvent::Answered {
                outcome,
                room,
                attempts,
            }) => {
                let failure = RoomFailure::from_outcome(outcome, room, attempts);
                self.fail(failure.unwrap_or_else(RoomFailure::internal));
            }
            None => self.fail(RoomFailure::internal()),
        }
    }

    fn tokens(&mut self, at: usize, tokens: Vec<innkeeper_room::Token>) {
        let now = Instant::now();
        let choice = &mut self.choices[at];
        let before = choice.assembler.produced();
        let piece = choice.assembler.push(tokens);
        let taken = choice.assembler.produced() - before;
        if taken == 0 {
            return;
        }
        self.record.counted.produced += u64::from(taken);
        let (metrics, route) = (&self.record.metrics, self.record.route);
        match choice.last_tokens.replace(now) {
            None => metrics.first_token(route, now - self.record.begun),
            Some(last) => metrics.next_tokens(route, now - last, taken as usize),
        }
        self.steps.push_back(Step::Piece { choice: at, piece });
        if choice.assembler.stopped_by_string() {
            self.complete(at);
        } else if choice.assembler.finish().is_some() {
            choice.closing = Some(now + self.grace);
        }
    }

    /// A choice has all it asked for.
    fn complete(&mut self, at: usize) {
        let choice = &mut self.choices[at];
        let Some(stream) = choice.stream.take() else { return };
        // First said, then dropped: so it is a good end, and not an abort, also if the router did not know it was over.
        stream.control.satisfied();
        drop(stream);
        choice.closing = None;
        self.open -= 1;
        let rest = choice.assembler.end();
        if !rest.is_empty() {
            self.steps.push_back(Step::Piece {
                choice: at,
                piece: rest,
            });
        }
        let finish = choice.assembler.finish().unwrap_or(Finish::Stop);
        self.steps.push_back(Step::Finished { choice: at, finish });
    }

    fn fail(&mut self, failure: RoomFailure) {
        self.record.report(failure.reason.code());
        self.give_up();
        self.steps.push_back(Step::Failed(failure));
    }

    /// Drops what is left: the abort of the rooms behind it.
    fn give_up(&mut self) {
        for choice in &mut self.choices {
            choice.stream = None;
            choice.closing = None;
        }
        self.open = 0;
    }

    fn overdue(&mut self) {
        let now = Instant::now();
        if now >= self.deadline {
            tracing::error!("the router's tree did not answer a request by its deadline");
            self.fail(RoomFailure::internal());
            return;
        }
        for at in 0..self.choices.len() {
            if self.choices[at].closing.is_some_and(|closing| closing <= now) {
                self.complete(at);
            }
        }
    }
}

/// The request's own deadline, and what its verdict and blame may take on top.
fn answer_limit(settings: &Settings) -> Duration {
    (settings.request_timeout + settings.two_ttl() + settings.blame_wait).duration()
}

/// The first event of any choice.
fn poll_any(choices: &mut [Choice], cx: &mut Context<'_>) -> Poll<(usize, Option<RequestEvent>)> {
    for (at, choice) in choices.iter_mut().enumerate() {
        let Some(stream) = &mut choice.stream else { continue };
        if let Poll::Ready(event) = stream.events.poll_recv(cx) {
            return Poll::Ready((at, event));
        }
    }
    Poll::Pending
}

impl From<RoomFailure> for ApiError {
    fn from(failure: RoomFailure) -> Self {
        Self::Room(failure)
    }
}
