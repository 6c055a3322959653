//! Logs and spans: to stderr as text or JSON, and to an OTLP collector if one is named.
//!
//! A collector that is down slows nothing: spans go through a bounded queue and are dropped when it is full.

mod propagation;

use std::io::IsTerminal;
use std::time::Duration;

use innkeeper_room::Incarnation;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use tracing::Subscriber;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Layer};

use crate::config::{LogFormat, TelemetryConfig};

pub use propagation::{current, follow};

/// Spans that wait for the collector; more are dropped.
const QUEUE: usize = 4096;
/// Spans in one export.
const BATCH: usize = 512;
/// One export may take this long; a collector that is slower loses spans.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(3);
/// How often spans are exported.
const EXPORT_EVERY: Duration = Duration::from_secs(2);
/// What is exported says nothing of the exporter itself, nor of the actors' library, whose spans are not ours: it opens
/// two per actor, and they would be orphans.
const NOT_OURS: [&str; 8] = [
    "ractor",
    "h2",
    "hyper",
    "hyper_util",
    "tonic",
    "tower",
    "opentelemetry",
    "opentelemetry_sdk",
];

/// Logs and spans of this process. Only one per process.
#[derive(Debug)]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

/// Logs and spans cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The log's filter is none.
    #[error("the log filter `{filter}` is wrong ({why}); write e.g. info,innkeeper_node=debug")]
    Filter {
        /// The filter.
        filter: String,
        /// What is wrong.
        why: String,
    },
    /// The exporter cannot be built.
    #[error("spans cannot be exported to `{endpoint}` ({why}); it must be the http://host:port of a gRPC collector")]
    Exporter {
        /// The endpoint.
        endpoint: String,
        /// What is wrong.
        why: String,
    },
    /// There is one already.
    #[error("logs were set up already in this process: {0}")]
    Twice(#[from] TryInitError),
}

impl Telemetry {
    /// Sets up logs and spans for this process, as `service` (e.g. `innkeeper-router`). Within a tokio runtime.
    ///
    /// # Errors
    /// [`TelemetryError`] says what is wrong with the configuration, or that this is the second time.
    pub fn init(config: &TelemetryConfig, service: &str, instance: Incarnation) -> Result<Self, TelemetryError> {
        let provider = config
            .otlp
            .as_deref()
            .map(|endpoint| provider(endpoint, service, instance))
            .transpose()?;
        let spans = provider.as_ref().map(|provider| {
            let tracer = provider.tracer("innkeeper");
            tracing_opentelemetry::layer()
                .with_tracer(tracer)
                .with_filter(exported())
        });
        tracing_subscriber::registry()
            .with(log(config)?)
            .with(spans)
            .try_init()?;
        Ok(Self { provider })
    }

    /// Exports what is left, within `limit`.
    pub async fn shutdown(self, limit: Duration) {
        let Some(provider) = self.provider else { return };
        // It blocks; and its own limit is not trusted alone.
        let flush = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(limit));
        match tokio::time::timeout(limit, flush).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "the last spans were not exported"),
            Ok(Err(error)) => tracing::warn!(%error, "the last spans were not exported"),
            Err(_) => tracing::warn!("the last spans were not exported in time"),
        }
    }
}

fn provider(endpoint: &str, service: &str, instance: Incarnation) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(EXPORT_TIMEOUT)
        .build()
        .map_err(|error| TelemetryError::Exporter {
            endpoint: endpoint.to_owned(),
            why: error.to_string(),
        })?;
    let batches = BatchConfigBuilder::default()
        .with_max_queue_size(QUEUE)
        .with_max_export_batch_size(BATCH)
        .with_scheduled_delay(EXPORT_EVERY)
        .build();
    let resource = Resource::builder()
        .with_service_name(service.to_owned())
        .with_attribute(KeyValue::new("service.instance.id", instance.to_string()))
        .build();
    Ok(SdkTracerProvider::builder()
        .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(batches).build())
        .with_resource(resource)
        .build())
}

fn exported() -> Targets {
    let all = Targets::new().with_default(LevelFilter::INFO);
    NOT_OURS
        .iter()
        .fold(all, |targets, target| targets.with_target(*target, LevelFilter::OFF))
}

/// The log's layer. The actors' library is left out unless the filter names it.
fn log<S>(config: &TelemetryConfig) -> Result<Box<dyn Layer<S> + Send + Sync>, TelemetryError>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let text = match config.filter.contains("ractor") {
        true => config.filter.clone(),
        false => format!("{},ractor=off", config.filter),
    };
    let filter: EnvFilter =
        text.parse()
            .map_err(|error: tracing_subscriber::filter::ParseError| TelemetryError::Filter {
                filter: config.filter.clone(),
                why: error.to_string(),
            })?;
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    Ok(match config.format {
        LogFormat::Text => layer.with_filter(filter).boxed(),
        LogFormat::Json => layer.json().with_filter(filter).boxed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(otlp: Option<String>) -> TelemetryConfig {
        TelemetryConfig {
            otlp,
            filter: "off".into(),
            format: LogFormat::Json,
        }
    }

    /// One test, for there is one subscriber per process.
    #[tokio::test]
    async fn a_collector_that_is_down_slows_nothing() {
        let free = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap();
        let down = config(Some(format!("http://{free}")));
        let telemetry = Telemetry::init(&down, "innkeeper-test", Incarnation::new(1)).unwrap();
        let began = std::time::Instant::now();
        for number in 0..3 * QUEUE {
            tracing::info_span!("room", number).in_scope(|| {});
        }
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        let span = tracing::info_span!("request");
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        follow(&span, parent);
        let passed_on = current(&span);
        assert!(
            passed_on.starts_with("00-0af7651916cd43dd8448eb211c80319c-"),
            "{passed_on}"
        );
        assert_ne!(passed_on, parent);
        follow(&span, "nonsense");
        drop(span);
        assert!(matches!(
            Telemetry::init(&config(None), "innkeeper-test", Incarnation::new(1)),
            Err(TelemetryError::Twice(_))
        ));
        let began = std::time::Instant::now();
        telemetry.shutdown(Duration::from_millis(500)).await;
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
}
