//! One room's stream, seen from the worker: R's messages in, the room's messages out, neither waiting for the other.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use innkeeper_actors::ports::{OpenRoom, RoomInlet, RoomOutlet, RoomPort, WorkerPort};
use innkeeper_proto::v1;
use innkeeper_room::{Settings, ToWorker};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::convert::{RouterSays, Wire, WireError};

/// A worker's end of a room's stream.
pub(super) struct RoomStream {
    /// For the first message.
    open_timeout: Duration,
    /// From the end of one direction to the end of the other.
    grace: Duration,
    /// An R that takes nothing for this long while its pings are answered is broken; the room ends earlier by itself.
    writer_timeout: Duration,
    says: mpsc::Sender<Result<v1::WorkerMessage, Status>>,
    ends: Ends,
}

/// What the two directions tell each other.
#[derive(Default)]
struct Ends {
    /// R will say nothing more.
    inbound: CancellationToken,
    /// The room will say nothing more, or nobody hears it.
    outbound: CancellationToken,
    /// What R said that cannot be understood: the stream's status.
    refused: OnceLock<Status>,
}

impl RoomStream {
    pub(super) fn new(settings: &Settings, says: mpsc::Sender<Result<v1::WorkerMessage, Status>>) -> Self {
        Self {
            open_timeout: settings.connect_timeout.duration(),
            grace: settings.grace.duration(),
            writer_timeout: settings.two_ttl().duration(),
            says,
            ends: Ends::default(),
        }
    }

    pub(super) async fn run<P: WorkerPort + ?Sized>(self, port: Arc<P>, mut inbound: Streaming<v1::RouterMessage>) {
        let open = match self.first(&mut inbound).await {
            Ok(open) => open,
            Err(status) => {
                // The queue is empty: there is a place.
                let _ = self.says.try_send(Err(status));
                return;
            }
        };
        let RoomPort { to_room, from_room } = port.open(open);
        futures::join!(self.hear(inbound, to_room), self.say(from_room));
    }

    async fn first(&self, inbound: &mut Streaming<v1::RouterMessage>) -> Result<OpenRoom, Status> {
        let first = tokio::time::timeout(self.open_timeout, inbound.message())
            .await
            .map_err(|_| Status::deadline_exceeded(format!("no Open within {:?}", self.open_timeout)))??;
        let first = first.ok_or_else(|| Status::invalid_argument("the stream ended before its Open"))?;
        match RouterSays::from_wire(first)? {
            RouterSays::Open(open) => Ok(*open),
            RouterSays::Says(_) => Err(Status::invalid_argument("the first message must be Open")),
        }
    }

    /// R's messages. Its end, whatever its kind, is told to the room, and that it ended.
    async fn hear(&self, mut inbound: Streaming<v1::RouterMessage>, room: Box<dyn RoomInlet>) {
        let over = self.ends.after(&self.ends.outbound, self.grace);
        tokio::pin!(over);
        loop {
            let message = tokio::select! {
                message = inbound.message() => message,
                () = &mut over => break,
            };
            match message.map(|message| message.map(ToWorker::from_wire)) {
                Ok(Some(Ok(message))) => room.say(message),
                Ok(Some(Err(error))) => {
                    self.ends.refuse(error);
                    break;
                }
                Ok(None) | Err(_) => break,
            }
        }
        room.ended();
        self.ends.inbound.cancel();
    }

    /// The room's messages, until it has no more, nobody takes them, or a grace after R's last word.
    async fn say(&self, mut room: Box<dyn RoomOutlet>) {
        let over = self.ends.after(&self.ends.inbound, self.grace);
        tokio::pin!(over);
        loop {
            let next = tokio::select! {
                biased;
                () = self.says.closed() => break,
                () = self.ends.refusal() => break,
                next = room.next() => next,
                () = &mut over => break,
            };
            let Some(next) = next else { break };
            match tokio::time::timeout(self.writer_timeout, self.says.send(Ok(next.to_wire()))).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => break,
            }
        }
        if let Some(status) = self.ends.refused.get() {
            // What stands before it may fill the queue; nobody waits for a refusal longer than for any last word.
            let _ = tokio::time::timeout(self.grace, self.says.send(Err(status.clone()))).await;
        }
        self.ends.outbound.cancel();
    }
}

impl Ends {
    async fn after(&self, end: &CancellationToken, grace: Duration) {
        end.cancelled().await;
        tokio::time::sleep(grace).await;
    }

    fn refuse(&self, error: WireError) {
        // The first one counts; there is no second, the direction ends with it.
        let _ = self.refused.set(error.into());
    }

    /// Comes when R said what cannot be understood; else never.
    async fn refusal(&self) {
        self.inbound.cancelled().await;
        if self.refused.get().is_none() {
            std::future::pending::<()>().await;
        }
    }
}
