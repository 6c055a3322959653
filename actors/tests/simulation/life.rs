//! One life of one node: its tree as production builds it, and what its process has besides.

use std::sync::Arc;
use std::time::Duration;

use innkeeper_actors::clock::Clock;
use innkeeper_actors::decode::{Decode, Doorman};
use innkeeper_actors::prefill::Prefill;
use innkeeper_actors::router::{RouterNode, RouterParts};
use innkeeper_actors::tasks::Tasks;
use innkeeper_actors::worker::craft::Craft;
use innkeeper_actors::worker::node::{WorkerNode, WorkerParts};
use innkeeper_engine::Engine;
use innkeeper_leases::{Member, MemberState, Store};
use innkeeper_room::ledger::{Gauges, decode, prefill, router};
use innkeeper_room::{Incarnation, Moment, Role};
use innkeeper_transfer::{Acceptor, Backend};
use ractor::ActorCell;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::answers::{PAGE_TOKENS, layout};
use crate::cluster::Cluster;
use crate::data::{Dialer, Door};
use crate::engine::{CONTEXT, SimEngine};
use crate::hooks::StoryHooks;
use crate::links::SimLinks;
use crate::net::{Host, ROUTER};
use crate::seed::Rng;
use crate::store::NodeStore;

/// A question to a ledger waits this long.
pub(crate) const ASK: Duration = Duration::from_millis(500);

/// A tree.
#[derive(Clone)]
pub(crate) enum Tree {
    Router(Arc<RouterNode>),
    Prefill(Arc<WorkerNode<Prefill>>),
    Decode(Arc<WorkerNode<Decode>>),
}

macro_rules! every {
    ($tree:expr, $node:ident => $what:expr) => {
        match $tree {
            Tree::Router($node) => $what,
            Tree::Prefill($node) => $what,
            Tree::Decode($node) => $what,
        }
    };
}

impl Tree {
    /// The counts and the zombies, if the ledger answers.
    pub(crate) async fn gauges(&self) -> Option<(Gauges, u32)> {
        every!(self, node => node.gauges(ASK).await)
    }

    /// Why the process must exit.
    pub(crate) fn exit(&self) -> watch::Receiver<Option<String>> {
        every!(self, node => node.exit())
    }

    /// Stops admitting, finishes, ends the rest, leaves.
    pub(crate) async fn drain(&self, limit: Duration) -> bool {
        every!(self, node => node.drain(limit).await)
    }

    /// Ends the tree.
    pub(crate) fn stop(&self) {
        every!(self, node => node.stop());
    }

    /// Hangs the ledger.
    pub(crate) fn hang(&self) -> oneshot::Sender<()> {
        every!(self, node => node.hang())
    }

    /// The ledger's actor.
    pub(crate) fn ledger(&self) -> ActorCell {
        every!(self, node => node.ledger_actor())
    }
}

/// A life.
pub(crate) struct Life {
    pub(crate) slot: usize,
    pub(crate) incarnation: Incarnation,
    pub(crate) tree: Tree,
    pub(crate) tasks: Tasks,
    pub(crate) engine: Option<Arc<SimEngine>>,
    pub(crate) dialer: Option<Arc<Dialer>>,
    pub(crate) door: Option<Door>,
    /// Its process is gone.
    pub(crate) dead: CancellationToken,
    /// It leaves by itself: nobody else ends it.
    pub(crate) leaving: CancellationToken,
}

/// A boot clock of its own: no two nodes' times are alike.
struct BootClock {
    began: Instant,
    offset: u64,
}

impl Clock for BootClock {
    fn now(&self) -> Moment {
        let elapsed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Moment(self.offset.saturating_add(elapsed))
    }
}

struct Ground<'a> {
    cluster: &'a Arc<Cluster>,
    slot: usize,
    incarnation: Incarnation,
    role: Role,
    rng: Rng,
    tasks: Tasks,
    dead: CancellationToken,
    clock: Arc<dyn Clock>,
}

/// Starts a life at a place.
pub(crate) async fn start(cluster: &Arc<Cluster>, slot: usize) -> Result<Life, String> {
    let (incarnation, mut rng) = cluster.next_life();
    let clock = BootClock {
        began: Instant::now(),
        offset: rng.between(3_600_000, 90_000_000),
    };
    let ground = Ground {
        cluster,
        slot,
        incarnation,
        role: cluster.shape.role(slot),
        rng,
        tasks: Tasks::new(),
        dead: CancellationToken::new(),
        clock: Arc::new(clock),
    };
    match ground.role {
        Role::Router => ground.router().await,
        Role::Prefill => ground.prefill().await,
        Role::Decode => ground.decode().await,
    }
}

impl Ground<'_> {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(NodeStore {
            inner: Arc::clone(&self.cluster.store),
            net: Arc::clone(&self.cluster.net),
            slot: self.slot,
            dead: self.dead.clone(),
        })
    }

    fn member(&self) -> Member {
        Member {
            incarnation: self.incarnation,
            role: self.role,
            name: self.cluster.shape.name(self.slot),
            pid: 1,
            http: String::new(),
            control: format!("w{}", self.slot),
            data: String::new(),
            model: "simulated".into(),
            layout: layout(),
            revision: "1".into(),
            pages: if self.slot == ROUTER {
                0
            } else {
                self.cluster.shape.pages
            },
            context: CONTEXT,
            permits: self.cluster.settings.permits,
            state: MemberState::Serving,
        }
    }

    fn hooks(&self) -> Arc<StoryHooks> {
        let name = self.cluster.shape.name(self.slot);
        Arc::new(StoryHooks::new(
            Arc::clone(&self.cluster.story),
            name,
            Arc::clone(&self.cluster.ends),
        ))
    }

    fn life(self, tree: Tree) -> Life {
        Life {
            slot: self.slot,
            incarnation: self.incarnation,
            tree,
            tasks: self.tasks,
            engine: None,
            dialer: None,
            door: None,
            dead: self.dead,
            leaving: CancellationToken::new(),
        }
    }

    async fn router(mut self) -> Result<Life, String> {
        let cluster = self.cluster;
        let config = router::Config {
            settings: (*cluster.settings).clone(),
            incarnation: self.incarnation,
            seed: [self.rng.bits(), self.rng.bits()],
        };
        let parts = RouterParts {
            ledger: router::Ledger::new(config, self.clock.now()),
            links: Arc::new(SimLinks::new(
                Arc::clone(&cluster.net),
                self.incarnation,
                self.tasks.clone(),
            )),
            store: self.store(),
            member: self.member(),
            clock: Arc::clone(&self.clock),
            settings: Arc::clone(&cluster.settings),
            tasks: self.tasks.clone(),
            hooks: self.hooks(),
            first_request: self.rng.bits() >> 16,
        };
        let node = RouterNode::start(parts).await.map_err(|error| error.to_string())?;
        Ok(self.life(Tree::Router(node)))
    }

    fn engine(&mut self) -> Arc<SimEngine> {
        let cluster = self.cluster;
        let name = cluster.shape.name(self.slot);
        SimEngine::start(
            name,
            Arc::clone(&cluster.story),
            cluster.shape.pages,
            cluster.shape.pace,
        )
    }

    fn config(&self) -> prefill::Config {
        prefill::Config {
            settings: (*self.cluster.settings).clone(),
            incarnation: self.incarnation,
            total_pages: self.cluster.shape.pages,
            page_tokens: PAGE_TOKENS,
            context: CONTEXT,
            engine: innkeeper_room::ledger::EngineKind::Own,
        }
    }

    async fn worker<C: Craft>(
        &self,
        craft: C,
        ledger: C::Ledger,
        engine: &Arc<SimEngine>,
    ) -> Result<Arc<WorkerNode<C>>, String> {
        let parts = WorkerParts {
            engine: Arc::clone(engine) as Arc<dyn Engine>,
            store: self.store(),
            member: self.member(),
            clock: Arc::clone(&self.clock),
            settings: Arc::clone(&self.cluster.settings),
            tasks: self.tasks.clone(),
            hooks: self.hooks(),
        };
        let node = WorkerNode::start(Arc::new(craft), ledger, parts)
            .await
            .map_err(|error| error.to_string())?;
        let host = Host {
            slot: self.slot,
            incarnation: self.incarnation,
            port: Arc::clone(&node) as _,
            tasks: self.tasks.clone(),
        };
        self.cluster.net.listen(&format!("w{}", self.slot), host);
        Ok(node)
    }

    async fn prefill(mut self) -> Result<Life, String> {
        let engine = self.engine();
        let rng = self.rng.fork();
        let dialer = self.cluster.data.dialer(self.slot, self.cluster.shape.decodes(), rng);
        let backend = Arc::clone(&dialer) as Arc<dyn Backend>;
        let craft = Prefill::new(
            Arc::clone(&engine) as Arc<dyn Engine>,
            backend,
            &self.cluster.settings,
            self.tasks.clone(),
        );
        let ledger = prefill::Ledger::new(self.config(), self.clock.now());
        let node = self.worker(craft, ledger, &engine).await?;
        Ok(Life {
            engine: Some(engine),
            dialer: Some(dialer),
            ..self.life(Tree::Prefill(node))
        })
    }

    async fn decode(mut self) -> Result<Life, String> {
        let engine = self.engine();
        let doorman = Doorman::new(self.incarnation);
        let data = Arc::clone(&self.cluster.data);
        let door = data
            .listen(self.slot, Arc::clone(&doorman) as Arc<dyn Acceptor>)
            .await
            .map_err(|error| error.to_string())?;
        let secrets = std::sync::Mutex::new(self.rng.fork());
        let secret = Box::new(move || crate::story::lock(&secrets).bits());
        let addr = format!("d{}", self.slot);
        let craft = Decode::new(Arc::clone(&engine) as Arc<dyn Engine>, addr, secret, self.tasks.clone());
        let ledger = decode::Ledger::new(self.config(), self.clock.now());
        let node = self.worker(craft, ledger, &engine).await?;
        doorman.lead_to(node.greeter());
        Ok(Life {
            engine: Some(engine),
            door: Some(door),
            ..self.life(Tree::Decode(node))
        })
    }
}
