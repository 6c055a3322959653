//! The server-sent events of a session.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use futures::Stream;

use super::answer::{DONE, Renderer, event};
use super::error::{ApiError, RoomFailure};
use super::feed::{Fed, Feed, Times, Writer};
use super::session::{Counted, Session, Step};

/// The comment of a silent stream.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// The answer: 200 and the events, beginning with the first step.
pub(crate) fn respond(session: Session, renderer: Renderer, first: Step, times: Times) -> Response {
    let writer = EventWriter {
        renderer,
        queue: Vec::new(),
    };
    let headers = [
        (
            CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream; charset=utf-8"),
        ),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // Reverse proxies are not to collect events.
        (
            HeaderName::from_static("x-accel-buffering"),
            HeaderValue::from_static("no"),
        ),
    ];
    let events = Events {
        feed: Feed::start(session, writer, first, times),
        closed: false,
    };
    (headers, Body::from_stream(events)).into_response()
}

/// Steps as server-sent events.
struct EventWriter {
    renderer: Renderer,
    /// Events that the connection has not taken.
    queue: Vec<u8>,
}

impl Writer for EventWriter {
    type Block = Bytes;

    fn step(&mut self, step: Step, counted: Counted) {
        match step {
            Step::Piece { choice, piece } => self.renderer.piece(choice, piece, &mut self.queue),
            Step::Finished { choice, finish } => self.renderer.finish(choice, finish, &mut self.queue),
            Step::Failed(failure) => fail(&mut self.queue, failure),
            Step::Done => self.renderer.end(counted, &mut self.queue),
        }
    }

    fn keep_alive(&mut self) {
        self.queue.extend_from_slice(KEEP_ALIVE);
    }

    fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.queue).into()
    }
}

/// The events of a failure after the first token.
fn fail(out: &mut Vec<u8>, failure: RoomFailure) {
    event(out, &ApiError::from(failure).body());
    out.extend_from_slice(DONE);
}

/// The body: what the connection polls.
struct Events {
    feed: Feed<Bytes>,
    closed: bool,
}

impl Stream for Events {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.closed {
            return Poll::Ready(None);
        }
        let fed = ready!(self.feed.poll(cx));
        self.closed = !matches!(fed, Fed::Block(_));
        Poll::Ready(match fed {
            Fed::Block(block) => Some(Ok(block)),
            Fed::Complete => None,
            // An error makes the server close the connection: the client is not to take this for a whole answer.
            Fed::Stalled => Some(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client took nothing for too long",
            ))),
            // Even then the stream ends with an error, never with a bare cut.
            Fed::Died => {
                let mut last = Vec::new();
                fail(&mut last, RoomFailure::internal());
                Some(Ok(Bytes::from(last)))
            }
        })
    }
}
