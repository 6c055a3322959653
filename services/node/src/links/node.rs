//! The node stream to one worker, seen from R: opened, kept, and opened again when it breaks.

use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use innkeeper_actors::ports::{NodeEvent, NodeLink, NodeQuestion};
use innkeeper_proto::v1;
use innkeeper_proto::v1::worker_client::WorkerClient;
use innkeeper_room::{Incarnation, Settings};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use tonic::transport::Channel;

use super::broken::tell;
use crate::convert::{Asked, NodeSays, Wire};
use crate::grpc::ChannelError;
use crate::tasks::Tasks;

/// Questions ahead of the connection.
const QUESTIONS: usize = 256;
/// Events ahead of the router's ledger.
const EVENTS: usize = 256;
/// The first wait before another try; each one doubles it. A report resets it.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// The longest wait: a worker that is back is seen within it.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

/// Who is at both ends.
#[derive(Clone, Copy)]
pub(super) struct Meant {
    pub(super) router: Incarnation,
    pub(super) worker: Incarnation,
}

struct Link {
    meant: Meant,
    connect_timeout: Duration,
    /// A stream without a report for this long is dead, whatever its connection says: R's own limit on reports.
    silence: Duration,
    asked: mpsc::Receiver<NodeQuestion>,
    events: mpsc::Sender<NodeEvent>,
    backoff: Duration,
}

pub(super) fn open(
    channel: Result<Channel, ChannelError>,
    stop: CancellationToken,
    settings: &Settings,
    tasks: &Tasks,
    meant: Meant,
) -> NodeLink {
    let (ask, asked) = mpsc::channel(QUESTIONS);
    let (events, heard) = mpsc::channel(EVENTS);
    let listener = events.clone();
    let link = Link {
        meant,
        connect_timeout: settings.connect_timeout.duration(),
        silence: settings.router_ttl().duration(),
        asked,
        events,
        backoff: FIRST_BACKOFF,
    };
    // If the set is closed the events end at once, which says as much.
    let _ = tasks.spawn("node_link", async move {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = listener.closed() => {}
            () = link.keep(channel) => {}
        }
    });
    NodeLink { ask, events: heard }
}

impl Link {
    /// Runs until it is dropped: the worker is forgotten, or nobody listens.
    async fn keep(mut self, channel: Result<Channel, ChannelError>) {
        loop {
            let why = match &channel {
                Ok(channel) => self.once(channel.clone()).await,
                Err(error) => error.to_string(),
            };
            // Waits for the reader, who has 256 older events to take; its end ends this task.
            if self.events.send(NodeEvent::Down { why }).await.is_err() {
                return;
            }
            tokio::time::sleep(self.backoff).await;
            self.backoff = (self.backoff * 2).min(LONGEST_BACKOFF);
        }
    }

    /// One stream, from Hello to its end; why it ended.
    async fn once(&mut self, channel: Channel) -> String {
        let (ask, asking) = mpsc::channel(QUESTIONS);
        let hello = Asked::Hello(self.meant.router).to_wire();
        let outbound = stream::iter([hello]).chain(ReceiverStream::new(asking));
        let mut client = WorkerClient::new(channel);
        match tokio::time::timeout(self.connect_timeout, client.node(outbound)).await {
            Ok(Ok(response)) => self.listen(response.into_inner(), ask).await,
            Ok(Err(status)) => tell(&status),
            Err(_) => format!("no answer to Hello within {:?}", self.connect_timeout),
        }
    }

    async fn listen(&mut self, mut inbound: Streaming<v1::NodeAnswer>, ask: mpsc::Sender<v1::NodeQuestion>) -> String {
        let silence = tokio::time::sleep(self.silence);
        tokio::pin!(silence);
        let mut may_ask = true;
        loop {
            let message = tokio::select! {
                message = inbound.message() => message,
                question = self.asked.recv(), if may_ask => {
                    let Some(question) = question else { may_ask = false; continue };
                    if ask.try_send(self.to_wire(question)).is_err() {
                        return "the worker takes no questions any more".to_owned();
                    }
                    continue;
                }
                () = &mut silence => return format!("no report within {:?}", self.silence),
            };
            let says = match message {
                Ok(Some(message)) => NodeSays::from_wire(message),
                Ok(None) => return "the worker closed the node stream".to_owned(),
                Err(status) => return tell(&status),
            };
            let event = match says {
                Ok(NodeSays::Load(load)) => {
                    self.backoff = FIRST_BACKOFF;
                    silence.as_mut().reset(tokio::time::Instant::now() + self.silence);
                    NodeEvent::Load {
                        incarnation: load.incarnation,
                        load: load.load,
                    }
                }
                Ok(NodeSays::Identity(identity)) => NodeEvent::Identity {
                    incarnation: identity.incarnation,
                },
                Ok(NodeSays::Evidence(of)) => NodeEvent::Evidence {
                    room: of.room,
                    evidence: of.evidence,
                },
                Err(error) => return format!("the worker said what cannot be understood: {error}"),
            };
            // Waits for the reader; if that takes too long the worker's own queue coalesces its reports.
            if self.events.send(event).await.is_err() {
                return "nobody listens".to_owned();
            }
        }
    }

    fn to_wire(&self, question: NodeQuestion) -> v1::NodeQuestion {
        match question {
            NodeQuestion::Who => Asked::Who(self.meant.worker),
            NodeQuestion::Evidence(room) => Asked::Evidence(room),
        }
        .to_wire()
    }
}
