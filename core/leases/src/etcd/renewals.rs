//! Renewing: one keepalive stream for all leases, owned by one task.
//!
//! etcd answers keepalives in the order in which they were sent on a stream, so what waits is a queue. A queue whose head
//! waits longer than a call may breaks the stream: everything in it is answered `Unreachable`, the next renewal opens
//! another stream.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, Error, LeaseKeepAliveResponse, LeaseKeepAliveStream, LeaseKeeper};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use crate::port::StoreError;

/// Renewals that may wait for the task. More at once means that etcd is not answering.
const WAITING: usize = 4096;
/// Renewals sent and not answered. Small answers, so that all of them fit the stream's window while none is read.
const IN_FLIGHT: usize = 512;

/// The way to the task.
#[derive(Debug)]
pub(super) struct Renewals {
    asks: mpsc::Sender<Ask>,
    call_timeout: Duration,
}

#[derive(Debug)]
struct Ask {
    lease: i64,
    reply: oneshot::Sender<Result<(), StoreError>>,
}

impl Renewals {
    pub(super) fn start(connection: Arc<Connection>, call_timeout: Duration, cancel: CancellationToken) -> Self {
        let (asks, inbox) = mpsc::channel(WAITING);
        let task = Task {
            connection,
            call_timeout,
            inbox,
            stream: None,
            sent: VecDeque::new(),
        };
        tokio::spawn(async move {
            // On cancel the waiting callers see their reply dropped.
            cancel.run_until_cancelled(task.run()).await;
        });
        Self { asks, call_timeout }
    }

    /// Renews one lease once.
    pub(super) async fn renew(&self, lease: i64) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        let asked = self.asks.try_send(Ask { lease, reply });
        asked.map_err(|_| unreachable("too many renewals wait for etcd"))?;
        match timeout(self.call_timeout, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(unreachable("the store is closing")),
            Err(_) => Err(unreachable(&format!(
                "no answer within {} ms",
                self.call_timeout.as_millis()
            ))),
        }
    }
}

fn unreachable(why: &str) -> StoreError {
    StoreError::Unreachable(why.to_owned())
}

struct Task {
    connection: Arc<Connection>,
    call_timeout: Duration,
    inbox: mpsc::Receiver<Ask>,
    stream: Option<(LeaseKeeper, LeaseKeepAliveStream)>,
    /// In the order of their answers.
    sent: VecDeque<(Instant, Ask)>,
}

enum Step {
    Ask(Option<Ask>),
    Answer(Result<Option<LeaseKeepAliveResponse>, Error>),
    Overdue,
}

impl Task {
    async fn run(mut self) {
        loop {
            match self.step().await {
                // The store is gone.
                Step::Ask(None) => return,
                // Its caller has given up: etcd need not be asked.
                Step::Ask(Some(ask)) if ask.reply.is_closed() => {}
                Step::Ask(Some(ask)) if self.stream.is_none() => self.open(ask).await,
                Step::Ask(Some(ask)) => self.send(ask).await,
                Step::Answer(Ok(Some(answer))) => self.answered(&answer),
                Step::Answer(Ok(None)) => self.break_stream("etcd ended the keepalive stream"),
                Step::Answer(Err(error)) => self.break_stream(&error.to_string()),
                Step::Overdue => self.break_stream("etcd does not answer keepalives"),
            }
        }
    }

    /// Without a deadline of its own: whoever waits has one, and the oldest one sent is timed here.
    async fn step(&mut self) -> Step {
        let room = self.sent.len() < IN_FLIGHT;
        let overdue = self.sent.front().map(|(sent, _)| *sent + self.call_timeout);
        let stream = &mut self.stream;
        let answer = async {
            match stream {
                Some((_, answers)) => answers.message().await,
                None => std::future::pending().await,
            }
        };
        let overdue = async {
            match overdue {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            answer = answer => Step::Answer(answer),
            ask = self.inbox.recv(), if room => Step::Ask(ask),
            () = overdue => Step::Overdue,
        }
    }

    /// Opens a stream; its first message is this renewal, so the answer to that comes with it.
    async fn open(&mut self, ask: Ask) {
        let lease = ask.lease;
        let open = |mut client: Client| async move { client.lease_keep_alive(lease).await };
        match self.connection.run(self.connection.deadline(), open).await {
            Ok(stream) => {
                self.stream = Some(stream);
                let _ = ask.reply.send(Ok(()));
            }
            Err(StoreError::NotFound) => {
                let _ = ask.reply.send(Err(StoreError::NotFound));
            }
            Err(error) => {
                let _ = ask.reply.send(Err(error.clone()));
                self.refuse_waiting(&error);
            }
        }
    }

    /// What waited meanwhile would each wait for a connect that fails.
    fn refuse_waiting(&mut self, error: &StoreError) {
        while let Ok(ask) = self.inbox.try_recv() {
            let _ = ask.reply.send(Err(error.clone()));
        }
    }

    async fn send(&mut self, ask: Ask) {
        let Some((keeper, _)) = &mut self.stream else { return };
        let sent = Instant::now();
        keeper.id = ask.lease;
        let queued = timeout_at(sent + self.call_timeout, keeper.keep_alive()).await;
        self.sent.push_back((sent, ask));
        match queued {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.break_stream(&error.to_string()),
            Err(_) => self.break_stream("etcd takes no keepalives"),
        }
    }

    fn answered(&mut self, answer: &LeaseKeepAliveResponse) {
        match self.sent.pop_front() {
            Some((_, ask)) if ask.lease == answer.id() => {
                let found = if answer.ttl() > 0 {
                    Ok(())
                } else {
                    Err(StoreError::NotFound)
                };
                let _ = ask.reply.send(found);
            }
            Some((sent, ask)) => {
                self.sent.push_front((sent, ask));
                self.break_stream("etcd answered a keepalive out of turn");
            }
            None => self.break_stream("etcd answered a keepalive that nobody sent"),
        }
    }

    fn break_stream(&mut self, why: &str) {
        self.stream = None;
        for (_, ask) in self.sent.drain(..) {
            let _ = ask.reply.send(Err(unreachable(why)));
        }
        self.connection.suspect();
        tracing::debug!(reason = why, "the keepalive stream broke");
    }
}
