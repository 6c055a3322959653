use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use innkeeper_integration::{Cluster, Options, completion, oracle, until, within};
use innkeeper_node::config::{CertificateFiles, SecurityConfig};
use innkeeper_node::net::{Connections, connect};
use innkeeper_node::security::Security;
use innkeeper_node::security::testing::{Issued, Pki};
use innkeeper_room::{Epoch, Incarnation, Role, RoomId};
use innkeeper_transfer::Tls;
use innkeeper_transfer::frame::{Body, HEADER, Header, HelloBody, Kind};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::nodes::{tls, with_certificates};
use crate::raw;

const SOON: Duration = Duration::from_secs(20);
/// How a data plane's frames begin.
const FRAME: &[u8] = b"IKV1";

/// What a worker with these files speaks on the data plane.
fn data_tls(shown: &Issued, trusted: &Path) -> Arc<Tls> {
    let files = CertificateFiles {
        certificate: shown.certificate.clone(),
        key: shown.key.clone(),
    };
    let config = SecurityConfig {
        node: Some((files, trusted.to_owned())),
        ..SecurityConfig::default()
    };
    Security::open(&config, Role::Prefill).unwrap().data.unwrap()
}

/// A hello for a room that nobody has: whoever is let in is told so.
fn hello() -> Vec<u8> {
    let body = HelloBody {
        token: 1,
        prefill: Incarnation::new(1),
        decode: Incarnation::new(2),
    };
    Body::Hello(body).frame(RoomId::from_random(99), Epoch(1))
}

/// All that is answered to that hello, until the end, whatever it is.
async fn answered(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Vec<u8> {
    let mut said = vec![];
    within(SOON, "the data port answers or closes", async {
        // It may have closed before, and with a reset.
        drop(stream.write_all(&hello()).await);
        drop(stream.flush().await);
        drop(stream.read_to_end(&mut said).await);
    })
    .await;
    said
}

/// What the data port answers to who speaks this TLS with it.
async fn said(addr: &str, tls: &Tls) -> Result<Vec<u8>, String> {
    let stream = TcpStream::connect(addr).await.map_err(|error| error.to_string())?;
    let connected = within(SOON, "a handshake ends", tls.connect(stream)).await;
    Ok(answered(connected.map_err(|error| error.to_string())?).await)
}

/// Whether these files let somebody in.
async fn is_let_in(addr: &str, tls: &Tls) -> bool {
    let Ok(said) = said(addr, tls).await else { return false };
    let head = said.first_chunk::<HEADER>();
    head.and_then(|head| Header::decode(head).ok())
        .is_some_and(|header| header.kind == Kind::Unknown)
}

async fn data_of(cluster: &Cluster, name: &str) -> String {
    cluster.node(name).await["data"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_data_port_is_for_nodes_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (pki, other) = (Pki::new(&dir.path().join("pki")), Pki::new(&dir.path().join("other")));
    let node = pki.node("node");
    let cluster = Cluster::start(with_certificates(Options::mock(), &node, &pki)).await;
    let body = completion("mock", "hello", 8);
    let expected = cluster.client.complete(&body).await.token_ids();
    let data = data_of(&cluster, "decode-0").await;
    let refused = async || {
        let metrics = cluster.metrics_of("decode-0").await;
        metrics.sum("innkeeper_connections_refused_total", &[("kind", "data_in")])
    };
    let before = refused().await;
    assert!(is_let_in(&data, &data_tls(&node, &pki.ca())).await, "a node");

    let strange = other.node("node");
    let expired = pki.issue("expired", "DNS:innkeeper-node", -1);
    for (who, tls) in [
        ("of another CA, and trusting it", data_tls(&strange, &other.ca())),
        ("of another CA", data_tls(&strange, &pki.ca())),
        ("expired", data_tls(&expired, &pki.ca())),
    ] {
        // With TLS 1.3 the handshake may be over before the certificate is looked at.
        let said = said(&data, &tls).await.unwrap_or_default();
        assert!(said.is_empty(), "{who}: {said:?}");
    }
    let plain = answered(TcpStream::connect(&data).await.unwrap()).await;
    // An alert of TLS, which is seven bytes.
    assert!(plain.len() <= 7 && !plain.starts_with(FRAME), "{plain:?}");
    let garbage = raw::say(&data, &[0xff; 4096]).await;
    assert!(garbage.len() < 16, "{garbage:?}");
    // A node, but as one calls a control port.
    let connections = Connections::new("test", 1);
    let as_control = connect(&data, &connections, Some(&tls(&node, &pki.ca()))).await;
    assert!(as_control.is_err(), "the protocol is another one");

    until(SOON, "all are counted", || async {
        let count = refused().await - before;
        if count >= 6.0 { Ok(()) } else { Err(count) }
    })
    .await;
    assert_eq!(cluster.client.complete(&body).await.token_ids(), expected);
    assert_eq!(cluster.failures().await, [], "no room noticed");
    oracle(&cluster).await;
}

/// New files for all nodes, of another CA altogether: rooms go on, and what was good before is not any more.
#[tokio::test]
async fn certificates_of_the_data_plane_are_replaced_between_rooms() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (Pki::new(&dir.path().join("old")), Pki::new(&dir.path().join("new")));
    let (first, second) = (old.node("node"), new.node("node"));
    let before = data_tls(&first, &old.ca());
    let after = data_tls(&second, &new.ca());
    let cluster = Cluster::start(with_certificates(Options::mock(), &first, &old)).await;
    let body = completion("mock", "hello", 8);
    let expected = cluster.client.complete(&body).await.token_ids();
    let data = data_of(&cluster, "decode-0").await;
    assert!(is_let_in(&data, &before).await && !is_let_in(&data, &after).await);

    for (fresh, file) in [
        (new.ca(), old.ca()),
        (second.key, first.key),
        (second.certificate, first.certificate),
    ] {
        std::fs::copy(fresh, file).unwrap();
    }
    until(SOON, "the new certificate counts at decode", || async {
        if is_let_in(&data, &after).await {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    until(SOON, "prefill has read it", || async {
        let metrics = cluster.metrics_of("prefill-0").await;
        let read = |outcome| {
            metrics.sum(
                "innkeeper_reloads_total",
                &[("files", "node_tls"), ("outcome", outcome)],
            )
        };
        let failing = metrics.sum("innkeeper_reload_failing", &[("files", "node_tls")]);
        if read("ok") > 0.0 && failing == 0.0 {
            Ok(())
        } else {
            Err((read("ok"), failing))
        }
    })
    .await;
    assert!(!is_let_in(&data, &before).await, "the old one is good no more");
    assert_eq!(cluster.client.complete(&body).await.token_ids(), expected);
    assert_eq!(cluster.failures().await, [], "no room failed");
    oracle(&cluster).await;
}

/// The same request with certificates and without: only then its frames can be read.
#[tokio::test]
async fn a_reader_of_the_network_sees_nothing_of_a_prompt() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let node = pki.node("node");
    for secure in [false, true] {
        let options = Options::mock().etcd();
        let options = if secure {
            with_certificates(options, &node, &pki)
        } else {
            options
        };
        let Some(cluster) = Cluster::start_apart(options).await else {
            return;
        };
        let tap = cluster.tap_data("decode-0");
        let prompt = "the quick brown fox jumps over the lazy dog ".repeat(20);
        let answer = cluster.client.complete(&completion("mock", prompt, 8)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let mark: &[u8] = if secure { &[0x17, 3, 3] } else { FRAME };
        until(SOON, "the transfer was seen", || async {
            let seen = tap.seen();
            if seen.len() > 2000 && contains(&seen, mark) {
                Ok(())
            } else {
                Err(seen.len())
            }
        })
        .await;
        oracle(&cluster).await;
        assert_eq!(contains(&tap.seen(), FRAME), !secure, "frames in clear text");
    }
}

fn contains(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|window| window == part)
}
