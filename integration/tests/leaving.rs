//! Clients that leave, in every phase of a request, over every way to ask: the rooms end within the bound, nothing is left.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::time::Duration;

use innkeeper_integration::rpc::{gather, generate_text};
use innkeeper_integration::{Answer, Cluster, Options, completion, oracle, until};
use tokio::task::JoinHandle;

/// A phase is seen within a report period of a change; the rest is for a starved machine.
const SOON: Duration = Duration::from_secs(20);
/// Terminal within 250 ms of a signal, and what a starved machine adds.
const AT_ONCE: Duration = Duration::from_secs(3);
const PATH: &str = "/v1/completions";

/// How a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Unary,
    Streamed,
    /// It cancels its call; its connection stays.
    Grpc,
}

const WAYS: [Way; 3] = [Way::Unary, Way::Streamed, Way::Grpc];

/// Every phase takes seconds: a prompt token 5 ms and 4 KiB of KV that leave at 100 kB/s, a token of the answer 20 ms.
fn slow() -> Options {
    Options::mock()
        .flag("mock-prefill-us-per-token", 5_000)
        .flag("prefix-cache-percent", 0)
        .flag("mock-decode-us-per-token", 20_000)
        .flag("mock-kv-bytes-per-token", 4_096)
        .flag("transfer-max-bytes-per-second", 100_000)
        // 512 tokens: one long answer holds nearly all pages of a decode worker.
        .flag("kv-pages", 32)
        // What waits is to wait at the worker here.
        .flag("page-booking-percent", 0)
        .fault("on")
}

/// A request that is asked, and dropped with the task.
fn ask(cluster: &Cluster, way: Way, prompt: usize, max_tokens: u32) -> JoinHandle<()> {
    let (client, base) = (cluster.client.clone(), cluster.client.base().to_owned());
    let body = completion("mock", "p".repeat(prompt), max_tokens);
    tokio::spawn(async move {
        match way {
            Way::Unary => drop(client.post(PATH, &body).await),
            Way::Streamed => drop(client.stream(PATH, None, &body).await.unwrap().rest().await),
            Way::Grpc => {
                let mut client = innkeeper_proto::inference::inference_client::InferenceClient::connect(base)
                    .await
                    .unwrap();
                // The connection outlives the call.
                KEPT.lock().unwrap().push(client.clone());
                let call = client.generate(generate_text("p".repeat(prompt), max_tokens)).await;
                drop(gather(call.unwrap().into_inner()).await);
            }
        }
    })
}

type Kept = innkeeper_proto::inference::inference_client::InferenceClient<tonic::transport::Channel>;
static KEPT: std::sync::Mutex<Vec<Kept>> = std::sync::Mutex::new(Vec::new());

/// Somebody who is in the way while a client waits.
async fn holder(cluster: &Cluster, phase: &str, prompt: usize, max_tokens: u32) -> JoinHandle<Answer> {
    let (client, body) = (
        cluster.client.clone(),
        completion("mock", "c".repeat(prompt), max_tokens),
    );
    let holder = tokio::spawn(async move { client.post_as("holder", PATH, &body).await });
    cluster.wait_phase(phase, SOON).await;
    holder
}

async fn leaves(cluster: &Cluster, holder: Option<JoinHandle<Answer>>) {
    if let Some(holder) = holder {
        assert!(
            !holder.is_finished(),
            "what held the client up was over before the test was"
        );
        assert_eq!(cluster.client.abort("holder").await, "aborted");
        assert_eq!(holder.await.unwrap().code(), "aborted");
    }
}

/// The room of a request in this phase that is not the holder's.
async fn room_in(cluster: &Cluster, phase: &str, others: &[String]) -> String {
    until(SOON, &format!("another room is {phase}"), || async {
        let rooms = cluster.router_rooms().await?;
        let found = rooms
            .iter()
            .find(|room| room.phase == phase && !others.contains(&room.room));
        found.map(|room| room.room.clone()).ok_or(format!("{rooms:#?}"))
    })
    .await
}

async fn ended(cluster: &Cluster, room: &str, what: &str) {
    until(
        AT_ONCE,
        &format!("the room of a client that left ends: {what}"),
        || async {
            let rooms = cluster.router_rooms().await?;
            if rooms.iter().all(|row| row.room != room) {
                Ok(())
            } else {
                Err(format!("{rooms:?}"))
            }
        },
    )
    .await;
}

async fn rooms(cluster: &Cluster) -> Vec<String> {
    let rooms = cluster.router_rooms().await.unwrap();
    rooms.into_iter().map(|room| room.room).collect()
}

/// All that failed was aborted, and nobody is blamed.
async fn only_aborts(cluster: &Cluster) {
    let failures = cluster.failures().await;
    let others: Vec<_> = failures
        .iter()
        .filter(|(reason, blame, _)| (reason.as_str(), blame.as_str()) != ("aborted", "nobody"))
        .collect();
    assert!(others.is_empty(), "something failed in another way: {others:?}");
}

#[tokio::test]
async fn while_it_is_prefilled_transferred_and_decoded() {
    let cluster = Cluster::start(slow()).await;
    for (phase, prompt, max_tokens) in [
        ("waiting_for_input", 450, 4),
        ("transferring", 120, 4),
        ("decoding", 2, 400),
    ] {
        for way in WAYS {
            let asking = ask(&cluster, way, prompt, max_tokens);
            let room = room_in(&cluster, phase, &[]).await;
            asking.abort();
            ended(&cluster, &room, &format!("{way:?} while {phase}")).await;
            oracle(&cluster).await;
        }
    }
    only_aborts(&cluster).await;
}

#[tokio::test]
async fn while_it_queues_for_pages_and_for_a_turn_of_prefill() {
    let cluster = Cluster::start(slow()).await;
    // Who holds decode's pages by its answer; who holds prefill's by its prompt.
    for (phase, prompt, max_tokens) in [("decoding", 1, 450), ("waiting_for_input", 400, 4)] {
        for way in WAYS {
            let holder = holder(&cluster, phase, prompt, max_tokens).await;
            let others = rooms(&cluster).await;
            let asking = ask(&cluster, way, 200, 200);
            let room = room_in(&cluster, "queued", &others).await;
            asking.abort();
            ended(
                &cluster,
                &room,
                &format!("{way:?} while it queues behind one that is {phase}"),
            )
            .await;
            leaves(&cluster, Some(holder)).await;
            oracle(&cluster).await;
        }
    }
    only_aborts(&cluster).await;
}

#[tokio::test]
async fn while_it_waits_for_admission() {
    // One room per worker: the second request waits in the router, without a room.
    let cluster = Cluster::start(slow().flag("permits", 1)).await;
    for way in WAYS {
        let holder = holder(&cluster, "decoding", 1, 450).await;
        let asking = ask(&cluster, way, 2, 4);
        let requests = async || {
            cluster
                .router_metrics()
                .await
                .sum("innkeeper_permits", &[("kind", "request")])
        };
        until(SOON, "the router holds two requests", || async {
            let held = requests().await;
            if held >= 2.0 { Ok(()) } else { Err(held) }
        })
        .await;
        asking.abort();
        until(
            AT_ONCE,
            &format!("the request of a client that left ends: {way:?}"),
            || async {
                let held = requests().await;
                if held <= 1.0 { Ok(()) } else { Err(held) }
            },
        )
        .await;
        leaves(&cluster, Some(holder)).await;
        oracle(&cluster).await;
    }
    only_aborts(&cluster).await;
}

#[tokio::test]
async fn during_the_handshake() {
    let cluster = Cluster::start(slow()).await;
    for way in WAYS {
        cluster.order("decode-0", "mute-data").await;
        let asking = ask(&cluster, way, 2, 4);
        let room = room_in(&cluster, "bootstrapping", &[]).await;
        asking.abort();
        ended(&cluster, &room, &format!("{way:?} during the handshake")).await;
        cluster.order("decode-0", "speak-data").await;
        oracle(&cluster).await;
    }
    only_aborts(&cluster).await;
}
