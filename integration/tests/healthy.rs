//! A cluster in which nothing goes wrong: answers, commands, endpoints, metrics, start and end.

use std::time::Duration;

use innkeeper_integration::{Cluster, Options, completion, oracle, program, signal, until};
use rustix::process::Signal;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(20);

fn chat(stream: bool) -> Value {
    let mut body = json!({
        "model": "mock", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0,
        "ignore_eos": true,
    });
    if stream {
        body["stream_options"] = json!({ "include_usage": true });
    }
    body
}

/// The text of a stream, its finish reason, and its usage.
fn gather(events: &[Value]) -> (String, String, Value) {
    let (mut text, mut finish, mut usage) = (String::new(), String::new(), Value::Null);
    for event in events {
        let choice = &event["choices"][0];
        text += choice["text"]
            .as_str()
            .or(choice["delta"]["content"].as_str())
            .unwrap_or_default();
        finish += choice["finish_reason"].as_str().unwrap_or_default();
        if !event["usage"].is_null() {
            usage = counted(&event["usage"]);
        }
    }
    (text, finish, usage)
}

/// Usage without what of the prompt was found in a cache: of the same request that is more the second time.
fn counted(usage: &Value) -> Value {
    let mut usage = usage.clone();
    let details = usage
        .as_object_mut()
        .and_then(|usage| usage.remove("prompt_tokens_details"));
    assert!(details.is_some(), "{usage}");
    usage
}

#[tokio::test]
async fn chat_and_completions_answer_the_same_streamed_and_whole() {
    let cluster = Cluster::start(Options::mock()).await;
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let body = |stream| {
            let mut body = chat(stream);
            if path == "/v1/completions" {
                body.as_object_mut().unwrap().remove("messages");
                body["prompt"] = json!("Hello");
            }
            body
        };
        let whole = cluster.client.post(path, &body(false)).await;
        assert_eq!(whole.status, 200, "{whole:?}");
        let choice = &whole.body["choices"][0];
        let text = choice["text"]
            .as_str()
            .or(choice["message"]["content"].as_str())
            .unwrap();
        assert_eq!(choice["finish_reason"], "length");
        assert_eq!(whole.body["usage"]["completion_tokens"], 8);

        let mut stream = cluster.client.stream(path, None, &body(true)).await.unwrap();
        assert_eq!(stream.status, 200);
        let (streamed, finish, usage) = gather(&stream.rest().await.unwrap());
        assert_eq!(streamed, text);
        assert_eq!(finish, "length");
        assert_eq!(usage, counted(&whole.body["usage"]));
    }
    oracle(&cluster).await;
}

#[tokio::test]
async fn thirty_two_at_once_on_two_pairs_answer_as_one_at_a_time() {
    let cluster = Cluster::start(Options::mock().workers(2, 2)).await;
    let body = |number: usize| completion("mock", format!("prompt {}", "x".repeat(number * 7)), 16);
    let bodies: Vec<_> = (0..32).map(body).collect();
    let at_once = futures::future::join_all(bodies.iter().map(|body| cluster.client.complete(body))).await;
    for (body, answer) in bodies.iter().zip(&at_once) {
        assert_eq!(cluster.client.complete(body).await.token_ids(), answer.token_ids());
    }
    for worker in ["prefill-0", "prefill-1", "decode-0", "decode-1"] {
        let steps = cluster
            .metrics_of(worker)
            .await
            .sum("innkeeper_engine_steps_total", &[]);
        assert!(steps > 0.0, "{worker} computed nothing");
    }
    let router = cluster.metrics_of("router").await;
    assert_eq!(router.sum("innkeeper_requests_total", &[("outcome", "done")]), 64.0);
    assert_eq!(router.sum("innkeeper_requests_total", &[]), 64.0);
    oracle(&cluster).await;
}

#[tokio::test]
async fn the_commands_show_every_field_that_scripts_rely_on() {
    let slow = Options::mock().workers(2, 2).flag("mock-decode-us-per-token", 50_000);
    let cluster = Cluster::start(slow).await;
    let nodes = cluster.ps().await;
    let mut roles: Vec<_> = nodes.iter().map(|node| node["role"].as_str().unwrap()).collect();
    roles.sort_unstable();
    assert_eq!(roles, ["decode", "decode", "prefill", "prefill", "router"]);
    for node in &nodes {
        for field in ["role", "name", "incarnation", "state", "http", "control", "data"] {
            assert!(node[field].is_string(), "{field} of {node}");
        }
        assert!(node["pid"].is_u64() && node["state"] == "serving", "{node}");
    }

    let mut stream = cluster
        .client
        .stream("/v1/completions", None, &completion("mock", "hi", 60))
        .await
        .unwrap();
    // It is given its lease once it has lived for a moment.
    let rooms = until(SOON, "a leased room decodes", || async {
        let rooms = cluster.try_rooms().await.unwrap();
        let found = rooms.iter().any(|room| room.phase == "decoding" && room.leased);
        if found { Ok(rooms) } else { Err(format!("{rooms:?}")) }
    })
    .await;
    let [room] = rooms.as_slice() else { panic!("{rooms:?}") };
    let incarnation = |role| {
        let of = nodes.iter().filter(move |node| node["role"] == role);
        of.map(|node| node["incarnation"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(incarnation("prefill").contains(&room.prefill), "{room:?}");
    assert!(incarnation("decode").contains(&room.decode), "{room:?}");
    assert!(incarnation("router").contains(&room.owner), "{room:?}");
    assert_eq!((room.attempt, room.epoch, room.phase.as_str()), (1, 1, "decoding"));
    assert_eq!(room.owes, "decode");
    assert!(room.age_ms >= room.phase_age_ms && room.deadline_ms > 0, "{room:?}");

    let shown = cluster.run(&["rooms", "show", &room.room, "--json"]).await;
    let parts: Vec<Value> = serde_json::from_slice(&shown.stdout).unwrap();
    assert!(parts.iter().any(|part| part["role"] == "router"), "{parts:?}");
    assert!(parts.iter().any(|part| part["role"] == "decode"), "{parts:?}");
    stream.rest().await.unwrap();
    oracle(&cluster).await;
    let none = cluster.run(&["rooms", "show", &room.room]).await;
    assert!(!none.status.success(), "a room that is over is not shown");
}

#[tokio::test]
async fn every_node_serves_health_and_all_metrics_at_its_own_address() {
    let cluster = Cluster::start(Options::mock().workers(2, 2)).await;
    cluster.client.complete(&completion("mock", "one", 4)).await;
    let nodes = cluster.ps().await;
    let mut seen = std::collections::BTreeSet::new();
    for node in &nodes {
        let http = node["http"].as_str().unwrap();
        assert!(seen.insert(http), "{http} is of two nodes");
        let health = cluster.ask(http, "/health").await.unwrap();
        assert_eq!(health.status, 200, "{node}: {health:?}");
        let metrics = cluster.metrics(http).await.unwrap();
        let role = node["role"].as_str().unwrap();
        for (name, labels) in [
            ("innkeeper_rooms", vec![("role", role), ("phase", "queued")]),
            ("innkeeper_rooms", vec![("role", role), ("phase", "transferring")]),
            ("innkeeper_pages", vec![("state", "free")]),
            ("innkeeper_pages", vec![("state", "cached")]),
            ("innkeeper_pages", vec![("state", "held")]),
            ("innkeeper_pages", vec![("state", "quarantined")]),
            ("innkeeper_pages_total", vec![]),
            ("innkeeper_permits", vec![("kind", "room")]),
            ("innkeeper_tasks", vec![("kind", "http_server")]),
            ("innkeeper_connections", vec![("kind", "http")]),
            ("innkeeper_tombstones", vec![]),
            ("innkeeper_zombies", vec![]),
            ("innkeeper_stuck_rooms", vec![]),
        ] {
            assert!(metrics.has(name, &labels), "{node} has no {name}{labels:?}");
        }
    }
    let router = cluster.metrics_of("router").await;
    assert_eq!(
        router.sum(
            "innkeeper_rooms_ended_total",
            &[("reason", "done"), ("blame", "nobody")]
        ),
        1.0
    );
    assert_eq!(router.sum("innkeeper_requests_total", &[("outcome", "done")]), 1.0);
    for path in ["/health", "/ready", "/metrics", "/v1/models"] {
        assert_eq!(cluster.client.get(path).await.unwrap().status, 200, "{path}");
    }
    oracle(&cluster).await;
}

#[tokio::test]
async fn generate_through_the_cluster_equals_monolithic() {
    // The mock has no weights to run alone with the cluster's model, so both are told to be mocks.
    let cluster = Cluster::start(Options::mock()).await;
    for raw in [&["--raw"][..], &[]] {
        let ask = [
            &["generate", "Tell me more", "--engine", "mock", "--max-tokens", "20"],
            raw,
        ]
        .concat();
        let through = cluster.run(&ask).await;
        let alone = cluster.run(&[&ask[..], &["--monolithic"]].concat()).await;
        assert!(
            through.status.success() && alone.status.success(),
            "{through:?} {alone:?}"
        );
        assert!(!through.stdout.is_empty());
        assert_eq!(
            through.stdout,
            alone.stdout,
            "{}",
            String::from_utf8_lossy(&through.stdout)
        );
    }
    oracle(&cluster).await;
}

#[tokio::test]
async fn with_etcd_nodes_are_processes_that_register_and_deregister() {
    let mut cluster = Cluster::start(Options::mock().workers(2, 2).etcd().ttl_ms(2000)).await;
    let nodes = cluster.ps().await;
    let pids: std::collections::BTreeSet<_> = nodes.iter().map(|node| node["pid"].as_u64()).collect();
    assert_eq!(pids.len(), 5, "each node is a process of its own");
    let mut members: Vec<_> = nodes
        .iter()
        .map(|node| format!("/innkeeper/v1/members/{}", node["incarnation"].as_str().unwrap()))
        .collect();
    members.sort_unstable();
    assert_eq!(cluster.keys().await.unwrap(), members);
    let bodies: Vec<_> = (0..8)
        .map(|number| completion("mock", "p".repeat(1 + number * 40), 12))
        .collect();
    futures::future::join_all(bodies.iter().map(|body| cluster.client.complete(body))).await;
    oracle(&cluster).await;

    let status = cluster.interrupt().expect("Ctrl-C ends the cluster");
    assert!(status.success(), "{status}");
    assert_eq!(
        cluster.keys().await.unwrap(),
        Vec::<String>::new(),
        "members deregister"
    );
    assert!(
        cluster.stdout().starts_with("innkeeper is ready: http://127.0.0.1:"),
        "{}",
        cluster.stdout()
    );
    assert_eq!(cluster.stdout().lines().count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_a_cluster_in_one_process() {
    let mut cluster = Cluster::start(Options::mock()).await;
    let body = completion("mock", "hi", 700);
    // What runs may finish: its time is within the drain's.
    let client = cluster.client.clone();
    let answer = tokio::spawn(async move { client.post("/v1/completions", &body).await });
    cluster.wait_phase("decoding", SOON).await;
    let status = tokio::task::block_in_place(|| cluster.interrupt());
    assert_eq!(answer.await.unwrap().status, 200);
    assert!(status.expect("Ctrl-C ends the cluster").success());
}

#[tokio::test]
async fn a_worker_process_that_died_is_started_again_and_used() {
    let cluster = Cluster::start(Options::mock().etcd().ttl_ms(2000)).await;
    let body = completion("mock", "the same", 8);
    let before = cluster.client.complete(&body).await.token_ids();
    for worker in ["prefill-0", "decode-0"] {
        let old = cluster.node(worker).await;
        signal(u32::try_from(old["pid"].as_u64().unwrap()).unwrap(), Signal::KILL);
        until(SOON, "a new life serves", || async {
            let nodes = cluster.try_ps().await?;
            let new = nodes
                .iter()
                .find(|node| node["name"] == worker && node["state"] == "serving");
            let new = new.filter(|new| new["incarnation"] != old["incarnation"]);
            new.map(drop).ok_or(format!("{nodes:?}"))
        })
        .await;
        assert_eq!(
            cluster.client.complete(&body).await.token_ids(),
            before,
            "after {worker} was replaced"
        );
    }
    oracle(&cluster).await;
}

#[test]
fn a_wrong_flag_is_refused_with_its_name_and_status_64() {
    for (flag, value) in [
        ("--prefill", "0"),
        ("--prefill", "many"),
        ("--listen", "nowhere"),
        ("--engine", "steam"),
        ("--progress-ttl-ms", "0"),
        ("--max-attempts", "0"),
        ("--mock-kv-bytes-per-token", "3"),
        ("--etcd", "ftp://x"),
        ("--no-such-flag", "1"),
    ] {
        let output = std::process::Command::new(program())
            .args([
                "up",
                "--engine=mock",
                "--listen=127.0.0.1:0",
                &format!("{flag}={value}"),
            ])
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{flag}={value}: {stderr}");
        assert!(stderr.contains(flag), "{flag}={value}: {stderr}");
        assert!(output.stdout.is_empty());
    }
    let variable = std::process::Command::new(program())
        .args(["up", "--engine=mock"])
        .env("INNKEEPER_PROGRESS_TTL_MS", "soon")
        .output()
        .unwrap();
    assert_eq!(variable.status.code(), Some(64), "{variable:?}");
}
