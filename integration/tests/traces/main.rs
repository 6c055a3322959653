//! One trace per request over all processes, as a real Jaeger tells it: of a healthy request, one whose connection broke
//! and was made again, a retried one, a migrated one, an evicted one and an aborted one.
//!
//! `demo` prints them: `make trace-demo`.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod scene;
mod whole;

use innkeeper_integration::{Cluster, Jaeger, Options, Trace, completion, oracle};
use scene::Scene;
use whole::{Expected, check};

#[tokio::test]
async fn every_kind_of_request_is_one_whole_trace() {
    let scene = Scene::start().await;
    healthy(&scene.healthy().await, &scene).await;
    restarted(&scene.restarted().await);
    evicted(&scene.evicted().await);
    aborted(&scene.aborted().await);
    retried(&scene.retried().await);
    scene.cluster.wait_whole().await;
    migrated(&scene.migrated().await);
    scene.cluster.wait_whole().await;
    oracle(&scene.cluster).await;
    for node in ["router", "prefill-0", "prefill-1"] {
        let metrics = scene.cluster.metrics_of(node).await;
        assert!(
            metrics.sum("innkeeper_spans_total", &[("outcome", "exported")]) > 0.0,
            "{node}"
        );
        for lost in ["queue_full", "export_failed"] {
            assert_eq!(
                metrics.sum("innkeeper_spans_total", &[("outcome", lost)]),
                0.0,
                "{node}: {lost}"
            );
        }
    }
}

/// Prints the trees.
#[tokio::test]
#[ignore = "for people: make trace-demo"]
async fn demo() {
    let scene = Scene::start().await;
    println!("\nA healthy request:\n{}", scene.healthy().await);
    println!("One whose data connection broke:\n{}", scene.restarted().await);
    println!(
        "One whose room was evicted (its lease was revoked by hand):\n{}",
        scene.evicted().await
    );
    println!("One that its client aborted:\n{}", scene.aborted().await);
    println!(
        "One that was retried (its decode worker was killed during the transfer):\n{}",
        scene.retried().await
    );
    scene.cluster.wait_whole().await;
    println!(
        "One that migrated (its decode worker was killed while it spoke):\n{}",
        scene.migrated().await
    );
}

async fn healthy(trace: &Trace, scene: &Scene) {
    check(trace, &Expected::rooms(1, 1, 1));
    let http = trace.one("POST /v1/completions");
    assert_eq!(http.attribute("http.response.status_code"), "200");
    assert_eq!(http.attribute("gen_ai.operation.name"), "text_completion");
    assert_eq!(http.attribute("gen_ai.request.model"), "mock");
    assert_eq!(http.attribute("gen_ai.usage.output_tokens"), "200");
    assert_eq!(
        trace
            .spans
            .iter()
            .find(|span| span.error.is_some())
            .map(|span| &span.name),
        None,
        "{trace}"
    );
    let room = trace.one("room");
    for event in ["lease granted", "lease renewed", "started", "verdict", "part ended"] {
        assert!(room.event(event).is_some(), "no `{event}`:\n{trace}");
    }
    assert_eq!(room.attribute("innkeeper.verdict"), "done");
    for (worker, node) in [
        ("prefill room", "innkeeper.prefill"),
        ("decode room", "innkeeper.decode"),
    ] {
        assert_eq!(
            trace.one(worker).instance,
            room.attribute(node),
            "the worker's own life:\n{trace}"
        );
    }
    assert_eq!(http.instance, scene.cluster.node("router").await["incarnation"]);
    for moved in ["transfer", "receive"] {
        let span = trace.one(moved);
        assert!(number(span.attribute("innkeeper.bytes")) > 0.0, "{trace}");
        assert!(number(span.attribute("innkeeper.pages")) > 0.0, "{trace}");
        assert!(number(span.attribute("innkeeper.bytes_per_second")) > 0.0, "{trace}");
        assert_eq!(span.attribute("innkeeper.epoch"), "1");
    }
    assert_eq!(trace.one("stream").attribute("innkeeper.tokens"), "200");
}

fn restarted(trace: &Trace) {
    check(trace, &Expected::rooms(1, 1, 1));
    let transfers = trace.named("transfer");
    let epochs: Vec<_> = transfers.iter().map(|span| span.attribute("innkeeper.epoch")).collect();
    assert_eq!(epochs, ["1", "2"], "{trace}");
    assert_eq!(
        transfers[0].error.as_deref(),
        Some("the data connection broke"),
        "{trace}"
    );
    assert_eq!(transfers[1].error, None, "{trace}");
    // Of an epoch that breaks before decode has reported anything in it there is no span, but an event.
    let received: Vec<_> = trace.named("receive").iter().map(|span| span.error.clone()).collect();
    let broke = [Some("the data connection broke".to_owned()), None];
    assert!(received == broke || received == broke[1..], "{trace}");
    for part in ["prefill room", "decode room"] {
        let part = trace.one(part);
        assert!(
            part.event("data connection broke").is_some() && part.event("restart").is_some(),
            "{trace}"
        );
    }
    assert!(trace.one("room").event("restart").is_some(), "{trace}");
    assert_eq!(trace.one("request").error, None);
}

/// The lease of its first room was revoked by hand while it spoke: the room is evicted, the request is not.
fn evicted(trace: &Trace) {
    check(trace, &Expected::rooms(2, 2, 2));
    let rooms = trace.named("room");
    assert_eq!(
        rooms[0].error.as_deref(),
        Some("lease_revoked: blame nobody"),
        "{trace}"
    );
    let eviction = rooms[0]
        .event("eviction")
        .unwrap_or_else(|| panic!("no eviction:\n{trace}"));
    assert_eq!(eviction["innkeeper.verdict"], "lease_revoked");
    assert_eq!(eviction["innkeeper.phase"], "decoding");
    assert!(rooms[0].event("lease lost: its door is gone").is_some(), "{trace}");
    let ended = trace.named("decode room")[0].error.clone().unwrap_or_default();
    assert!(ended.starts_with("lease_revoked"), "{ended}:\n{trace}");
    attempts(trace, "lease_revoked");
}

fn aborted(trace: &Trace) {
    check(trace, &Expected::rooms(1, 1, 1));
    let http = trace.one("POST /v1/completions");
    assert_eq!(http.attribute("http.response.status_code"), "499");
    assert_eq!(http.error.as_deref(), Some("aborted"), "{trace}");
    assert!(trace.one("room").event("eviction").is_none(), "{trace}");
    for name in ["request", "room", "decode room"] {
        let error = trace.one(name).error.clone().unwrap_or_default();
        assert!(error.starts_with("aborted"), "{name}: {error}:\n{trace}");
    }
    assert_eq!(
        trace.one("decode room").event("abort").unwrap()["innkeeper.reason"],
        "aborted"
    );
}

/// Its decode worker was killed: that worker's spans went with it, and the other two tell what happened.
fn retried(trace: &Trace) {
    check(trace, &Expected::rooms(2, 2, 1));
    let rooms = trace.named("room");
    assert_eq!(rooms[0].error.as_deref(), Some("decode_lost: blame decode"), "{trace}");
    assert_eq!(
        rooms[0].attribute("innkeeper.blame.node"),
        rooms[0].attribute("innkeeper.decode")
    );
    let left = trace.named("prefill room");
    assert_eq!(
        left[0].parent, rooms[0].id,
        "the other worker's spans of the lost room:\n{trace}"
    );
    assert!(left[0].error.is_some(), "{trace}");
    attempts(trace, "decode_lost");
    assert!(trace.one("request").event("retry").is_some(), "{trace}");
}

/// The same after tokens had passed: another room goes on where the first one had got to.
fn migrated(trace: &Trace) {
    check(trace, &Expected::rooms(2, 2, 1));
    attempts(trace, "decode_lost");
    let event = trace.one("request").event("migration");
    let passed = &event.unwrap_or_else(|| panic!("no migration:\n{trace}"))["innkeeper.passed_tokens"];
    assert!(number(passed) > 0.0, "{trace}");
    assert_eq!(trace.named("attempt")[1].attribute("innkeeper.passed_tokens"), passed);
    assert_eq!(trace.one("stream").attribute("innkeeper.tokens"), "200", "{trace}");
    assert_eq!(trace.named("prefill room")[0].attribute("innkeeper.end"), "handed_over");
}

/// Two attempts: the first failed for this, the second points at it and was done.
fn attempts(trace: &Trace, reason: &str) {
    let attempts = trace.named("attempt");
    assert_eq!(attempts.len(), 2, "{trace}");
    let why = attempts[0].error.clone().unwrap_or_default();
    assert!(why.starts_with(reason), "{why}:\n{trace}");
    assert_eq!(attempts[1].error, None, "{trace}");
    assert_eq!(attempts[1].links, [attempts[0].id.clone()], "{trace}");
    assert_eq!(trace.one("request").error, None, "{trace}");
    assert_eq!(trace.one("POST /v1/completions").error, None, "{trace}");
    assert_eq!(trace.named("admission").len(), 2, "{trace}");
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or(0.0)
}

/// Over HTTP, all nodes in one process, each a service of its own; and only what is sampled.
#[tokio::test]
async fn over_http_each_node_of_a_process_is_a_service_of_its_own() {
    let jaeger = Jaeger::start().await;
    let options = Options::mock()
        .flag("otlp", jaeger.otlp_http())
        .flag("otlp-protocol", "http")
        .flag("otlp-headers", "x-tenant=a,x-more=b")
        .flag("trace-ratio", 0);
    let cluster = Cluster::start(options).await;
    let body = completion("mock", "one process", 5);
    // Nobody asked for a trace, and the ratio is 0.
    cluster.client.complete(&body).await;
    let trace = scene::ask(&cluster, &jaeger, 1, &body, Expected::rooms(1, 1, 1)).await;
    check(&trace, &Expected::rooms(1, 1, 1));
    let metrics = cluster.metrics_of("router").await;
    let exported = metrics.sum("innkeeper_spans_total", &[("outcome", "exported")]);
    let own = trace
        .spans
        .iter()
        .filter(|span| span.service == "innkeeper-router")
        .count();
    #[expect(clippy::cast_precision_loss, reason = "a few spans")]
    let own = own as f64;
    assert_eq!(exported, own, "what is not sampled is not sent");
}

/// Behind TLS, over both protocols, and with what Kubernetes says of a process in its environment.
#[tokio::test]
async fn a_collector_behind_tls_gets_spans_that_say_where_they_come_from() {
    let jaeger = Jaeger::start_secure().await;
    for (number, protocol, endpoint) in [(1, "grpc", jaeger.otlp_grpc()), (2, "http", jaeger.otlp_http())] {
        let options = Options::mock()
            .env("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=pod-1,service.name=ignored")
            .flag("otlp", endpoint)
            .flag("otlp-protocol", protocol)
            .flag("otlp-ca", jaeger.ca().display());
        let cluster = Cluster::start(options).await;
        let body = completion("mock", "behind TLS", 5);
        let trace = scene::ask(&cluster, &jaeger, number, &body, Expected::rooms(1, 1, 1)).await;
        check(&trace, &Expected::rooms(1, 1, 1));
        for span in &trace.spans {
            let pod = span.resource.get("k8s.pod.name").map(String::as_str);
            assert_eq!(pod, Some("pod-1"), "{protocol}: {span:?}");
        }
    }
}
