//! Asking SGLang.

use std::pin::pin;
use std::time::Duration;

use super::ask;
use super::gauges::{Identity, identity, look};
use super::reply::{Cursor, ended};
use crate::failure::{RemoteError, words};
use crate::http::{Call, LONGEST_ANSWER, Reply, Target};
use crate::leg::{Finish, Leg, Piece};
use crate::look::Look;
use crate::stream::Stream;
use crate::ticket::Bootstrap;
use crate::times::Times;

const GENERATE: &str = "/generate";

/// One SGLang process.
#[derive(Clone, Debug)]
pub struct Sglang {
    target: Target,
    times: Times,
}

impl Sglang {
    /// The engine at `target`.
    #[must_use]
    pub const fn new(target: Target, times: Times) -> Self {
        Self { target, times }
    }

    /// Where it is.
    #[must_use]
    pub const fn target(&self) -> &Target {
        &self.target
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
        let reply = self
            .get("/v1/loads?include=core,disagg,queues", self.times.look)
            .await?;
        look(&good("a look at its loads", reply)?.body)
    }

    /// Has its scheduler make a token, through KV that goes nowhere: it, and not only its front end, moves.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn canary(&self) -> Result<(), RemoteError> {
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
        let open = self.target.open(call, self.times.connect, whole).await?;
        let status = open.status();
        let body = open.whole(LONGEST_ANSWER, whole).await?;
        ended(&good("prefill's leg", Reply { status, body })?.body)
    }

    /// The leg at decode: takes the KV and produces tokens. The head comes at once and proves nothing.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn decode(&self, leg: &Leg, place: &Bootstrap, head: Duration) -> Result<Answer, RemoteError> {
        let call = Call::post(GENERATE, ask::leg(leg, place, true));
        let open = self.target.open(call, self.times.connect, head).await?;
        Ok(Answer {
            stream: Stream::new("decode's leg", open, self.times.look).await?,
            cursor: Cursor::new(leg.sampling.top_logprobs),
            over: false,
        })
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

fn good(what: &'static str, reply: Reply) -> Result<Reply, RemoteError> {
    if reply.status == 200 {
        return Ok(reply);
    }
    Err(RemoteError::Status {
        what,
        status: reply.status,
        message: words(&reply.body),
    })
}

/// Decode's tokens, as they come. Dropping it aborts the request.
#[derive(Debug)]
pub struct Answer {
    stream: Stream,
    cursor: Cursor,
    over: bool,
}

impl Answer {
    /// What comes next; `None` once the last piece was given. May be given up and asked again.
    ///
    /// # Errors
    /// [`RemoteError`]; nothing follows then, [`crate::http::HttpError::Silent`] apart.
    pub async fn next(&mut self, limit: Duration) -> Result<Option<Piece>, RemoteError> {
        if self.over {
            return Ok(None);
        }
        let Some(event) = self.stream.next(limit).await? else {
            return Err(RemoteError::Cut { what: "decode's leg" });
        };
        let piece = self.cursor.piece(&event)?;
        self.over = piece.finish.is_some();
        Ok(Some(piece))
    }
}
