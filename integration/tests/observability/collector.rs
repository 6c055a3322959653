//! The collector's configuration, carried out by a collector.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use innkeeper_integration::{Answer, Cluster, Jaeger, Options, completion, free_port, until};

use crate::root;

/// Spans are gathered for half a second, judged after two, counted after one; the rest is for a starved machine.
const SOON: Duration = Duration::from_secs(30);

/// A collector of the shape that `otel/collector.yaml` has, on free ports; Jaeger's program is one too.
struct Collector {
    child: Child,
    otlp: u16,
    metrics: u16,
    log: tempfile::NamedTempFile,
}

const COLLECTOR: &str = "deploy/observability/otel/collector.yaml";

impl Collector {
    /// One that decides after a second, and hands on to this store.
    fn start(store: &str) -> Self {
        let [grpc, http, metrics, health] = [(); 4].map(|()| free_port());
        let own = |key: &str, value: String| format!("--set={key}={value}");
        let at = |port: u16| format!("127.0.0.1:{port}");
        let log = tempfile::NamedTempFile::new().unwrap();
        let child = Command::new(Jaeger::program())
            .arg(format!("--config={}", root().join(COLLECTOR).display()))
            .args([
                own("receivers.otlp.protocols.grpc.endpoint", at(grpc)),
                own("receivers.otlp.protocols.http.endpoint", at(http)),
                own("exporters.prometheus.endpoint", at(metrics)),
                own("extensions.healthcheckv2.http.endpoint", at(health)),
                own("processors.tail_sampling.decision_wait", "2s".to_owned()),
                own("connectors.spanmetrics.metrics_flush_interval", "1s".to_owned()),
            ])
            .env("JAEGER_OTLP", store.trim_start_matches("http://"))
            .stdin(Stdio::null())
            .stdout(log.reopen().unwrap())
            .stderr(log.reopen().unwrap())
            .spawn();
        let child = child.unwrap_or_else(|error| panic!("no collector ({error}): run `deploy/jaeger.sh build`"));
        Self {
            child,
            otlp: grpc,
            metrics,
            log,
        }
    }

    /// What it made of spans: how many of this name and status.
    async fn counted(&self, cluster: &Cluster, span: &str, status: &str) -> Result<f64, String> {
        let metrics = cluster.metrics(&format!("127.0.0.1:{}", self.metrics)).await?;
        let labels = [("span_name", span), ("status_code", status)];
        Ok(metrics.sum("innkeeper_spans_calls_total", &labels))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!(
                "--- collector ---\n{}",
                std::fs::read_to_string(self.log.path()).unwrap_or_default()
            );
        }
    }
}

/// Trace ids of the test's own, so that it knows what to look for.
fn trace_id(number: u32) -> String {
    format!("{:032x}", 0x0b5e_0000 + number)
}

async fn ask(cluster: &Cluster, number: u32) -> Answer {
    let traceparent = format!("00-{}-00000000000000aa-01", trace_id(number));
    let body = completion("mock", "observed", 3);
    cluster
        .client
        .post_traced(&traceparent, &format!("observed-{number}"), &body)
        .await
}

/// All failed traces come to the store, few of the others, and all spans are counted.
#[tokio::test]
async fn the_collector_keeps_what_failed_and_counts_everything() {
    const HEALTHY: u32 = 40;
    let jaeger = Jaeger::start().await;
    let collector = Collector::start(&jaeger.otlp_grpc());
    let options = Options::mock()
        .ttl_ms(1000)
        .flag("max-attempts", 1)
        .flag("otlp", format!("http://127.0.0.1:{}", collector.otlp))
        .fault("on");
    let cluster = Cluster::start(options).await;
    until(SOON, "the collector listens", || {
        collector.counted(&cluster, "room", "")
    })
    .await;
    for number in 0..HEALTHY {
        assert_eq!(ask(&cluster, number).await.status, 200);
    }
    cluster.order("decode-0", "mute-data").await;
    let failed = ask(&cluster, HEALTHY).await;
    assert_eq!(failed.code(), "handshake_timeout", "{failed:?}");
    jaeger
        .trace(&trace_id(HEALTHY), |trace| {
            let room = trace.named("room").first().and_then(|room| room.error.clone());
            match room {
                Some(error) if error.starts_with("handshake_timeout") => Ok(()),
                other => Err(other),
            }
        })
        .await;
    // Those before it were decided before it.
    let mut kept = 0;
    for number in 0..HEALTHY {
        kept += u32::from(jaeger.has(&trace_id(number)).await);
    }
    // A tenth: 25 of 40 would be one chance in ten thousand million.
    assert!(kept < 25, "{kept} of {HEALTHY} healthy traces were kept");
    until(SOON, "all spans are counted", || async {
        let done = collector.counted(&cluster, "room", "STATUS_CODE_UNSET").await?
            + collector.counted(&cluster, "room", "STATUS_CODE_OK").await?;
        let bad = collector.counted(&cluster, "room", "STATUS_CODE_ERROR").await?;
        if (done, bad) == (f64::from(HEALTHY), 1.0) {
            Ok(())
        } else {
            Err(format!("{done} done, {bad} failed"))
        }
    })
    .await;
}
