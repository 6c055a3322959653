//! The nodes of a run, by place: started, killed, stopped, drained and replaced.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use innkeeper_actors::router::RouterNode;
use innkeeper_actors::tasks::Tasks;
use innkeeper_leases::MemoryStore;
use innkeeper_room::{Incarnation, Millis, Role, Settings};
use tokio_util::sync::CancellationToken;

use crate::data::DataNet;
use crate::engine::Pace;
use crate::hooks::Ends;
use crate::life::{self, Life, Tree};
use crate::net::{Net, ROUTER, spawn};
use crate::seed::Rng;
use crate::story::{Story, lock, tell, wrong};

/// What a run is made of.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) prefills: usize,
    pub(crate) decodes: usize,
    /// In each worker's pool.
    pub(crate) pages: u32,
    pub(crate) pace: Pace,
    pub(crate) requests: u64,
    /// How long the adversary may do harm, ms.
    pub(crate) phase: u64,
}

impl Shape {
    /// From the seed.
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let tight = rng.one_in(4);
        let prefills = rng.between(1, 3) as usize;
        let decodes = rng.between(1, 3) as usize;
        let pace = Pace {
            prefill: Duration::from_micros(rng.between(200, 1500)),
            step: Duration::from_millis(rng.between(2, 12)),
            slow: 1,
        };
        Self {
            prefills,
            decodes,
            pages: if tight { 48 } else { 256 },
            pace,
            requests: if tight { rng.between(8, 24) } else { rng.between(3, 16) },
            phase: rng.between(3000, 7000),
        }
    }

    /// All workers.
    pub(crate) fn workers(&self) -> usize {
        self.prefills + self.decodes
    }

    /// The places of the decode workers.
    pub(crate) fn decodes(&self) -> impl Iterator<Item = usize> + use<> {
        self.prefills + 1..=self.prefills + self.decodes
    }

    /// What is at a place.
    pub(crate) fn role(&self, slot: usize) -> Role {
        match slot {
            ROUTER => Role::Router,
            slot if slot <= self.prefills => Role::Prefill,
            _ => Role::Decode,
        }
    }

    /// A place's name, for people.
    pub(crate) fn name(&self, slot: usize) -> String {
        match self.role(slot) {
            Role::Router => "R".to_owned(),
            Role::Prefill => format!("P{slot}"),
            Role::Decode => format!("D{slot}"),
        }
    }
}

/// The living router, and whether it dies.
#[derive(Clone)]
pub(crate) struct Front {
    pub(crate) node: Arc<RouterNode>,
    pub(crate) dead: CancellationToken,
}

/// Everything of a run.
pub(crate) struct Cluster {
    pub(crate) story: Arc<Story>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) shape: Shape,
    pub(crate) net: Arc<Net>,
    pub(crate) data: Arc<DataNet>,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) ends: Arc<Mutex<Ends>>,
    front: Mutex<Option<Front>>,
    lives: Mutex<BTreeMap<usize, Arc<Life>>>,
    stops: Mutex<BTreeMap<usize, u32>>,
    rng: Mutex<Rng>,
    /// What those who are gone had.
    pub(crate) graves: Mutex<Vec<(String, Tasks)>>,
}

/// The bounds of a run: a progress TTL of a second.
fn settings() -> Settings {
    Settings {
        queue_timeout: Millis(5000),
        request_timeout: Millis(20_000),
        canary_period: Millis(1500),
        ..Settings::from_ttl(Millis(1000))
    }
}

impl Cluster {
    /// Starts all nodes and waits until the router can use them.
    pub(crate) async fn start(shape: Shape, mut rng: Rng, story: Arc<Story>) -> Arc<Self> {
        let settings = Arc::new(settings());
        let net = Net::new(Arc::clone(&story), Arc::clone(&settings), shape.workers(), rng.fork());
        let cluster = Arc::new(Self {
            data: DataNet::new(&settings, Arc::clone(&story)),
            net,
            store: Arc::new(MemoryStore::default()),
            ends: Arc::default(),
            front: Mutex::default(),
            lives: Mutex::default(),
            stops: Mutex::default(),
            rng: Mutex::new(rng),
            graves: Mutex::default(),
            story,
            settings,
            shape,
        });
        for slot in 0..=cluster.shape.workers() {
            cluster.begin(slot).await;
        }
        cluster.usable(Duration::from_secs(5)).await;
        cluster
    }

    /// A new life's id, and its chances.
    pub(crate) fn next_life(&self) -> (Incarnation, Rng) {
        let mut rng = lock(&self.rng);
        (Incarnation::new(rng.bits() | 1), rng.fork())
    }

    /// Waits until the router can use all workers.
    pub(crate) async fn usable(&self, limit: Duration) {
        let wanted = (self.shape.prefills, self.shape.decodes);
        let Some(front) = self.front() else {
            return wrong!(self.story, "there is no router");
        };
        let mut usable = front.node.usable();
        let seen = tokio::time::timeout(limit, usable.wait_for(|usable| *usable == wanted))
            .await
            .is_ok();
        if !seen {
            let now = *usable.borrow();
            wrong!(
                self.story,
                "the router can use {now:?} workers, and not {wanted:?}, after {limit:?}"
            );
        }
    }

    /// The living router.
    pub(crate) fn front(&self) -> Option<Front> {
        lock(&self.front).clone()
    }

    /// The life at a place, if there is one.
    pub(crate) fn life(&self, slot: usize) -> Option<Arc<Life>> {
        lock(&self.lives).get(&slot).cloned()
    }

    /// All lives.
    pub(crate) fn lives(&self) -> Vec<Arc<Life>> {
        lock(&self.lives).values().cloned().collect()
    }

    /// A process starts at a place.
    pub(crate) async fn begin(self: &Arc<Self>, slot: usize) {
        let name = self.shape.name(slot);
        let life = match life::start(self, slot).await {
            Ok(life) => Arc::new(life),
            Err(error) => return wrong!(self.story, "{name} could not be started: {error}"),
        };
        tell!(self.story, "{name} starts as {}", life.incarnation);
        if let Tree::Router(node) = &life.tree {
            *lock(&self.front) = Some(Front {
                node: Arc::clone(node),
                dead: life.dead.clone(),
            });
        }
        lock(&self.lives).insert(slot, Arc::clone(&life));
        let cluster = Arc::clone(self);
        spawn(&self.net.tasks, "exit", async move {
            let dead = life.dead.clone();
            dead.run_until_cancelled(cluster.replace_at_exit(life)).await;
        });
    }

    /// A process that must exit is replaced, as a supervisor would. A part of it that died is a fault of ours.
    fn replace_at_exit(self: Arc<Self>, life: Arc<Life>) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let mut exit = life.tree.exit();
            let Ok(why) = exit
                .wait_for(Option::is_some)
                .await
                .map(|why| why.clone().unwrap_or_default())
            else {
                return;
            };
            let name = self.shape.name(life.slot);
            if life.leaving.is_cancelled() {
                return;
            }
            if why.contains(" died: ") {
                wrong!(self.story, "{name} must exit: {why}");
            }
            tell!(self.story, "{name} exits: {why}");
            let cluster = Arc::clone(&self);
            spawn(&self.net.tasks, "replace", async move {
                cluster.end(&life, "its exit").await;
                cluster.begin(life.slot).await;
            });
        })
    }

    /// Kills the process at a place: no goodbye. Whether there was one.
    pub(crate) async fn kill(self: &Arc<Self>, slot: usize) -> bool {
        let Some(life) = self.life(slot).filter(|life| !life.leaving.is_cancelled()) else {
            return false;
        };
        self.end(&life, "a kill").await;
        true
    }

    /// Ends a process, from the outside in: nobody hears what its parts do on their way out.
    pub(crate) async fn end(self: &Arc<Self>, life: &Arc<Life>, why: &str) {
        let slot = life.slot;
        life.leaving.cancel();
        if life.dead.is_cancelled() {
            return;
        }
        let name = self.shape.name(slot);
        tell!(self.story, "{name} is gone by {why}");
        life.dead.cancel();
        lock(&self.lives).remove(&slot);
        if slot == ROUTER {
            *lock(&self.front) = None;
        }
        self.net.die(slot, life.incarnation);
        lock(&self.stops).remove(&slot);
        self.freeze_parts(life, false);
        if let Some(dialer) = &life.dialer {
            dialer.kill();
        }
        if let Some(door) = &life.door {
            door.kill();
        }
        if let Some(engine) = &life.engine {
            engine.kill();
        }
        life.tree.stop();
        let left = life.tasks.shutdown(Duration::ZERO).await;
        if left > 0 {
            wrong!(
                self.story,
                "{left} tasks of {name} outlive it: {:?}",
                life.tasks.counts()
            );
        }
        lock(&self.graves).push((name, life.tasks.clone()));
    }

    /// A process leaves as it should, and another one takes its place.
    pub(crate) async fn drain(self: &Arc<Self>, slot: usize, limit: Duration) {
        let Some(life) = self.life(slot).filter(|life| !life.leaving.is_cancelled()) else {
            return;
        };
        life.leaving.cancel();
        let name = self.shape.name(slot);
        let clean = life.tree.drain(limit).await;
        tell!(self.story, "{name} is drained, clean {clean}");
        if let Some(engine) = life.engine.as_ref().filter(|_| clean) {
            let left = engine.left();
            if left != (self.shape.pages, 0, 0) {
                wrong!(self.story, "{name} is drained but its engine has {left:?}");
            }
        }
        self.end(&life, "its drain").await;
    }

    /// A process is stopped, or goes on; several stops count.
    pub(crate) fn freeze(&self, life: &Life, stopped: bool) {
        if life.dead.is_cancelled() {
            return;
        }
        let mut stops = lock(&self.stops);
        let count = stops.entry(life.slot).or_default();
        *count = if stopped { *count + 1 } else { count.saturating_sub(1) };
        let now = *count > 0;
        drop(stops);
        self.freeze_parts(life, now);
    }

    fn freeze_parts(&self, life: &Life, stopped: bool) {
        self.net.stop(life.slot, stopped);
        self.data.stop(life.slot, stopped);
        if let Some(engine) = &life.engine {
            engine.freeze(stopped);
        }
    }
}
