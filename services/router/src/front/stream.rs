//! The server-sent events of a session. One task per stream takes tokens as they come, and the client takes events as
//! it can; what is between them waits in memory, bounded by the tokens that were asked for.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use super::answer::{DONE, Renderer, event};
use super::error::{ApiError, RoomFailure};
use super::session::{Session, Step};

/// Blocks of events between the task and the connection. Small: what the client does not take is to be seen here.
const WINDOW: usize = 1;

/// The comment of a silent stream.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// How the task of a stream ended. It says so before it drops its end of the channel.
const RUNNING: u8 = 0;
const COMPLETE: u8 = 1;
const STALLED: u8 = 2;

/// The waits of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// A client that takes nothing for this long is given up.
    pub(crate) client_stall: Duration,
    /// How often a silent stream is looked at.
    pub(crate) keep_alive: Duration,
}

/// The answer: 200 and the events, beginning with the first step.
pub(crate) fn respond(session: Session, renderer: Renderer, first: Step, times: Times) -> Response {
    let (events, receiver) = mpsc::channel(WINDOW);
    let end = Arc::new(AtomicU8::new(RUNNING));
    let pump = Pump {
        session,
        renderer,
        end: Arc::clone(&end),
        times,
        queue: Vec::new(),
        over: false,
    };
    // Owned by the body: it ends with the stream, or is aborted when the connection drops the body.
    let task = tokio::spawn(pump.run(events, first));
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
    (
        headers,
        Body::from_stream(Events {
            receiver,
            end,
            task,
            closed: false,
        }),
    )
        .into_response()
}

/// Takes steps from the session at once, and gives events to the connection as it takes them.
struct Pump {
    session: Session,
    renderer: Renderer,
    end: Arc<AtomicU8>,
    times: Times,
    /// Events that the connection has not taken.
    queue: Vec<u8>,
    /// No more events come.
    over: bool,
}

impl Pump {
    async fn run(mut self, events: mpsc::Sender<Bytes>, first: Step) {
        self.take(first);
        let mut ticks = tokio::time::interval(self.times.keep_alive.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut taken = Instant::now();
        // A comment tells the client that its answer is being worked on, so it needs tokens to show for it: some came
        // since the last tick, but none of their text could be sent yet. A stream without tokens stays silent.
        let mut tokens_since_tick = false;
        let mut sent_since_tick = true;
        while !(self.over && self.queue.is_empty()) {
            let waits = !self.queue.is_empty();
            tokio::select! {
                biased;
                place = events.reserve(), if waits => {
                    // The connection dropped the body: the client left.
                    let Ok(place) = place else { return };
                    place.send(Bytes::from(std::mem::take(&mut self.queue)));
                    taken = Instant::now();
                    sent_since_tick = true;
                }
                step = self.session.next(), if !self.over => {
                    if !waits {
                        taken = Instant::now();
                    }
                    tokens_since_tick = true;
                    self.take(step);
                }
                () = tokio::time::sleep_until(taken + self.times.client_stall), if waits => {
                    tracing::info!("a client took no event for too long and is given up");
                    self.session.stalled();
                    self.end.store(STALLED, Ordering::Release);
                    return;
                }
                () = events.closed() => return,
                _ = ticks.tick(), if !waits => {
                    if tokens_since_tick && !sent_since_tick {
                        self.queue.extend_from_slice(KEEP_ALIVE);
                        taken = Instant::now();
                    }
                    tokens_since_tick = false;
                    sent_since_tick = false;
                }
            }
        }
        self.end.store(COMPLETE, Ordering::Release);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Piece { choice, piece } => self.renderer.piece(choice, piece, &mut self.queue),
            Step::Finished { choice, finish } => self.renderer.finish(choice, finish, &mut self.queue),
            Step::Failed(failure) => {
                fail(&mut self.queue, failure);
                self.over = true;
            }
            Step::Done => {
                self.renderer.end(self.session.produced(), &mut self.queue);
                self.over = true;
            }
        }
    }
}

/// The events of a failure after the first token.
fn fail(out: &mut Vec<u8>, failure: RoomFailure) {
    event(out, &ApiError::from(failure).body());
    out.extend_from_slice(DONE);
}

/// The body: what the connection polls. Dropping it aborts the task, and with it the rooms.
struct Events {
    receiver: mpsc::Receiver<Bytes>,
    end: Arc<AtomicU8>,
    task: JoinHandle<()>,
    closed: bool,
}

impl Stream for Events {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.closed {
            return Poll::Ready(None);
        }
        let Poll::Ready(block) = self.receiver.poll_recv(cx) else {
            return Poll::Pending;
        };
        if let Some(block) = block {
            return Poll::Ready(Some(Ok(block)));
        }
        self.closed = true;
        match self.end.load(Ordering::Acquire) {
            COMPLETE => Poll::Ready(None),
            // An error makes the server close the connection: the client is not to take this for a whole answer.
            STALLED => Poll::Ready(Some(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client took nothing for too long",
            )))),
            // The task died: even then the stream ends with an error, never with a bare cut.
            _ => {
                let mut last = Vec::new();
                fail(&mut last, RoomFailure::internal());
                Poll::Ready(Some(Ok(Bytes::from(last))))
            }
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.task.abort();
    }
}
