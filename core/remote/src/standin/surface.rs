//! HTTP: routes, answers, streams.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::{Method, Request, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::core::{Ask, Out};
use super::process::Shared;
use super::{Kind, sglang, vllm};

/// What is answered: all at once, or event by event.
pub(super) type Answer = Response<Either<Full<Bytes>, Events>>;

/// Answers a request, once the process runs.
pub(super) async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Answer, Infallible> {
    shared.running().await;
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return Ok(error(400, "the body is cut"));
    };
    let body: Value = serde_json::from_slice(&body.to_bytes()).unwrap_or(Value::Null);
    let id = head.headers.get("x-request-id").and_then(|id| id.to_str().ok());
    let path = head.uri.path();
    let kind = shared.core().config.kind;
    let answered = match (kind, &head.method) {
        (Kind::Vllm, &Method::GET) => vllm::get(&shared, path),
        (Kind::Vllm, _) => vllm::post(&shared, path, &body, id.unwrap_or("none")).await,
        (_, &Method::GET) => sglang::get(&shared, path).await,
        (_, _) => sglang::post(&shared, path, &body).await,
    };
    // Stopped meanwhile: nothing leaves the process until it goes on.
    shared.running().await;
    Ok(answered)
}

pub(super) fn text(status: u16, body: String) -> Answer {
    let body = Either::Left(Full::new(body.into()));
    let mut response = Response::new(body);
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
    response
}

pub(super) fn json_of(status: u16, value: &Value) -> Answer {
    text(status, value.to_string())
}

pub(super) fn error(status: u16, message: &str) -> Answer {
    json_of(status, &json!({"error": {"message": message, "code": status}}))
}

/// Whether its health is fine.
pub(super) fn health(shared: &Shared) -> Answer {
    if shared.is_frozen() && !shared.core().config.bugs.health_lies {
        return error(503, "the core does not move");
    }
    text(200, String::new())
}

/// Numbers of a request.
pub(super) fn ids(value: &Value) -> Vec<u32> {
    let numbers = value.as_array().into_iter().flatten();
    numbers
        .filter_map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
        .collect()
}

/// A request that was taken in. Dropping it is its client's going away.
pub(super) struct Taken {
    shared: Arc<Shared>,
    key: u64,
    outs: UnboundedReceiver<Out>,
    /// How long it takes until that is noticed.
    notice: Duration,
    over: bool,
}

impl Taken {
    /// Submits a request.
    pub(super) fn submit(
        shared: &Arc<Shared>,
        notice: Duration,
        ask: impl FnOnce(tokio::sync::mpsc::UnboundedSender<Out>) -> Ask,
    ) -> Self {
        let (out, outs) = unbounded_channel();
        let key = shared.core().submit(ask(out));
        Self {
            shared: Arc::clone(shared),
            key,
            outs,
            notice,
            over: false,
        }
    }

    /// What it says next.
    pub(super) async fn next(&mut self) -> Option<Out> {
        let out = self.outs.recv().await;
        self.see(out)
    }

    fn see(&mut self, out: Option<Out>) -> Option<Out> {
        self.over |= !matches!(out, Some(Out::Token(_)));
        out
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let (shared, key, notice) = (Arc::clone(&self.shared), self.key, self.notice);
        // A runtime that ends takes its engines along.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(notice).await;
                shared.core().abort(key);
            });
        }
    }
}

/// Writes what a request says as events.
pub(super) type Write = Box<dyn FnMut(Out) -> Vec<Value> + Send>;

/// A stream of events.
pub(super) struct Events {
    taken: Taken,
    write: Write,
    ended: bool,
}

impl Events {
    pub(super) fn answer(taken: Taken, write: Write) -> Answer {
        Response::new(Either::Right(Self {
            taken,
            write,
            ended: false,
        }))
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let Poll::Ready(out) = self.taken.outs.poll_recv(context) else {
            return Poll::Pending;
        };
        let out = self.taken.see(out);
        self.ended = self.taken.over;
        let events = out.map(|out| (self.write)(out)).unwrap_or_default();
        let mut lines: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        if self.ended {
            lines.push_str("data: [DONE]\n\n");
        }
        Poll::Ready(Some(Ok(Frame::data(lines.into()))))
    }
}
