//! What both ends of a session have in common: one task in which reading and writing run side by side, and how they end.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use innkeeper_room::{Epoch, RoomId};
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::frame::{Body, FrameReader, ReadError};
use crate::link::{Probe, ReadHalf, WriteHalf, is_timeout};
use crate::stats::Stats;
use crate::tls::refusal;

/// What a handle and its task share, whichever side it is.
#[derive(Debug)]
pub(crate) struct Signals {
    /// A command or a counter changed: the writer looks again. One waiter.
    pub(crate) wake: Notify,
    /// A last word was asked for.
    pub(crate) last: CancellationToken,
    /// Destroy the session.
    pub(crate) kill: CancellationToken,
    /// The transport below.
    pub(crate) probe: Probe,
}

impl Signals {
    pub(crate) fn new(kill: CancellationToken) -> Self {
        Self {
            wake: Notify::new(),
            last: CancellationToken::new(),
            kill,
            probe: Probe::default(),
        }
    }

    /// Resolves when the session is to be destroyed, and has the coming close be a reset.
    pub(crate) async fn killed(&self) {
        self.kill.cancelled().await;
        self.probe.reset();
    }
}

/// How reading ended.
#[derive(Debug)]
pub(crate) enum ReadEnd<E> {
    /// The peer said its last word.
    LastWord(E),
    /// The connection broke or the peer broke the protocol.
    Broken(Broken),
}

/// How writing ended.
#[derive(Debug)]
pub(crate) enum WriteEnd {
    /// Our last word is written.
    LastWord,
    /// The stream broke; the peer's last word may still be in our kernel.
    Io(io::Error),
    /// The session cannot go on.
    Broken(String),
    /// It ends without a word (the reason was told already).
    Silent,
}

/// Why a session broke.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) why: String,
    pub(crate) timed_out: bool,
    /// It never stood: the peer does not let us in.
    pub(crate) refused: bool,
}

impl Broken {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            timed_out: false,
            refused: false,
        }
    }

    fn io(error: &io::Error) -> Self {
        match refusal(error) {
            Some(refusal) => Self {
                refused: true,
                ..Self::new(refusal.to_string())
            },
            None => Self {
                timed_out: is_timeout(error),
                ..Self::new(format!("the data connection broke: {error}"))
            },
        }
    }
}

impl From<ReadError> for Broken {
    fn from(error: ReadError) -> Self {
        match &error {
            ReadError::Io(io) => Self::io(io),
            ReadError::Tls => Self {
                refused: true,
                ..Self::new(error.to_string())
            },
            ReadError::Cut | ReadError::Bad(_) | ReadError::Fenced | ReadError::Refused(_) => {
                Self::new(error.to_string())
            }
        }
    }
}

/// How a session ended.
#[derive(Debug)]
pub(crate) enum Ending<E> {
    /// The peer said its last word: half-close, drain.
    Peer(E),
    /// We said ours: half-close, drain.
    Own,
    /// It broke: reset.
    Broken(Broken),
    /// It ends without a word: reset.
    Silent,
}

/// Runs reading and writing side by side until the session ends.
///
/// A write error alone does not end it: a peer that said its last word may have closed since, so what has arrived is read
/// first, for at most `grace`. A last word of ours that cannot be written within `grace` (the peer takes nothing) is given up.
pub(crate) async fn converse<E>(
    reading: impl Future<Output = ReadEnd<E>>,
    writing: impl Future<Output = WriteEnd>,
    last: &CancellationToken,
    grace: Duration,
) -> Ending<E> {
    let (mut reading, mut writing) = (pin!(reading), pin!(writing));
    let mut reads_first = false;
    // The two take turns at being first, so that neither starves the other of its share of the thread, and without
    // drawing lots, so that a run can be repeated.
    let first_end = poll_fn(|context| {
        reads_first = !reads_first;
        for reads in [reads_first, !reads_first] {
            let end = if reads {
                reading.as_mut().poll(context).map(FirstEnd::Read)
            } else {
                writing.as_mut().poll(context).map(FirstEnd::Write)
            };
            if end.is_ready() {
                return end;
            }
        }
        Poll::Pending
    });
    let overdue = async {
        last.cancelled().await;
        tokio::time::sleep(grace).await;
    };
    let ended = |end| match end {
        ReadEnd::LastWord(event) => Ending::Peer(event),
        ReadEnd::Broken(broken) => Ending::Broken(broken),
    };
    let first_end = tokio::select! {
        biased;
        end = first_end => end,
        () = overdue => return Ending::Silent,
    };
    match first_end {
        FirstEnd::Read(end) => ended(end),
        FirstEnd::Write(WriteEnd::LastWord) => Ending::Own,
        FirstEnd::Write(WriteEnd::Silent) => Ending::Silent,
        FirstEnd::Write(WriteEnd::Broken(why)) => Ending::Broken(Broken::new(why)),
        FirstEnd::Write(WriteEnd::Io(error)) => match tokio::time::timeout(grace, reading).await {
            Ok(ReadEnd::LastWord(event)) => Ending::Peer(event),
            // What the peer said of it tells more than that it closed.
            Ok(ReadEnd::Broken(broken)) if broken.refused => Ending::Broken(broken),
            Ok(ReadEnd::Broken(_)) | Err(_) => Ending::Broken(Broken::io(&error)),
        },
    }
}

/// Which direction ended first.
enum FirstEnd<E> {
    Read(ReadEnd<E>),
    Write(WriteEnd),
}

/// After a last word: half-close, then read until the peer closes too or `grace` ends. Closing with unread bytes would be
/// a reset, and a reset eats the word on its way to the peer.
pub(crate) async fn part_in_peace(reader: &mut FrameReader<ReadHalf>, writer: &mut FrameWriter, grace: Duration) {
    let _ = tokio::time::timeout(grace, async {
        if writer.io.shutdown().await.is_ok() {
            reader.drain().await;
        }
    })
    .await;
}

/// Writes frames of one session.
pub(crate) struct FrameWriter {
    io: WriteHalf,
    room: RoomId,
    epoch: Epoch,
    stats: Arc<Stats>,
}

impl FrameWriter {
    pub(crate) fn new(io: WriteHalf, room: RoomId, epoch: Epoch, stats: Arc<Stats>) -> Self {
        Self { io, room, epoch, stats }
    }

    pub(crate) const fn ids(&self) -> (RoomId, Epoch) {
        (self.room, self.epoch)
    }

    pub(crate) async fn control(&mut self, body: &Body) -> io::Result<()> {
        self.raw(&body.frame(self.room, self.epoch)).await
    }

    /// Writes a whole frame.
    pub(crate) async fn raw(&mut self, frame: &[u8]) -> io::Result<()> {
        self.io.write_all(frame).await?;
        // What was encrypted and did not fit into the kernel would else wait for the next frame.
        self.io.flush().await?;
        Stats::add(&self.stats.bytes_out, frame.len() as u64);
        Ok(())
    }
}
