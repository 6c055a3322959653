//! The node stream, seen from the worker: reports out, questions in.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use innkeeper_actors::ports::{Answer, WorkerPort};
use innkeeper_proto::v1;
use innkeeper_room::{Incarnation, RoomId, Settings};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use crate::convert::{Asked, Identity, LoadOf, NodeSays, RoomEvidence, Wire};

/// Questions about rooms that are answered at once; more are answered "not known", which costs only blame.
const QUESTIONS_IN_HAND: usize = 256;

/// A worker's end of a node stream.
pub(super) struct NodeStream {
    /// For Hello.
    hello_timeout: Duration,
    /// The ledger's answer about a room; R waits no longer for it.
    evidence_timeout: Duration,
    /// An R that takes nothing for this long while its pings are answered is broken.
    writer_timeout: Duration,
    says: mpsc::Sender<Result<v1::NodeAnswer, Status>>,
}

impl NodeStream {
    pub(super) fn new(settings: &Settings, says: mpsc::Sender<Result<v1::NodeAnswer, Status>>) -> Self {
        Self {
            hello_timeout: settings.connect_timeout.duration(),
            evidence_timeout: settings.blame_wait.duration(),
            writer_timeout: settings.two_ttl().duration(),
            says,
        }
    }

    pub(super) async fn run<P: WorkerPort + ?Sized>(self, port: Arc<P>, mut inbound: Streaming<v1::NodeQuestion>) {
        let ended = match self.hello(&mut inbound).await {
            Ok(router) => {
                tracing::debug!(%router, "a router listens");
                self.serve(&*port, inbound).await
            }
            Err(status) => Err(status),
        };
        if let Err(status) = ended {
            // A last word that finds no place is not worth waiting for: the end of the stream says as much.
            let _ = self.says.try_send(Err(status));
        }
    }

    async fn hello(&self, inbound: &mut Streaming<v1::NodeQuestion>) -> Result<Incarnation, Status> {
        let first = tokio::time::timeout(self.hello_timeout, inbound.message())
            .await
            .map_err(|_| Status::deadline_exceeded(format!("no Hello within {:?}", self.hello_timeout)))??;
        let first = first.ok_or_else(|| Status::invalid_argument("the stream ended before its Hello"))?;
        match Asked::from_wire(first)? {
            Asked::Hello(router) => Ok(router),
            Asked::Who(_) | Asked::Evidence(_) => Err(Status::invalid_argument("the first message must be Hello")),
        }
    }

    /// Until the router closes the stream, or the ledger is gone. One loop: nothing in it waits for anything else.
    async fn serve<P: WorkerPort + ?Sized>(
        &self,
        port: &P,
        mut inbound: Streaming<v1::NodeQuestion>,
    ) -> Result<(), Status> {
        let mut loads = port.loads();
        loads.mark_changed();
        let mut answers = FuturesUnordered::new();
        loop {
            tokio::select! {
                question = inbound.message() => match question {
                    Ok(Some(question)) => match Asked::from_wire(question)? {
                        Asked::Who(asked) => self.tell(NodeSays::Identity(Identity { incarnation: port.incarnation(), asked })).await?,
                        Asked::Evidence(room) if answers.len() < QUESTIONS_IN_HAND => answers.push(self.evidence(port, room)),
                        Asked::Evidence(room) => self.tell(NodeSays::Evidence(RoomEvidence { room, evidence: None })).await?,
                        Asked::Hello(_) => return Err(Status::invalid_argument("a second Hello")),
                    },
                    Ok(None) | Err(_) => return Ok(()),
                },
                Some(evidence) = answers.next(), if !answers.is_empty() => self.tell(NodeSays::Evidence(evidence)).await?,
                changed = loads.changed() => {
                    changed.map_err(|_| Status::unavailable("the worker's ledger is gone"))?;
                    let load = *loads.borrow_and_update();
                    self.tell(NodeSays::Load(LoadOf { incarnation: port.incarnation(), load })).await?;
                }
                () = self.says.closed() => return Ok(()),
            }
        }
    }

    fn evidence<'a, P: WorkerPort + ?Sized>(&self, port: &'a P, room: RoomId) -> Answer<'a, RoomEvidence> {
        let limit = self.evidence_timeout;
        Box::pin(async move {
            let evidence = tokio::time::timeout(limit, port.evidence(room)).await.unwrap_or(None);
            RoomEvidence { room, evidence }
        })
    }

    /// Waits for a place: a router that reads nothing gets the newest load when it reads again, for loads are not queued.
    async fn tell(&self, says: NodeSays) -> Result<(), Status> {
        match tokio::time::timeout(self.writer_timeout, self.says.send(Ok(says.to_wire()))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Status::cancelled("the router closed the stream")),
            Err(_) => Err(Status::deadline_exceeded("the router reads nothing")),
        }
    }
}
