//! What nodes show of themselves, under load and while one of them is stopped: read by Prometheus's own tool, true, and
//! slowed by nobody. And what it costs a request to be traced.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use innkeeper_integration::{Answer, Client, Cluster, Metrics, Options, completion, oracle, until, within};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

const SOON: Duration = Duration::from_secs(20);
/// What a machine with two busy processors adds to a bound.
const STARVED: Duration = Duration::from_secs(1);

async fn page(http: &str, cluster: &Cluster) -> String {
    let answer = cluster.ask(http, "/metrics").await.unwrap();
    match answer.body {
        Value::String(text) if answer.status == 200 => text,
        other => panic!("{http}: {other}"),
    }
}

fn load(client: &Client, number: usize, body: &Value) -> JoinSet<Answer> {
    let mut asked = JoinSet::new();
    for _ in 0..number {
        let (client, body) = (client.clone(), body.clone());
        asked.spawn(async move { client.post("/v1/completions", &body).await });
    }
    asked
}

/// `promtool check metrics`. It does not know that colons and milliseconds are names of other projects, which are kept.
fn promtool(name: &str, page: &str) {
    let child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child =
        child.unwrap_or_else(|error| panic!("promtool cannot be run ({error}): apt-get install prometheus"));
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let foreign = |line: &str| line.starts_with("sglang:") || line.starts_with("vllm:");
    let ours: Vec<_> = said.lines().filter(|line| !foreign(line)).collect();
    assert!(ours.is_empty(), "{name}: {ours:#?}\n{page}");
    assert!(
        matches!(output.status.code(), Some(0 | 3)),
        "{name}: promtool could not read the page: {said}"
    );
}

#[tokio::test]
async fn every_process_is_read_by_prometheus_and_moves_as_others_do() {
    let options = Options::mock()
        .etcd()
        .ttl_ms(2000)
        .flag("mock-decode-us-per-token", 10_000)
        .flag("mock-kv-bytes-per-token", 4_096)
        .flag("transfer-max-bytes-per-second", 400_000);
    let cluster = Cluster::start(options).await;
    let nodes = cluster.ps().await;
    let http = |role: &str| {
        let node = nodes.iter().find(|node| node["role"] == role).unwrap();
        node["http"].as_str().unwrap().to_owned()
    };
    // Transfers of a second each, one after the other: some wait, one moves.
    let mut asked = load(&cluster.client, 6, &completion("mock", "load".repeat(25), 60));
    let seen = |http: String, names: &'static [&'static str]| {
        let cluster = &cluster;
        async move {
            for name in names {
                until(SOON, name, || async {
                    let metrics = cluster.metrics(&http).await?;
                    if metrics.sum(name, &[]) > 0.0 {
                        Ok(())
                    } else {
                        Err("0".to_owned())
                    }
                })
                .await;
            }
        }
    };
    seen(
        http("prefill"),
        &["sglang:num_prefill_inflight_queue_reqs", "vllm:num_requests_running"],
    )
    .await;
    seen(
        http("decode"),
        &[
            "sglang:num_decode_transfer_queue_reqs",
            "sglang:num_running_reqs",
            "vllm:kv_cache_usage_perc",
        ],
    )
    .await;
    seen(
        http("router"),
        &["vllm:num_requests_running", "vllm:kv_cache_usage_perc"],
    )
    .await;
    for node in &nodes {
        let http = node["http"].as_str().unwrap();
        promtool(node["name"].as_str().unwrap(), &page(http, &cluster).await);
    }
    while let Some(answer) = asked.join_next().await {
        assert_eq!(answer.unwrap().status, 200);
    }
    oracle(&cluster).await;
    for (role, names) in [
        (
            "prefill",
            [
                "sglang:num_prefill_inflight_queue_reqs",
                "sglang:num_prefill_bootstrap_queue_reqs",
            ],
        ),
        (
            "decode",
            [
                "sglang:num_decode_transfer_queue_reqs",
                "sglang:num_decode_prealloc_queue_reqs",
            ],
        ),
    ] {
        let metrics = cluster.metrics(&http(role)).await.unwrap();
        for name in names {
            assert!(metrics.has(name, &[]) && metrics.sum(name, &[]) == 0.0, "{name} stands");
        }
    }
    let prefill = cluster.metrics(&http("prefill")).await.unwrap();
    assert_eq!(prefill.sum("sglang:kv_transfer_speed_gb_s_count", &[]), 6.0);
    assert_eq!(prefill.sum("innkeeper_transfer_bytes_total", &[]), 6.0 * 100.0 * 4096.0);
    let lines = cluster.log("up");
    assert!(
        lines.contains("#inflight-req: "),
        "the log has no line in SGLang's shape"
    );
}

/// A handshake that cannot succeed, and a transfer that is cut: each is counted where SGLang counts it.
#[tokio::test]
async fn failures_are_counted_where_sglang_counts_them() {
    let options = Options::mock()
        .workers(1, 2)
        .etcd()
        .ttl_ms(2000)
        .flag("mock-kv-bytes-per-token", 4_096)
        .flag("transfer-max-bytes-per-second", 200_000)
        .fault("on");
    let cluster = Cluster::start(options).await;
    let counted = |metrics: &Metrics| {
        [
            "sglang:num_bootstrap_failed_reqs_total",
            "sglang:num_transfer_failed_reqs_total",
        ]
        .map(|name| metrics.sum(name, &[]))
    };
    assert_eq!(counted(&cluster.metrics_of("prefill-0").await), [0.0, 0.0]);
    let asked = cluster.submit(&completion("mock", "transfer".repeat(25), 2));
    let room = cluster.wait_phase("transferring", SOON).await;
    let victim = cluster.name_of(&room.decode).await;
    cluster.kill(&victim).await;
    assert_eq!(asked.await.unwrap().status, 200);
    assert_eq!(counted(&cluster.metrics_of("prefill-0").await), [0.0, 1.0]);
    cluster.wait_whole().await;
    for decode in ["decode-0", "decode-1"] {
        cluster.order(decode, "mute-data").await;
    }
    // Both attempts find a decode worker that does not answer the hello.
    let answer = cluster.submit(&completion("mock", "handshake", 2)).await.unwrap();
    assert_eq!(answer.code(), "handshake_timeout", "{answer:?}");
    assert_eq!(counted(&cluster.metrics_of("prefill-0").await), [2.0, 1.0]);
    let router = cluster.router_metrics().await;
    let evicted = |phase| router.sum("innkeeper_evictions_total", &[("phase", phase)]);
    assert_eq!(evicted("bootstrapping"), 2.0);
    assert!(router.sum("innkeeper_retries_total", &[]) >= 2.0);
}

#[tokio::test]
async fn a_stopped_worker_keeps_nobody_from_telling() {
    let cluster = Cluster::start(Options::mock().workers(1, 2).etcd().ttl_ms(2000)).await;
    let nodes = cluster.ps().await;
    let victim = cluster.node("decode-1").await["http"].clone();
    let stopped = cluster.stop("decode-1").await;
    for node in nodes.iter().filter(|node| node["http"] != victim) {
        let http = node["http"].as_str().unwrap();
        let metrics = within(Duration::from_secs(1) + STARVED, "a scrape", cluster.metrics(http)).await;
        assert_eq!(metrics.unwrap().sum("innkeeper_ledger_answers", &[]), 1.0, "{node}");
    }
    stopped.cont();
    cluster.wait_whole().await;
    oracle(&cluster).await;
}

#[tokio::test]
async fn a_lease_store_that_is_away_is_said_by_all_nodes() {
    let mut cluster = Cluster::start(Options::mock().etcd().ttl_ms(2000).flag("lease-after-ms", 0)).await;
    let nodes = cluster.ps().await;
    let all_say = async |cluster: &Cluster, degraded: f64| {
        for node in &nodes {
            until(SOON, "a node says whether the store is away", || async {
                let metrics = cluster.metrics(node["http"].as_str().unwrap()).await?;
                let says = metrics.sum("innkeeper_degraded", &[]);
                if says == degraded {
                    Ok(())
                } else {
                    Err(format!("{node}: {says}"))
                }
            })
            .await;
        }
    };
    all_say(&cluster, 0.0).await;
    cluster.etcd().stop();
    all_say(&cluster, 1.0).await;
    cluster.client.complete(&completion("mock", "without leases", 3)).await;
    let failed = [("operation", "grant"), ("outcome", "failed")];
    until(SOON, "the grant is given up", || async {
        let count = cluster
            .router_metrics()
            .await
            .sum("innkeeper_lease_operations_total", &failed);
        if count == 1.0 { Ok(()) } else { Err(count) }
    })
    .await;
    cluster.etcd().cont();
    all_say(&cluster, 0.0).await;
}

/// How long so many requests take, one after the other.
async fn time_of(cluster: &Cluster, number: u32) -> Duration {
    let body = completion("mock", "how long", 20);
    cluster.client.complete(&body).await;
    let began = Instant::now();
    for _ in 0..number {
        cluster.client.complete(&body).await;
    }
    began.elapsed()
}

/// A collector that takes connections and bytes and never answers.
async fn swallows() -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn(async move { tokio::io::copy(&mut stream, &mut tokio::io::sink()).await });
        }
    });
    (endpoint, task)
}

/// A request takes some 30 ms here, and an export three seconds: requests that waited for it would take a minute and a half.
#[tokio::test]
async fn no_collector_slows_a_request() {
    const REQUESTS: u32 = 30;
    let untraced = Cluster::start(Options::mock()).await;
    let usual = time_of(&untraced, REQUESTS).await;
    drop(untraced);
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    // The kernel takes connections, and nobody reads them.
    let full = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (swallowing, task) = swallows().await;
    let collectors = [
        ("gone", format!("http://{gone}"), "grpc"),
        ("gone", format!("http://{gone}"), "http"),
        ("black-holed", format!("http://{}", full.local_addr().unwrap()), "grpc"),
        ("slow", swallowing.clone(), "grpc"),
        ("slow", swallowing, "http"),
    ];
    for (what, endpoint, protocol) in collectors {
        let options = Options::mock().flag("otlp", &endpoint).flag("otlp-protocol", protocol);
        let cluster = Cluster::start(options).await;
        let took = time_of(&cluster, REQUESTS).await;
        eprintln!(
            "{what} over {protocol}: {} ms, usually {} ms",
            took.as_millis(),
            usual.as_millis()
        );
        assert!(
            took < usual * 3 + 10 * STARVED,
            "{what} over {protocol}: {took:?}, usually {usual:?}"
        );
        until(SOON, "lost spans are counted", || async {
            let router = cluster.router_metrics().await;
            let lost = router.sum("innkeeper_spans_total", &[("outcome", "export_failed")]);
            if lost > 0.0 { Ok(()) } else { Err(lost) }
        })
        .await;
        oracle(&cluster).await;
    }
    task.abort();
}
