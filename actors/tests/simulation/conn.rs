//! One connection between a life of the router and a life of a worker: its two ends, its pings, its streams.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use innkeeper_room::Incarnation;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::net::{FromRouter, Host, Net, ROUTER, ToRouter, Way, spawn};
use crate::service;
use crate::story::note;

/// A connection. An end is named by the way that what it says takes; its token is cancelled when it sees a break.
pub(crate) struct Conn {
    pub(crate) r_life: Incarnation,
    pub(crate) host: Arc<Host>,
    at_router: CancellationToken,
    at_worker: CancellationToken,
}

/// What a worker may have on its way on one stream; beyond it the room's own queue grows, as behind a full HTTP/2 window.
const WINDOW: usize = 3;

/// Something on its way, with the time at which it was sent.
type Sent<T> = (Instant, T);

/// The router's end of a stream.
pub(crate) struct REnd {
    pub(crate) conn: Arc<Conn>,
    pub(crate) reset: CancellationToken,
    pub(crate) to: UnboundedSender<Sent<FromRouter>>,
    pub(crate) from: UnboundedReceiver<ToRouter>,
}

/// The worker's end of a stream.
pub(crate) struct WEnd {
    pub(crate) conn: Arc<Conn>,
    pub(crate) reset: CancellationToken,
    pub(crate) to: Sender<Sent<ToRouter>>,
    pub(crate) from: UnboundedReceiver<FromRouter>,
}

impl Conn {
    /// A sound one.
    pub(crate) fn new(r_life: Incarnation, host: Arc<Host>) -> Arc<Self> {
        Arc::new(Self {
            r_life,
            host,
            at_router: CancellationToken::new(),
            at_worker: CancellationToken::new(),
        })
    }

    /// The end that speaks this way: `Down` is the router's.
    pub(crate) fn end(&self, way: Way) -> &CancellationToken {
        match way {
            Way::Down => &self.at_router,
            Way::Up => &self.at_worker,
        }
    }
}

/// An end closes: the other one sees it when the news can pass.
pub(crate) fn break_end(net: &Arc<Net>, conn: &Arc<Conn>, way: Way) {
    conn.end(way).cancel();
    let (net_, conn) = (Arc::clone(net), Arc::clone(conn));
    let news = async move {
        let slot = conn.host.slot;
        net_.cross(slot, way).await;
        conn.end(way.back()).cancel();
    };
    spawn(&net.tasks, "reset", news);
}

/// Both ends ask now and then whether the other is there.
pub(crate) fn ping(net: &Arc<Net>, conn: &Arc<Conn>) {
    for way in [Way::Down, Way::Up] {
        let (on, conn) = (Arc::clone(net), Arc::clone(conn));
        spawn(&net.tasks, "ping", async move {
            let over = conn.end(way).clone();
            over.run_until_cancelled(pings(&on, &conn, way)).await;
        });
    }
}

async fn pings(net: &Arc<Net>, conn: &Arc<Conn>, way: Way) {
    let slot = conn.host.slot;
    let own = match way {
        Way::Down => ROUTER,
        Way::Up => slot,
    };
    loop {
        tokio::time::sleep(net.settings.ping_interval.duration()).await;
        net.running(own).await;
        let there_and_back = async {
            net.cross(slot, way).await;
            if conn.end(way.back()).is_cancelled() {
                // Nobody is there any more, and nobody tells.
                std::future::pending::<()>().await;
            }
            net.cross(slot, way.back()).await;
        };
        let answered = tokio::time::timeout(net.settings.ping_timeout.duration(), there_and_back).await;
        // A process that was stopped meanwhile looks at its socket before its timers.
        if answered.is_err() && !net.is_stopped(own) {
            note!(net.story, "a ping of worker {slot} {way:?} was not answered");
            break_end(net, conn, way);
            return;
        }
    }
}

/// A stream: the worker's process serves it when its first word arrives.
pub(crate) fn stream(net: &Arc<Net>, conn: &Arc<Conn>, id: u64, reset: CancellationToken) -> REnd {
    let (to, mut down) = unbounded_channel();
    let (heard, from_router) = unbounded_channel();
    let (to_router, mut up) = channel(WINDOW);
    let (said, from) = unbounded_channel();
    let worker = WEnd {
        conn: Arc::clone(conn),
        reset: reset.clone(),
        to: to_router,
        from: from_router,
    };
    let (on, over) = (Arc::clone(net), Arc::clone(conn));
    spawn(&net.tasks, "downstream", async move {
        let mut worker = Some(worker);
        carry(
            &on,
            &over,
            Way::Down,
            |context| down.poll_recv(context),
            |item| {
                if let Some(worker) = worker.take() {
                    service::serve(&on, worker);
                }
                heard.send(item).is_ok()
            },
        )
        .await;
        drop(worker);
        on.hung_up(id);
    });
    let (on, over) = (Arc::clone(net), Arc::clone(conn));
    spawn(&net.tasks, "upstream", async move {
        carry(
            &on,
            &over,
            Way::Up,
            |context| up.poll_recv(context),
            |item| said.send(item).is_ok(),
        )
        .await;
    });
    REnd {
        conn: Arc::clone(conn),
        reset,
        to,
        from,
    }
}

/// Carries what one end says to the other, in order, until either is over. What the far end then sees is up to its own
/// token: while that is not cancelled a break is silence, not an end.
async fn carry<T>(
    net: &Net,
    conn: &Conn,
    way: Way,
    mut next: impl FnMut(&mut Context<'_>) -> Poll<Option<Sent<T>>>,
    mut deliver: impl FnMut(T) -> bool,
) {
    let slot = conn.host.slot;
    let (near, far) = (conn.end(way), conn.end(way.back()));
    let carrying = async {
        while let Some((sent, item)) = poll_fn(&mut next).await {
            tokio::time::sleep_until(sent + net.latency(slot)).await;
            net.clear(slot, way).await;
            if near.is_cancelled() || !deliver(item) {
                break;
            }
        }
        if !near.is_cancelled() {
            net.cross(slot, way).await;
        }
        if near.is_cancelled() {
            std::future::pending::<()>().await;
        }
    };
    far.run_until_cancelled(carrying).await;
}
