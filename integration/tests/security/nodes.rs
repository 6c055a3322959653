use std::path::Path;
use std::time::Duration;

use innkeeper_integration::{Cluster, Options, completion, oracle, until, within};
use innkeeper_node::net::{Connections, connect};
use innkeeper_node::security::ClientTls;
use innkeeper_node::security::testing::{Issued, Pki};
use innkeeper_room::{Epoch, Incarnation, RoomId};
use innkeeper_transfer::frame::{Body, HelloBody};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::raw;

const SOON: Duration = Duration::from_secs(20);
/// How HTTP/2 begins: the preface, and an empty frame of settings.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

pub(crate) fn tls(shown: &Issued, trusted: &Path) -> ClientTls {
    let (certificate, key) = shown.read();
    ClientTls::node(&certificate, &key, &std::fs::read(trusted).unwrap()).unwrap()
}

/// What a control port says to whoever shows this, or nothing: the first bytes of HTTP/2, or why there are none.
async fn said(addr: &str, tls: Option<&ClientTls>) -> Result<Vec<u8>, String> {
    let connections = Connections::new("test", 1);
    let asked = async {
        let mut stream = connect(addr, &connections, tls)
            .await
            .map_err(|error| error.to_string())?;
        stream.write_all(HTTP2).await.map_err(|error| error.to_string())?;
        let mut first = vec![0; 9];
        stream.read_exact(&mut first).await.map_err(|error| error.to_string())?;
        Ok(first)
    };
    within(SOON, "the control port answers or closes", asked).await
}

#[tokio::test]
async fn the_control_ports_are_for_nodes_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (pki, other) = (Pki::new(&dir.path().join("pki")), Pki::new(&dir.path().join("other")));
    let node = pki.node("node");
    let options = with_certificates(Options::mock(), &node, &pki);
    let cluster = Cluster::start(options).await;
    cluster.client.complete(&completion("mock", "hello", 4)).await;
    let strange = other.node("node");
    let expired = pki.issue("expired", "DNS:innkeeper-node", -1);
    for name in ["router", "prefill-0", "decode-0"] {
        let control = cluster.node(name).await["control"].as_str().unwrap().to_owned();
        let settings = said(&control, Some(&tls(&node, &pki.ca()))).await;
        assert_eq!(settings.as_ref().map(|frame| frame[3]), Ok(4), "{name}: {settings:?}");
        said(&control, None).await.expect_err("without TLS");
        said(&control, Some(&tls(&strange, &other.ca())))
            .await
            .expect_err("of another CA, and trusting it");
        said(&control, Some(&tls(&strange, &pki.ca())))
            .await
            .expect_err("of another CA");
        said(&control, Some(&tls(&expired, &pki.ca())))
            .await
            .expect_err("expired");
    }
    let refused = cluster
        .router_metrics()
        .await
        .sum("innkeeper_connections_refused_total", &[("kind", "control")]);
    assert!(refused >= 4.0, "{refused} are counted");
    cluster.client.complete(&completion("mock", "hello", 4)).await;
    oracle(&cluster).await;
}

/// What a broken connection says about its node is the same through TLS.
#[tokio::test]
async fn a_killed_worker_is_seen_through_tls_as_without() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let node = pki.node("node");
    let options = with_certificates(Options::mock().workers(1, 2).etcd().ttl_ms(2000), &node, &pki);
    let cluster = Cluster::start(options.flag("mock-decode-us-per-token", 20_000)).await;
    let body = completion("mock", "hello", 100);
    let expected = cluster.client.complete(&body).await.token_ids();
    let before = cluster.failures().await;
    let asked = cluster.submit(&body);
    let room = cluster.wait_phase("decoding", SOON).await;
    cluster.kill(&cluster.name_of(&room.decode).await).await;
    let (reason, blame) = cluster.verdict(&before, SOON).await;
    assert_eq!((&*reason, &*blame), ("decode_lost", "decode"));
    assert_eq!(asked.await.unwrap().token_ids(), expected, "it goes on elsewhere");
    cluster.wait_whole().await;
    oracle(&cluster).await;
}

pub(crate) fn with_certificates(options: Options, node: &Issued, pki: &Pki) -> Options {
    options
        .flag("node-cert", node.certificate.display())
        .flag("node-key", node.key.display())
        .flag("node-ca", pki.ca().display())
}

/// A data connection that knows a live room's id, its workers and its epoch, but not its token.
#[tokio::test]
async fn a_guessed_token_gets_nothing_and_costs_nothing() {
    let options = Options::mock().flag("mock-decode-us-per-token", 20_000);
    let cluster = Cluster::start(options).await;
    let expected = cluster
        .client
        .complete(&completion("mock", "hello", 100))
        .await
        .token_ids();
    let asked = cluster.submit(&completion("mock", "hello", 100));
    let room = until(SOON, "the room is there", || async {
        let rooms = cluster.router_rooms().await?;
        rooms.into_iter().next().ok_or_else(|| "none yet".to_owned())
    })
    .await;
    let data = cluster.node("decode-0").await["data"].as_str().unwrap().to_owned();
    let id: RoomId = room.room.parse().unwrap();
    let node = |text: &str| text.parse::<Incarnation>().unwrap();
    for epoch in 1..=3 {
        for token in [0, 1, u64::MAX] {
            let body = HelloBody {
                token,
                prefill: node(&room.prefill),
                decode: node(&room.decode),
            };
            let answer = raw::say(&data, &Body::Hello(body).frame(id, Epoch(epoch))).await;
            // It may be told that it is refused, and is never let in.
            assert!(answer.len() < 200, "{answer:?}");
        }
    }
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 65_536]] {
        raw::say(&data, garbage).await;
    }
    let answer = asked.await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.token_ids(), expected, "the room went on as if nothing had been");
    assert_eq!(
        cluster.failures().await,
        [],
        "no room failed, no other attempt was needed"
    );
    oracle(&cluster).await;
}
