//! `innkeeper doctor` against a real cluster: silent when all is well, and it names what is not.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::time::Duration;

use innkeeper_integration::{Cluster, Options, oracle, until};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(20);

/// `doctor --json`: its status, and its findings.
async fn doctor(cluster: &Cluster, more: &[&str]) -> (Option<i32>, Vec<Value>) {
    let args: Vec<&str> = ["doctor", "--json"].iter().chain(more).copied().collect();
    let output = cluster.run(&args).await;
    let said: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), said["findings"].as_array().unwrap().clone())
}

fn failed(findings: &[Value]) -> Vec<&Value> {
    findings.iter().filter(|finding| finding["level"] == "fail").collect()
}

fn find<'a>(findings: &'a [Value], level: &str, check: &str, subject: &str) -> Option<&'a Value> {
    let of = |finding: &&Value| {
        finding["level"] == level && finding["check"] == check && finding["subject"].as_str().unwrap().contains(subject)
    };
    findings.iter().find(of)
}

#[tokio::test]
async fn a_healthy_cluster_passes_and_what_is_wrong_is_named() {
    let mut cluster = Cluster::start(Options::mock().workers(1, 2).etcd().ttl_ms(2000)).await;
    let etcd = format!("--etcd={}", cluster.etcd().endpoint());
    cluster.wait_whole().await;
    healthy(&cluster, &etcd).await;
    a_stopped_worker(&cluster).await;
    oracle(&cluster).await;
    a_stopped_router(&cluster).await;
    let refused = cluster.run(&["doctor", "--etcd=nowhere"]).await;
    assert_eq!(
        refused.status.code(),
        Some(64),
        "a wrong flag is no finding: {refused:?}"
    );
    cluster.etcd().kill();
    let (status, findings) = doctor(&cluster, &[&etcd]).await;
    let lost = find(&findings, "fail", "etcd", "http://").unwrap_or_else(|| panic!("{findings:#?}"));
    assert_eq!(status, Some(1), "{lost:#}");
}

async fn healthy(cluster: &Cluster, etcd: &str) {
    // A starved machine's nodes may miss a second's deadline once.
    let findings = until(SOON, "the doctor finds nothing", || async {
        let (status, findings) = doctor(cluster, &[etcd, "--probe"]).await;
        let well = findings.iter().all(|finding| finding["level"] == "ok");
        if status == Some(0) && well {
            Ok(findings)
        } else {
            Err(findings)
        }
    })
    .await;
    for (check, subject) in [
        ("router", cluster.client.base()),
        ("node", "router"),
        ("node", "prefill-0"),
        ("node", "decode-1"),
        ("clock", "decode-0"),
        ("version", "all nodes"),
        ("rooms", "decode-0"),
        ("data", "decode-1"),
        ("pair", "prefill-0 → decode-0"),
        ("pair", "prefill-0 → decode-1"),
        ("etcd", "http://"),
        ("probe", "http://"),
    ] {
        assert!(
            find(&findings, "ok", check, subject).is_some(),
            "{check} {subject}: {findings:#?}"
        );
    }
    let text = cluster.run(&["doctor", "--probe"]).await;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    eprintln!("{text}");
    assert!(text.contains("not avoided; a room passed it"), "the probe did: {text}");
    assert!(
        text.contains("note  from outside only a data port can be tried"),
        "{text}"
    );
    assert!(text.contains("note  the lease store was not tried"), "{text}");
}

/// SIGSTOP: its kernel still takes connections, so only an answer counts.
async fn a_stopped_worker(cluster: &Cluster) {
    let pid = cluster.pid("decode-0").await;
    let stopped = cluster.stop("decode-0").await;
    let (status, findings) = doctor(cluster, &[]).await;
    assert_eq!(status, Some(1), "{findings:#?}");
    let found = find(&findings, "fail", "node", "decode-0").unwrap_or_else(|| panic!("{findings:#?}"));
    assert!(
        found["found"].as_str().unwrap().contains("does not answer"),
        "{found:#}"
    );
    assert!(
        found["do"].as_str().unwrap().contains(&format!("kill -CONT {pid}")),
        "{found:#}"
    );
    assert_eq!(failed(&findings).len(), 1, "and nothing else: {findings:#?}");
    // The router forgets it when its lease has ended; whoever looked before does not.
    until(SOON, "the router gives it up", || async {
        let nodes = cluster.try_ps().await?;
        if nodes.iter().all(|node| node["name"] != "decode-0") {
            Ok(())
        } else {
            Err(format!("{nodes:?}"))
        }
    })
    .await;
    let output = cluster.run(&["doctor"]).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    eprintln!("{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
    let named =
        |line: &str| line.starts_with("FAIL  node         decode-0: ") && line.contains(&format!("kill -CONT {pid}"));
    assert!(text.lines().any(named), "{text}");
    stopped.cont();
    cluster.wait_whole().await;
}

/// Its workers are asked all the same.
async fn a_stopped_router(cluster: &Cluster) {
    let stopped = cluster.stop("router").await;
    let (status, findings) = doctor(cluster, &["--probe"]).await;
    assert_eq!(status, Some(1), "{findings:#?}");
    let found = find(&findings, "fail", "router", cluster.client.base()).unwrap_or_else(|| panic!("{findings:#?}"));
    assert!(found["do"].as_str().unwrap().contains("--router"), "{found:#}");
    assert!(find(&findings, "ok", "node", "prefill-0").is_some(), "{findings:#?}");
    assert!(find(&findings, "fail", "probe", "").is_some(), "{findings:#?}");
    stopped.cont();
    cluster.wait_whole().await;
}
