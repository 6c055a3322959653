//! Several routers beside each other: each has rooms of its own, and what happens to one is nothing to the others. And a
//! rolling restart of every role, under load, without one request that fails.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use innkeeper_integration::load::Going;
use innkeeper_integration::{Client, Cluster, Options, completion, oracle, signal, until};
use rustix::process::Signal;
use serde_json::Value;

const PATH: &str = "/v1/completions";
const SOON: Duration = Duration::from_secs(30);

fn options() -> Options {
    Options::mock()
        .workers(2, 2)
        .etcd()
        .ttl_ms(2000)
        .flag("mock-decode-us-per-token", 5_000)
}

fn body() -> Value {
    completion("mock", "several routers", 60)
}

/// Waits until the first router sees exactly these nodes serve.
async fn wait_nodes(cluster: &Cluster, routers: usize) {
    until(SOON, "the nodes are as they were", || async {
        let nodes = cluster.try_ps().await?;
        let of = |router: bool| {
            let fits = nodes.iter().filter(|node| (node["role"] == "router") == router);
            fits.filter(|node| node["state"] == "serving").count()
        };
        if (of(true), of(false), nodes.len()) == (routers, 4, routers + 4) {
            Ok(())
        } else {
            Err(format!("{nodes:?}"))
        }
    })
    .await;
}

/// One of two routers goes, in a way that it says or does not say; the other's requests do not notice, and the workers keep
/// nothing of the one that is gone.
async fn one_of_two_goes(what: Signal) {
    let mut cluster = Cluster::start(options()).await;
    let other = cluster.join_router("router-b").await;
    let expected = cluster.client.complete(&body()).await.token_ids();
    let (going, lost) = (
        Going::start(&cluster.client, &body(), 6),
        Going::start(&other, &body(), 6),
    );
    until(SOON, "both routers have rooms", || async {
        let mut counts = [0; 2];
        for (client, count) in [&cluster.client, &other].into_iter().zip(&mut counts) {
            let rooms = client
                .get("/innkeeper/v1/rooms")
                .await
                .map_err(|error| error.to_string())?;
            *count = rooms.body.as_array().map_or(0, Vec::len);
        }
        if counts.iter().all(|count| *count >= 3) {
            Ok(())
        } else {
            Err(format!("{counts:?}"))
        }
    })
    .await;
    cluster.signal_joined("router-b", what);
    // Long enough for every layer of detection, and for what it held to come back.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let going = going.end().await;
    assert_eq!(going.of(200, "").count(), going.heard.len(), "{:?}", going.tally());
    assert!(going.heard.len() >= 20, "{:?}", going.tally());
    assert_eq!(cluster.client.complete(&body()).await.token_ids(), expected);
    // All pages are back, whatever the other one still believes.
    until(SOON, "the workers hold nothing", || async {
        for name in ["decode-0", "decode-1", "prefill-0", "prefill-1"] {
            let metrics = cluster.metrics_of(name).await;
            let held = ["held", "quarantined"].map(|state| metrics.sum("innkeeper_pages", &[("state", state)]));
            if held != [0.0, 0.0] {
                return Err(format!("{name}: {held:?}"));
            }
        }
        Ok(())
    })
    .await;
    if what == Signal::STOP {
        cluster.signal_joined("router-b", Signal::CONT);
        let lost = lost.end().await;
        // Its own requests have an answer each: a whole one, or that it was stopped, or that its workers are not back yet.
        let codes = ["self_paused", "no_prefill_worker", "no_decode_worker"];
        let honest =
            |(status, code): &(u16, String)| *status == 200 || (*status == 503 && codes.contains(&code.as_str()));
        assert!(lost.tally().keys().all(honest), "{:?}", lost.tally());
        let after = other.complete(&body()).await;
        assert_eq!(after.token_ids(), expected);
        cluster.signal_joined("router-b", Signal::TERM);
        assert!(cluster.ended_joined("router-b", SOON));
    } else {
        let lost = lost.end().await;
        assert!(
            lost.tally().keys().all(|(status, _)| [0, 200].contains(status)),
            "{:?}",
            lost.tally()
        );
        assert!(!cluster.ended_joined("router-b", SOON), "it was killed");
    }
    wait_nodes(&cluster, 1).await;
    oracle(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_is_killed_beside_another_one() {
    one_of_two_goes(Signal::KILL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_is_stopped_beside_another_one() {
    one_of_two_goes(Signal::STOP).await;
}

/// Clients behind a balancer that knows which routers are to be asked.
struct Balanced {
    routers: Arc<Mutex<Vec<Client>>>,
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    clients: Vec<tokio::task::JoinHandle<Vec<String>>>,
}

impl Balanced {
    fn start(routers: Vec<Client>, expected: &[u64], clients: usize) -> Self {
        let (routers, stop) = (Arc::new(Mutex::new(routers)), Arc::new(AtomicBool::new(false)));
        let served = Arc::new(AtomicUsize::new(0));
        let one = |number: usize| {
            let (routers, stop, served) = (Arc::clone(&routers), Arc::clone(&stop), Arc::clone(&served));
            let expected = expected.to_vec();
            tokio::spawn(async move {
                let mut failed = vec![];
                for turn in number.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let client = {
                        let routers = routers.lock().unwrap();
                        routers[turn % routers.len()].clone()
                    };
                    match client.try_post(PATH, None, &body()).await {
                        Ok(answer) if answer.status == 200 && answer.token_ids() == expected => {
                            served.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(answer) => failed.push(format!("{} {}", answer.status, answer.body)),
                        Err(error) => failed.push(format!("{error:?}")),
                    }
                }
                failed
            })
        };
        Self {
            clients: (0..clients).map(one).collect(),
            routers,
            stop,
            served,
        }
    }

    /// From now on these are asked; what was asked of others is waited for by them.
    fn ask(&self, routers: Vec<Client>) {
        *self.routers.lock().unwrap() = routers;
    }

    /// Some more are served: the load goes on.
    async fn goes_on(&self) {
        let before = self.served.load(Ordering::Relaxed);
        until(SOON, "requests are served", || async {
            let served = self.served.load(Ordering::Relaxed) - before;
            if served >= 24 { Ok(()) } else { Err(served) }
        })
        .await;
    }

    async fn end(self) -> (usize, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let mut failed = vec![];
        for client in self.clients {
            failed.extend(client.await.unwrap());
        }
        (self.served.load(Ordering::Relaxed), failed)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_is_restarted_under_load_and_no_request_fails() {
    let mut cluster = Cluster::start(options()).await;
    let first = cluster.client.clone();
    let expected = first.complete(&body()).await.token_ids();
    let load = Balanced::start(vec![first.clone()], &expected, 8);
    // A router: its successor comes first, then nobody asks it any more, then it is asked to go.
    let second = cluster.join_router("router-b").await;
    load.ask(vec![first.clone(), second.clone()]);
    load.goes_on().await;
    load.ask(vec![first.clone()]);
    // Who has just picked it has asked it by then.
    load.goes_on().await;
    cluster.signal_joined("router-b", Signal::TERM);
    assert!(cluster.ended_joined("router-b", SOON), "it drains and ends well");
    let third = cluster.join_router("router-c").await;
    load.ask(vec![first.clone(), third]);
    load.goes_on().await;
    // Each worker: the one that is asked to go finishes what it has, and another life takes its place.
    for name in ["prefill-0", "prefill-1", "decode-0", "decode-1"] {
        let before = cluster.node(name).await["incarnation"].clone();
        signal(cluster.pid(name).await, Signal::TERM);
        until(SOON, "another life of it is known", || async {
            let nodes = cluster.try_ps().await?;
            let lives = nodes
                .iter()
                .any(|node| node["name"] == name && node["incarnation"] != before && node["state"] == "serving");
            if lives { Ok(()) } else { Err(format!("{nodes:?}")) }
        })
        .await;
        wait_nodes(&cluster, 2).await;
        load.goes_on().await;
    }
    let (served, failed) = load.end().await;
    eprintln!("{served} requests were served while every role was restarted");
    assert_eq!(failed, Vec::<String>::new(), "of {served}");
    cluster.signal_joined("router-c", Signal::TERM);
    assert!(cluster.ended_joined("router-c", SOON));
    wait_nodes(&cluster, 1).await;
    oracle(&cluster).await;
}
