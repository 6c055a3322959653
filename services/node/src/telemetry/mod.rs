//! Logs to stderr as text or JSON; and spans to an OTLP collector, if one is named.
//!
//! ```text
//! tracer    a node's spans: one provider per node, also where several nodes share a process
//! queue     what has ended waits here for the collector, bounded; what does not fit is dropped and counted
//! exporter  OTLP over gRPC or HTTP
//! context   W3C trace context as text
//! ```
//! Spans do not go through the `tracing` library, which is for logs alone: so no library's own spans get into a trace.

mod context;
mod exporter;
mod queue;
mod tracer;

use std::io::IsTerminal;

use tracing::Subscriber;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Layer};

use crate::config::{LogFormat, TelemetryConfig};

pub use context::{parse, text};
pub use queue::SpanCounts;
pub use tracer::{Kept, Tracer, failed};

/// Logs or spans cannot be set up.
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
    #[error("spans cannot be exported to `{endpoint}` ({why}); name the http(s)://host:port of an OTLP collector")]
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

/// Sets up the log of this process. Only once per process.
///
/// # Errors
/// [`TelemetryError`] says what is wrong with the configuration, or that this is the second time.
pub fn init_log(config: &TelemetryConfig) -> Result<(), TelemetryError> {
    tracing_subscriber::registry().with(log(config)?).try_init()?;
    Ok(())
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
mod tests;
