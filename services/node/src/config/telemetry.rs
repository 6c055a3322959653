//! Logs and spans.

use clap::ValueEnum;

use super::{ConfigError, flag, wrong};

/// Logs and spans, as far as they are set.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Telemetry")]
pub struct TelemetryArgs {
    /// Where spans go: the gRPC endpoint of an OTLP collector, as http://host:4317. [default: nowhere]
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// What is logged, as tracing-subscriber filters have it, e.g. `info,innkeeper_node=debug`. [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// How logs are written, to stderr. [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Logs and spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// OTLP endpoint.
    pub otlp: Option<String>,
    /// Filter of the log.
    pub filter: String,
    /// Form of the log.
    pub format: LogFormat,
}

impl TelemetryArgs {
    /// Logs and spans.
    ///
    /// # Errors
    /// [`ConfigError::Wrong`] for a filter or an endpoint that is none.
    pub fn resolve(&self) -> Result<TelemetryConfig, ConfigError> {
        let filter = self.log.clone().unwrap_or_else(|| "info".to_owned());
        if let Err(error) = filter.parse::<tracing_subscriber::EnvFilter>() {
            return Err(wrong(
                "log",
                &filter,
                &format!("a filter such as `info,innkeeper_node=debug` ({error})"),
            ));
        }
        if let Some(otlp) = self.otlp.iter().find(|otlp| !otlp.starts_with("http://")) {
            return Err(wrong("otlp", otlp, "http://host:port of a collector's gRPC endpoint"));
        }
        Ok(TelemetryConfig {
            otlp: self.otlp.clone(),
            filter,
            format: self.log_format.unwrap_or_default(),
        })
    }
}

impl TelemetryConfig {
    /// The arguments that give exactly this.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let format = match self.format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        let mut args = vec![flag("log", &self.filter), flag("log-format", format)];
        args.extend(self.otlp.iter().map(|otlp| flag("otlp", otlp)));
        args
    }
}
