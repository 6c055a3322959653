//! Too much of everything, over a real connection: the client hears what was too much, and is not cut off while it writes.

use std::net::SocketAddr;
use std::time::Duration;

use innkeeper_node::http::serve;
use innkeeper_node::net::{Connections, CountingListener};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::harness::{healthy, state};
use crate::front::routes;

/// Nothing here takes as long, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(20);

struct Served {
    addr: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

async fn served() -> Served {
    let listener = CountingListener::bind(([127, 0, 0, 1], 0).into(), Connections::new("http", 64))
        .await
        .expect("a port is free");
    let addr = listener.addr().expect("it listens");
    let router = routes(state(&healthy()));
    let serving = tokio::spawn(serve(listener, router, CancellationToken::new(), Duration::ZERO));
    Served {
        addr,
        _serving: AbortOnDropHandle::new(serving),
    }
}

/// Writes all of `request`, as simple clients do, and then reads the answer: status and body.
async fn say(served: &Served, request: &[u8]) -> (u16, String) {
    let exchange = async {
        let mut stream = TcpStream::connect(served.addr).await.expect("it listens");
        stream
            .write_all(request)
            .await
            .expect("the connection is cut while the client writes");
        let mut answer = String::new();
        let mut chunk = [0; 4096];
        loop {
            if let Some((head, body)) = answer.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                if length.is_some_and(|length| body.len() >= length.parse().expect("a number")) {
                    break;
                }
            }
            match stream
                .read(&mut chunk)
                .await
                .expect("the connection is cut before the answer")
            {
                0 => break,
                got => answer.push_str(std::str::from_utf8(&chunk[..got]).expect("UTF-8")),
            }
        }
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no answer: {answer:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.unwrap_or_else(|| panic!("no status: {head}")), body.to_owned())
    };
    tokio::time::timeout(LIMIT, exchange).await.expect("an answer in time")
}

fn code(body: &str) -> String {
    let json: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body:?}"));
    json["error"]["code"].as_str().unwrap_or_default().to_owned()
}

const HEAD: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";

#[tokio::test]
async fn a_body_that_is_too_large_is_told_so_after_it_was_written() {
    let served = served().await;
    for size in [4097, 100_000, 20_000_000] {
        let body = "x".repeat(size);
        let request = format!("{HEAD}content-length: {size}\r\n\r\n{body}");
        let (status, answer) = say(&served, request.as_bytes()).await;
        assert_eq!(
            (status, code(&answer).as_str()),
            (413, "body_too_large"),
            "{size} bytes"
        );
        // The same without its length said before.
        let mut request = format!("{HEAD}transfer-encoding: chunked\r\n\r\n").into_bytes();
        for piece in body.as_bytes().chunks(50_000) {
            request.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            request.extend_from_slice(piece);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"0\r\n\r\n");
        let (status, answer) = say(&served, &request).await;
        assert_eq!(
            (status, code(&answer).as_str()),
            (413, "body_too_large"),
            "{size} bytes in chunks"
        );
    }
}

#[tokio::test]
async fn a_body_without_an_end_is_cut_off_in_the_end() {
    let served = served().await;
    let mut stream = TcpStream::connect(served.addr).await.expect("it listens");
    let head = format!("{HEAD}content-length: 1000000000000\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("it listens");
    let piece = vec![b'x'; 1 << 20];
    let mut written = 0_u64;
    let writing = async {
        while stream.write_all(&piece).await.is_ok() {
            written += 1;
        }
    };
    tokio::time::timeout(LIMIT, writing)
        .await
        .expect("somebody who never stops is cut off");
    assert!(written < 256, "{written} MiB were taken");
}

#[tokio::test]
async fn headers_that_are_too_much_are_told_so() {
    let served = served().await;
    let get = |headers: &str| format!("GET /v1/models HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
    let many = |count: usize| (0..count).map(|at| format!("x-{at}: 1\r\n")).collect::<String>();
    let long = |bytes: usize| format!("x-long: {}\r\n", "y".repeat(bytes));
    assert_eq!(
        say(&served, get(&format!("{}{}", many(50), long(8000))).as_bytes())
            .await
            .0,
        200
    );
    for (what, headers) in [
        ("long", long(40_000)),
        ("longer", long(300_000)),
        ("many", many(80)),
        ("long names", format!("{}: 1\r\n", "n".repeat(40_000))),
    ] {
        let (status, answer) = say(&served, get(&headers).as_bytes()).await;
        assert_eq!((status, code(&answer).as_str()), (431, "headers_too_large"), "{what}");
    }
    // Beyond what the HTTP library itself takes, the status alone says it.
    for (what, headers) in [("very many", many(500)), ("very long", long(2_000_000))] {
        let (status, _) = say(&served, get(&headers).as_bytes()).await;
        assert_eq!(status, 431, "{what}");
    }
    let (status, _) = say(&served, b"GET /v1/models HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n").await;
    assert_eq!(status, 400);
    let path = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "p".repeat(40_000));
    let (status, answer) = say(&served, path.as_bytes()).await;
    assert_eq!((status, code(&answer).as_str()), (414, "path_too_long"));
}
