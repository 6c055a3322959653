//! A room's stream to one worker, seen from R.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use innkeeper_actors::ports::{LinkItem, OpenRoom, RoomLink, WorkerSays};
use innkeeper_proto::v1;
use innkeeper_proto::v1::worker_client::WorkerClient;
use innkeeper_room::ledger::router::Side;
use innkeeper_room::{Settings, ToWorker};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Streaming;
use tonic::transport::Channel;

use super::broken::{is_broken, tell};
use crate::config::Way;
use crate::convert::{RouterSays, Wire};
use crate::faults::{Faults, kind_from, kind_to};
use crate::grpc::ChannelError;
use crate::tasks::Tasks;

/// What R says ahead of the connection. A room has few messages, besides one Taken per batch of tokens.
const TO_WORKER: usize = 256;
/// What the worker says ahead of the room's actor, the end included.
const FROM_WORKER: usize = 257;

struct Link {
    stop: CancellationToken,
    connect_timeout: Duration,
    /// From R's half-close to the stream's reset.
    grace: Duration,
    /// A room's actor that takes nothing for this long is gone; its ledger entry ends by its own timers, far earlier.
    reader_timeout: Duration,
    /// R has half-closed.
    closed: CancellationToken,
    /// The link is over: what R might still say is cut off. Without it the stream would stay until the room's actor
    /// drops its end, for a request's body outlives the call that is dropped.
    over: DropGuard,
    says: mpsc::Sender<LinkItem>,
    /// Which of the room's workers this is, and what tests do to its messages.
    side: Side,
    faults: Arc<Faults>,
}

/// How a stream ended.
struct End {
    broken: bool,
    why: String,
}

impl End {
    fn stream(why: impl Into<String>) -> Self {
        Self {
            broken: false,
            why: why.into(),
        }
    }
}

/// Says the end, exactly once and last, even if the task is dropped: its place in the queue is reserved from the start.
struct LastWord {
    place: Option<mpsc::OwnedPermit<LinkItem>>,
    end: End,
}

impl Drop for LastWord {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let why = std::mem::take(&mut self.end.why);
            place.send(LinkItem::Ended {
                broken: self.end.broken,
                why,
            });
        }
    }
}

pub(super) fn open(
    channel: Result<Channel, ChannelError>,
    stop: CancellationToken,
    settings: &Settings,
    (tasks, faults): (&Tasks, &Arc<Faults>),
    open: OpenRoom,
) -> RoomLink {
    let (to, said) = mpsc::channel(TO_WORKER);
    let (says, from) = mpsc::channel(FROM_WORKER);
    let mut last = LastWord {
        place: says.clone().try_reserve_owned().ok(),
        end: End::stream("the link was dropped: the worker was forgotten, or the router is shutting down"),
    };
    let link = Link {
        stop,
        connect_timeout: settings.connect_timeout.duration(),
        grace: settings.grace.duration(),
        reader_timeout: settings.two_ttl().duration(),
        closed: CancellationToken::new(),
        over: CancellationToken::new().drop_guard(),
        says,
        side: side_of(&open),
        faults: Arc::clone(faults),
    };
    // If the set is closed the future is dropped, and with it the last word is said.
    let _ = tasks.spawn("room_link", async move {
        last.end = match channel {
            Ok(channel) => link.run(channel, open, said).await,
            Err(error) => End {
                broken: true,
                why: error.to_string(),
            },
        };
        drop(last);
    });
    RoomLink { to, from }
}

impl Link {
    async fn run(self, channel: Channel, open: OpenRoom, said: mpsc::Receiver<ToWorker>) -> End {
        let outbound = self.outbound(open, said);
        let mut client = WorkerClient::new(channel);
        let answer = tokio::time::timeout(self.connect_timeout, client.room(outbound));
        let answer = tokio::select! {
            biased;
            () = self.stop.cancelled() => return End::stream("the worker was forgotten"),
            answer = answer => answer,
        };
        match answer {
            Ok(Ok(response)) => self.listen(response.into_inner()).await,
            Ok(Err(status)) => End {
                broken: is_broken(&status),
                why: tell(&status),
            },
            Err(_) => End {
                broken: true,
                why: format!("no answer to Open within {:?}", self.connect_timeout),
            },
        }
    }

    /// What R says, from Open to its half-close.
    fn outbound(
        &self,
        open: OpenRoom,
        said: mpsc::Receiver<ToWorker>,
    ) -> impl futures::Stream<Item = v1::RouterMessage> + Send + use<> {
        let first = ("open", RouterSays::Open(Box::new(open)).to_wire());
        let (way, faults) = (Way::To(self.side), Arc::clone(&self.faults));
        let closed = self.closed.clone();
        let half_close = stream::poll_fn(move |_| {
            closed.cancel();
            Poll::Ready(None)
        });
        stream::iter([first])
            .chain(ReceiverStream::new(said).map(|message| (kind_to(&message), message.to_wire())))
            .then(move |(kind, wire)| {
                let faults = Arc::clone(&faults);
                async move { stream::iter(std::iter::repeat_n(wire, faults.copies(way, kind).await)) }
            })
            .flatten()
            .chain(half_close)
            .take_until(self.over.token().clone().cancelled_owned())
    }

    async fn listen(&self, mut inbound: Streaming<v1::WorkerMessage>) -> End {
        let drained = async {
            self.closed.cancelled().await;
            tokio::time::sleep(self.grace).await;
        };
        tokio::pin!(drained);
        loop {
            let message = tokio::select! {
                biased;
                () = self.stop.cancelled() => return End::stream("the worker was forgotten"),
                () = &mut drained => return End::stream("the router closed the stream"),
                message = inbound.message() => message,
            };
            let says = match message {
                Ok(Some(message)) => WorkerSays::from_wire(message),
                Ok(None) => return End::stream("the worker closed the stream"),
                Err(status) => {
                    return End {
                        broken: is_broken(&status),
                        why: tell(&status),
                    };
                }
            };
            let says = match says {
                Ok(says) => says,
                Err(error) => return End::stream(format!("the worker said what cannot be understood: {error}")),
            };
            // Nobody listens any more: what R still says goes out, and the stream is drained.
            if self.says.is_closed() {
                continue;
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return End::stream("the worker was forgotten"),
                passed = self.pass(says) => if !passed {
                    return End::stream("the room takes no messages any more");
                }
            }
        }
    }

    /// Hands a message to the room, as often as it is to come; whether the room takes messages.
    async fn pass(&self, says: WorkerSays) -> bool {
        let copies = self.faults.copies(Way::From(self.side), kind_from(&says.message)).await;
        for _ in 0..copies {
            // A room that is gone hears nothing; that the stream goes on is its own affair.
            let sent = tokio::time::timeout(self.reader_timeout, self.says.send(LinkItem::Says(says.clone())));
            if sent.await.is_err() {
                return false;
            }
        }
        true
    }
}

/// Only P is told where D is.
fn side_of(open: &OpenRoom) -> Side {
    if open.decode_addr.is_empty() {
        Side::Decode
    } else {
        Side::Prefill
    }
}
