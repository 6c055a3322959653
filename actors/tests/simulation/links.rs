//! The router's links: what the production links do over gRPC, over the simulated network, with the same words for the same
//! ends (`broken`: the connection, not just the stream) and the same limits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use innkeeper_actors::ports::{LinkItem, Links, NodeEvent, NodeLink, NodeQuestion, OpenRoom, RoomLink, Target};
use innkeeper_actors::tasks::Tasks;
use innkeeper_room::{Incarnation, ToWorker};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::conn::REnd;
use crate::net::{FromRouter, Net, ToRouter, Way, spawn};
use crate::story::{lock, note};

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

/// The links of one life of the router.
pub(crate) struct SimLinks {
    net: Arc<Net>,
    life: Incarnation,
    tasks: Tasks,
    known: Mutex<BTreeMap<Incarnation, CancellationToken>>,
}

impl SimLinks {
    /// Without any link.
    pub(crate) fn new(net: Arc<Net>, life: Incarnation, tasks: Tasks) -> Self {
        Self {
            net,
            life,
            tasks,
            known: Mutex::default(),
        }
    }

    fn stop_of(&self, target: &Target) -> CancellationToken {
        lock(&self.known).entry(target.incarnation).or_default().clone()
    }
}

impl Links for SimLinks {
    fn open(&self, target: &Target, open: OpenRoom) -> RoomLink {
        let (to, said) = mpsc::channel(256);
        let (says, from) = mpsc::channel(257);
        let place = says.clone().try_reserve_owned().ok();
        let (net, life, stop) = (Arc::clone(&self.net), self.life, self.stop_of(target));
        let addr = target.control.clone();
        // If the set is closed the channel ends, which says as much.
        spawn(&self.tasks, "room_link", async move {
            let room = open.spec.room;
            let (broken, why) = room_link(&net, life, &addr, open, (said, says), &stop).await;
            note!(
                net.story,
                "the stream of {room} to {addr} ended, broken {broken}: {why}"
            );
            if let Some(place) = place {
                place.send(LinkItem::Ended { broken, why });
            }
        });
        RoomLink { to, from }
    }

    fn node(&self, target: &Target) -> NodeLink {
        let (ask, asked) = mpsc::channel(256);
        let (events_in, events) = mpsc::channel(256);
        let listener = events_in.clone();
        let (stop, addr) = (self.stop_of(target), target.control.clone());
        let link = NodeStream {
            net: Arc::clone(&self.net),
            life: self.life,
            addr,
            asked,
            events: events_in,
            backoff: FIRST_BACKOFF,
        };
        spawn(&self.tasks, "node_link", async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = listener.closed() => {}
                () = link.keep() => {}
            }
        });
        NodeLink { ask, events }
    }

    fn forget(&self, incarnation: Incarnation) {
        if let Some(stop) = lock(&self.known).remove(&incarnation) {
            stop.cancel();
        }
    }
}

/// Calls, and waits for the worker's process to take the call.
async fn call(net: &Arc<Net>, life: Incarnation, addr: &str, first: FromRouter) -> Result<REnd, String> {
    let limit = net.settings.connect_timeout.duration();
    let called = async {
        let mut end = net.call(life, addr).await?;
        let _ = end.to.send((Instant::now(), first));
        let broken = end.conn.end(Way::Down).clone();
        tokio::select! {
            biased;
            () = broken.cancelled() => Err("the connection broke".to_owned()),
            accepted = end.from.recv() => match accepted {
                Some(_) => Ok(end),
                None => Err("the worker takes no streams".to_owned()),
            },
        }
    };
    tokio::time::timeout(limit, called)
        .await
        .map_err(|_| format!("no answer within {limit:?}"))?
}

type Ends = (mpsc::Receiver<ToWorker>, mpsc::Sender<LinkItem>);

/// One room's stream from its Open to its end; whether its connection broke, and what happened.
async fn room_link(
    net: &Arc<Net>,
    life: Incarnation,
    addr: &str,
    open: OpenRoom,
    (mut said, says): Ends,
    stop: &CancellationToken,
) -> (bool, String) {
    let over = |why: &str| (false, why.to_owned());
    let end = tokio::select! {
        biased;
        () = stop.cancelled() => return over("the worker was forgotten"),
        end = call(net, life, addr, FromRouter::Open(Box::new(open))) => end,
    };
    let REnd {
        conn,
        reset,
        to,
        mut from,
    } = match end {
        Ok(end) => end,
        Err(why) => return (true, why),
    };
    let mut to = Some(to);
    let closed = CancellationToken::new();
    let grace = net.settings.grace.duration();
    let drained = async {
        closed.cancelled().await;
        tokio::time::sleep(grace).await;
    };
    tokio::pin!(drained);
    loop {
        let item = tokio::select! {
            biased;
            () = conn.end(Way::Down).cancelled() => return (true, "the connection broke".to_owned()),
            () = stop.cancelled() => return over("the worker was forgotten"),
            () = reset.cancelled() => return over("the stream was reset"),
            () = &mut drained => return over("the router closed the stream"),
            message = said.recv(), if to.is_some() => {
                match (message, &to) {
                    (Some(message), Some(to)) => {
                        // Fails only for a connection that broke.
                        let _ = to.send((Instant::now(), FromRouter::Say(message)));
                    }
                    _ => {
                        to = None;
                        closed.cancel();
                    }
                }
                continue;
            }
            item = from.recv() => item,
        };
        match item {
            Some(ToRouter::Says(told)) => {
                note!(net.story, "{addr} says {:?}", told.message);
                let _ = says.try_send(LinkItem::Says(told));
            }
            Some(ToRouter::Accepted | ToRouter::Event(_)) => {}
            None => return over("the worker closed the stream"),
        }
    }
}

struct NodeStream {
    net: Arc<Net>,
    life: Incarnation,
    addr: String,
    asked: mpsc::Receiver<NodeQuestion>,
    events: mpsc::Sender<NodeEvent>,
    backoff: Duration,
}

impl NodeStream {
    async fn keep(mut self) {
        loop {
            let why = self.once().await;
            note!(self.net.story, "the node stream to {} broke: {why}", self.addr);
            if self.events.send(NodeEvent::Down { why }).await.is_err() {
                return;
            }
            tokio::time::sleep(self.backoff).await;
            self.backoff = (self.backoff * 2).min(LONGEST_BACKOFF);
        }
    }

    async fn once(&mut self) -> String {
        let mut end = match call(&self.net, self.life, &self.addr, FromRouter::Hello).await {
            Ok(end) => end,
            Err(why) => return why,
        };
        let limit = self.net.settings.router_ttl().duration();
        let silence = tokio::time::sleep(limit);
        tokio::pin!(silence);
        let mut may_ask = true;
        loop {
            let item = tokio::select! {
                biased;
                () = end.conn.end(Way::Down).cancelled() => return "the connection broke".to_owned(),
                () = end.reset.cancelled() => return "the stream was reset".to_owned(),
                question = self.asked.recv(), if may_ask => {
                    match question {
                        Some(question) => drop(end.to.send((Instant::now(), FromRouter::Ask(question)))),
                        None => may_ask = false,
                    }
                    continue;
                }
                item = end.from.recv() => item,
                () = &mut silence => return format!("no report within {limit:?}"),
            };
            let event = match item {
                Some(ToRouter::Event(event)) => event,
                Some(ToRouter::Accepted | ToRouter::Says(_)) => continue,
                None => return "the worker closed the node stream".to_owned(),
            };
            if let NodeEvent::Load { .. } = &event {
                self.backoff = FIRST_BACKOFF;
                silence.as_mut().reset(Instant::now() + limit);
            }
            if self.events.send(event).await.is_err() {
                return "nobody listens".to_owned();
            }
        }
    }
}
