//! etcd behind TLS that asks for a client certificate.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{LONG, ROUTER, doors, listed, room};
use innkeeper_leases::testing::EtcdServer;
use innkeeper_leases::{EtcdConfig, EtcdStore, EtcdTls, Store, StoreError};

fn openssl(dir: &Path, arguments: &str) {
    let command = Command::new("openssl")
        .args(arguments.split_whitespace())
        .current_dir(dir)
        .output();
    let output = command.expect("`openssl` is on PATH; run `apt-get install openssl`");
    assert!(
        output.status.success(),
        "{arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A CA, and one certificate of it for 127.0.0.1 that serves both sides: `(ca, certificate, key)`.
fn certificates(dir: &Path) -> (PathBuf, PathBuf, PathBuf) {
    let extensions = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n";
    std::fs::write(dir.join("ext"), extensions).unwrap();
    let curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(
        dir,
        &format!("req -x509 {curve} -keyout ca.key -out ca.pem -subj /CN=test-ca -days 2"),
    );
    openssl(
        dir,
        &format!("req {curve} -keyout node.key -out node.csr -subj /CN=node"),
    );
    openssl(
        dir,
        "x509 -req -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out node.pem -days 2 -extfile ext",
    );
    (dir.join("ca.pem"), dir.join("node.pem"), dir.join("node.key"))
}

#[tokio::test]
async fn a_client_certificate_opens_the_door_and_none_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, certificate, key) = certificates(dir.path());
    let mut server = EtcdServer::down().with_tls(&certificate, &key, &ca);
    server.up();
    let with = |client: Option<(PathBuf, PathBuf)>| {
        let tls = EtcdTls {
            ca: ca.clone(),
            client,
            domain: None,
        };
        EtcdStore::new(EtcdConfig {
            tls: Some(tls),
            ..EtcdConfig::new([server.endpoint()])
        })
        .unwrap()
    };
    let store = with(Some((certificate.clone(), key.clone())));
    store.open_room(&doors(1), LONG).await.unwrap();
    store.renew_room(room(1)).await.unwrap();
    let (_, _, rooms) = listed(&store, ROUTER).await;
    assert_eq!(rooms, [room(1)]);
    let stranger = with(None);
    assert!(matches!(
        stranger.renew_room(room(1)).await,
        Err(StoreError::Unreachable(_))
    ));
    let missing = with(Some((dir.path().join("none.pem"), key)));
    let refused = missing.renew_room(room(1)).await.unwrap_err().to_string();
    assert!(refused.contains("none.pem"), "{refused}");
}
