//! The data plane: the production sessions over the in-memory backend, one network, and one backend per pair of workers, so
//! that every link between a prefill and a decode worker has faults of its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use innkeeper_room::{Settings, SlabSource};
use innkeeper_transfer::fault::{Fault, Faults, Rule, Script, Toward, Which};
use innkeeper_transfer::frame::Kind;
use innkeeper_transfer::mem::MemNetwork;
use innkeeper_transfer::{
    Acceptor, Backend, Config, Dial, ListenError, Listener, MemBackend, SendEvent, SendSession, Stats,
};
use tokio::sync::mpsc;

use crate::seed::Rng;
use crate::story::{Story, lock, tell};

/// A prefill worker's place and a decode worker's.
pub(crate) type Pair = (usize, usize);

#[derive(Default)]
struct Road {
    /// The valve of the living prefill worker's backend.
    faults: Option<Faults>,
    hole: bool,
    /// What happens to the next connections.
    planned: VecDeque<Script>,
    /// Per slab.
    slow: u64,
}

#[derive(Default)]
struct State {
    roads: BTreeMap<Pair, Road>,
    stopped: BTreeMap<usize, bool>,
}

/// All links between workers.
pub(crate) struct DataNet {
    network: MemNetwork,
    config: Config,
    story: Arc<Story>,
    state: Mutex<State>,
}

impl DataNet {
    /// Sound links.
    pub(crate) fn new(settings: &Settings, story: Arc<Story>) -> Arc<Self> {
        Arc::new(Self {
            network: MemNetwork::default(),
            config: Config::from(settings),
            story,
            state: Mutex::default(),
        })
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
        change(&mut state);
        for ((p, d), road) in &state.roads {
            let stopped = [p, d]
                .iter()
                .any(|slot| state.stopped.get(slot).copied().unwrap_or(false));
            if let Some(faults) = &road.faults {
                faults.shut(road.hole || stopped);
            }
        }
    }

    /// Nothing passes between a pair.
    pub(crate) fn hole(&self, pair: Pair, hole: bool) {
        self.change(|state| state.roads.entry(pair).or_default().hole = hole);
    }

    /// A process is stopped, or goes on.
    pub(crate) fn stop(&self, slot: usize, stopped: bool) {
        self.change(|state| {
            state.stopped.insert(slot, stopped);
        });
    }

    /// Each slab of connections to come takes this much longer.
    pub(crate) fn slow(&self, pair: Pair, slow: u64) {
        self.change(|state| state.roads.entry(pair).or_default().slow = slow);
    }

    /// What happens to the next connection.
    pub(crate) fn plan(&self, pair: Pair, script: Script) {
        self.change(|state| state.roads.entry(pair).or_default().planned.push_back(script));
    }

    /// Nothing happens to connections any more.
    pub(crate) fn clear(&self) {
        self.change(|state| {
            for road in state.roads.values_mut() {
                (road.hole, road.slow) = (false, 0);
                road.planned.clear();
            }
        });
    }

    fn backend(&self) -> MemBackend {
        MemBackend::new(self.config.clone(), self.network.clone())
    }

    /// A prefill worker's way to all decode workers.
    pub(crate) fn dialer(self: &Arc<Self>, p: usize, decodes: impl Iterator<Item = usize>, rng: Rng) -> Arc<Dialer> {
        let mut backends = BTreeMap::new();
        for d in decodes {
            let backend = self.backend();
            self.change(|state| state.roads.entry((p, d)).or_default().faults = Some(backend.faults()));
            backends.insert(d, backend);
        }
        Arc::new(Dialer {
            p,
            data: Arc::clone(self),
            stats: backends.values().map(Backend::stats).collect(),
            backends: Mutex::new(backends),
            nowhere: MemBackend::new(self.config.clone(), MemNetwork::default()),
            rng: Mutex::new(rng),
        })
    }

    /// A decode worker's door.
    pub(crate) async fn listen(&self, d: usize, acceptor: Arc<dyn Acceptor>) -> Result<Door, ListenError> {
        let backend = self.backend();
        let listener = backend.listen(&format!("d{d}"), acceptor).await?;
        Ok(Door {
            stats: backend.stats(),
            listener,
            backend: Mutex::new(Some(backend)),
        })
    }

    /// A connection's script.
    fn script(&self, pair: Pair, rng: &mut Rng) -> Script {
        let mut state = lock(&self.state);
        let road = state.roads.entry(pair).or_default();
        let planned = road.planned.pop_front();
        let pace = rng.between(1, 6) + road.slow;
        drop(state);
        if let Some(script) = &planned {
            tell!(
                self.story,
                "the connection from {} to {} meets {script:?}",
                pair.0,
                pair.1
            );
        }
        let mut script = planned.unwrap_or_default();
        script.rules.push(Rule {
            toward: Toward::Decode,
            which: Which::Every(Kind::Slab),
            fault: Fault::Delay(Duration::from_millis(pace)),
        });
        script
    }
}

/// A prefill worker's data plane.
pub(crate) struct Dialer {
    p: usize,
    data: Arc<DataNet>,
    stats: Vec<Arc<Stats>>,
    backends: Mutex<BTreeMap<usize, MemBackend>>,
    nowhere: MemBackend,
    rng: Mutex<Rng>,
}

impl Dialer {
    /// Its process is gone: every connection is closed.
    pub(crate) fn kill(&self) {
        drop(std::mem::take(&mut *lock(&self.backends)));
    }

    /// Connections that it has.
    pub(crate) fn connections(&self) -> u64 {
        self.stats.iter().map(|stats| Stats::get(&stats.connections_out)).sum()
    }
}

#[async_trait]
impl Backend for Dialer {
    fn dial(&self, dial: Dial, source: Arc<dyn SlabSource>) -> (Arc<dyn SendSession>, mpsc::Receiver<SendEvent>) {
        let backends = lock(&self.backends);
        let d = dial.addr.trim_start_matches('d').parse().unwrap_or(0);
        let Some(backend) = backends.get(&d) else {
            return self.nowhere.dial(dial, source);
        };
        let script = self.data.script((self.p, d), &mut lock(&self.rng));
        backend.faults().push(script);
        backend.dial(dial, source)
    }

    async fn listen(&self, addr: &str, acceptor: Arc<dyn Acceptor>) -> Result<Box<dyn Listener>, ListenError> {
        self.nowhere.listen(addr, acceptor).await
    }

    fn stats(&self) -> Arc<Stats> {
        self.nowhere.stats()
    }
}

/// A decode worker's data plane.
pub(crate) struct Door {
    stats: Arc<Stats>,
    listener: Box<dyn Listener>,
    backend: Mutex<Option<MemBackend>>,
}

impl Door {
    /// Its process is gone.
    pub(crate) fn kill(&self) {
        self.listener.shutdown();
        drop(lock(&self.backend).take());
    }

    /// Connections that it has.
    pub(crate) fn connections(&self) -> u64 {
        Stats::get(&self.stats.connections_in)
    }
}
