use std::time::Instant;

use innkeeper_room::{Incarnation, Role};
use opentelemetry::trace::{Span as _, SpanKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::config::{OtlpConfig, OtlpProtocol};

fn config(endpoint: Option<String>, protocol: OtlpProtocol, ppm: u32) -> TelemetryConfig {
    TelemetryConfig {
        otlp: endpoint.map(|endpoint| OtlpConfig {
            endpoint,
            ca: None,
            protocol,
            headers: vec![("x-tenant".into(), "a".into())],
            ratio_ppm: ppm,
        }),
        jaeger: None,
        filter: "off".into(),
        format: LogFormat::Json,
    }
}

fn tracer(endpoint: String, protocol: OtlpProtocol, ppm: u32) -> Tracer {
    let config = config(Some(endpoint), protocol, ppm);
    Tracer::start(&config, Role::Router, "r", Incarnation::new(1))
        .unwrap()
        .unwrap()
}

fn count(tracer: &Tracer, what: &str) -> u64 {
    tracer
        .counts()
        .get()
        .into_iter()
        .find(|(name, _)| *name == what)
        .unwrap()
        .1
}

/// Thrice what the queue holds, ended one after the other.
fn flood(tracer: &Tracer) -> std::time::Duration {
    let began = Instant::now();
    for _ in 0..12_288 {
        tracer.span("room", SpanKind::Internal, None, vec![]).end();
    }
    began.elapsed()
}

async fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_down_slows_nothing_and_what_is_lost_is_counted() {
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::Http] {
        let tracer = tracer(free_address().await, protocol, 1_000_000);
        let took = flood(&tracer);
        assert!(took < std::time::Duration::from_secs(3), "{protocol:?}: {took:?}");
        assert!(count(&tracer, "queue_full") > 0, "{:?}", tracer.counts());
        tracer.flush(std::time::Duration::from_secs(10)).await;
        let counts = tracer.counts().get();
        assert_eq!(count(&tracer, "exported"), 0, "{counts:?}");
        assert!(count(&tracer, "export_failed") > 0, "{counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_takes_everything_and_says_nothing_slows_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    // Accepted by the kernel, and never read.
    let tracer = tracer(endpoint, OtlpProtocol::Http, 1_000_000);
    let took = flood(&tracer);
    assert!(took < std::time::Duration::from_secs(3), "{took:?}");
    let began = Instant::now();
    tracer.flush(std::time::Duration::from_millis(300)).await;
    assert!(
        began.elapsed() < std::time::Duration::from_secs(2),
        "the end waits for nobody"
    );
    drop(listener);
}

/// Takes one export over HTTP, and says what its head was.
async fn collect(listener: TcpListener) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut taken = vec![];
    let head = loop {
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece).await.unwrap();
        assert!(read > 0, "the exporter hung up: {}", String::from_utf8_lossy(&taken));
        taken.extend_from_slice(&piece[..read]);
        if let Some(end) = taken.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&taken[..end]).to_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .unwrap();
            if taken.len() >= end + 4 + length.parse::<usize>().unwrap() {
                break head;
            }
        }
    };
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        .await
        .unwrap();
    head
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http_spans_go_where_collectors_take_them_with_the_headers_asked_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let collected = tokio::spawn(collect(listener));
    let tracer = tracer(endpoint, OtlpProtocol::Http, 1_000_000);
    tracer.span("room", SpanKind::Internal, None, vec![]).end();
    tracer.flush(std::time::Duration::from_secs(5)).await;
    assert_eq!(count(&tracer, "exported"), 1, "{:?}", tracer.counts());
    let head = collected.await.unwrap();
    assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
    assert!(
        head.contains("x-tenant: a") && head.contains("content-type: application/x-protobuf"),
        "{head}"
    );
}

#[tokio::test]
async fn a_part_of_all_traces_is_a_decision_of_the_first_span() {
    let tracer = tracer(free_address().await, OtlpProtocol::Grpc, 0);
    let root = tracer.span("request", SpanKind::Server, None, vec![]);
    assert!(!root.is_recording());
    let passed_on = text(root.span_context());
    assert!(passed_on.ends_with("-00"), "{passed_on}");
    let child = tracer.span("room", SpanKind::Internal, parse(&passed_on).as_ref(), vec![]);
    assert!(!child.is_recording());
    let parent = parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let followed = tracer.span("room", SpanKind::Internal, parent.as_ref(), vec![]);
    assert!(followed.is_recording(), "a caller that samples is followed");
    assert_eq!(followed.span_context().trace_id(), parent.unwrap().trace_id());
}

#[tokio::test]
async fn without_a_collector_there_is_no_tracer() {
    let none = Tracer::start(
        &config(None, OtlpProtocol::Grpc, 0),
        Role::Decode,
        "d",
        Incarnation::new(1),
    )
    .unwrap();
    assert!(none.is_none());
}

#[test]
fn the_log_is_set_up_once() {
    let config = config(None, OtlpProtocol::Grpc, 0);
    init_log(&config).unwrap();
    assert!(matches!(init_log(&config), Err(TelemetryError::Twice(_))));
}
