//! A worker's end of its streams: what the gRPC service does in production.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use innkeeper_actors::ports::{NodeEvent, NodeQuestion, OpenRoom, RoomInlet, RoomOutlet, RoomPort, WorkerPort};
use innkeeper_room::RoomId;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::conn::WEnd;
use crate::net::{FromRouter, Net, ToRouter, Way, spawn};

/// A stream has arrived: a task of the worker's own serves it. A worker that takes none is gone, or as good as.
pub(crate) fn serve(net: &Arc<Net>, end: WEnd) {
    let (host, net_) = (Arc::clone(&end.conn.host), Arc::clone(net));
    let serving = async move {
        let mut end = end;
        let limit = net_.settings.two_ttl().duration();
        if !end.say(ToRouter::Accepted, limit).await {
            return;
        }
        match end.from.recv().await {
            Some(FromRouter::Open(open)) => room(&net_, end, *open).await,
            Some(FromRouter::Hello) => node(end, limit).await,
            Some(FromRouter::Say(_) | FromRouter::Ask(_)) | None => {}
        }
    };
    spawn(&host.tasks, "service", serving);
}

impl WEnd {
    /// Says something, when there is a place for it; whether the stream is there.
    async fn say(&self, item: ToRouter, limit: Duration) -> bool {
        let said = async {
            let place = self.to.reserve().await;
            place.map(|place| place.send((Instant::now(), item))).is_ok()
        };
        tokio::select! {
            biased;
            () = broken(self) => false,
            said = tokio::time::timeout(limit, said) => said.unwrap_or(false),
        }
    }
}

/// Comes when a stream or its connection breaks.
async fn broken(end: &WEnd) {
    tokio::select! {
        biased;
        () = end.conn.end(Way::Up).cancelled() => {}
        () = end.reset.cancelled() => {}
    }
}

async fn room(net: &Net, mut end: WEnd, open: OpenRoom) {
    let grace = net.settings.grace.duration();
    let (inbound, outbound) = (CancellationToken::new(), CancellationToken::new());
    let RoomPort { to_room, from_room } = end.conn.host.port.open(open);
    net.tell_opened(end.conn.host.slot);
    let (_, nothing) = tokio::sync::mpsc::unbounded_channel();
    let from = std::mem::replace(&mut end.from, nothing);
    let hear = hear(from, to_room, &end, (&inbound, &outbound), grace);
    let limit = net.settings.two_ttl().duration();
    let say = say(from_room, &end, (&inbound, &outbound), (grace, limit));
    futures::join!(hear, say);
}

async fn after(end: &CancellationToken, grace: Duration) {
    end.cancelled().await;
    tokio::time::sleep(grace).await;
}

async fn hear(
    mut from: UnboundedReceiver<FromRouter>,
    room: Box<dyn RoomInlet>,
    end: &WEnd,
    (inbound, outbound): (&CancellationToken, &CancellationToken),
    grace: Duration,
) {
    let over = after(outbound, grace);
    tokio::pin!(over);
    loop {
        let message = tokio::select! {
            biased;
            () = broken(end) => break,
            message = from.recv() => message,
            () = &mut over => break,
        };
        match message {
            Some(FromRouter::Say(message)) => room.say(message),
            Some(FromRouter::Open(_) | FromRouter::Hello | FromRouter::Ask(_)) | None => break,
        }
    }
    room.ended();
    inbound.cancel();
}

async fn say(
    mut room: Box<dyn RoomOutlet>,
    end: &WEnd,
    (inbound, outbound): (&CancellationToken, &CancellationToken),
    (grace, limit): (Duration, Duration),
) {
    let over = after(inbound, grace);
    tokio::pin!(over);
    loop {
        let next = tokio::select! {
            biased;
            () = broken(end) => break,
            next = room.next() => next,
            () = &mut over => break,
        };
        let Some(next) = next else { break };
        if !end.say(ToRouter::Says(next), limit).await {
            break;
        }
    }
    outbound.cancel();
}

async fn node(mut end: WEnd, limit: Duration) {
    let port: Arc<dyn WorkerPort> = Arc::clone(&end.conn.host.port);
    let mut loads = port.loads();
    loads.mark_changed();
    let mut answers = FuturesUnordered::new();
    let evidence = |room: RoomId| {
        let port = Arc::clone(&port);
        async move {
            NodeEvent::Evidence {
                room,
                evidence: port.evidence(room).await,
            }
        }
    };
    loop {
        let event = tokio::select! {
            biased;
            () = end.conn.end(Way::Up).cancelled() => return,
            () = end.reset.cancelled() => return,
            question = end.from.recv() => match question {
                Some(FromRouter::Ask(NodeQuestion::Who)) => NodeEvent::Identity { incarnation: port.incarnation() },
                Some(FromRouter::Ask(NodeQuestion::Evidence(room))) => {
                    answers.push(evidence(room));
                    continue;
                }
                Some(FromRouter::Open(_) | FromRouter::Hello | FromRouter::Say(_)) | None => return,
            },
            Some(event) = answers.next(), if !answers.is_empty() => event,
            changed = loads.changed() => {
                if changed.is_err() { return }
                NodeEvent::Load { incarnation: port.incarnation(), load: *loads.borrow_and_update() }
            }
        };
        if !end.say(ToRouter::Event(event), limit).await {
            return;
        }
    }
}
