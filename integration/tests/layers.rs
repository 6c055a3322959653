//! Each detection layer alone: those that are faster are switched off, and it ends everything within its own bound.
//!
//! ```text
//! message            an engine fails                       nothing else may fire for a long time
//! connection         a worker is stopped, or killed        no progress timers
//! local progress     a worker is stopped, an engine stalls no pings
//! local absolute     work that moves, too slowly           (of the transfer: tests/links.rs)
//! room lease         a worker or the owner is stopped      no pings, no progress timers
//! member lease       a worker is stopped                   no doors either
//! ```

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::time::{Duration, Instant};

use innkeeper_integration::{Cluster, Options, Room, completion, enough_of, oracle, until, within};
use serde_json::Value;

const TTL: Duration = Duration::from_millis(2000);
/// Of rooms and members at that TTL.
const LEASE: Duration = Duration::from_secs(3);
/// The bound of a signal, and of the wait for blame.
const SIGNAL: Duration = Duration::from_millis(250 + 250);
/// What a machine with two busy processors adds to a bound.
const STARVED: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(20);

/// Two pairs of separate processes without these layers.
fn without(layers: &[&str]) -> Options {
    let options = Options::mock()
        .workers(2, 2)
        .etcd()
        .ttl_ms(2000)
        .flag("mock-prefill-us-per-token", 5_000)
        .flag("prefix-cache-percent", 0)
        .flag("mock-decode-us-per-token", 20_000)
        .flag("mock-kv-bytes-per-token", 4_096)
        .flag("transfer-max-bytes-per-second", 400_000)
        .fault("on");
    layers.iter().fold(options, |options, layer| options.fault(layer))
}

/// 120 tokens: 0.6 s of computing, and 1.2 s of transfer that begins with it.
fn transfer() -> Value {
    completion("mock", "p".repeat(120), 5)
}

/// An answer of two seconds.
fn decode() -> Value {
    completion("mock", "decode", 100)
}

fn body(phase: &str) -> Value {
    if phase == "decoding" { decode() } else { transfer() }
}

/// A cluster without some layers, and what it answers when nothing strikes.
struct Scene {
    cluster: Cluster,
    transferred: Vec<u64>,
    decoded: Vec<u64>,
}

impl Scene {
    async fn without(layers: &[&str]) -> Self {
        let cluster = Cluster::start(without(layers)).await;
        let (bodies, client) = ([transfer(), decode()], cluster.client.clone());
        let (transferred, decoded) = tokio::join!(client.complete(&bodies[0]), client.complete(&bodies[1]));
        Self {
            cluster,
            transferred: transferred.token_ids(),
            decoded: decoded.token_ids(),
        }
    }
}

/// What strikes, and what must come of it.
struct Strike<'a> {
    what: &'a str,
    phase: &'a str,
    victim: fn(&Room) -> &str,
    how: How<'a>,
    /// Not earlier than this: else another layer did it.
    earliest: Duration,
    bound: Duration,
    expected: &'a [(&'a str, &'a str)],
}

#[derive(Clone, Copy)]
enum How<'a> {
    Stop,
    Kill,
    Order(&'a str),
}

impl Strike<'_> {
    /// One room fails as expected; the request is answered by the next attempt; nothing is left.
    async fn run(&self, scene: &Scene) {
        let (what, cluster) = (self.what, &scene.cluster);
        let body = body(self.phase);
        let right = if self.phase == "decoding" {
            &scene.decoded
        } else {
            &scene.transferred
        };
        let before = cluster.failures().await;
        let asked = cluster.submit(&body);
        let room = cluster.wait_phase(self.phase, SOON).await;
        let victim = cluster.name_of((self.victim)(&room)).await;
        let mut stopped = None;
        match self.how {
            How::Stop => stopped = Some(cluster.stop(&victim).await),
            How::Kill => cluster.kill(&victim).await,
            How::Order(fault) => cluster.order(&victim, fault).await,
        }
        let struck = Instant::now();
        let (reason, blame) = cluster.verdict(&before, self.bound + STARVED).await;
        let took = struck.elapsed();
        eprintln!("{what}: {reason}, blame {blame}, {} ms", took.as_millis());
        assert!(
            self.expected.contains(&(reason.as_str(), blame.as_str())),
            "{what}: {reason}, blame {blame}, expected one of {:?}",
            self.expected
        );
        assert!(
            took >= self.earliest,
            "{what}: after {} ms another layer was faster",
            took.as_millis()
        );
        let answer = within(SOON, what, asked).await.unwrap();
        assert_eq!(answer.status, 200, "{what}: {answer:?}");
        assert_eq!(&answer.token_ids(), right, "{what}: the next attempt's answer");
        others_are_clean(cluster, &victim).await;
        match (self.how, stopped) {
            (How::Order("stall-engine"), _) => cluster.order(&victim, "resume-engine").await,
            (_, Some(stopped)) => stopped.cont(),
            (_, None) => {}
        }
        oracle(cluster).await;
    }
}

/// The other nodes hold nothing of the room, while the victim still is as it was made.
async fn others_are_clean(cluster: &Cluster, victim: &str) {
    until(2 * TTL + STARVED, "the others let go", || async {
        for node in cluster.try_ps().await?.iter().filter(|node| node["name"] != victim) {
            let metrics = cluster.metrics(node["http"].as_str().unwrap_or_default()).await?;
            let held = ["held", "quarantined"].map(|state| metrics.sum("innkeeper_pages", &[("state", state)]));
            let rooms = metrics.sum("innkeeper_rooms", &[]);
            if (rooms, held) != (0.0, [0.0, 0.0]) {
                return Err(format!("{}: {rooms} rooms, pages {held:?}", node["name"]));
            }
        }
        Ok(())
    })
    .await;
}

fn prefill(room: &Room) -> &str {
    &room.prefill
}

fn of_decode(room: &Room) -> &str {
    &room.decode
}

const NO_CONNECTION: [&str; 2] = ["no-pings", "no-user-timeout"];

#[tokio::test]
async fn a_message_alone() {
    let scene = Scene::without(&["no-pings", "no-user-timeout", "no-progress-timers"]).await;
    for (phase, victim, blame) in [
        ("waiting_for_input", prefill as fn(&Room) -> &str, "prefill"),
        ("decoding", of_decode, "decode"),
    ] {
        let strike = Strike {
            what: "an engine fails",
            phase,
            victim,
            how: How::Order("fail-engine"),
            earliest: Duration::ZERO,
            // The engine finishes its chunk first, which is the whole prompt: no timer asks for less.
            bound: SIGNAL + Duration::from_millis(600),
            expected: &[("engine_failed", blame)],
        };
        strike.run(&scene).await;
    }
    let cluster = &scene.cluster;
    let client = cluster.client.clone();
    let asked = tokio::spawn(async move { client.post_as("message", "/v1/completions", &decode()).await });
    cluster.wait_phase("decoding", SOON).await;
    assert_eq!(cluster.client.abort("message").await, "aborted");
    let answer = within(SIGNAL + STARVED, "an abort", asked).await.unwrap();
    assert_eq!(answer.code(), "aborted", "{answer:?}");
    others_are_clean(cluster, "nobody").await;
    oracle(cluster).await;
}

#[tokio::test]
async fn the_connection_alone() {
    let scene = Scene::without(&["no-user-timeout", "no-progress-timers"]).await;
    let stop = |phase, victim, expected| Strike {
        what: "a stopped worker",
        phase,
        victim,
        how: How::Stop,
        earliest: TTL / 5,
        // An interval and a timeout of pings.
        bound: 3 * TTL / 5 + SIGNAL,
        expected,
    };
    let all = [
        stop("transferring", of_decode, &[("decode_lost", "decode")]),
        stop("waiting_for_input", prefill, &[("prefill_lost", "prefill")]),
    ];
    for strike in enough_of(&all, 1) {
        strike.run(&scene).await;
    }
    let kill = Strike {
        what: "a killed worker",
        phase: "decoding",
        victim: of_decode,
        how: How::Kill,
        earliest: Duration::ZERO,
        bound: SIGNAL,
        expected: &[("decode_lost", "decode")],
    };
    kill.run(&scene).await;
}

#[tokio::test]
async fn the_local_progress_timers_alone() {
    let scene = Scene::without(&NO_CONNECTION).await;
    let silent = |what, phase, victim, how, expected| Strike {
        what,
        phase,
        victim,
        how,
        earliest: TTL - TTL / 4,
        bound: TTL + Duration::from_millis(1250),
        expected,
    };
    // Whoever waits for it may be first: the other worker, or the router that hears no Load.
    let strikes = [
        silent(
            "a stopped decode worker",
            "transferring",
            of_decode,
            How::Stop,
            &[("transfer_stalled", "decode"), ("decode_lost", "decode")],
        ),
        silent(
            "a stopped prefill worker",
            "waiting_for_input",
            prefill,
            How::Stop,
            &[("prefill_stalled", "prefill"), ("prefill_lost", "prefill")],
        ),
        silent(
            "a stalled engine",
            "decoding",
            of_decode,
            How::Order("stall-engine"),
            &[("engine_stalled", "decode")],
        ),
        silent(
            "a stalled engine",
            "waiting_for_input",
            prefill,
            How::Order("stall-engine"),
            &[("engine_stalled", "prefill"), ("prefill_stalled", "prefill")],
        ),
        silent(
            "a stopped decode worker",
            "decoding",
            of_decode,
            How::Stop,
            &[("decode_stalled", "decode"), ("decode_lost", "decode")],
        ),
    ];
    for strike in enough_of(&strikes, 4) {
        strike.run(&scene).await;
    }
}

#[tokio::test]
async fn the_local_absolute_deadlines_alone() {
    // Everything moves within each progress TTL; the only attempt is at its end when it should have been done.
    let slow = || Options::mock().etcd().ttl_ms(2000).flag("max-attempts", 1);
    let late = |what: &'static str,
                options: Options,
                body: Value,
                budget: Duration,
                (reason, blames): (&'static str, &'static [&'static str])| async move {
        let cluster = Cluster::start(options).await;
        let began = Instant::now();
        let answer = within(SOON, what, cluster.submit(&body)).await.unwrap();
        let took = began.elapsed();
        let failures = cluster.failures().await;
        eprintln!("{what}: {failures:?}, {} ms", took.as_millis());
        assert_eq!((answer.status, answer.code()), (504, reason), "{answer:?}");
        let [(_, blame, 1)] = failures.as_slice() else {
            panic!("{failures:?}")
        };
        assert!(blames.contains(&blame.as_str()), "{failures:?}");
        assert!(
            took >= budget,
            "{what}: after {} ms another layer was faster",
            took.as_millis()
        );
        assert!(took <= budget + TTL + STARVED, "{what}: {} ms", took.as_millis());
        oracle(&cluster).await;
    };
    let prefill = slow()
        .flag("mock-prefill-us-per-token", 20_000)
        .flag("prefix-cache-percent", 0)
        .flag("prefill-floor-tokens-per-second", 300);
    let decode = slow()
        .flag("mock-decode-us-per-token", 700_000)
        .flag("decode-floor-tokens-per-second", 20);
    tokio::join!(
        late(
            "a prompt too slow",
            prefill,
            completion("mock", "p".repeat(300), 5),
            Duration::from_secs(1) + 2 * TTL,
            ("prefill_stalled", &["prefill"])
        ),
        late(
            "an answer too slow",
            decode,
            completion("mock", "p", 20),
            Duration::from_secs(1) + 2 * TTL,
            ("decode_stalled", &["decode"])
        ),
    );
}

const ONLY_LEASES: [&str; 4] = ["no-pings", "no-user-timeout", "no-progress-timers", "no-members"];

#[tokio::test]
async fn the_rooms_lease_alone() {
    let scene = Scene::without(&ONLY_LEASES).await;
    let all = [
        ("decoding", of_decode as fn(&Room) -> &str, "decode"),
        ("waiting_for_input", prefill, "prefill"),
    ];
    for (phase, victim, blame) in enough_of(&all, 1) {
        let strike = Strike {
            what: "a room whose lease nobody renews",
            phase,
            victim: *victim,
            how: How::Stop,
            // Renewed at most a third of a lease before the stop.
            earliest: LEASE / 2,
            bound: 2 * LEASE,
            expected: &[("lease_expired", *blame)],
        };
        strike.run(&scene).await;
    }
    the_owner_is_stopped(&scene.cluster).await;
}

/// The workers see their doors go, and nobody answers for the room.
async fn the_owner_is_stopped(cluster: &Cluster) {
    // It outlives its lease by far: 6 s of transfer.
    let body = completion("mock", "p".repeat(600), 5);
    let asked = cluster.submit(&body);
    let room = until(SOON, "a leased room transfers", || async {
        let rooms = cluster.router_rooms().await?;
        let found = rooms.iter().find(|room| room.phase == "transferring" && room.leased);
        found.cloned().ok_or(format!("{rooms:?}"))
    })
    .await;
    let workers = [
        cluster.node_of(&room.prefill).await,
        cluster.node_of(&room.decode).await,
    ];
    let router = cluster.stop("router").await;
    let stopped = Instant::now();
    let ask = 2 * TTL / 5;
    until(
        LEASE + ask + Duration::from_secs(1) + STARVED,
        "both parts end",
        || async {
            for node in &workers {
                let metrics = cluster.metrics(node["http"].as_str().unwrap()).await?;
                let lost = metrics.ended().iter().any(|(reason, _, _)| reason == "lease_lost");
                let over = metrics.sum("innkeeper_rooms", &[]) == 0.0;
                if !over || !lost {
                    return Err(format!("{}: {:?}", node["name"], metrics.ended()));
                }
            }
            Ok(())
        },
    )
    .await;
    eprintln!(
        "a stopped owner: lease_lost at both, {} ms",
        stopped.elapsed().as_millis()
    );
    router.cont();
    let answer = within(SOON, "the answer", asked).await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    let again = within(SOON, "the same again", cluster.submit(&body)).await.unwrap();
    assert_eq!(answer.token_ids(), again.token_ids());
    oracle(cluster).await;
}

#[tokio::test]
async fn a_members_lease_alone() {
    let layers = ["no-pings", "no-user-timeout", "no-progress-timers", "no-doors"];
    let scene = Scene::without(&layers).await;
    let all = [
        ("transferring", of_decode as fn(&Room) -> &str, "decode"),
        ("waiting_for_input", prefill, "prefill"),
    ];
    for (phase, victim, blame) in enough_of(&all, 1) {
        let strike = Strike {
            what: "a member whose lease is over",
            phase,
            victim: *victim,
            how: How::Stop,
            earliest: LEASE / 2,
            // Who is asked, too.
            bound: 2 * LEASE + 2 * TTL / 5,
            expected: &[("member_lost", *blame)],
        };
        strike.run(&scene).await;
    }
}
