//! OTLP over gRPC or HTTP.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tonic::metadata::{MetadataKey, MetadataMap};
use tonic::transport::{Certificate, ClientTlsConfig};

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
    let trusted = Trusted::of(config).map_err(wrong)?;
    let secure = config.endpoint.starts_with("https://");
    let built = match config.protocol {
        OtlpProtocol::Grpc => {
            let mut exporter = SpanExporter::builder()
                .with_tonic()
                .with_endpoint(&config.endpoint)
                .with_timeout(EXPORT_TIMEOUT)
                .with_metadata(metadata(&config.headers).map_err(wrong)?);
            if secure {
                exporter = exporter.with_tls_config(trusted.for_grpc());
            }
            exporter.build()
        }
        OtlpProtocol::Http => SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(collector_client(secure, &trusted).map_err(wrong)?)
            .with_endpoint(traces_url(&config.endpoint))
            .with_timeout(EXPORT_TIMEOUT)
            .with_headers(config.headers.iter().cloned().collect::<HashMap<_, _>>())
            .build(),
    };
    built.map_err(|error| wrong(error.to_string()))
}

/// Who signs the certificate of an `https://` collector.
enum Trusted {
    /// The CA that was named, PEM.
    Ca(Vec<u8>),
    /// Those of the system.
    System,
}

impl Trusted {
    fn of(config: &OtlpConfig) -> Result<Self, String> {
        let Some(path) = &config.ca else {
            return Ok(Self::System);
        };
        let wrong = |why: String| format!("its CA {}: {why}", path.display());
        let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        authorities(&pem).map_err(wrong)?;
        Ok(Self::Ca(pem))
    }

    fn for_grpc(&self) -> ClientTlsConfig {
        match self {
            Self::Ca(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
            Self::System => ClientTlsConfig::new().with_native_roots(),
        }
    }

    fn for_http(&self) -> Result<RootCertStore, String> {
        let Self::Ca(pem) = self else {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            return match roots.is_empty() {
                true => Err("this system has no certificates of CAs; name one with --otlp-ca".to_owned()),
                false => Ok(roots),
            };
        };
        authorities(pem)
    }
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    match roots.is_empty() {
        true => Err("there is no certificate in it".to_owned()),
        false => Ok(roots),
    }
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
    let host = endpoint.split_once("://").map_or(endpoint, |(_, host)| host);
    match host.split_once('/') {
        Some((_, path)) if !path.is_empty() => endpoint.to_owned(),
        Some(_) | None => format!("{}{TRACES}", endpoint.trim_end_matches('/')),
    }
}

fn collector_client(secure: bool, trusted: &Trusted) -> Result<CollectorClient, String> {
    match secure {
        true => CollectorClient::new(trusted.for_http()?),
        false => CollectorClient::new(RootCertStore::empty()),
    }
}

/// A client for one collector, on the node's own runtime.
#[derive(Debug)]
struct CollectorClient(Client<HttpsConnector<HttpConnector>, Body>);

impl CollectorClient {
    /// `trusted`: who signs the certificates of `https://` endpoints.
    fn new(trusted: RootCertStore) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(trusted)
            .with_no_client_auth();
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
        let connector = builder.https_or_http().enable_http1().build();
        Ok(Self(Client::builder(TokioExecutor::new()).build(connector)))
    }
}

#[tonic::async_trait]
impl HttpClient for CollectorClient {
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
        assert_eq!(traces_url("https://host"), "https://host/v1/traces");
    }
}
