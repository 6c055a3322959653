//! What D says to P.

use std::io;
use std::sync::atomic::Ordering;

use innkeeper_room::HelloReply;
use tokio::time::Instant;

use super::LastWord;
use super::run::{RecvTask, Tally};
use crate::frame::{Body, MAX_RUNS};
use crate::port::Grant;
use crate::session::{FrameWriter, WriteEnd};
use crate::stats::Stats;

/// What to do next, the most urgent first.
enum Next {
    Last(LastWord),
    Reply(HelloReply, Option<Grant>),
    Ask,
    Nothing,
}

/// What P was told of the tally.
#[derive(Default)]
struct Told {
    taken: u64,
    /// Since when there is something to tell.
    since: Option<Instant>,
}

impl RecvTask {
    /// Writes until the last word or an error.
    pub(super) async fn write(&self, writer: &mut FrameWriter, tally: &Tally) -> WriteEnd {
        match self.write_all(writer, tally).await {
            Ok(end) => end,
            Err(error) => WriteEnd::Io(error),
        }
    }

    async fn write_all(&self, writer: &mut FrameWriter, tally: &Tally) -> io::Result<WriteEnd> {
        let mut told = Told::default();
        // The owner answers within the handshake's time, or nobody owns this connection. After Wait there is no deadline
        // here: the room is queued, and its owner times that; TCP keepalive watches the idle connection.
        let mut answer_by = Some(Instant::now() + self.config.hello_timeout);
        loop {
            match self.next() {
                Next::Reply(reply, grant) => {
                    answer_by = None;
                    if let Some(end) = self.answer(writer, tally, reply, grant).await? {
                        return Ok(end);
                    }
                }
                Next::Last(word) => {
                    self.tell(writer, tally, &mut told, true).await?;
                    let body = match word {
                        LastWord::Committed => Body::Committed,
                        LastWord::Fail(reason, evidence) => Body::Fail(reason, evidence),
                    };
                    writer.control(&body).await?;
                    return Ok(WriteEnd::LastWord);
                }
                Next::Ask => writer.control(&Body::AskLeaseAge).await?,
                Next::Nothing => {
                    let force = tally.flush.swap(false, Ordering::Relaxed);
                    let again = self.tell(writer, tally, &mut told, force).await?;
                    if answer_by.is_some_and(|by| Instant::now() >= by) {
                        return Ok(WriteEnd::Broken("the hello was not answered in time".into()));
                    }
                    self.wait(earlier(again, answer_by)).await;
                }
            }
        }
    }

    fn next(&self) -> Next {
        let mut orders = self.shared.orders();
        if let Some((reply, grant)) = orders.replies.pop_front() {
            return Next::Reply(reply, grant);
        }
        if let Some(word) = orders.last {
            return Next::Last(word);
        }
        // Before Ready there is no KV that could be asked about.
        if orders.asks.wanted && orders.answered {
            orders.asks.wanted = false;
            orders.asks.open = true;
            return Next::Ask;
        }
        Next::Nothing
    }

    async fn wait(&self, until: Option<Instant>) {
        let wake = self.shared.signals.wake.notified();
        match until {
            Some(at) => {
                // Either is a reason to look again.
                let _ = tokio::time::timeout_at(at, wake).await;
            }
            None => wake.await,
        }
    }

    /// Answers the hello; the end, if the answer is a last word.
    async fn answer(
        &self,
        writer: &mut FrameWriter,
        tally: &Tally,
        reply: HelloReply,
        grant: Option<Grant>,
    ) -> io::Result<Option<WriteEnd>> {
        let body = match (reply, grant) {
            (HelloReply::Ready, Some(grant)) => {
                let verified = grant.coverage.verified_bytes();
                let runs = grant.coverage.runs(MAX_RUNS);
                tally.verified.store(verified, Ordering::Relaxed);
                // Before the word is out: what P sends on it must find the permit.
                tally.put(grant);
                writer.control(&Body::Ready { verified, runs }).await?;
                return Ok(None);
            }
            (HelloReply::Ready, None) => return Ok(Some(WriteEnd::Broken("Ready was said without a grant".into()))),
            (HelloReply::Wait, _) => {
                writer.control(&Body::Wait).await?;
                return Ok(None);
            }
            (HelloReply::Committed, _) => Body::AlreadyCommitted,
            (HelloReply::Ended(reason), _) => Body::Ended(reason),
            (HelloReply::Unknown, _) => Body::Unknown,
            (HelloReply::Stale, _) => {
                Stats::add(&self.stats.fenced_frames, 1);
                Body::Stale
            }
        };
        writer.control(&body).await?;
        Ok(Some(WriteEnd::LastWord))
    }

    /// Tells Verified if enough has come or waited long enough; when to look again.
    async fn tell(
        &self,
        writer: &mut FrameWriter,
        tally: &Tally,
        told: &mut Told,
        force: bool,
    ) -> io::Result<Option<Instant>> {
        let taken = tally.taken.load(Ordering::Relaxed);
        if taken == told.taken {
            return Ok(None);
        }
        let now = Instant::now();
        let due = *told.since.get_or_insert(now) + self.config.ack_delay;
        if !force && taken - told.taken < self.config.ack_bytes && now < due {
            return Ok(Some(due));
        }
        let verified = tally.verified.load(Ordering::Relaxed);
        *told = Told { taken, since: None };
        writer.control(&Body::Verified { verified, taken }).await?;
        Ok(None)
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
