//! OTLP over gRPC or HTTP.

use std::collections::HashMap;

use axum::body::Body;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig};
use tonic::metadata::{MetadataKey, MetadataMap};

use super::TelemetryError;
use super::queue::EXPORT_TIMEOUT;
use crate::config::{OtlpConfig, OtlpProtocol};

/// Where OTLP over HTTP takes spans, unless the endpoint names a path itself.
const TRACES: &str = "/v1/traces";
/// Longest answer of a collector that is read.
const LONGEST_ANSWER: usize = 64 << 10;

/// Builds the exporter; it connects when it first exports.
pub(super) fn build(config: &OtlpConfig) -> Result<SpanExporter, TelemetryError> {
    let wrong = |why: String| TelemetryError::Exporter {
        endpoint: config.endpoint.clone(),
        why,
    };
    let built = match config.protocol {
        OtlpProtocol::Grpc => SpanExporter::builder()
            .with_tonic()
            .with_endpoint(&config.endpoint)
            .with_timeout(EXPORT_TIMEOUT)
            .with_metadata(metadata(&config.headers).map_err(wrong)?)
            .build(),
        OtlpProtocol::Http => SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(PlainClient::new())
            .with_endpoint(traces_url(&config.endpoint))
            .with_timeout(EXPORT_TIMEOUT)
            .with_headers(config.headers.iter().cloned().collect::<HashMap<_, _>>())
            .build(),
    };
    built.map_err(|error| wrong(error.to_string()))
}

fn metadata(headers: &[(String, String)]) -> Result<MetadataMap, String> {
    let mut map = MetadataMap::new();
    for (name, value) in headers {
        let key = MetadataKey::from_bytes(name.to_ascii_lowercase().as_bytes()).map_err(|error| error.to_string())?;
        let value = value
            .parse()
            .map_err(|_| format!("the header `{name}` has a value that is none"))?;
        map.insert(key, value);
    }
    Ok(map)
}

fn traces_url(endpoint: &str) -> String {
    let host = endpoint.trim_start_matches("http://");
    match host.split_once('/') {
        Some((_, path)) if !path.is_empty() => endpoint.to_owned(),
        Some(_) | None => format!("{}{TRACES}", endpoint.trim_end_matches('/')),
    }
}

/// A client for one collector, on the node's own runtime.
#[derive(Debug)]
struct PlainClient(Client<HttpConnector, Body>);

impl PlainClient {
    fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build(HttpConnector::new()))
    }
}

#[tonic::async_trait]
impl HttpClient for PlainClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let response = self.0.request(request.map(Body::from)).await?;
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(Body::new(body), LONGEST_ANSWER).await?;
        Ok(Response::from_parts(parts, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_without_a_path_gets_the_usual_one() {
        assert_eq!(traces_url("http://host:4318"), "http://host:4318/v1/traces");
        assert_eq!(traces_url("http://host:4318/"), "http://host:4318/v1/traces");
        assert_eq!(traces_url("http://host/otlp/v1/traces"), "http://host/otlp/v1/traces");
    }
}
