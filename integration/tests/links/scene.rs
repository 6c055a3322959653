//! A cluster whose links are struck, and what must come of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use innkeeper_integration::{Cluster, Link, Options, Room, completion, oracle, within};
use serde_json::Value;

pub const TTL: Duration = Duration::from_millis(2000);
/// The bound of a silent fault, and of the wait for blame.
pub const SILENT: Duration = Duration::from_millis(2000 + 1000 + 250);
/// The bound of a signal, and of the wait for blame.
pub const SIGNAL: Duration = Duration::from_millis(250 + 250);
/// The phases before the commit.
pub const INPUT: [&str; 2] = ["transferring", "waiting_for_input"];
/// What a machine with two busy processors adds to a bound.
pub const STARVED: Duration = Duration::from_secs(1);
pub const SOON: Duration = Duration::from_secs(20);

/// 120 tokens: 0.6 s of computing and 2.4 s of transfer.
pub fn transfer() -> Value {
    completion("mock", "p".repeat(120), 5)
}

/// An answer of two seconds.
pub fn decode() -> Value {
    completion("mock", "decode", 100)
}

pub fn body(phase: &str) -> Value {
    if phase == "decoding" { decode() } else { transfer() }
}

pub fn options() -> Options {
    Options::mock()
        .workers(2, 2)
        .etcd()
        .ttl_ms(2000)
        .flag("mock-prefill-us-per-token", 5_000)
        .flag("prefix-cache-percent", 0)
        .flag("mock-decode-us-per-token", 20_000)
        .flag("mock-kv-bytes-per-token", 4_096)
        .flag("transfer-max-bytes-per-second", 200_000)
}

/// What clusters with these [`options`] answer when nothing is struck: the same in each of them.
static UNDISTURBED: Mutex<BTreeMap<String, Vec<u64>>> = Mutex::new(BTreeMap::new());

/// A cluster whose links can be struck, and its nodes by their incarnations.
pub struct Scene {
    pub cluster: Cluster,
    pub names: HashMap<String, String>,
}

/// Between whom a link is struck.
#[derive(Clone, Copy, Debug)]
pub enum Between {
    RouterAndPrefill,
    RouterAndDecode,
    Pair,
}

/// What is done to it.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    Cut,
    BlackHole,
    /// Only packets towards the worker vanish; of the pair: towards decode.
    TowardWorker,
    /// Only packets from it; of the pair: towards prefill.
    FromWorker,
    /// So many bytes a second pass.
    Drip(u32),
}

impl Scene {
    pub async fn start(options: Options) -> Option<Self> {
        let cluster = Cluster::start_apart(options).await?;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let nodes = cluster.ps().await;
        let names = nodes
            .iter()
            .map(|node| (text(&node["incarnation"]), text(&node["name"])));
        Some(Self {
            names: names.collect(),
            cluster,
        })
    }

    pub async fn undisturbed(&self, body: &Value) -> Vec<u64> {
        let known = UNDISTURBED.lock().unwrap().get(&body.to_string()).cloned();
        if let Some(ids) = known {
            return ids;
        }
        let ids = self.cluster.client.complete(body).await.token_ids();
        UNDISTURBED.lock().unwrap().insert(body.to_string(), ids.clone());
        ids
    }

    pub fn link(&self, between: Between, room: &Room) -> (Link<'_>, &str, &str) {
        let (prefill, decode) = (&self.names[&room.prefill], &self.names[&room.decode]);
        let (one, worker) = match between {
            Between::RouterAndPrefill => ("router", prefill.as_str()),
            Between::RouterAndDecode => ("router", decode.as_str()),
            Between::Pair => (prefill.as_str(), decode.as_str()),
        };
        (self.cluster.link(one, worker), one, worker)
    }

    pub fn strike(&self, between: Between, act: Act, room: &Room) -> Link<'_> {
        let (link, one, worker) = self.link(between, room);
        match act {
            Act::Cut => link.cut(),
            Act::BlackHole => link.black_hole(),
            Act::TowardWorker => link.black_hole_toward(worker),
            Act::FromWorker => link.black_hole_toward(one),
            Act::Drip(rate) => link.drip(rate),
        }
        link
    }

    /// One room fails within the bound, and is blamed as it should be; the request does not.
    pub async fn fails(&self, phase: &str, between: Between, act: Act, expected: &[(&str, &str)]) {
        let what = format!("{between:?} {act:?} while {phase}");
        let body = body(phase);
        let undisturbed = self.undisturbed(&body).await;
        let cluster = &self.cluster;
        let before = cluster.failures().await;
        let asked = cluster.submit(&body);
        let room = cluster.wait_phase(phase, SOON).await;
        let link = self.strike(between, act, &room);
        let struck = Instant::now();
        let bound = if matches!(act, Act::Cut) { SIGNAL } else { SILENT };
        let (reason, blame) = cluster.verdict(&before, bound + STARVED).await;
        eprintln!("{what}: {reason}, blame {blame}, {} ms", struck.elapsed().as_millis());
        let answer = within(SOON, &what, asked).await.unwrap();
        assert_eq!(answer.status, 200, "{what}: {answer:?}");
        assert_eq!(answer.token_ids(), undisturbed, "{what}: the next attempt's answer");
        assert!(
            expected.contains(&(reason.as_str(), blame.as_str())),
            "{what}: {reason}, blame {blame}, expected one of {expected:?}"
        );
        link.heal();
        oracle(cluster).await;
    }

    /// No room fails.
    pub async fn goes_on(&self, phase: &str, between: Between, act: Act) {
        let what = format!("{between:?} while {phase}");
        let body = body(phase);
        let undisturbed = self.undisturbed(&body).await;
        let cluster = &self.cluster;
        let before = cluster.failures().await;
        let asked = cluster.submit(&body);
        let room = cluster.wait_phase(phase, SOON).await;
        let link = self.strike(between, act, &room);
        let answer = within(SOON, &what, asked).await.unwrap();
        assert_eq!(answer.status, 200, "{what}: {answer:?}");
        assert_eq!(answer.token_ids(), undisturbed, "{what}");
        assert_eq!(cluster.failures().await, before, "{what}: no room failed");
        link.heal();
        oracle(cluster).await;
    }
}
