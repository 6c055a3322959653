use std::path::Path;
use std::time::Duration;

use innkeeper_integration::{Client, Cluster, Options, completion, oracle, rpc, until};
use innkeeper_node::security::testing::{Issued, Pki};
use innkeeper_proto::inference::inference_client::InferenceClient;
use tokio::io::AsyncWriteExt as _;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::raw::{connect, rest, say};

const SOON: Duration = Duration::from_secs(20);
const NAMES: &str = "DNS:localhost,IP:127.0.0.1";

fn options(issued: &Issued, ca: &Path) -> Options {
    let options = Options::mock().ca(ca).flag("http-head-timeout-ms", 1000);
    options
        .flag("tls-cert", issued.certificate.display())
        .flag("tls-key", issued.key.display())
}

#[tokio::test]
async fn the_front_door_speaks_tls_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (pki, other) = (Pki::new(&dir.path().join("pki")), Pki::new(&dir.path().join("other")));
    let cluster = Cluster::start(options(&pki.issue("router", NAMES, 2), &pki.ca())).await;
    let base = cluster.client.base();
    assert!(
        base.starts_with("https://") && cluster.stdout().contains(base),
        "{}",
        cluster.stdout()
    );
    cluster.client.complete(&completion("mock", "hello", 2)).await;
    for command in [&["ps"][..], &["rooms", "ls"], &["doctor", "--probe"], &["check"]] {
        let done = cluster.run(command).await;
        let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        assert!(done.status.success(), "{command:?}: {said}");
    }
    let mut grpc = over_tls(base, &pki.ca()).await.expect("gRPC over TLS");
    let stream = grpc
        .generate(rpc::generate_text("hello", 2))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(rpc::gather(stream).await.unwrap().ids[0].len(), 2);

    // Who trusts somebody else does not talk to it, nor does it talk to whoever speaks no TLS.
    let stranger = Client::of_ca(base, &other.ca());
    assert!(stranger.get("/health").await.is_err());
    assert!(over_tls(base, &other.ca()).await.is_err());
    let said = say(base, b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(!said.contains("HTTP/1.1"), "{said:?}");
    // A handshake that does not go on ends in time.
    for begun in [&b""[..], b"\x16\x03\x01"] {
        let mut stream = connect(base).await;
        stream.write_all(begun).await.unwrap();
        rest(&mut stream).await;
    }
    let refused = cluster
        .router_metrics()
        .await
        .sum("innkeeper_connections_refused_total", &[("kind", "http")]);
    assert!(refused >= 4.0, "{refused} are counted");
    oracle(&cluster).await;
}

async fn over_tls(
    base: &str,
    ca: &Path,
) -> Result<InferenceClient<tonic::transport::Channel>, tonic::transport::Error> {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(std::fs::read(ca).unwrap()));
    let endpoint = Endpoint::from_shared(base.to_owned())?.tls_config(tls)?;
    Ok(InferenceClient::new(endpoint.connect().await?))
}

#[tokio::test]
async fn the_certificate_is_replaced_while_the_router_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (pki, next) = (Pki::new(&dir.path().join("pki")), Pki::new(&dir.path().join("next")));
    let volume = dir.path().join("volume");
    std::fs::create_dir(&volume).unwrap();
    let fill = |name: &str, issued: &Issued| {
        let folder = volume.join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::copy(&issued.certificate, folder.join("tls.crt")).unwrap();
        std::fs::copy(&issued.key, folder.join("tls.key")).unwrap();
        // As Kubernetes does it: the files stay links, and what they lead through is swapped.
        std::os::unix::fs::symlink(name, volume.join("..fresh")).unwrap();
        std::fs::rename(volume.join("..fresh"), volume.join("..data")).unwrap();
    };
    fill("..1", &pki.issue("router", NAMES, 2));
    let file = |name: &str| {
        let link = volume.join(name);
        std::os::unix::fs::symlink(format!("..data/{name}"), &link).unwrap();
        link
    };
    let issued = Issued {
        certificate: file("tls.crt"),
        key: file("tls.key"),
    };
    let cluster = Cluster::start(options(&issued, &pki.ca())).await;
    let mut body = completion("mock", "hello", 40);
    body["stream"] = true.into();
    let mut stream = cluster.client.stream("/v1/completions", None, &body).await.unwrap();
    fill("..2", &next.issue("router", NAMES, 2));
    let after = Client::of_ca(cluster.client.base(), &next.ca());
    until(SOON, "new connections are shown the new certificate", || async {
        after
            .get("/health")
            .await
            .map(drop)
            .map_err(|error| format!("{error:?}"))
    })
    .await;
    assert!(
        cluster.client.get("/health").await.is_err(),
        "the old one is shown to nobody"
    );
    stream.rest().await.expect("what runs goes on");
}
