use std::time::Instant;

use innkeeper_room::Role;
use innkeeper_room::ledger::Gauges;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::config::{NodeArgs, RecorderArgs};
use crate::net::Connections;
use crate::recorder::{Me, Recorder};
use crate::tasks::Tasks;
use crate::view::fake::FakeNode;

struct Served {
    addr: std::net::SocketAddr,
    state: Arc<std::sync::Mutex<NodeState>>,
    next_door: Arc<std::sync::Mutex<Option<innkeeper_engine::Seen>>>,
    tasks: Tasks,
}

impl Served {
    async fn start(node: FakeNode) -> Self {
        let state = Arc::clone(&node.state);
        let next_door = Arc::clone(&node.next_door);
        let view: Arc<dyn NodeView> = Arc::new(node);
        let metrics = Arc::new(NodeMetrics::new(Role::Decode, Arc::clone(&view)));
        let slow = get(|| async {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            "late"
        });
        let router = endpoints(Arc::clone(&view), metrics)
            .merge(looks(view, recorder()))
            .merge(Router::new().route("/slow", slow));
        let listener = CountingListener::bind(([127, 0, 0, 1], 0).into(), Connections::new("http", 16))
            .await
            .unwrap();
        let addr = listener.addr().unwrap();
        let tasks = Tasks::new();
        let stop = tasks.token().clone();
        let serving = async move { serve(listener, router, stop, Duration::from_millis(200)).await };
        tasks.spawn_watching("http_server", serving).unwrap();
        Self {
            addr,
            state,
            next_door,
            tasks,
        }
    }

    /// Status and body.
    async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.addr).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        tokio::time::timeout(Duration::from_secs(5), read)
            .await
            .unwrap()
            .unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    async fn json(&self, path: &str) -> (u16, serde_json::Value) {
        let (status, body) = self.get(path).await;
        (status, serde_json::from_str(&body).unwrap())
    }
}

/// That of a decode worker which has no rooms.
fn recorder() -> Recorder {
    let mut config = NodeArgs::default().resolve(Role::Decode).unwrap();
    config.run.recorder = RecorderArgs::nowhere().resolve();
    let me = Me {
        role: Role::Decode,
        name: "d".to_owned(),
        incarnation: innkeeper_room::Incarnation::new(0xd0),
        layout: None,
    };
    Recorder::in_memory(&config, me)
}

#[tokio::test]
async fn what_was_never_recorded_is_not_found_and_what_is_no_room_is_refused() {
    let served = Served::start(FakeNode::answering(Gauges::default())).await;
    assert_eq!(served.json("/innkeeper/v1/ended").await, (200, json!([])));
    for (path, status, code) in [("1", 404, "unknown_room"), ("zz", 400, "invalid_value")] {
        let (got, body) = served.json(&format!("/innkeeper/v1/record/{path}")).await;
        assert_eq!((got, &body["error"]["code"]), (status, &json!(code)), "{body}");
        assert!(body["error"]["message"].is_string() && body["error"]["type"].is_string());
    }
    assert_eq!(served.get("/innkeeper/v1/ended?limit=many").await.0, 400);
}

#[tokio::test]
async fn the_platform_is_told_when_the_engine_next_door_is_to_be_started_anew() {
    let served = Served::start(FakeNode::answering(Gauges::default())).await;
    assert_eq!(served.get("/engine/livez").await.0, 404, "it has none");
    for ending in [false, true, false] {
        *served.next_door.lock().unwrap() = Some(innkeeper_engine::Seen {
            ending,
            ..innkeeper_engine::Seen::default()
        });
        let expected = (if ending { 503 } else { 200 }, json!({ "restart_engine": ending }));
        assert_eq!(served.json("/engine/livez").await, expected);
    }
}

#[tokio::test]
async fn a_node_says_what_it_is_and_has() {
    let served = Served::start(FakeNode::answering(Gauges::default())).await;
    let expected = json!({
        "role": "decode", "name": "d \"0\"", "pid": 7, "incarnation": "00000000000000d0", "state": "serving",
        "http": "127.0.0.1:1", "control": "127.0.0.1:2", "data": "127.0.0.1:3", "revision": "7",
        "version": env!("CARGO_PKG_VERSION"),
    });
    let before = crate::recorder::unix_ms();
    let (status, mut node) = served.json("/innkeeper/v1/node").await;
    let time = node.as_object_mut().unwrap().remove("time_ms").unwrap();
    assert!((before..=crate::recorder::unix_ms()).contains(&time.as_u64().unwrap()));
    assert_eq!((status, node), (200, expected));
    let (status, rooms) = served.json("/innkeeper/v1/rooms").await;
    let row = json!([{
        "room": "000000000000feed", "request": 3, "attempt": 1, "phase": "waiting_for_input", "epoch": 2, "age_ms": 10,
        "phase_age_ms": 5, "deadline_ms": 100, "budget_ms": 200, "prefill": "0000000000000001",
        "decode": "00000000000000d0", "owner": "0000000000000003", "owes": "prefill", "leased": false,
    }]);
    assert_eq!((status, rooms), (200, row));
    let (status, health) = served.json("/health").await;
    assert_eq!(
        (status, &health["state"], &health["role"]),
        (200, &json!("serving"), &json!("decode"))
    );
    let (status, page) = served.get("/metrics").await;
    assert!(
        status == 200 && page.contains("innkeeper_stuck_rooms 0") && page.contains("name=\"d \\\"0\\\"\""),
        "{page}"
    );
}

#[tokio::test]
async fn a_draining_node_is_healthy_and_not_ready_and_a_failed_one_is_neither() {
    let served = Served::start(FakeNode::answering(Gauges::default())).await;
    for (state, health, ready) in [
        (NodeState::Starting, 200, 503),
        (NodeState::Serving, 200, 200),
        (NodeState::Draining, 200, 503),
        (NodeState::Failed, 503, 503),
    ] {
        *served.state.lock().unwrap() = state;
        assert_eq!(
            (served.get("/health").await.0, served.get("/ready").await.0),
            (health, ready),
            "{state:?}"
        );
    }
}

#[tokio::test]
async fn a_hung_ledger_is_unhealthy_within_a_second() {
    let served = Served::start(FakeNode::hung()).await;
    let began = Instant::now();
    let all = tokio::join!(
        served.get("/health"),
        served.get("/innkeeper/v1/rooms"),
        served.get("/metrics")
    );
    assert_eq!((all.0.0, all.1.0, all.2.0), (503, 503, 200));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(all.2.1.contains("innkeeper_ledger_answers 0"));
    assert_eq!(served.get("/innkeeper/v1/node").await.0, 200);
}

#[tokio::test]
async fn the_server_ends_within_its_limit_although_a_request_does_not() {
    let served = Served::start(FakeNode::answering(Gauges::default())).await;
    let mut stream = TcpStream::connect(served.addr).await.unwrap();
    stream
        .write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    // The request is under way once a later one was answered.
    assert_eq!(served.get("/ready").await.0, 200);
    let began = Instant::now();
    assert_eq!(served.tasks.shutdown(Duration::from_secs(3)).await, 0);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(2), stream.read_to_end(&mut rest))
        .await
        .unwrap();
    assert!(rest.is_empty());
}
