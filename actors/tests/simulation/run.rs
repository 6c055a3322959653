//! One run of one seed.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use innkeeper_room::ledger::router::Outcome;

use crate::clients::{Client, Plan};
use crate::cluster::{Cluster, Shape};
use crate::faults::{KINDS, Planned};
use crate::oracle;
use crate::seed::Rng;
use crate::story::{Story, lock, tell};

/// Requests are over this long after the last fault, ms: the queue's time, and two attempts' worth of silence.
const ANSWERED: u64 = 6000;
/// Everything is given back this long after the last answer: a lease's TTL and a second.
const CLEAN: u64 = 3000;
/// How long the nodes have before the first request.
const WARM: u64 = 300;

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) faults: String,
    pub(crate) wrong: Vec<String>,
    /// Lines of the story, and their sum.
    pub(crate) total: (u64, u64),
    pub(crate) time: u64,
    pub(crate) outcomes: BTreeMap<String, u64>,
    pub(crate) verdicts: BTreeMap<String, u64>,
    /// From the last fault to the last answer, ms.
    pub(crate) answer_after: u64,
    /// From there until everything was given back, ms.
    pub(crate) clean_after: u64,
}

/// Runs a seed; `loud`: tells its story.
pub(crate) fn run(seed: u64, loud: bool) -> Report {
    let whole = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        match runtime {
            Ok(runtime) => runtime.block_on(story(seed, loud)),
            Err(error) => panic!("no runtime: {error}"),
        }
    };
    catch_unwind(AssertUnwindSafe(whole)).unwrap_or_else(|_| Report {
        wrong: vec!["the simulation panicked".to_owned()],
        ..Report::default()
    })
}

/// The faults of a seed: none, one of each kind in turn, or several.
fn plan(seed: u64, shape: &Shape, rng: &mut Rng) -> Vec<Planned> {
    let (number, first) = match seed % 8 {
        0 => (0, 0),
        1..=3 => (1, seed / 8 * 3 + seed % 8),
        _ => (rng.between(2, 12), rng.bits()),
    };
    let mut planned = vec![];
    for at in 0..number {
        let kind = if at == 0 { first % KINDS } else { rng.bits() % KINDS };
        planned.push(Planned::new(kind, shape, rng));
    }
    planned
}

async fn story(seed: u64, loud: bool) -> Report {
    let story = Arc::new(Story::new(loud));
    let mut rng = Rng::new(seed);
    let shape = Shape::new(&mut rng);
    let faults = plan(seed, &shape, &mut rng);
    tell!(story, "seed {seed}: {shape:?}; {}", oracle::list(&faults));
    let cluster = Cluster::start(shape.clone(), rng.fork(), Arc::clone(&story)).await;
    let began = story.now();
    for planned in &faults {
        planned.clone().start(&cluster, began);
    }
    let plans = (1..=shape.requests).map(|number| {
        // Half of them come when something is about to happen.
        let near = rng.pick(&faults).filter(|_| number % 2 == 0);
        let arrives = match near {
            Some(planned) => planned.begins.saturating_sub(rng.between(0, 400)).max(WARM),
            None => rng.between(WARM, shape.phase * 4 / 5),
        };
        let arrives = began + arrives;
        Plan::new(number, arrives, false, &mut rng)
    });
    let clients: Vec<_> = plans.map(|plan| Client::start(&cluster, plan)).collect();
    let off = began + shape.phase;
    while story.now() < off {
        tokio::time::sleep(Duration::from_millis(97)).await;
        oracle::look(&cluster).await;
    }
    cluster.data.clear();
    // Faults that take longer than they were meant to: a drain, a restart.
    while cluster.net.tasks.live("fault") > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tell!(story, "*** all faults are off");
    let off = story.now();
    oracle::answered(&cluster, &clients, ANSWERED).await;
    let answer_after = story.now() - off;
    cluster.usable(Duration::from_millis(CLEAN)).await;
    let clean_after = oracle::heal(&cluster, CLEAN).await;
    oracle::judge(&cluster, &clients, &faults);
    let fresh: Vec<_> = (1..=4)
        .map(|number| Plan::new(1000 + number, story.now() + 20 * number, true, &mut rng))
        .map(|plan| Client::start(&cluster, plan))
        .collect();
    oracle::answered(&cluster, &fresh, ANSWERED).await;
    oracle::all_done(&cluster, &fresh);
    oracle::heal(&cluster, CLEAN).await;
    oracle::close(&cluster).await;
    let mut outcomes = BTreeMap::new();
    for client in clients.iter().chain(&fresh) {
        let name = match &lock(&client.seen).answer {
            Some(Outcome::Done) => "done",
            Some(Outcome::Failed { reason, .. }) => reason.code(),
            None => "gone",
        };
        *outcomes.entry(name.to_owned()).or_default() += 1;
    }
    let verdicts = lock(&cluster.ends).verdicts.clone();
    Report {
        faults: oracle::list(&faults),
        wrong: story.wrongs(),
        total: story.total(),
        time: story.now(),
        outcomes,
        verdicts,
        answer_after,
        clean_after,
    }
}
