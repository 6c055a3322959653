//! Asking SGLang.

use std::pin::pin;
use std::time::Duration;

use super::ask;
use super::gauges::{Identity, identity, look};
use super::order::{Shared, Turn};
use super::reply::{Cursor, ended};
use crate::answer::{self, DECODE, PREFILL, good};
use crate::failure::RemoteError;
use crate::http::{Call, Reply, Target};
use crate::leg::{Finish, Leg};
use crate::look::Look;
use crate::stream::Stream;
use crate::ticket::Bootstrap;
use crate::times::Times;

const GENERATE: &str = "/generate";

/// Decode's tokens, as they come. Dropping it aborts the request.
pub type Answer = answer::Answer<Cursor>;

/// One SGLang process. Its clones share what its looks have shown.
#[derive(Clone, Debug)]
pub struct Sglang {
    target: Target,
    times: Times,
    order: Shared,
}

impl Sglang {
    /// The engine at `target`.
    #[must_use]
    pub fn new(target: Target, times: Times) -> Self {
        Self {
            target,
            times,
            order: Shared::default(),
        }
    }

    /// Where it is.
    #[must_use]
    pub const fn target(&self) -> &Target {
        &self.target
    }

    /// How long it is waited for.
    #[must_use]
    pub const fn times(&self) -> &Times {
        &self.times
    }

    /// A place in the order of prefill's legs, for one that is posted next. It is kept until the leg's answer is there; any look of
    /// this client, or of a clone, may then show that the leg is computed.
    #[must_use]
    pub fn turn(&self) -> Turn {
        self.order.turn()
    }

    /// Asks it what it is.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn identity(&self) -> Result<Identity, RemoteError> {
        let reply = self.get("/server_info", self.times.look).await?;
        identity(&good("the question what it is", reply)?.body)
    }

    /// A look at its loads.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn look(&self) -> Result<Look, RemoteError> {
        let asked = self.order.asked();
        let reply = self
            .get("/v1/loads?include=core,disagg,queues", self.times.look)
            .await?;
        let look = look(&good("a look at its loads", reply)?.body)?;
        self.order.shown(&asked, &look);
        Ok(look)
    }

    /// Has its scheduler make a token, through KV that goes nowhere: it, and not only its front end, moves.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn canary(&self) -> Result<(), RemoteError> {
        let _out = self.order.canary();
        let reply = self.get("/health_generate", self.times.probe).await?;
        good("a canary", reply).map(drop)
    }

    /// The leg at prefill: waits for decode, computes, hands the KV over. The answer comes when that is done. Dropping the
    /// future closes the connection, which a leg without a stream may take two seconds to notice: see [`Self::end`].
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn prefill(&self, leg: &Leg, place: &Bootstrap, whole: Duration) -> Result<Finish, RemoteError> {
        let call = Call::post(GENERATE, ask::leg(leg, place, false));
        let reply = self.target.call(call, self.times.connect, whole).await?;
        ended(&good(PREFILL, reply)?.body)
    }

    /// The leg at decode: takes the KV and produces tokens. The head comes at once and proves nothing.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn decode(&self, leg: &Leg, place: &Bootstrap, head: Duration) -> Result<Answer, RemoteError> {
        let call = Call::post(GENERATE, ask::leg(leg, place, true));
        let open = self.target.open(call, self.times.connect, head).await?;
        let stream = Stream::new(DECODE, open, self.times.look).await?;
        Ok(Answer::new(stream, Cursor::new(leg.sampling.top_logprobs)))
    }

    /// Asks for a request to be aborted. The answer is the same whether the engine knows it or not.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn abort(&self, rid: &str) -> Result<(), RemoteError> {
        let call = Call::post("/abort_request", ask::abort(rid));
        let reply = self.target.call(call, self.times.connect, self.times.probe).await?;
        good("an abort", reply).map(drop)
    }

    /// Ends a leg: aborts it again and again until it has ended by itself, since an abort that overtakes its request is
    /// lost. What the leg said at last; `None` if it said nothing within `limit`, and was dropped.
    pub async fn end<T>(&self, rid: &str, leg: impl Future<Output = T>, limit: Duration) -> Option<T> {
        let aborting = async {
            loop {
                if let Err(error) = self.abort(rid).await {
                    tracing::debug!(rid, %error, "an abort was not taken; it is said again");
                }
                tokio::time::sleep(self.times.abort_again).await;
            }
        };
        let mut leg = pin!(leg);
        tokio::select! {
            biased;
            said = &mut leg => Some(said),
            () = tokio::time::sleep(limit) => None,
            () = aborting => None,
        }
    }

    async fn get(&self, path: &str, limit: Duration) -> Result<Reply, RemoteError> {
        Ok(self.target.call(Call::get(path), self.times.connect, limit).await?)
    }
}
