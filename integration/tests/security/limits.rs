use std::time::{Duration, Instant};

use innkeeper_integration::{Cluster, Options, completion, oracle, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::raw::{connect, say, statuses};

const SOON: Duration = Duration::from_secs(20);
const HEAD: Duration = Duration::from_millis(1000);
const BODY: Duration = Duration::from_millis(1500);
/// Far beyond the deadlines above; a starved machine.
const LATE: Duration = Duration::from_secs(15);
const CONNECTIONS: usize = 12;

async fn cluster() -> Cluster {
    let options = Options::mock()
        .flag("http-head-timeout-ms", HEAD.as_millis())
        .flag("client-stall-ms", BODY.as_millis())
        .flag("http-connections", CONNECTIONS)
        .flag("mock-decode-us-per-token", 10_000);
    Cluster::start(options).await
}

/// Sends these bytes one by one until the server closes: how long that took, and what it said.
async fn drip(mut stream: TcpStream, head: &str, bytes: &[u8]) -> (Duration, String) {
    let began = Instant::now();
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut read, mut write) = stream.split();
    let mut said = vec![];
    let dripping = async {
        for byte in bytes {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if write.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = dripping => {}
        // A reset ends it as well.
        got = tokio::time::timeout(LATE, read.read_to_end(&mut said)) => drop(got.expect("the server gives it up")),
    }
    (began.elapsed(), String::from_utf8_lossy(&said).into_owned())
}

/// A minute of bytes at ten a second.
const LONG: [u8; 600] = [b'a'; 600];

#[tokio::test]
async fn who_is_slow_is_given_up_and_holds_up_nobody() {
    let cluster = cluster().await;
    let base = cluster.client.base();
    // An answer may take longer than any head: three times as long.
    let client = cluster.client.clone();
    let long = tokio::spawn(async move {
        let body = completion("mock", "hello", 300);
        client
            .stream("/v1/completions", None, &body)
            .await
            .unwrap()
            .rest()
            .await
    });
    // Nothing at all; half of what tells the protocol; a head byte by byte; the same as HTTP/2 would begin.
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-slow: ";
    let slow = [("", &b""[..]), ("PRI * HT", b""), (head, &LONG), ("", head.as_bytes())];
    for (first, then) in slow {
        let (took, said) = drip(connect(base).await, first, then).await;
        assert!(took >= HEAD / 2 && took < LATE, "{first:?}: {took:?}");
        assert!(matches!(statuses(&said)[..], [] | [408]), "{first:?}: {said}");
    }
    // A body, byte by byte.
    let body = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 600\r\nconnection: close\r\n\r\n";
    let (took, said) = drip(connect(base).await, body, &LONG).await;
    assert!(took >= BODY && took < LATE, "{took:?}");
    assert_eq!(statuses(&said), [408], "{said}");
    assert!(said.contains("body_timeout"), "{said}");
    let events = long.await.unwrap().expect("who reads is served to the end");
    assert!(events.len() > 2, "{} events", events.len());
    cluster.client.complete(&completion("mock", "hello", 2)).await;
    oracle(&cluster).await;
}

#[tokio::test]
async fn who_is_too_many_is_refused_at_once_and_the_others_are_served() {
    let cluster = cluster().await;
    let base = cluster.client.base();
    // A request that runs holds one of the places.
    let body = completion("mock", "hello", 200);
    let mut stream = cluster.client.stream("/v1/completions", None, &body).await.unwrap();
    let mut held = vec![];
    for _ in 0..40 {
        held.push(connect(base).await);
    }
    for stream in &mut held[CONNECTIONS..] {
        let closed = tokio::time::timeout(SOON, stream.read(&mut [0; 1])).await;
        assert_eq!(closed.expect("closed").unwrap_or(0), 0);
    }
    stream.rest().await.expect("who was in is served");
    // The silent ones lose their places after the head's time, and everybody gets in again.
    until(SOON, "there is a place again", || async {
        let answer = cluster
            .client
            .try_post("/v1/completions", None, &completion("mock", "hello", 2))
            .await;
        match answer {
            Ok(answer) if answer.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    drop(held);
    let refused = cluster
        .router_metrics()
        .await
        .sum("innkeeper_connections_refused_total", &[("kind", "http")]);
    // One that waited for a place would have had it after the head's time.
    assert!(refused >= 28.0, "{refused} are counted");
}

#[tokio::test]
async fn what_is_too_large_is_refused_by_its_kind() {
    let cluster = Cluster::start(Options::mock()).await;
    let base = cluster.client.base();
    let refused = async |request: Vec<u8>, status: u16, code: &str| {
        let said = say(base, &request).await;
        assert_eq!(
            statuses(&said),
            [status],
            "{code}: {}",
            said.chars().take(400).collect::<String>()
        );
        assert!(code.is_empty() || said.contains(code), "{code}: {said}");
    };
    let get = |path: &str, headers: &str| {
        format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n").into_bytes()
    };
    refused(
        get("/v1/models", &format!("x-large: {}\r\n", "a".repeat(40 << 10))),
        431,
        "headers_too_large",
    )
    .await;
    refused(get("/v1/models", &"x-many: a\r\n".repeat(80)), 431, "headers_too_large").await;
    refused(get("/v1/models", &"x-many: a\r\n".repeat(4000)), 431, "").await;
    refused(
        get(&format!("/v1/models/{}", "a".repeat(10 << 10)), ""),
        414,
        "path_too_long",
    )
    .await;

    let post = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    let large = vec![b' '; 5 << 20];
    let length = [
        format!("{post}content-length: {}\r\n\r\n", large.len()).as_bytes(),
        &large,
    ]
    .concat();
    refused(length, 413, "body_too_large").await;
    // The same size in small chunks, of which none says how much is to come.
    let chunk = b"10\r\n                \r\n";
    let bomb = [
        format!("{post}transfer-encoding: chunked\r\n\r\n").as_bytes(),
        &chunk.repeat(5 << 16),
        b"0\r\n\r\n",
    ]
    .concat();
    refused(bomb, 413, "body_too_large").await;
    // A chunk that says it is larger than any memory.
    let liar = format!("{post}transfer-encoding: chunked\r\n\r\nffffffffffffffff1\r\n").into_bytes();
    refused(liar, 400, "").await;
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let deep = format!("{post}content-length: {}\r\n\r\n{deep}", deep.len()).into_bytes();
    refused(deep, 400, "invalid_json").await;
    oracle(&cluster).await;
}

/// Without a key a large body costs a megabyte of reading, and the answer comes.
#[tokio::test]
async fn a_stranger_with_a_large_body_hears_why() {
    let dir = tempfile::tempdir().unwrap();
    let (key, path) = crate::keys::key_file(dir.path());
    let cluster = Cluster::start(Options::mock().key(&key).flag("api-keys-file", path.display())).await;
    let body = vec![b' '; 900 << 10];
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n", body.len());
    let said = say(cluster.client.base(), &[request.as_bytes(), &body].concat()).await;
    assert_eq!(statuses(&said), [401], "{said}");
}
