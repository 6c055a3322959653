//! What a session says, on its way to a client that reads as it can. One task per stream takes tokens as they come; what
//! the client has not taken waits in memory, bounded by the tokens that were asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use super::session::{Counted, Session, Step};
use super::state::FrontState;

/// Blocks between the task and the connection. Small: what the client does not take is to be seen here.
const WINDOW: usize = 1;

/// How the task of a stream ended. It says so before it drops its end of the channel.
const RUNNING: u8 = 0;
const COMPLETE: u8 = 1;
const STALLED: u8 = 2;

/// The waits of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// A client that takes nothing for this long is given up.
    client_stall: Duration,
    /// How often a silent stream is looked at.
    keep_alive: Duration,
}

impl Times {
    /// As the router is configured.
    pub(crate) const fn of(state: &FrontState) -> Self {
        Self {
            client_stall: state.settings.client_stall.duration(),
            keep_alive: state.keep_alive,
        }
    }
}

/// Writes steps in the words of one wire.
pub(crate) trait Writer: Send + 'static {
    /// What is handed to the connection at once.
    type Block: Send + 'static;

    /// Writes a step, with what was counted so far.
    fn step(&mut self, step: Step, counted: Counted);
    /// Tokens came, but none of their text could be sent yet. May write nothing.
    fn keep_alive(&mut self);
    /// Whether nothing waits.
    fn is_empty(&self) -> bool;
    /// All that waits.
    fn take(&mut self) -> Self::Block;
}

/// What a connection polls next.
pub(crate) enum Fed<B> {
    /// To be sent.
    Block(B),
    /// The stream ended as it should, errors of the room included.
    Complete,
    /// The client took nothing for too long.
    Stalled,
    /// The task died.
    Died,
}

/// The connection's end. Dropping it aborts the task, and with it the rooms.
pub(crate) struct Feed<B> {
    receiver: mpsc::Receiver<B>,
    end: Arc<AtomicU8>,
    task: JoinHandle<()>,
}

impl<B: Send + 'static> Feed<B> {
    /// Begins with the first step.
    pub(crate) fn start(session: Session, writer: impl Writer<Block = B>, first: Step, times: Times) -> Self {
        let (blocks, receiver) = mpsc::channel(WINDOW);
        let end = Arc::new(AtomicU8::new(RUNNING));
        let pump = Pump {
            session,
            writer,
            end: Arc::clone(&end),
            times,
            over: false,
        };
        // Owned by the feed: it ends with the stream, or is aborted when the connection drops it.
        let task = tokio::spawn(pump.run(blocks, first));
        Self { receiver, end, task }
    }

    /// What comes next. Not to be asked after an end.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Fed<B>> {
        let block = ready!(self.receiver.poll_recv(cx));
        Poll::Ready(match (block, self.end.load(Ordering::Acquire)) {
            (Some(block), _) => Fed::Block(block),
            (None, COMPLETE) => Fed::Complete,
            (None, STALLED) => Fed::Stalled,
            (None, _) => Fed::Died,
        })
    }
}

impl<B> Drop for Feed<B> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Takes steps from the session at once, and gives blocks to the connection as it takes them.
struct Pump<W> {
    session: Session,
    writer: W,
    end: Arc<AtomicU8>,
    times: Times,
    /// No more steps come.
    over: bool,
}

impl<W: Writer> Pump<W> {
    async fn run(mut self, blocks: mpsc::Sender<W::Block>, first: Step) {
        self.take(first);
        let mut ticks = tokio::time::interval(self.times.keep_alive.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut taken = Instant::now();
        // A sign of life tells the client that its answer is being worked on, so it needs tokens to show for it: some
        // came since the last tick, but none of their text could be sent yet. A stream without tokens stays silent.
        let mut tokens_since_tick = false;
        let mut sent_since_tick = true;
        while !(self.over && self.writer.is_empty()) {
            let waits = !self.writer.is_empty();
            tokio::select! {
                biased;
                place = blocks.reserve(), if waits => {
                    // The connection dropped its end: the client left.
                    let Ok(place) = place else { return };
                    place.send(self.writer.take());
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
                    tracing::info!("a client took nothing for too long and is given up");
                    self.session.stalled();
                    self.end.store(STALLED, Ordering::Release);
                    return;
                }
                () = blocks.closed() => return,
                _ = ticks.tick(), if !waits => {
                    if tokens_since_tick && !sent_since_tick {
                        self.writer.keep_alive();
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
        self.over = self.over || matches!(step, Step::Failed(_) | Step::Done);
        self.writer.step(step, self.session.counted());
    }
}
