use std::sync::Arc;
use std::time::Duration;

use innkeeper_room::ledger::Gauges;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::testing::{Issued, Pki};
use super::*;
use crate::config::{CertificateFiles, SecurityArgs};
use crate::metrics::Form;
use crate::net::{Connection, Connections, CountingListener, connect};
use crate::view::NodeView;
use crate::view::fake::FakeNode;

const SOON: Duration = Duration::from_secs(20);

fn server(issued: &Issued, pki: &Pki) -> Result<ServerTls, TlsError> {
    let (certificate, key) = issued.read();
    ServerTls::node(&certificate, &key, &std::fs::read(pki.ca()).unwrap())
}

fn client(issued: &Issued, pki: &Pki) -> Result<ClientTls, TlsError> {
    let (certificate, key) = issued.read();
    ClientTls::node(&certificate, &key, &std::fs::read(pki.ca()).unwrap())
}

/// Whether a client gets a byte through to a node: the certificate that it was shown, or why not.
async fn reaches(server: &Arc<ServerTls>, client: Option<&ClientTls>) -> Result<Vec<u8>, String> {
    let connections = Connections::new("control", 4);
    let listener = CountingListener::bind(([127, 0, 0, 1], 0).into(), connections.clone());
    let mut listener = listener.await.unwrap().with_tls(Some(Arc::clone(server)));
    let addr = listener.addr().unwrap().to_string();
    let out = Connections::new("control_out", 4);
    let asked = async {
        let mut stream = connect(&addr, &out, client).await.map_err(|error| error.to_string())?;
        stream.write_all(b"x").await.map_err(|error| error.to_string())?;
        // TLS 1.3 tells a client that its certificate is refused only once it reads.
        let mut byte = [0; 1];
        match stream.read(&mut byte).await {
            Ok(1) if byte == *b"x" => Ok(shown(&stream)),
            // An alert, where no TLS was spoken.
            Ok(_) => Err("closed".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    };
    let answered = async {
        loop {
            let (mut stream, _) = listener.next().await;
            let mut byte = [0; 1];
            if stream.read_exact(&mut byte).await.is_ok() {
                stream.write_all(&byte).await.unwrap();
            }
        }
    };
    tokio::select! {
        asked = tokio::time::timeout(SOON, asked) => asked.unwrap_or_else(|_| Err("nothing came".to_owned())),
        () = answered => unreachable!("it answers for ever"),
    }
}

fn shown(connection: &Connection) -> Vec<u8> {
    match connection {
        Connection::Plain(_) => vec![],
        Connection::Tls(tls) => tls.get_ref().1.peer_certificates().unwrap()[0].to_vec(),
    }
}

#[tokio::test]
async fn nodes_reach_each_other_and_nobody_else_reaches_them() {
    let dir = tempfile::tempdir().unwrap();
    let (own, other) = (Pki::new(&dir.path().join("own")), Pki::new(&dir.path().join("other")));
    let node = own.node("node");
    let tls = Arc::new(server(&node, &own).unwrap());
    assert!(reaches(&tls, Some(&client(&node, &own).unwrap())).await.is_ok());

    reaches(&tls, None).await.expect_err("no certificate, no TLS");
    // Whoever is of another CA is taken by neither side.
    let strange = other.node("node");
    reaches(&tls, Some(&client(&strange, &other).unwrap()))
        .await
        .expect_err("another CA");
    let (certificate, key) = strange.read();
    let liar = ClientTls::node(&certificate, &key, &std::fs::read(own.ca()).unwrap()).unwrap();
    reaches(&tls, Some(&liar))
        .await
        .expect_err("it trusts us, and we not it");
    let expired = own.issue("expired", "DNS:innkeeper-node", -1);
    reaches(&tls, Some(&client(&expired, &own).unwrap()))
        .await
        .expect_err("expired");
    let old = Arc::new(server(&expired, &own).unwrap());
    reaches(&old, Some(&client(&node, &own).unwrap()))
        .await
        .expect_err("an expired server");

    // The same CA signs other things too: they are no nodes, and none can be started with it.
    let web = own.issue("web", "DNS:www.example.org", 2);
    assert!(matches!(server(&web, &own), Err(TlsError::NotANode)));
    assert!(matches!(client(&web, &own), Err(TlsError::NotANode)));
}

/// A client with a certificate of the nodes' CA that is not a node's, made without the check that ours does.
#[tokio::test]
async fn a_certificate_of_the_same_ca_for_something_else_is_refused_by_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let tls = Arc::new(server(&pki.node("node"), &pki).unwrap());
    let (certificate, key) = pki.issue("web", "DNS:www.example.org", 2).read();
    let web = ClientTls::unchecked(&certificate, &key, &std::fs::read(pki.ca()).unwrap()).unwrap();
    reaches(&tls, Some(&web)).await.expect_err("it is no node");
}

#[tokio::test]
async fn a_handshake_that_does_not_come_costs_its_place_for_its_time_and_nobody_else_anything() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let node = pki.node("node");
    let tls = Arc::new(server(&node, &pki).unwrap());
    let connections = Connections::new("control", 4);
    let listener = CountingListener::bind(([127, 0, 0, 1], 0).into(), connections.clone());
    let listener = listener.await.unwrap().with_tls(Some(tls));
    let mut listener = listener.with_patience(Duration::from_millis(300));
    let addr = listener.addr().unwrap();
    let mut silent = TcpStream::connect(addr).await.unwrap();
    let out = Connections::new("control_out", 4);
    let own = client(&node, &pki).unwrap();
    let addr = addr.to_string();
    let asked = connect(&addr, &out, Some(&own));
    let (taken, asked) = tokio::join!(tokio::time::timeout(SOON, listener.next()), asked);
    taken.expect("one that is silent holds up nobody");
    asked.unwrap();
    let closed = async { silent.read(&mut [0; 1]).await };
    tokio::select! {
        _ = listener.next() => panic!("there is no other"),
        closed = tokio::time::timeout(SOON, closed) => assert_eq!(closed.expect("closed in time").unwrap_or(0), 0),
    }
    assert_eq!(connections.refused(), ("control", 1));
}

fn metrics() -> Arc<NodeMetrics> {
    let view: Arc<dyn NodeView> = Arc::new(FakeNode::answering(Gauges::default()));
    Arc::new(NodeMetrics::new(Role::Router, view))
}

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let wait = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, wait)
        .await
        .unwrap_or_else(|_| panic!("not in time: {what}"));
}

#[tokio::test]
async fn keys_are_read_again_when_their_file_changes_and_what_is_broken_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    let (first, second) = (new_key().unwrap(), new_key().unwrap());
    let line = |name: &str, key: &str| key_line(name, key).unwrap();
    std::fs::write(&path, line("a", &first)).unwrap();
    let config = SecurityConfig {
        api_keys_file: Some(path.clone()),
        ..SecurityConfig::default()
    };
    let security = Security::open(&config, Role::Router).unwrap();
    let (tasks, metrics) = (Tasks::new(), metrics());
    security.follow(&tasks, &metrics).unwrap();
    let keys = security.keys.clone().unwrap();
    assert_eq!(keys.find(&first).as_deref(), Some("a"));

    // By rename, as those do who never leave half a file; then broken, then empty, then good again.
    std::fs::write(dir.path().join("fresh"), line("b", &second)).unwrap();
    std::fs::rename(dir.path().join("fresh"), &path).unwrap();
    until("the new key counts", || keys.find(&second).is_some()).await;
    assert_eq!(keys.find(&first), None, "the old one does not");
    let page = async || metrics.scrape(Form::Prometheus).await.unwrap();
    for broken in ["what is this", ""] {
        let failed = metrics.scrape(Form::Prometheus).await.unwrap();
        let before = count(&failed, r#"innkeeper_reloads_total{files="api_keys",outcome="failed"}"#);
        std::fs::write(&path, broken).unwrap();
        let wait = async {
            while count(
                &page().await,
                r#"innkeeper_reloads_total{files="api_keys",outcome="failed"}"#,
            ) == before
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(SOON, wait).await.expect("the failure is counted");
        assert_eq!(keys.find(&second).as_deref(), Some("b"), "{broken:?} changes nothing");
        assert_eq!(count(&page().await, r#"innkeeper_reload_failing{files="api_keys"}"#), 1);
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, line("a", &first)).unwrap();
    until("the first key counts again", || keys.find(&first).is_some()).await;
    assert_eq!(count(&page().await, r#"innkeeper_reload_failing{files="api_keys"}"#), 0);
    tasks.shutdown(Duration::from_secs(1)).await;
}

fn count(page: &str, series: &str) -> u64 {
    let value = page.lines().find_map(|line| line.strip_prefix(series));
    value.map_or(0, |value| value.trim().parse().unwrap())
}

/// As Kubernetes does it: the files are links through `..data`, which is swapped.
#[tokio::test]
async fn certificates_are_read_again_when_a_link_is_swapped_and_half_a_change_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(&dir.path().join("pki"));
    let (one, two) = (pki.node("one"), pki.node("two"));
    let volume = dir.path().join("volume");
    std::fs::create_dir(&volume).unwrap();
    let fill = |name: &str, issued: &Issued| {
        let folder = volume.join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::copy(&issued.certificate, folder.join("tls.crt")).unwrap();
        std::fs::copy(&issued.key, folder.join("tls.key")).unwrap();
        std::fs::copy(pki.ca(), folder.join("ca.crt")).unwrap();
    };
    let swap = |name: &str| {
        std::os::unix::fs::symlink(name, volume.join("..fresh")).unwrap();
        std::fs::rename(volume.join("..fresh"), volume.join("..data")).unwrap();
    };
    fill("..1", &one);
    swap("..1");
    for file in ["tls.crt", "tls.key", "ca.crt"] {
        std::os::unix::fs::symlink(format!("..data/{file}"), volume.join(file)).unwrap();
    }
    let files = CertificateFiles {
        certificate: volume.join("tls.crt"),
        key: volume.join("tls.key"),
    };
    let config = SecurityConfig {
        node: Some((files, volume.join("ca.crt"))),
        ..SecurityConfig::default()
    };
    let security = Security::open(&config, Role::Decode).unwrap();
    let (tasks, metrics) = (Tasks::new(), metrics());
    security.follow(&tasks, &metrics).unwrap();
    let (tls, own) = (security.control.clone().unwrap(), security.links.clone().unwrap());
    let first = reaches(&tls, Some(&own)).await.unwrap();

    // A certificate whose key has not come yet: the old pair goes on.
    std::fs::copy(&two.certificate, volume.join("..1/tls.crt")).unwrap();
    let failed = async || metrics.scrape(Form::Prometheus).await.unwrap();
    let wait = async {
        while count(&failed().await, r#"innkeeper_reload_failing{files="node_tls"}"#) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.expect("said");
    assert_eq!(reaches(&tls, Some(&own)).await.as_ref(), Ok(&first));

    fill("..2", &two);
    swap("..2");
    let swapped = async {
        while reaches(&tls, Some(&own)).await.unwrap() == first {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, swapped)
        .await
        .expect("the second certificate is shown");
    tasks.shutdown(Duration::from_secs(1)).await;
}

#[test]
fn what_cannot_be_used_is_said_at_the_start_with_its_flag() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(&dir.path().join("pki"));
    let (one, two) = (pki.node("one"), pki.node("two"));
    let missing = dir.path().join("missing");
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    let open = |args: SecurityArgs, role: Role| {
        let opened = Security::open(&args.resolve().unwrap(), role);
        opened.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let keys = |path: &std::path::Path| SecurityArgs {
        api_keys_file: Some(path.to_owned()),
        ..SecurityArgs::default()
    };
    let said = open(keys(&missing), Role::Router);
    assert!(said.contains("--api-keys-file") && said.contains("missing"), "{said}");
    assert!(open(keys(&empty), Role::Router).contains("there is no key"));
    assert_eq!(open(keys(&missing), Role::Decode), "", "keys are the router's");
    let tls = |certificate: &std::path::Path, key: &std::path::Path| SecurityArgs {
        tls_cert: Some(certificate.to_owned()),
        tls_key: Some(key.to_owned()),
        ..SecurityArgs::default()
    };
    assert_eq!(open(tls(&one.certificate, &one.key), Role::Router), "");
    let said = open(tls(&one.certificate, &two.key), Role::Router);
    assert!(
        said.contains("--tls-cert") && said.contains("key belongs to it"),
        "{said}"
    );
    assert!(open(tls(&empty, &one.key), Role::Router).contains("holds no certificate"));
    assert!(open(tls(&one.certificate, &empty), Role::Router).contains("private key"));
}
