//! Asking vLLM.

use std::time::Duration;

use super::ask;
use super::gauges::{Identity, look, model, version};
use super::reply::{Computed, Reader, computed, piece};
use crate::answer::{self, DECODE, PREFILL, good};
use crate::failure::{RemoteError, refused};
use crate::http::{Call, Target};
use crate::ids::request_id;
use crate::leg::{Leg, Prompt};
use crate::look::Look;
use crate::stream::Stream;
use crate::ticket::VllmTicket;
use crate::times::Times;

const COMPLETIONS: &str = "/v1/completions";
const REQUEST_ID: &str = "x-request-id";
/// No model has this name, so the request is refused before it is scheduled.
const NO_MODEL: &str = "innkeeper-gives-this-ticket-back";

/// Decode's tokens, as they come. Dropping it aborts the request.
pub type Answer = answer::Answer<Reader>;

/// One vLLM process.
#[derive(Clone, Debug)]
pub struct Vllm {
    target: Target,
    model: String,
    times: Times,
}

impl Vllm {
    /// The engine at `target`, which serves `model`.
    #[must_use]
    pub const fn new(target: Target, model: String, times: Times) -> Self {
        Self { target, model, times }
    }

    /// Where it is.
    #[must_use]
    pub const fn target(&self) -> &Target {
        &self.target
    }

    /// Its model, as it names it.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Asks an engine what it is.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn identity(target: &Target, times: &Times) -> Result<Identity, RemoteError> {
        let ask = |path: &'static str| target.call(Call::get(path), times.connect, times.look);
        let models = good("the question for its models", ask("/v1/models").await?)?;
        let (model, root, context) = model(&models.body)?;
        let release = ask("/version").await?;
        let gauges = good("a look at its gauges", ask("/metrics").await?)?;
        let seen = look(&String::from_utf8_lossy(&gauges.body));
        Ok(Identity {
            model,
            root,
            context,
            version: version(&release.body),
            started: seen.started,
            pool: seen.pool,
        })
    }

    /// A look at its gauges.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn look(&self) -> Result<Look, RemoteError> {
        let call = Call::get("/metrics");
        let reply = self.target.call(call, self.times.connect, self.times.look).await?;
        let reply = good("a look at its gauges", reply)?;
        Ok(look(&String::from_utf8_lossy(&reply.body)))
    }

    /// Whether its front end answers. Only a *no* says anything.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn health(&self) -> Result<(), RemoteError> {
        let call = Call::get("/health");
        let reply = self.target.call(call, self.times.connect, self.times.look).await?;
        good("the question for its health", reply).map(drop)
    }

    /// The leg at prefill: computes the prompt and keeps its KV. Dropping the future aborts it, as long as it computes.
    ///
    /// # Errors
    /// [`RemoteError`]; without a usable ticket too.
    pub async fn prefill(&self, prompt: &Prompt, whole: Duration) -> Result<Computed, RemoteError> {
        let id = request_id(prompt.room, prompt.attempt);
        let call = Call::post(COMPLETIONS, ask::prefill(&self.model, prompt)).header(REQUEST_ID, &id);
        let reply = self.target.call(call, self.times.connect, whole).await?;
        let computed = computed(&good(PREFILL, reply)?.body)?;
        if !computed.ticket.is_of(prompt.room) {
            return Err(RemoteError::NoTicket {
                why: format!("it is another request's than `{id}`"),
            });
        }
        Ok(computed)
    }

    /// The leg at decode: reads the KV by its ticket and produces tokens. The head comes at once and proves nothing.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn decode(&self, leg: &Leg, ticket: Option<&VllmTicket>, head: Duration) -> Result<Answer, RemoteError> {
        let body = ask::decode(&self.model, leg, ticket.map(VllmTicket::raw));
        let id = request_id(leg.prompt.room, leg.prompt.attempt);
        let call = Call::post(COMPLETIONS, body).header(REQUEST_ID, &id);
        let open = self.target.open(call, self.times.connect, head).await?;
        let stream = Stream::new(DECODE, open, self.times.look).await?;
        Ok(Answer::new(stream, Reader::new(leg.sampling.top_logprobs)))
    }

    /// Gives a ticket back by this engine (decode's) to the one that made it: a request that is refused at the door has its
    /// ticket's KV released. On first contact of the pair the notice waits for their handshake and this engine's next
    /// step: a canary makes one.
    ///
    /// # Errors
    /// [`RemoteError`]; an answer other than *no such model* released nothing.
    pub async fn release(&self, ticket: &VllmTicket) -> Result<(), RemoteError> {
        let call = Call::post(COMPLETIONS, ask::release(NO_MODEL, ticket.raw()));
        let reply = self.target.call(call, self.times.connect, self.times.probe).await?;
        match reply.status {
            404 => Ok(()),
            status => Err(refused("the return of a ticket", status, &reply.body)),
        }
    }

    /// Asks for requests to be aborted, where the engine has that (`--enable-scale-out`); whether it has. It answers the same
    /// for ids that it does not know: only the end of a leg says that it ended.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn abort(&self, ids: &[&str]) -> Result<bool, RemoteError> {
        if ids.is_empty() {
            return Ok(true);
        }
        let call = Call::post("/inference/v1/abort_requests", ask::abort(ids));
        let reply = self.target.call(call, self.times.connect, self.times.probe).await?;
        match reply.status {
            404 | 405 => Ok(false),
            _ => good("an abort", reply).map(|_| true),
        }
    }

    /// A request of one token on a connection of its own: the engine's core, and not only its front end, moves.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn canary(&self) -> Result<(), RemoteError> {
        let call = Call::post(COMPLETIONS, ask::canary(&self.model));
        let reply = self.target.call(call, self.times.connect, self.times.probe).await?;
        let reply = good("a canary", reply)?;
        let piece = piece(&reply.body, 0)?;
        match piece.finish {
            Some(finish) if finish.is_good() => Ok(()),
            finish => Err(RemoteError::Ended {
                what: "a canary",
                reason: finish.map_or_else(|| "nothing".to_owned(), |finish| finish.word().to_owned()),
            }),
        }
    }
}
