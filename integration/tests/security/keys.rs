use std::path::Path;
use std::process::Command;
use std::time::Duration;

use innkeeper_integration::{Client, Cluster, Options, completion, oracle, program, rpc, until};
use innkeeper_node::security::{key_line, new_key};
use serde_json::Value;
use tonic::Code;

use crate::raw::{say, statuses};

const SOON: Duration = Duration::from_secs(20);

/// A key, and a file that lets it in as `tenant-a`.
pub(crate) fn key_file(dir: &Path) -> (String, std::path::PathBuf) {
    let key = new_key().unwrap();
    let path = dir.join("keys");
    std::fs::write(&path, format!("# tests\n{}\n", key_line("tenant-a", &key).unwrap())).unwrap();
    (key, path)
}

async fn locked(dir: &Path) -> (Cluster, String) {
    let (key, path) = key_file(dir);
    let options = Options::mock().key(&key).flag("api-keys-file", path.display());
    (Cluster::start(options).await, key)
}

/// The answer to a completion with these header lines.
async fn ask(cluster: &Cluster, path: &str, headers: &str) -> String {
    let body = completion("mock", "hello", 2).to_string();
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    );
    say(cluster.client.base(), request.as_bytes()).await
}

async fn refused(cluster: &Cluster, path: &str, headers: &str) {
    let said = ask(cluster, path, headers).await;
    assert_eq!(statuses(&said), [401], "{headers:?}: {said}");
    let (head, body) = said.split_once("\r\n\r\n").unwrap();
    let head = head.to_lowercase();
    assert!(head.contains("www-authenticate: bearer realm=\"innkeeper\""), "{said}");
    assert!(head.contains("x-request-id: "), "{said}");
    let error: Value = serde_json::from_str(body).unwrap();
    assert_eq!(error["error"]["code"], "invalid_api_key", "{said}");
    assert_eq!(error["error"]["type"], "invalid_request_error", "{said}");
}

#[tokio::test]
async fn without_the_key_nobody_gets_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, key) = locked(dir.path()).await;
    let bearer = |text: &str| format!("authorization: Bearer {text}\r\n");
    let said = ask(&cluster, "/v1/completions", &bearer(&key)).await;
    assert_eq!(statuses(&said), [200], "{said}");
    // The scheme is free in its case, as RFC 9110 has it.
    let said = ask(&cluster, "/v1/completions", &format!("Authorization: bearer {key}\r\n")).await;
    assert_eq!(statuses(&said), [200], "{said}");
    let before = cluster.router_metrics().await.sum("innkeeper_requests_total", &[]);

    let other = new_key().unwrap();
    for headers in [
        String::new(),
        bearer(&other),
        bearer(&key.to_uppercase()),
        bearer(&format!(" {key}")),
        bearer(&key[..key.len() - 1]),
        bearer(&format!("{key}{key}")),
        bearer(""),
        format!("authorization: Basic {key}\r\n"),
        format!("authorization: {key}\r\n"),
        format!("api-key: {key}\r\nx-api-key: {key}\r\n"),
        bearer(&key).repeat(2),
        format!("{}{}", bearer(&other), bearer(&key)),
    ] {
        refused(&cluster, "/v1/completions", &headers).await;
    }
    refused(
        &cluster,
        &format!("/v1/completions?api_key={key}&authorization=Bearer+{key}"),
        "",
    )
    .await;
    for path in ["/v1/chat/completions", "/abort_request"] {
        refused(&cluster, path, "").await;
    }
    let after = cluster.router_metrics().await;
    assert_eq!(
        after.sum("innkeeper_requests_total", &[]).to_bits(),
        before.to_bits(),
        "no request"
    );
    assert!(after.sum("innkeeper_unauthenticated_total", &[("why", "wrong")]) >= 5.0);
    assert!(after.sum("innkeeper_unauthenticated_total", &[("why", "missing")]) >= 5.0);
    over_grpc(&cluster, &key).await;
    oracle(&cluster).await;
}

async fn over_grpc(cluster: &Cluster, key: &str) {
    let mut client = cluster.inference().await;
    let status = client.generate(rpc::generate_text("hello", 2)).await.unwrap_err();
    assert_eq!(
        (status.code(), &*rpc::reason(&status)),
        (Code::Unauthenticated, "invalid_api_key")
    );
    let with = |key: &str| {
        let mut request = tonic::Request::new(rpc::generate_text("hello", 2));
        let bearer = format!("Bearer {key}").parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
        request
    };
    let status = client.generate(with(&new_key().unwrap())).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    let stream = client.generate(with(key)).await.unwrap().into_inner();
    assert_eq!(rpc::gather(stream).await.unwrap().ids[0].len(), 2);
}

#[tokio::test]
async fn what_machines_ask_stays_open_and_what_people_look_at_needs_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, key) = locked(dir.path()).await;
    let nobody = Client::of(cluster.client.base());
    for open in [
        "/health",
        "/ready",
        "/metrics",
        "/openapi.json",
        "/ui",
        "/ui/main.js",
        "/ui/config.json",
    ] {
        assert_eq!(nobody.get(open).await.unwrap().status, 200, "{open}");
    }
    let looks = [
        "nodes",
        "rooms",
        "node",
        "ended",
        "record/0000000000000007",
        "explain/0000000000000007",
    ];
    for looked in looks.map(|path| format!("/innkeeper/v1/{path}")) {
        let answer = nobody.get(&looked).await.unwrap();
        assert_eq!((answer.status, answer.code()), (401, "invalid_api_key"), "{looked}");
        let answer = cluster.client.get(&looked).await.unwrap();
        assert!([200, 404].contains(&answer.status), "{looked}: {answer:?}");
    }
    for unknown in ["/v2", "/innkeeper", "/v1x"] {
        assert_eq!(nobody.get(unknown).await.unwrap().status, 404, "{unknown}");
    }
    the_tools(&cluster, &key).await;
}

/// The commands look with a key as they do where none is asked for, and say what is missing without one.
async fn the_tools(cluster: &Cluster, key: &str) {
    cluster.client.complete(&completion("mock", "hello", 2)).await;
    for command in [
        &["ps"][..],
        &["rooms", "ls"],
        &["rooms", "ls", "--ended"],
        &["doctor", "--probe"],
        &["check"],
    ] {
        let done = cluster.run(command).await;
        let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        assert!(done.status.success(), "{command:?}: {said}");
        assert!(!said.contains(&key[3..]), "{command:?}: {said}");
    }
    let nobody = Command::new(program())
        .args(["ps", "--router", cluster.client.base()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&nobody.stderr);
    assert!(!nobody.status.success() && said.contains("INNKEEPER_API_KEY"), "{said}");
}

#[tokio::test]
async fn with_an_admin_key_clients_cannot_look_at_each_others_rooms() {
    let dir = tempfile::tempdir().unwrap();
    let (key, path) = key_file(dir.path());
    let options = Options::mock()
        .key("an-operators-key")
        .flag("api-keys-file", path.display());
    let cluster = Cluster::start(options.env("INNKEEPER_ADMIN_KEY", "an-operators-key")).await;
    let tenant = Client::of_key(cluster.client.base(), &key);
    let answer = tenant.get("/innkeeper/v1/rooms").await.unwrap();
    assert_eq!((answer.status, answer.code()), (401, "invalid_api_key"));
    assert_eq!(cluster.client.get("/innkeeper/v1/rooms").await.unwrap().status, 200);
    // And the operator's key is no client's.
    let body = completion("mock", "hello", 2);
    assert_eq!(cluster.client.post("/v1/completions", &body).await.status, 401);
    assert_eq!(tenant.post("/v1/completions", &body).await.status, 200);
}

#[tokio::test]
async fn keys_are_replaced_while_the_router_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, old) = locked(dir.path()).await;
    let body = completion("mock", "hello", 2);
    let mut stream = cluster.client.stream("/v1/completions", None, &body).await.unwrap();
    let new = new_key().unwrap();
    let fresh = dir.path().join("fresh");
    std::fs::write(&fresh, key_line("tenant-b", &new).unwrap()).unwrap();
    std::fs::rename(&fresh, dir.path().join("keys")).unwrap();
    let (other, base) = (Client::of_key(cluster.client.base(), &new), cluster.client.base());
    until(SOON, "the new key counts", || async {
        let answer = other.post("/v1/completions", &body).await;
        if answer.status == 200 {
            Ok(())
        } else {
            Err(answer.status)
        }
    })
    .await;
    assert_eq!(
        Client::of_key(base, &old).post("/v1/completions", &body).await.status,
        401
    );
    stream.rest().await.expect("what runs goes on");

    std::fs::write(dir.path().join("keys"), "broken").unwrap();
    until(SOON, "the broken file is seen", || async {
        let metrics = cluster.router_metrics().await;
        let failing = metrics.sum("innkeeper_reload_failing", &[("files", "api_keys")]);
        if failing > 0.0 { Ok(()) } else { Err(failing) }
    })
    .await;
    assert_eq!(
        other.post("/v1/completions", &body).await.status,
        200,
        "the keys before it count"
    );
    assert!(cluster.log("up").contains("cannot be used"), "and it is said");
}

#[test]
fn a_key_is_printed_once_and_its_line_can_be_made_again() {
    let run = |args: &[&str], input: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), input).unwrap();
        let command = Command::new(program())
            .args(args)
            .stdin(std::fs::File::open(file.path()).unwrap())
            .output();
        let done = command.unwrap();
        (
            done.status.code(),
            String::from_utf8(done.stdout).unwrap(),
            String::from_utf8(done.stderr).unwrap(),
        )
    };
    let (status, said, _) = run(&["key", "new", "tenant-a"], "");
    assert_eq!(status, Some(0));
    let word = |at: usize| said.lines().nth(at).unwrap().rsplit_once(": ").unwrap().1.to_owned();
    let (key, line) = (word(0), word(1));
    assert!(key.starts_with("ik-") && line.starts_with("tenant-a sha256:"), "{said}");
    let (status, again, _) = run(&["key", "hash", "tenant-a"], &format!("{key}\n"));
    assert_eq!((status, again.trim()), (Some(0), &*line));
    let (status, _, why) = run(&["key", "hash", "tenant-a"], "short");
    assert!(status == Some(64) && !why.contains("short"), "{why}");
}

#[tokio::test]
async fn many_explanations_at_once_are_bounded() {
    let cluster = Cluster::start(Options::mock().etcd()).await;
    // A worker that does not answer is waited for: so the questions overlap.
    let stopped = cluster.stop("decode-0").await;
    let asks = (0..24_u64).map(|room| {
        let client = cluster.client.clone();
        tokio::spawn(async move {
            client
                .get(&format!("/innkeeper/v1/explain/{:016x}", room + 7))
                .await
                .unwrap()
        })
    });
    let answers = futures::future::join_all(asks).await.into_iter().map(Result::unwrap);
    let (mut unknown, mut busy) = (0, 0);
    for answer in answers {
        match (answer.status, answer.code()) {
            (404, "unknown_room") => unknown += 1,
            (503, "overloaded") => {
                assert_eq!(answer.headers["retry-after"], "1");
                busy += 1;
            }
            _ => panic!("{answer:?}"),
        }
    }
    assert!(
        unknown >= 8 && busy >= 8,
        "{unknown} looked up, {busy} told to come again"
    );
    stopped.cont();
}
