use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use innkeeper_node::security::testing::{Issued, Pki};
use tempfile::TempDir;

use super::api;
use super::tree::Trace;
use crate::client::Client;
use crate::cluster::free_port;
use crate::wait::until;

/// From start to the first answer takes a second; a starved machine needs longer.
const START_WITHIN: Duration = Duration::from_secs(60);
/// Spans are gathered for half a second before they are sent; the rest is for a starved machine.
const ARRIVES_WITHIN: Duration = Duration::from_secs(20);

/// A Jaeger on free ports of 127.0.0.1, with everything in memory. It is killed, by its own id, when this is dropped.
#[derive(Debug)]
pub struct Jaeger {
    child: Child,
    query: Client,
    grpc: u16,
    http: u16,
    /// Spans are taken over TLS alone, with a certificate of this CA.
    ca: Option<PathBuf>,
    dir: TempDir,
}

impl Jaeger {
    /// Starts the program that `deploy/jaeger.sh` has built; panics without one.
    pub async fn start() -> Self {
        Self::start_with(false).await
    }

    /// One that takes spans over TLS alone.
    pub async fn start_secure() -> Self {
        Self::start_with(true).await
    }

    async fn start_with(secure: bool) -> Self {
        let dir = TempDir::new().unwrap_or_else(|error| panic!("no directory for Jaeger: {error}"));
        let pki = secure.then(|| Pki::new(&dir.path().join("ca")));
        let certificate = pki.as_ref().map(|pki| pki.issue("collector", "IP:127.0.0.1", 2));
        let (grpc, http, query, query_grpc, health) = (free_port(), free_port(), free_port(), free_port(), free_port());
        let config = dir.path().join("jaeger.yaml");
        let text = configuration([grpc, http, query, query_grpc, health], certificate.as_ref());
        std::fs::File::create(&config)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .unwrap_or_else(|error| panic!("{}: {error}", config.display()));
        let log = std::fs::File::create(dir.path().join("log")).unwrap_or_else(|error| panic!("no log: {error}"));
        let program = program();
        let child = Command::new(&program)
            .arg(format!("--config={}", config.display()))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap_or_else(|error| panic!("no log: {error}")))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "there is no Jaeger at {} ({error}): run `deploy/jaeger.sh build`",
                    program.display()
                )
            });
        let query = Client::new(format!("http://127.0.0.1:{query}"));
        let mut jaeger = Self {
            child,
            query,
            grpc,
            http,
            ca: pki.map(|pki| pki.ca()),
            dir,
        };
        jaeger.wait_started().await;
        jaeger
    }

    async fn wait_started(&mut self) {
        let (query, log) = (self.query.clone(), self.dir.path().join("log"));
        let child = &mut self.child;
        until(START_WITHIN, "Jaeger answers", || {
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            if let Ok(Some(status)) = child.try_wait() {
                panic!("Jaeger ended ({status}): {}", said());
            }
            let query = query.clone();
            async move {
                match query.get("/api/services").await {
                    Ok(answer) if answer.status == 200 => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            }
        })
        .await;
        // What it is asked at comes up before what it takes spans at.
        for port in [self.grpc, self.http] {
            until(START_WITHIN, "Jaeger takes spans", || {
                tokio::net::TcpStream::connect(("127.0.0.1", port))
            })
            .await;
        }
    }

    /// Where it takes OTLP over gRPC.
    #[must_use]
    pub fn otlp_grpc(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme(), self.grpc)
    }

    /// Where it takes OTLP over HTTP.
    #[must_use]
    pub fn otlp_http(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme(), self.http)
    }

    /// The CA of its certificate; panics without TLS.
    #[must_use]
    pub fn ca(&self) -> &Path {
        self.ca
            .as_deref()
            .unwrap_or_else(|| panic!("this Jaeger has no certificate"))
    }

    const fn scheme(&self) -> &'static str {
        match self.ca {
            Some(_) => "https",
            None => "http",
        }
    }

    /// The trace once it is as `whole` wants it; panics with what there is if it does not become so.
    pub async fn trace<M>(&self, id: &str, whole: impl Fn(&Trace) -> Result<(), M>) -> Trace
    where
        M: std::fmt::Debug,
    {
        until(ARRIVES_WITHIN, &format!("trace {id}"), || async {
            let trace = self.look(id).await?;
            match whole(&trace) {
                Ok(()) => Ok(trace),
                Err(why) => Err(format!("{why:?}\n{trace}")),
            }
        })
        .await
    }

    /// Whether it has anything of this trace.
    pub async fn has(&self, id: &str) -> bool {
        let trace = self.look(id).await;
        let trace = trace.unwrap_or_else(|error| panic!("Jaeger does not answer: {error}"));
        !trace.spans.is_empty()
    }

    /// Jaeger's program, as `deploy/jaeger.sh path` says; it is an OpenTelemetry collector as well.
    #[must_use]
    pub fn program() -> PathBuf {
        program()
    }

    /// The trace as it is now; an empty one if Jaeger has none.
    async fn look(&self, id: &str) -> Result<Trace, String> {
        let answer = self.query.get(&format!("/api/v3/traces/{id}?raw_traces=true")).await;
        let answer = answer.map_err(|error| error.to_string())?;
        match answer.status {
            200 => api::read(&answer.body),
            404 => Ok(Trace::default()),
            other => Err(format!("{other}: {}", answer.body)),
        }
    }
}

impl Drop for Jaeger {
    fn drop(&mut self) {
        // Fails only if it is gone, which is what is wanted.
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            let last: Vec<_> = log.lines().rev().take(10).collect();
            eprintln!("--- Jaeger, newest first ---\n{}", last.join("\n"));
        }
    }
}

/// As `deploy/jaeger.sh path` says.
fn program() -> PathBuf {
    if let Some(own) = std::env::var_os("INNKEEPER_JAEGER") {
        return own.into();
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/jaeger.sh");
    let output = Command::new(script).arg("path").output();
    let output = output.unwrap_or_else(|error| panic!("{script}: {error}"));
    String::from_utf8_lossy(&output.stdout).trim().into()
}

fn configuration([grpc, http, query, query_grpc, health]: [u16; 5], tls: Option<&Issued>) -> String {
    let tls = tls.map_or_else(String::new, |issued| {
        format!(
            ", tls: {{ cert_file: {}, key_file: {} }}",
            issued.certificate.display(),
            issued.key.display()
        )
    });
    format!(
        "service:
  extensions: [jaeger_storage, jaeger_query, healthcheckv2]
  pipelines:
    traces: {{ receivers: [otlp], processors: [], exporters: [jaeger_storage_exporter] }}
  telemetry:
    metrics: {{ level: none }}
    logs: {{ level: warn }}
extensions:
  healthcheckv2: {{ use_v2: true, http: {{ endpoint: 127.0.0.1:{health} }} }}
  jaeger_storage:
    backends: {{ memory: {{ memory: {{ max_traces: 10000 }} }} }}
  jaeger_query:
    storage: {{ traces: memory }}
    http: {{ endpoint: 127.0.0.1:{query} }}
    grpc: {{ endpoint: 127.0.0.1:{query_grpc} }}
receivers:
  otlp:
    protocols:
      grpc: {{ endpoint: 127.0.0.1:{grpc}{tls} }}
      http: {{ endpoint: 127.0.0.1:{http}{tls} }}
exporters:
  jaeger_storage_exporter: {{ trace_storage: memory }}
"
    )
}
