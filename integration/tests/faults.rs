//! Processes that die or stop while they owe something: the client has an answer or the next attempt is open within the
//! bound, the answer is right, and everything comes back.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::time::{Duration, Instant};

use innkeeper_integration::{Answer, Cluster, Options, Room, completion, oracle, signal, until};
use rustix::process::Signal;
use serde_json::Value;
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_millis(2000);
/// What a machine with two busy processors adds to a bound.
const STARVED: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(20);
const PATH: &str = "/v1/completions";

/// Two pairs of separate processes; transfers and answers take seconds.
async fn start() -> Cluster {
    let options = Options::mock()
        .workers(2, 2)
        .etcd()
        .ttl_ms(2000)
        .flag("mock-decode-us-per-token", 20_000)
        .flag("mock-kv-bytes-per-token", 4_096)
        .flag("transfer-max-bytes-per-second", 200_000);
    Cluster::start(options).await
}

/// 200 tokens, 800 kB: a transfer of four seconds.
fn long_transfer() -> Value {
    completion("mock", "transfer".repeat(25), 5)
}

/// An answer of four seconds.
fn long_answer() -> Value {
    completion("mock", "decode", 200)
}

fn ask(cluster: &Cluster, body: &Value) -> JoinHandle<Answer> {
    let (client, body) = (cluster.client.clone(), body.clone());
    tokio::spawn(async move { client.post(PATH, &body).await })
}

fn pid(node: &Value) -> u32 {
    u32::try_from(node["pid"].as_u64().unwrap()).unwrap()
}

/// What happens to a worker, and in which phase of a room.
struct Fault {
    signal: Signal,
    phase: &'static str,
    victim: fn(&Room) -> &str,
    body: Value,
}

impl Fault {
    fn new(signal: Signal, phase: &'static str, victim: fn(&Room) -> &str, body: Value) -> Self {
        Self {
            signal,
            phase,
            victim,
            body,
        }
    }

    /// Runs it from an undisturbed answer to a clean cluster.
    async fn run(self) {
        let cluster = start().await;
        let undisturbed = cluster.client.complete(&self.body).await.token_ids();
        let asked = ask(&cluster, &self.body);
        let room = cluster.wait_phase(self.phase, SOON).await;
        assert_eq!(room.attempt, 1);
        let victim = cluster.node_of((self.victim)(&room)).await;
        signal(pid(&victim), self.signal);
        let struck = Instant::now();
        // The bound of a silent fault, and of the wait for blame before the next attempt.
        let bound = TTL + Duration::from_secs(1) + STARVED;
        until(bound, "the next attempt is open, or the answer is there", || async {
            if asked.is_finished() {
                return Ok(());
            }
            let rooms = cluster.router_rooms().await?;
            rooms
                .iter()
                .find(|room| room.attempt == 2)
                .map(drop)
                .ok_or(format!("{rooms:?}"))
        })
        .await;
        eprintln!(
            "{:?} while {}: {} ms",
            self.signal,
            self.phase,
            struck.elapsed().as_millis()
        );
        let answer = asked.await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.token_ids(), undisturbed, "the next attempt's answer");
        assert_eq!(cluster.router_rooms().await.unwrap(), []);
        let router = cluster.metrics_of("router").await;
        assert_eq!(router.sum("innkeeper_rooms_ended_total", &[("reason", "done")]), 2.0);
        assert_eq!(
            router.sum("innkeeper_rooms_ended_total", &[]),
            3.0,
            "one room failed, once"
        );
        pages_come_back(&cluster, &victim).await;
        if self.signal == Signal::STOP {
            signal(pid(&victim), Signal::CONT);
        }
        oracle(&cluster).await;
        let again = cluster.client.complete(&self.body).await.token_ids();
        assert_eq!(again, undisturbed, "afterwards");
    }
}

/// On the workers that the fault did not touch, whether or not the victim lives.
async fn pages_come_back(cluster: &Cluster, victim: &Value) {
    until(2 * TTL + STARVED, "the others' pages come back", || async {
        let nodes = cluster.try_ps().await?;
        for node in nodes
            .iter()
            .filter(|node| node["role"] != "router" && node["pid"] != victim["pid"])
        {
            let metrics = cluster.metrics(node["http"].as_str().unwrap_or_default()).await?;
            let kept = ["held", "quarantined"].map(|state| metrics.sum("innkeeper_pages", &[("state", state)]));
            if kept != [0.0, 0.0] {
                return Err(format!("{}: held and quarantined: {kept:?}", node["name"]));
            }
        }
        Ok(())
    })
    .await;
}

fn decode(room: &Room) -> &str {
    &room.decode
}

fn prefill(room: &Room) -> &str {
    &room.prefill
}

#[tokio::test]
async fn a_decode_worker_is_killed_during_a_transfer() {
    Fault::new(Signal::KILL, "transferring", decode, long_transfer())
        .run()
        .await;
}

#[tokio::test]
async fn a_decode_worker_is_stopped_during_a_transfer() {
    Fault::new(Signal::STOP, "transferring", decode, long_transfer())
        .run()
        .await;
}

#[tokio::test]
async fn a_prefill_worker_is_killed_during_a_transfer() {
    Fault::new(Signal::KILL, "transferring", prefill, long_transfer())
        .run()
        .await;
}

#[tokio::test]
async fn a_prefill_worker_is_stopped_during_a_transfer() {
    Fault::new(Signal::STOP, "transferring", prefill, long_transfer())
        .run()
        .await;
}

#[tokio::test]
async fn a_decode_worker_is_killed_while_it_decodes() {
    Fault::new(Signal::KILL, "decoding", decode, long_answer()).run().await;
}

#[tokio::test]
async fn a_decode_worker_is_stopped_while_it_decodes() {
    Fault::new(Signal::STOP, "decoding", decode, long_answer()).run().await;
}

#[tokio::test]
async fn a_prefill_worker_that_dies_after_the_commit_changes_nothing() {
    let cluster = start().await;
    let undisturbed = cluster.client.complete(&long_answer()).await.token_ids();
    let asked = ask(&cluster, &long_answer());
    let room = cluster.wait_phase("decoding", SOON).await;
    signal(pid(&cluster.node_of(&room.prefill).await), Signal::KILL);
    assert_eq!(asked.await.unwrap().token_ids(), undisturbed);
    let router = cluster.metrics_of("router").await;
    assert_eq!(router.sum("innkeeper_rooms_ended_total", &[("reason", "done")]), 2.0);
    assert_eq!(router.sum("innkeeper_rooms_ended_total", &[]), 2.0);
    oracle(&cluster).await;
}

#[tokio::test]
async fn etcd_that_stops_or_loses_everything_hurts_no_request() {
    let mut cluster = start().await;
    let undisturbed = cluster.client.complete(&long_answer()).await.token_ids();
    let asked = ask(&cluster, &long_answer());
    cluster.wait_phase("decoding", SOON).await;
    cluster.etcd().stop();
    assert_eq!(
        asked.await.unwrap().token_ids(),
        undisturbed,
        "in flight when etcd stopped"
    );
    let unleased = cluster.client.complete(&long_answer()).await.token_ids();
    assert_eq!(unleased, undisturbed, "begun while etcd was away");
    cluster.etcd().cont();
    oracle(&cluster).await;

    let asked = ask(&cluster, &long_answer());
    cluster.wait_phase("decoding", SOON).await;
    cluster.etcd().restart_empty();
    assert_eq!(
        asked.await.unwrap().token_ids(),
        undisturbed,
        "in flight when etcd lost everything"
    );
    oracle(&cluster).await;
    let router = cluster.metrics_of("router").await;
    assert_eq!(router.sum("innkeeper_rooms_ended_total", &[("reason", "done")]), 4.0);
    assert_eq!(router.sum("innkeeper_rooms_ended_total", &[]), 4.0);
}

#[tokio::test]
async fn revoking_a_rooms_lease_evicts_the_room_and_not_the_request() {
    let cluster = start().await;
    let undisturbed = cluster.client.complete(&long_answer()).await.token_ids();
    let asked = ask(&cluster, &long_answer());
    let room = until(SOON, "a leased room decodes", || async {
        let rooms = cluster.router_rooms().await?;
        rooms
            .iter()
            .find(|room| room.phase == "decoding" && room.leased)
            .cloned()
            .ok_or(format!("{rooms:?}"))
    })
    .await;
    let keys = cluster.keys().await.unwrap();
    let doors: Vec<_> = keys
        .iter()
        .filter(|key| key.starts_with("/innkeeper/v1/doors/"))
        .collect();
    assert_eq!(doors.len(), 3, "one door each: {keys:?}");
    // The id of the room is that of its lease, in hexadecimal digits for both.
    cluster.etcdctl(&["lease", "revoke", &room.room]).await.unwrap();
    until(TTL + STARVED, "the next attempt is open", || async {
        let rooms = cluster.router_rooms().await?;
        let next = rooms.iter().find(|row| row.attempt == 2 && row.room != room.room);
        next.map(drop).ok_or(format!("{rooms:?}"))
    })
    .await;
    assert_eq!(asked.await.unwrap().token_ids(), undisturbed);
    let router = cluster.metrics_of("router").await;
    assert_eq!(
        router.sum("innkeeper_rooms_ended_total", &[("reason", "lease_revoked")]),
        1.0
    );
    oracle(&cluster).await;
}

#[tokio::test]
async fn a_router_that_dies_leaves_nothing_at_the_workers_and_is_started_again() {
    let cluster = start().await;
    let undisturbed = cluster.client.complete(&long_answer()).await.token_ids();
    let client = cluster.client.clone();
    let asked = tokio::spawn(async move { client.try_post(PATH, None, &long_answer()).await });
    cluster.wait_phase("decoding", SOON).await;
    let old = cluster.node("router").await;
    signal(pid(&old), Signal::KILL);
    assert!(asked.await.unwrap().is_err(), "its client sees the connection break");
    until(SOON, "a new router serves", || async {
        let nodes = cluster.try_ps().await?;
        let new = nodes
            .iter()
            .find(|node| node["role"] == "router" && node["incarnation"] != old["incarnation"]);
        new.map(drop).ok_or(format!("{nodes:?}"))
    })
    .await;
    oracle(&cluster).await;
    let answer = cluster.client.complete(&long_answer()).await;
    assert_eq!(answer.token_ids(), undisturbed);
    oracle(&cluster).await;
}

#[tokio::test]
async fn a_router_that_was_stopped_blames_nobody_and_answers_afterwards() {
    let cluster = start().await;
    let undisturbed = cluster.client.complete(&long_answer()).await.token_ids();
    let nodes = cluster.ps().await;
    let asked = ask(&cluster, &long_answer());
    cluster.wait_phase("decoding", SOON).await;
    let router = cluster.node("router").await;
    signal(pid(&router), Signal::STOP);
    let bound = TTL + Duration::from_secs(1) + STARVED;
    until(bound, "the workers' parts end without their router", || async {
        for node in nodes.iter().filter(|node| node["role"] != "router") {
            let metrics = cluster.metrics(node["http"].as_str().unwrap()).await?;
            let rooms = metrics.sum("innkeeper_rooms", &[]);
            if rooms != 0.0 {
                return Err(format!("{}: {rooms} rooms", node["name"]));
            }
        }
        Ok(())
    })
    .await;
    signal(pid(&router), Signal::CONT);
    let answer = asked.await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.token_ids(), undisturbed);
    let metrics = cluster.metrics_of("router").await;
    let ended = |labels: &[(&str, &str)]| metrics.sum("innkeeper_rooms_ended_total", labels);
    assert_eq!(
        ended(&[("blame", "nobody")]),
        ended(&[]),
        "who was stopped itself accuses nobody"
    );
    oracle(&cluster).await;
}

#[tokio::test]
async fn a_stopped_node_is_named_and_neither_waited_for_nor_in_the_way_of_others() {
    let cluster = start().await;
    let nodes = cluster.ps().await;
    let victim = cluster.node("decode-1").await;
    signal(pid(&victim), Signal::STOP);
    let asked = Instant::now();
    let listed = cluster.run(&["rooms", "ls", "--json"]).await;
    let took = asked.elapsed();
    assert!(listed.status.success(), "{listed:?}");
    assert!(
        took < Duration::from_secs(1) + STARVED,
        "rooms ls took {} ms",
        took.as_millis()
    );
    let said = String::from_utf8_lossy(&listed.stderr);
    assert!(said.contains("decode-1") && !said.contains("decode-0"), "{said}");
    for node in nodes.iter().filter(|node| node["pid"] != victim["pid"]) {
        let http = node["http"].as_str().unwrap();
        assert_eq!(cluster.ask(http, "/health").await.unwrap().status, 200, "{node}");
        cluster.metrics(http).await.unwrap();
    }
    for number in 0..4 {
        cluster
            .client
            .complete(&completion("mock", format!("around it {number}"), 4))
            .await;
    }
    signal(pid(&victim), Signal::CONT);
    oracle(&cluster).await;
}

#[tokio::test]
async fn rooms_of_a_stopped_router_are_shown_from_their_workers() {
    // A TTL at which the room outlives the look: the workers find the stopped router after 3 TTL/5.
    let options = Options::mock()
        .etcd()
        .ttl_ms(10_000)
        .flag("mock-decode-us-per-token", 20_000);
    let cluster = Cluster::start(options).await;
    let asked = ask(&cluster, &long_answer());
    let room = cluster.wait_phase("decoding", SOON).await;
    let router = cluster.node("router").await;
    signal(pid(&router), Signal::STOP);
    let looked = Instant::now();
    let seen = cluster.run(&["rooms", "ls", "--json"]).await;
    let took = looked.elapsed();
    signal(pid(&router), Signal::CONT);
    let rows: Vec<Value> = serde_json::from_slice(&seen.stdout).unwrap();
    let said = String::from_utf8_lossy(&seen.stderr).into_owned();
    assert!(
        rows.iter().any(|row| row["room"] == room.room.as_str()),
        "{rows:?} {said}"
    );
    assert!(said.contains("router"), "{said}");
    assert!(took < Duration::from_secs(2) + 2 * STARVED, "it waited {took:?}");
    assert_eq!(asked.await.unwrap().status, 200);
    oracle(&cluster).await;
}
