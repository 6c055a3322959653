//! The control network: one wire between the router and each worker, with latency, holes, and processes that are stopped.
//! Streams over it are in order and reliable while their connection lives, as TCP makes them; a connection breaks when an
//! end dies, is cut, or does not answer pings.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use innkeeper_actors::ports::{NodeEvent, NodeQuestion, OpenRoom, WorkerPort, WorkerSays};
use innkeeper_actors::tasks::Tasks;
use innkeeper_room::{Incarnation, Settings, ToWorker};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::conn::{self, Conn, REnd};
use crate::seed::Rng;
use crate::story::{Story, lock, note};

/// The router's place; workers are 1, 2, …
pub(crate) const ROUTER: usize = 0;

/// A direction on a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// From the router.
    Down,
    /// To the router.
    Up,
}

impl Way {
    /// The other one.
    pub(crate) fn back(self) -> Self {
        match self {
            Self::Down => Self::Up,
            Self::Up => Self::Down,
        }
    }
}

/// What the router says on a stream. Dropping the sender is the half-close.
#[derive(Debug)]
pub(crate) enum FromRouter {
    Open(Box<OpenRoom>),
    Hello,
    Say(ToWorker),
    Ask(NodeQuestion),
}

/// What a worker says on a stream. Dropping the sender is its end.
#[derive(Debug)]
pub(crate) enum ToRouter {
    /// The response's headers.
    Accepted,
    Says(WorkerSays),
    Event(NodeEvent),
}

/// A process that listens.
pub(crate) struct Host {
    /// Its place.
    pub(crate) slot: usize,
    /// Its life.
    pub(crate) incarnation: Incarnation,
    /// Its tree.
    pub(crate) port: Arc<dyn WorkerPort>,
    /// Where its tasks live.
    pub(crate) tasks: Tasks,
}

#[derive(Clone, Copy, Debug, Default)]
struct Wire {
    down_hole: bool,
    up_hole: bool,
    latency: u64,
    extra: u64,
}

struct State {
    rng: Rng,
    wires: BTreeMap<usize, Wire>,
    stopped: BTreeMap<usize, bool>,
    hosts: BTreeMap<String, Arc<Host>>,
    conns: BTreeMap<(Incarnation, usize), Arc<Conn>>,
    streams: BTreeMap<u64, (usize, CancellationToken)>,
    next_stream: u64,
}

/// Spawns a task of a set; of a closed one, which is that of a dead process, it is dropped.
pub(crate) fn spawn(tasks: &Tasks, kind: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    let _ = tasks.spawn(kind, task);
}

/// The network.
pub(crate) struct Net {
    pub(crate) story: Arc<Story>,
    pub(crate) settings: Arc<Settings>,
    /// Tasks of nobody: what is on its way.
    pub(crate) tasks: Tasks,
    state: Mutex<State>,
    /// Rung whenever something that was shut may be open. In the order of coming: a `watch` channel would draw lots.
    weather: Notify,
    /// Rung when a room or a request has just been handed to a process.
    opened: BTreeMap<usize, Notify>,
}

impl Net {
    /// A network between a router and these workers.
    pub(crate) fn new(story: Arc<Story>, settings: Arc<Settings>, workers: usize, mut rng: Rng) -> Arc<Self> {
        let mut wire = |slot| {
            let latency = rng.between(0, 4);
            (
                slot,
                Wire {
                    latency,
                    ..Wire::default()
                },
            )
        };
        let wires = (1..=workers).map(&mut wire).collect();
        Arc::new(Self {
            story,
            settings,
            tasks: Tasks::new(),
            state: Mutex::new(State {
                rng,
                wires,
                stopped: BTreeMap::new(),
                hosts: BTreeMap::new(),
                conns: BTreeMap::new(),
                streams: BTreeMap::new(),
                next_stream: 0,
            }),
            weather: Notify::new(),
            opened: (0..=workers).map(|slot| (slot, Notify::new())).collect(),
        })
    }

    // ---- What the adversary does

    /// Nothing passes on a wire in these directions.
    pub(crate) fn hole(&self, slot: usize, down: bool, up: bool) {
        if let Some(wire) = lock(&self.state).wires.get_mut(&slot) {
            (wire.down_hole, wire.up_hole) = (down, up);
        }
        self.weather.notify_waiters();
    }

    /// Everything on a wire takes this much longer.
    pub(crate) fn delay(&self, slot: usize, extra: u64) {
        if let Some(wire) = lock(&self.state).wires.get_mut(&slot) {
            wire.extra = extra;
        }
    }

    /// A process is stopped, or goes on.
    pub(crate) fn stop(&self, slot: usize, stopped: bool) {
        lock(&self.state).stopped.insert(slot, stopped);
        self.weather.notify_waiters();
    }

    /// Whether a process is stopped.
    pub(crate) fn is_stopped(&self, slot: usize) -> bool {
        lock(&self.state).stopped.get(&slot).copied().unwrap_or(false)
    }

    /// Breaks the connections of a worker, as seen by these ends.
    pub(crate) fn cut(self: &Arc<Self>, slot: usize, at_router: bool, at_worker: bool) {
        let conns: Vec<_> = {
            let state = lock(&self.state);
            let of = state.conns.iter().filter(|((_, of), _)| *of == slot);
            of.map(|(_, conn)| Arc::clone(conn)).collect()
        };
        for conn in conns {
            if at_router {
                conn.end(Way::Down).cancel();
            }
            if at_worker {
                conn.end(Way::Up).cancel();
            }
        }
    }

    /// Resets one of the streams on a wire; whether there was one.
    pub(crate) fn reset_a_stream(&self, slot: usize) -> bool {
        let mut state = lock(&self.state);
        let streams: Vec<_> = state.streams.values().filter(|(of, _)| *of == slot).cloned().collect();
        let chosen = state.rng.pick(&streams);
        drop(state);
        if let Some((_, token)) = &chosen {
            token.cancel();
        }
        chosen.is_some()
    }

    /// A room or a request was handed to a process just now.
    pub(crate) fn tell_opened(&self, slot: usize) {
        if let Some(opened) = self.opened.get(&slot) {
            opened.notify_waiters();
        }
    }

    /// Waits for that.
    pub(crate) async fn opened(&self, slot: usize) {
        if let Some(opened) = self.opened.get(&slot) {
            opened.notified().await;
        }
    }

    // ---- Processes

    /// A process listens at an address.
    pub(crate) fn listen(&self, addr: &str, host: Host) {
        lock(&self.state).hosts.insert(addr.to_owned(), Arc::new(host));
    }

    /// A process is gone: its kernel closes what it had, and refuses what comes.
    pub(crate) fn die(self: &Arc<Self>, slot: usize, life: Incarnation) {
        let gone: Vec<_> = {
            let mut state = lock(&self.state);
            state.hosts.retain(|_, host| host.incarnation != life);
            let of = |conn: &Conn| conn.r_life == life || conn.host.incarnation == life;
            let gone = state.conns.values().filter(|conn| of(conn)).cloned().collect();
            state.conns.retain(|_, conn| !of(conn));
            gone
        };
        let way = if slot == ROUTER { Way::Down } else { Way::Up };
        for conn in gone {
            conn::break_end(self, &conn, way);
        }
    }

    // ---- Time on the wire

    fn is_open(&self, slot: usize, way: Way) -> bool {
        let state = lock(&self.state);
        let stopped = |slot| state.stopped.get(&slot).copied().unwrap_or(false);
        let hole = state.wires.get(&slot).is_some_and(|wire| match way {
            Way::Down => wire.down_hole,
            Way::Up => wire.up_hole,
        });
        !hole && !stopped(ROUTER) && !stopped(slot)
    }

    /// Waits until something can pass.
    pub(crate) async fn clear(&self, slot: usize, way: Way) {
        self.when(|| self.is_open(slot, way)).await;
    }

    /// Waits until a process is not stopped.
    pub(crate) async fn running(&self, slot: usize) {
        self.when(|| !self.is_stopped(slot)).await;
    }

    async fn when(&self, fair: impl Fn() -> bool) {
        loop {
            let mut weather = pin!(self.weather.notified());
            weather.as_mut().enable();
            if fair() {
                return;
            }
            weather.await;
        }
    }

    /// How long the next thing takes on a wire.
    pub(crate) fn latency(&self, slot: usize) -> Duration {
        let mut state = lock(&self.state);
        let jitter = state.rng.between(0, 2);
        let wire = state.wires.get(&slot).copied().unwrap_or_default();
        Duration::from_millis(wire.latency + wire.extra + jitter)
    }

    /// One crossing.
    pub(crate) async fn cross(&self, slot: usize, way: Way) {
        tokio::time::sleep(self.latency(slot)).await;
        self.clear(slot, way).await;
    }

    // ---- Calls

    /// The router's life calls an address: a new stream on its connection there, which is made if there is none.
    pub(crate) async fn call(self: &Arc<Self>, r_life: Incarnation, addr: &str) -> Result<REnd, String> {
        let slot: usize = addr
            .trim_start_matches('w')
            .parse()
            .map_err(|_| format!("`{addr}` is no address"))?;
        let conn = match self.connection(r_life, slot) {
            Some(conn) => conn,
            None => self.connect(r_life, slot, addr).await?,
        };
        let stream = CancellationToken::new();
        let id = {
            let mut state = lock(&self.state);
            state.next_stream += 1;
            let id = state.next_stream;
            state.streams.insert(id, (slot, stream.clone()));
            id
        };
        Ok(conn::stream(self, &conn, id, stream))
    }

    /// A stream is over.
    pub(crate) fn hung_up(&self, id: u64) {
        lock(&self.state).streams.remove(&id);
    }

    /// Streams that are not over.
    pub(crate) fn streams(&self) -> usize {
        lock(&self.state).streams.len()
    }

    fn connection(&self, r_life: Incarnation, slot: usize) -> Option<Arc<Conn>> {
        let state = lock(&self.state);
        let conn = state.conns.get(&(r_life, slot))?;
        (!conn.end(Way::Down).is_cancelled()).then(|| Arc::clone(conn))
    }

    async fn connect(self: &Arc<Self>, r_life: Incarnation, slot: usize, addr: &str) -> Result<Arc<Conn>, String> {
        let limit = self.settings.connect_timeout.duration();
        let there = async {
            self.cross(slot, Way::Down).await;
            let host = lock(&self.state).hosts.get(addr).cloned();
            self.cross(slot, Way::Up).await;
            host
        };
        let host = tokio::time::timeout(limit, there)
            .await
            .map_err(|_| format!("no connection to {addr} in time"))?
            .ok_or_else(|| format!("{addr}: connection refused"))?;
        // Another call may have been faster.
        if let Some(conn) = self.connection(r_life, slot) {
            return Ok(conn);
        }
        note!(self.story, "connected to {addr}");
        let dead = {
            let state = lock(&self.state);
            !state.hosts.values().any(|now| now.incarnation == host.incarnation)
        };
        let conn = Conn::new(r_life, host);
        if dead {
            return Err(format!("{addr}: connection reset"));
        }
        lock(&self.state).conns.insert((r_life, slot), Arc::clone(&conn));
        conn::ping(self, &conn);
        Ok(conn)
    }
}
