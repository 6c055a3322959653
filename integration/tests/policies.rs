//! Policies in real processes: a router follows its configuration file while it runs, and goes by the prompt when told to.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use innkeeper_integration::{Cluster, Options, completion, free_port, oracle, program, signal, until};
use rustix::process::Signal;

/// The file is looked at every two seconds; the rest is for a starved machine.
const SOON: Duration = Duration::from_secs(30);

/// A second router of the cluster, with a configuration file of its own.
struct Router {
    process: Child,
    http: String,
    file: tempfile::NamedTempFile,
    log: tempfile::NamedTempFile,
}

impl Router {
    fn start(cluster: &mut Cluster, settings: &str) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), settings).unwrap();
        let log = tempfile::NamedTempFile::new().unwrap();
        let http = format!("127.0.0.1:{}", free_port());
        let process = Command::new(program())
            .args([
                "node",
                "router",
                "--engine=mock",
                "--name=second",
                "--canary-period-ms=0",
            ])
            .args(["--recorder-dir=none", "--drain-timeout-ms=2000"])
            .arg(format!("--http={http}"))
            .arg(format!("--etcd={}", cluster.etcd().endpoint()))
            .arg(format!("--config={}", file.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.reopen().unwrap())
            .spawn()
            .unwrap();
        Self {
            process,
            http,
            file,
            log,
        }
    }

    /// Asks it for one token; whether it answered well.
    async fn asks(&self, prompt: &str) -> Result<(), String> {
        let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build().unwrap();
        let request = client.post(format!("http://{}/v1/completions", self.http));
        let answer = request.json(&completion("mock", prompt, 1)).send().await;
        let answer = answer.and_then(reqwest::Response::error_for_status);
        answer.map(drop).map_err(|error| error.to_string())
    }

    async fn placed(&self, cluster: &Cluster, policy: &str, by: &str) -> f64 {
        let labels = [("role", "prefill"), ("policy", policy), ("by", by)];
        let metrics = cluster.metrics(&self.http).await.unwrap();
        metrics.sum("innkeeper_placements_total", &labels)
    }

    fn settings(&self, settings: &str) {
        std::fs::write(self.file.path(), settings).unwrap();
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        // It may be over already; what is left of it ends here.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_follows_its_configuration_while_it_runs() {
    let mut cluster = Cluster::start(Options::mock().etcd().workers(2, 1)).await;
    let mut router = Router::start(&mut cluster, "prefill-policy = 'round_robin'\n");
    let prompt = "the same beginning ".repeat(10);
    until(SOON, "the second router serves", || async {
        router.asks(&prompt).await
    })
    .await;
    assert!(router.placed(&cluster, "round_robin", "turn").await >= 1.0);

    router.settings("prefill-policy = 'fastest'\n");
    until(SOON, "what is wrong is said", || async {
        let log = std::fs::read_to_string(router.log.path()).unwrap();
        if log.contains("is not taken over") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
    router.asks(&prompt).await.unwrap();
    assert!(
        router.placed(&cluster, "round_robin", "turn").await >= 2.0,
        "what is wrong changes nothing"
    );

    router.settings("prefill-policy = 'cache_aware'\n");
    until(SOON, "prompts go where they were sent before", || async {
        router.asks(&prompt).await?;
        let placed = router.placed(&cluster, "cache_aware", "prefix").await;
        if placed >= 3.0 {
            Ok(())
        } else {
            Err(format!("{placed}"))
        }
    })
    .await;
    let turns = router.placed(&cluster, "round_robin", "turn").await;

    // Asked for, and not only looked for. By default the signal would end it.
    signal(router.process.id(), Signal::HUP);
    router.settings("prefill-policy = 'round_robin'\n");
    signal(router.process.id(), Signal::HUP);
    until(SOON, "turns are taken again", || async {
        router.asks(&prompt).await?;
        let now = router.placed(&cluster, "round_robin", "turn").await;
        if now > turns { Ok(()) } else { Err(format!("{now}")) }
    })
    .await;

    signal(router.process.id(), Signal::TERM);
    let status = tokio::task::spawn_blocking(move || router.process.wait())
        .await
        .unwrap()
        .unwrap();
    assert!(status.success(), "{status}");
    oracle(&cluster).await;
}
