use innkeeper_integration::{Cluster, Options, completion, oracle};
use serde_json::{Value, json};

use crate::raw::{say, statuses};

/// What other servers' routers tell their workers, asked for by a client.
const TRANSFER: [&str; 11] = [
    "kv_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "disagg_prefill_dp_rank",
    "data_parallel_rank",
    "rid",
    "request_id",
    "prefill",
    "decode",
    "token",
];

#[tokio::test]
async fn a_client_cannot_say_how_its_kv_travels() {
    let cluster = Cluster::start(Options::mock()).await;
    for name in TRANSFER {
        for value in [json!("10.0.0.1"), json!({ "remote_host": "10.0.0.1" }), json!(7)] {
            let mut body = completion("mock", "hello", 2);
            body[name] = value;
            let answer = cluster.client.post("/v1/completions", &body).await;
            assert_eq!(answer.status, 400, "{name}: {answer:?}");
            assert!(
                ["unknown_parameter", "unsupported_parameter"].contains(&answer.code()),
                "{name}: {answer:?}"
            );
            assert_eq!(answer.body["error"]["param"], name);
            let mut chat = json!({ "model": "mock", "messages": [{ "role": "user", "content": "hello" }] });
            chat[name] = Value::Null;
            chat[name] = json!(1);
            assert_eq!(
                cluster.client.post("/v1/chat/completions", &chat).await.status,
                400,
                "{name}"
            );
        }
    }
    oracle(&cluster).await;
}

/// A body with both lengths is read as chunks, and nothing after it on the connection is: what a proxy that went by the other
/// length would have let through as part of the body is never a request here.
#[tokio::test]
async fn a_request_with_two_lengths_is_one_request_and_the_last_of_its_connection() {
    let cluster = Cluster::start(Options::mock()).await;
    let smuggled = "GET /innkeeper/v1/nodes HTTP/1.1\r\nhost: x\r\n\r\n";
    let body = format!("0\r\n\r\n{smuggled}");
    for (first, second) in [
        ("content-length", "transfer-encoding"),
        ("transfer-encoding", "content-length"),
    ] {
        let value = |name: &str| {
            if name == "content-length" {
                body.len().to_string()
            } else {
                "chunked".to_owned()
            }
        };
        let request = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\n{first}: {}\r\n{second}: {}\r\n\r\n{body}",
            value(first),
            value(second)
        );
        let said = say(cluster.client.base(), request.as_bytes()).await;
        // The chunked body is empty, and so no JSON.
        assert_eq!(statuses(&said), [400], "{first} first: {said}");
        assert!(
            said.contains("invalid_json") && !said.contains("incarnation"),
            "{first} first: {said}"
        );
    }
    for wrong in [
        "content-length: 3\r\ncontent-length: 4\r\n",
        "content-length: +3\r\n",
        "content-length: -1\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "transfer-encoding: xchunked\r\n",
        "transfer-encoding : chunked\r\n",
        "x: a\r\n folded: transfer-encoding\r\n",
    ] {
        let request = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\n{wrong}\r\n{{}}{smuggled}");
        let said = say(cluster.client.base(), request.as_bytes()).await;
        assert_eq!(statuses(&said), [400], "{wrong:?}: {said}");
        assert!(!said.contains("incarnation"), "{wrong:?}: {said}");
    }
    oracle(&cluster).await;
}

#[tokio::test]
async fn no_path_leads_out_of_the_page() {
    let cluster = Cluster::start(Options::mock()).await;
    for path in [
        "/ui/../../etc/passwd",
        "/ui/..%2f..%2fetc%2fpasswd",
        "/ui/%2e%2e/%2e%2e/etc/passwd",
        "/ui/....//....//etc/passwd",
        "/ui/..\\..\\etc\\passwd",
        "/ui//etc/passwd",
        "/ui/main.js%00.html",
        "/ui/main.js/..",
        "/v1/models/../../etc/passwd",
        "/innkeeper/v1/record/..%2f..%2fetc%2fpasswd",
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let said = say(cluster.client.base(), request.as_bytes()).await;
        assert!(matches!(statuses(&said)[..], [400 | 404]), "{path}: {said}");
        assert!(!said.contains("root:"), "{path}: {said}");
    }
}
