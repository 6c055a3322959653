//! Aborts: before the request arrives, in every phase, after the end. One verdict, nothing leaked. (`leaving.rs`: clients that
//! leave.)

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::time::Duration;

use innkeeper_integration::{Answer, Cluster, Options, completion, oracle, within};
use serde_json::Value;
use tokio::task::JoinHandle;

/// A phase is seen within a report period of a change; the rest is for a starved machine.
const SOON: Duration = Duration::from_secs(20);
/// Terminal within 250 ms of a signal, and what a starved machine adds.
const AT_ONCE: Duration = Duration::from_secs(3);
const PATH: &str = "/v1/completions";

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
}

/// A phase, and a request that stays in it for seconds.
fn phases() -> [(&'static str, Value); 4] {
    let prompt = |tokens: usize| "p".repeat(tokens);
    [
        ("queued", completion("mock", prompt(200), 200)),
        ("waiting_for_input", completion("mock", prompt(450), 4)),
        ("transferring", completion("mock", prompt(120), 4)),
        ("decoding", completion("mock", prompt(2), 400)),
    ]
}

/// Requests that hold the pages of the decode worker while another one queues.
struct Crowd(Vec<JoinHandle<Answer>>);

impl Crowd {
    /// Nobody for a phase that is not `queued`.
    async fn gather(cluster: &Cluster, phase: &str) -> Self {
        if phase != "queued" {
            return Self(vec![]);
        }
        let client = cluster.client.clone();
        let body = completion("mock", "c", 450);
        let holder = tokio::spawn(async move { client.post_as("holder", PATH, &body).await });
        cluster.wait_phase("decoding", SOON).await;
        Self(vec![holder])
    }

    async fn leave(self, cluster: &Cluster) {
        for holder in self.0 {
            assert!(!holder.is_finished(), "the pages were free before the test was over");
            assert_eq!(cluster.client.abort("holder").await, "aborted");
            assert_eq!(holder.await.unwrap().code(), "aborted");
        }
    }
}

#[tokio::test]
async fn an_abort_before_arrival_is_accepted_and_ends_the_request_at_once() {
    let cluster = Cluster::start(slow()).await;
    assert_eq!(cluster.client.abort("early").await, "accepted");
    assert_eq!(
        cluster.client.abort("early").await,
        "accepted",
        "once more changes nothing"
    );
    let (_, body) = &phases()[3];
    let answer = within(AT_ONCE, "the answer", cluster.client.post_as("early", PATH, body)).await;
    assert_eq!((answer.status, answer.code()), (499, "aborted"), "{answer:?}");
    let again = within(AT_ONCE, "the answer", cluster.client.post_as("early", PATH, body)).await;
    assert_eq!(again.code(), "aborted", "the tombstone ends every arrival: {again:?}");
    let router = cluster.metrics_of("router").await;
    assert_eq!(
        router.sum("innkeeper_rooms_ended_total", &[]),
        0.0,
        "no room was opened"
    );
    assert_eq!(router.sum("innkeeper_requests_total", &[("outcome", "aborted")]), 2.0);
    assert_eq!(router.sum("innkeeper_tombstones", &[]), 1.0);
    oracle(&cluster).await;
}

#[tokio::test]
async fn an_abort_ends_a_request_in_every_phase() {
    let cluster = Cluster::start(slow()).await;
    for (phase, body) in phases() {
        let crowd = Crowd::gather(&cluster, phase).await;
        let (rid, client) = (format!("in-{phase}"), cluster.client.clone());
        let asked = rid.clone();
        let answer = tokio::spawn(async move { client.post_as(&asked, PATH, &body).await });
        cluster.wait_phase(phase, SOON).await;
        assert_eq!(cluster.client.abort(&rid).await, "aborted", "{phase}");
        let answer = within(AT_ONCE, phase, answer).await.unwrap();
        assert_eq!((answer.status, answer.code()), (499, "aborted"), "{phase}: {answer:?}");
        assert_eq!(cluster.client.abort(&rid).await, "already ended", "{phase}");
        crowd.leave(&cluster).await;
        oracle(&cluster).await;
    }
    let router = cluster.metrics_of("router").await;
    let ended = |labels: &[(&str, &str)]| router.sum("innkeeper_rooms_ended_total", labels);
    assert_eq!(
        ended(&[("reason", "aborted"), ("blame", "nobody")]),
        5.0,
        "each room has one verdict, nobody is blamed"
    );
    assert_eq!(ended(&[]), 5.0);
}

#[tokio::test]
async fn an_abort_ends_a_stream_with_its_error() {
    let cluster = Cluster::start(slow()).await;
    let (_, body) = &phases()[3];
    let mut stream = cluster.client.stream(PATH, Some("streamed"), body).await.unwrap();
    assert!(stream.next().await.unwrap().is_some(), "it speaks");
    assert_eq!(cluster.client.abort("streamed").await, "aborted");
    let events = within(AT_ONCE, "the end of the stream", stream.rest()).await;
    let last = events
        .as_ref()
        .ok()
        .and_then(|events| events.last())
        .cloned()
        .unwrap_or_default();
    assert_eq!(last["error"]["code"], "aborted", "{events:?}");
    oracle(&cluster).await;
}

#[tokio::test]
async fn an_abort_after_the_end_says_so_and_changes_nothing() {
    let cluster = Cluster::start(Options::mock()).await;
    let body = completion("mock", "short", 4);
    let answer = cluster.client.post_as("over", PATH, &body).await;
    assert_eq!(answer.status, 200);
    assert_eq!(cluster.client.abort("over").await, "already ended");
    let router = cluster.metrics_of("router").await;
    assert_eq!(router.sum("innkeeper_tombstones", &[]), 0.0);
    assert_eq!(router.sum("innkeeper_rooms_ended_total", &[("reason", "done")]), 1.0);
    oracle(&cluster).await;
}
