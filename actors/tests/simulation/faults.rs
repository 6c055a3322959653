//! The adversary: what it does, to whom, when, and for how long. Everything follows from the seed.

use std::sync::Arc;
use std::time::Duration;

use innkeeper_transfer::fault::{Fault as FrameFault, Script, SeenBy, Toward, Which};

use crate::cluster::{Cluster, Shape};
use crate::data::Pair;
use crate::net::{ROUTER, spawn};
use crate::seed::Rng;
use crate::story::tell;

/// One thing that the adversary does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill(usize),
    Stop(usize),
    Hang(usize),
    EngineStall(usize),
    EngineFails(usize),
    EngineSlow(usize, u32),
    ControlHole {
        slot: usize,
        down: bool,
        up: bool,
    },
    ControlCut {
        slot: usize,
        at_router: bool,
        at_worker: bool,
    },
    ControlDelay(usize, u64),
    StreamReset(usize),
    DataHole(Pair),
    DataSlow(Pair, u64),
    Data(Pair, Script),
    StoreAway,
    StoreWiped,
    StoreCompacted,
    LateGrants(u64),
    Revoke {
        door: bool,
    },
    ActorDies {
        slot: usize,
        newborn: bool,
    },
    Drain(usize),
}

/// How many kinds there are.
pub(crate) const KINDS: u64 = 24;

/// A fault with its time.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) fault: Fault,
    pub(crate) begins: u64,
    pub(crate) lasts: u64,
    rng: Rng,
}

impl Fault {
    /// Whether nothing may come of it.
    pub(crate) fn is_harmless(&self) -> bool {
        matches!(
            self,
            Self::StoreAway | Self::StoreWiped | Self::StoreCompacted | Self::LateGrants(_)
        )
    }

    /// Whether a request survives it, alone, where another pair exists.
    pub(crate) fn leaves_another_pair(&self) -> bool {
        !matches!(self, Self::Kill(ROUTER) | Self::Drain(ROUTER))
    }
}

impl Planned {
    /// A fault of a kind.
    pub(crate) fn new(kind: u64, shape: &Shape, rng: &mut Rng) -> Self {
        let fault = fault(kind % KINDS, shape, rng);
        let begins = rng.between(300, shape.phase - 500);
        let lasts = match rng.between(0, 3) {
            0 => rng.between(20, 300),
            1 => rng.between(300, 1000),
            2 => rng.between(1000, 1600),
            _ => rng.between(1600, 3000),
        };
        Self {
            fault,
            begins,
            lasts: lasts.min(shape.phase - begins),
            rng: rng.fork(),
        }
    }

    /// Makes it happen at its time.
    pub(crate) fn start(self, cluster: &Arc<Cluster>, began: u64) {
        let on = Arc::clone(cluster);
        spawn(&cluster.net.tasks, "fault", async move {
            tokio::time::sleep(Duration::from_millis(
                (began + self.begins).saturating_sub(on.story.now()),
            ))
            .await;
            tell!(on.story, "*** {:?} for {} ms", self.fault, self.lasts);
            let lasts = Duration::from_millis(self.lasts);
            self.fault.happen(&on, lasts, self.rng).await;
        });
    }
}

fn fault(kind: u64, shape: &Shape, rng: &mut Rng) -> Fault {
    let p = rng.between(1, shape.prefills as u64) as usize;
    let d = shape.prefills + rng.between(1, shape.decodes as u64) as usize;
    let w = if rng.one_in(2) { p } else { d };
    let any = if rng.one_in(5) { ROUTER } else { w };
    let ends = rng.between(1, 3);
    let (one, other) = (ends & 1 > 0, ends & 2 > 0);
    match kind {
        0 => Fault::Kill(any),
        1 => Fault::Stop(any),
        2 => Fault::Hang(any),
        3 => Fault::EngineStall(w),
        4 => Fault::EngineFails(w),
        5 => Fault::EngineSlow(w, rng.small(2, 20)),
        6 => Fault::ControlHole {
            slot: w,
            down: one,
            up: other,
        },
        7 => Fault::ControlCut {
            slot: w,
            at_router: one,
            at_worker: other,
        },
        8 => Fault::ControlDelay(w, rng.between(20, 250)),
        9 => Fault::StreamReset(w),
        10 => Fault::DataHole((p, d)),
        11 => Fault::DataSlow((p, d), rng.between(20, 200)),
        12..=17 => Fault::Data((p, d), script(kind, rng)),
        18 => Fault::StoreAway,
        19 if rng.one_in(2) => Fault::StoreWiped,
        19 => Fault::StoreCompacted,
        20 => Fault::LateGrants(rng.between(50, 3000)),
        21 => Fault::Revoke { door: !rng.one_in(3) },
        22 => Fault::ActorDies {
            slot: any,
            newborn: !rng.one_in(3),
        },
        _ => Fault::Drain(any),
    }
}

/// What happens to one data connection.
fn script(kind: u64, rng: &mut Rng) -> Script {
    let seen_by = [SeenBy::Both, SeenBy::Prefill, SeenBy::Decode];
    let nth = Which::Nth(rng.between(0, 12));
    let toward = if rng.one_in(3) { Toward::Prefill } else { Toward::Decode };
    match kind {
        12 => Script::cut(rng.between(0, 8000), rng.pick(&seen_by).unwrap_or(SeenBy::Both)),
        13 => Script::rule(toward, nth, FrameFault::Corrupt(rng.between(0, 300) as usize)),
        14 => Script::rule(toward, nth, FrameFault::Duplicate),
        15 => Script::rule(toward, nth, FrameFault::Drop),
        16 if rng.one_in(2) => Script::rule(toward, nth, FrameFault::Swap),
        16 => Script::rule(toward, nth, FrameFault::Stall),
        _ => Script {
            refuse: true,
            ..Script::default()
        },
    }
}

impl Fault {
    async fn happen(&self, cluster: &Arc<Cluster>, lasts: Duration, rng: Rng) {
        let (net, data, store) = (&cluster.net, &cluster.data, &cluster.store);
        let wait = || tokio::time::sleep(lasts);
        match self {
            Self::Kill(_) | Self::Stop(_) | Self::Hang(_) | Self::Drain(_) | Self::ActorDies { .. } => {
                self.of_process(cluster, lasts, rng).await;
            }
            Self::EngineStall(_) | Self::EngineFails(_) | Self::EngineSlow(..) => {
                self.of_engine(cluster, lasts).await;
            }
            Self::ControlHole { slot, down, up } => {
                net.hole(*slot, *down, *up);
                wait().await;
                net.hole(*slot, false, false);
            }
            Self::ControlCut {
                slot,
                at_router,
                at_worker,
            } => net.cut(*slot, *at_router, *at_worker),
            Self::ControlDelay(slot, extra) => {
                net.delay(*slot, *extra);
                wait().await;
                net.delay(*slot, 0);
            }
            Self::StreamReset(slot) => {
                if !net.reset_a_stream(*slot) {
                    tell!(cluster.story, "there is no stream to reset");
                }
            }
            Self::DataHole(pair) => {
                data.hole(*pair, true);
                wait().await;
                data.hole(*pair, false);
            }
            Self::DataSlow(pair, extra) => {
                data.slow(*pair, *extra);
                wait().await;
                data.slow(*pair, 0);
            }
            Self::Data(pair, script) => data.plan(*pair, script.clone()),
            Self::StoreAway => {
                store.pause();
                wait().await;
                store.resume();
            }
            Self::StoreWiped => store.wipe(),
            Self::StoreCompacted => store.compact(),
            Self::LateGrants(delay) => {
                store.delay_grants(Duration::from_millis(*delay));
                wait().await;
                store.delay_grants(Duration::ZERO);
            }
            Self::Revoke { door } => revoke(cluster, *door, rng).await,
        }
        tell!(cluster.story, "*** over: {self:?}");
    }

    async fn of_process(&self, cluster: &Arc<Cluster>, lasts: Duration, mut rng: Rng) {
        match self {
            Self::Kill(slot) if cluster.kill(*slot).await => {
                tokio::time::sleep(lasts).await;
                cluster.begin(*slot).await;
            }
            Self::Drain(slot) => {
                let Some(life) = cluster.life(*slot).filter(|life| !life.leaving.is_cancelled()) else {
                    return;
                };
                cluster.drain(life.slot, lasts).await;
                cluster.begin(life.slot).await;
            }
            Self::Stop(slot) => {
                let Some(life) = cluster.life(*slot) else { return };
                let held = life.tree.hang();
                cluster.freeze(&life, true);
                tokio::time::sleep(lasts).await;
                cluster.freeze(&life, false);
                drop(held);
            }
            Self::Hang(slot) => {
                let Some(life) = cluster.life(*slot) else { return };
                let held = life.tree.hang();
                tokio::time::sleep(lasts).await;
                drop(held);
            }
            Self::ActorDies { slot, newborn } => {
                if *newborn {
                    // Within the turns in which its first orders are on their way.
                    let _ = tokio::time::timeout(lasts, cluster.net.opened(*slot)).await;
                    for _ in 0..rng.between(0, 8) {
                        tokio::task::yield_now().await;
                    }
                }
                let Some(life) = cluster.life(*slot) else { return };
                let mut actors = life.tree.ledger().get_children();
                if rng.one_in(2) {
                    actors.extend(actors.clone().iter().flat_map(ractor::ActorCell::get_children));
                }
                // Ids of actors are in the order of their births.
                actors.sort_by_key(ractor::ActorCell::get_id);
                let chosen = if *newborn { actors.pop() } else { rng.pick(&actors) };
                match chosen {
                    Some(actor) => actor.kill(),
                    None => tell!(cluster.story, "there is no actor to kill"),
                }
            }
            _ => {}
        }
    }

    async fn of_engine(&self, cluster: &Arc<Cluster>, lasts: Duration) {
        let (Self::EngineStall(slot) | Self::EngineFails(slot) | Self::EngineSlow(slot, _)) = self else {
            return;
        };
        let Some(engine) = cluster.life(*slot).and_then(|life| life.engine.clone()) else {
            return;
        };
        match self {
            Self::EngineStall(_) => engine.stall(true),
            Self::EngineFails(_) => engine.fail_next(true),
            Self::EngineSlow(_, times) => engine.slow(*times),
            _ => {}
        }
        tokio::time::sleep(lasts).await;
        match self {
            Self::EngineStall(_) => engine.stall(false),
            Self::EngineFails(_) => engine.fail_next(false),
            Self::EngineSlow(..) => engine.slow(1),
            _ => {}
        }
    }
}

/// An operator revokes the lease of a room, or of a member.
async fn revoke(cluster: &Arc<Cluster>, door: bool, mut rng: Rng) {
    let part = if door { "/doors/" } else { "/members/" };
    let Ok(keys) = innkeeper_leases::Store::keys(&*cluster.store).await else {
        return;
    };
    let leases: Vec<_> = keys.iter().filter(|(key, _)| key.contains(part)).cloned().collect();
    match rng.pick(&leases) {
        Some((key, lease)) => {
            tell!(cluster.story, "the lease of {key} is revoked");
            cluster.store.revoke_by_hand(lease);
        }
        None => tell!(cluster.story, "there is no lease to revoke"),
    }
}
