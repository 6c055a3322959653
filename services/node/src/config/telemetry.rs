//! Logs and spans.

use std::fmt;
use std::path::PathBuf;

use clap::ValueEnum;

use super::{ConfigError, flag, wrong};

/// Logs and spans, as far as they are set.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Telemetry")]
pub struct TelemetryArgs {
    /// Where spans go: an OTLP collector such as Jaeger, as http://host:4317 (gRPC) or http://host:4318 (HTTP), or https://
    /// for one behind TLS. [default: nowhere]
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// The CA that signed the certificate of an https:// collector, PEM. [default: those of the system]
    #[arg(long, value_name = "FILE")]
    pub otlp_ca: Option<PathBuf>,
    /// How spans are sent. [default: grpc]
    #[arg(long, value_enum, value_name = "PROTOCOL")]
    pub otlp_protocol: Option<OtlpProtocol>,
    /// Headers that are sent with spans, as NAME=VALUE with commas between them; secrets are better given as
    /// INNKEEPER_OTLP_HEADERS, which no process list shows. [default: none]
    #[arg(long, value_name = "NAME=VALUE", value_delimiter = ',', hide_env_values = true)]
    pub otlp_headers: Vec<String>,
    /// The part of all requests that is traced, from 0 to 1; a caller that says in `traceparent` whether it samples is
    /// followed. [default: 1]
    #[arg(long, value_name = "RATIO")]
    pub trace_ratio: Option<f64>,
    /// Where people look at traces: a Jaeger's own address, as http(s)://host:16686. A router's page at /ui links to it.
    /// [default: none]
    #[arg(long, value_name = "URL")]
    pub jaeger_url: Option<String>,
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

/// How spans are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum)]
pub enum OtlpProtocol {
    /// OTLP over gRPC.
    #[default]
    Grpc,
    /// OTLP over HTTP, as protobuf.
    Http,
}

/// Logs and spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// Where spans go, if anywhere.
    pub otlp: Option<OtlpConfig>,
    /// Where people look at traces, if the page is to link there.
    pub jaeger: Option<String>,
    /// Filter of the log.
    pub filter: String,
    /// Form of the log.
    pub format: LogFormat,
}

/// Where spans go.
#[derive(Clone, PartialEq, Eq)]
pub struct OtlpConfig {
    /// `http://host:port` or `https://host:port` of the collector.
    pub endpoint: String,
    /// The CA of an `https://` collector; `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// How they are sent.
    pub protocol: OtlpProtocol,
    /// What is sent with them: names and values.
    pub headers: Vec<(String, String)>,
    /// The part of all requests that is traced, in millionths.
    pub ratio_ppm: u32,
}

const MILLION: u32 = 1_000_000;

impl fmt::Debug for OtlpConfig {
    /// Without the values of headers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("OtlpConfig")
            .field("endpoint", &self.endpoint)
            .field("ca", &self.ca)
            .field("protocol", &self.protocol)
            .field("headers", &names)
            .field("ratio_ppm", &self.ratio_ppm)
            .finish()
    }
}

impl OtlpConfig {
    /// The part of all requests that is traced, from 0 to 1.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        f64::from(self.ratio_ppm) / f64::from(MILLION)
    }
}

impl TelemetryArgs {
    /// Logs and spans.
    ///
    /// # Errors
    /// [`ConfigError::Wrong`] for a filter, an endpoint, a header or a ratio that is none.
    pub fn resolve(&self) -> Result<TelemetryConfig, ConfigError> {
        let filter = self.log.clone().unwrap_or_else(|| "info".to_owned());
        if let Err(error) = filter.parse::<tracing_subscriber::EnvFilter>() {
            return Err(wrong(
                "log",
                &filter,
                &format!("a filter such as `info,innkeeper_node=debug` ({error})"),
            ));
        }
        let otlp = self.otlp.as_deref().map(|endpoint| self.otlp(endpoint)).transpose()?;
        if let Some(url) = self.jaeger_url.as_deref().filter(|url| !is_web_address(url)) {
            return Err(wrong("jaeger-url", url, "the http:// or https:// address of a Jaeger"));
        }
        Ok(TelemetryConfig {
            otlp,
            jaeger: self.jaeger_url.clone(),
            filter,
            format: self.log_format.unwrap_or_default(),
        })
    }

    fn otlp(&self, endpoint: &str) -> Result<OtlpConfig, ConfigError> {
        let secure = endpoint.starts_with("https://");
        if !secure && !endpoint.starts_with("http://") {
            return Err(wrong("otlp", endpoint, "http(s)://host:port of an OTLP collector"));
        }
        if let Some(ca) = self.otlp_ca.as_ref().filter(|_| !secure) {
            return Err(wrong(
                "otlp-ca",
                ca.display(),
                "left out, or `otlp` an https:// address",
            ));
        }
        let ratio = self.trace_ratio.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&ratio) {
            return Err(wrong("trace-ratio", ratio, "a number from 0 to 1"));
        }
        let header = |text: &String| match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            Some(_) | None => Err(wrong("otlp-headers", text, "NAME=VALUE")),
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to a million"
        )]
        let ratio_ppm = (ratio * f64::from(MILLION)).round() as u32;
        Ok(OtlpConfig {
            endpoint: endpoint.to_owned(),
            ca: self.otlp_ca.clone(),
            protocol: self.otlp_protocol.unwrap_or_default(),
            headers: self.otlp_headers.iter().map(header).collect::<Result<_, _>>()?,
            ratio_ppm,
        })
    }
}

/// Whether a browser may be sent there: a link to anything else could be a script.
fn is_web_address(url: &str) -> bool {
    let host = ["http://", "https://"]
        .iter()
        .find_map(|scheme| url.strip_prefix(scheme));
    host.is_some_and(|host| !host.is_empty() && !url.contains(char::is_whitespace))
}

impl TelemetryConfig {
    /// The variables that give the headers: arguments show in process lists.
    #[must_use]
    pub fn to_env(&self) -> Vec<(&'static str, String)> {
        let headers = self.otlp.iter().flat_map(|otlp| &otlp.headers);
        let pairs: Vec<_> = headers.map(|(name, value)| format!("{name}={value}")).collect();
        if pairs.is_empty() {
            return vec![];
        }
        vec![("INNKEEPER_OTLP_HEADERS", pairs.join(","))]
    }

    /// The arguments that give this, apart from headers.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let format = match self.format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        let mut args = vec![flag("log", &self.filter), flag("log-format", format)];
        if let Some(otlp) = &self.otlp {
            let protocol = match otlp.protocol {
                OtlpProtocol::Grpc => "grpc",
                OtlpProtocol::Http => "http",
            };
            args.push(flag("otlp", &otlp.endpoint));
            args.push(flag("otlp-protocol", protocol));
            args.push(flag("trace-ratio", otlp.ratio()));
            args.extend(otlp.ca.iter().map(|ca| flag("otlp-ca", ca.display())));
        }
        args.extend(self.jaeger.iter().map(|url| flag("jaeger-url", url)));
        args
    }
}
