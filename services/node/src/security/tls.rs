//! TLS with certificates from PEM files: the front door, and mutual TLS between nodes.
//!
//! Connections keep what they were made with; new ones use what was read last. Sessions of nodes are not resumed, so that each
//! connection shows a certificate that is good now.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::net::Counted;

/// The DNS name in the certificate of every node. It says *a node of Innkeeper*, whatever else its CA signs; which one is said by
/// incarnations.
pub const NODE_NAME: &str = "innkeeper-node";

/// What is wrong with certificates.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that holds no certificate.
    #[error("the file of the {0} holds no certificate; it must be PEM with `BEGIN CERTIFICATE`")]
    NoCertificate(&'static str),
    /// A file that holds no private key.
    #[error("the file of the private key holds none that can be read ({0}); it must be PEM and without a password")]
    NoKey(String),
    /// They cannot be used, or not together.
    #[error("the certificate cannot be used ({0}); check that the key belongs to it, and which CA signed it")]
    Unusable(String),
    /// A node's certificate is none of a node.
    #[error("the certificate has not the DNS name `{NODE_NAME}`, which every node's must have")]
    NotANode,
}

/// What is spoken inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2 or HTTP/1.1, as the client likes.
    Http,
    /// HTTP/2 alone.
    Grpc,
}

/// The server's side.
#[derive(Debug)]
pub struct ServerTls {
    config: RwLock<Arc<ServerConfig>>,
    /// Clients must be nodes.
    nodes: bool,
}

impl ServerTls {
    /// The front door's: clients show no certificate.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn front(certificate: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let builder = server_builder(rustls::DEFAULT_VERSIONS)?.with_no_client_auth();
        let config = builder.with_single_cert(certificates(certificate, "certificate")?, private_key(key)?);
        let mut config = config.map_err(unusable)?;
        config.alpn_protocols = alpn(Protocol::Http);
        Ok(Self::of(config, false))
    }

    /// A node's: clients are nodes, and show a certificate of this CA.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn node(certificate: &[u8], key: &[u8], ca: &[u8]) -> Result<Self, TlsError> {
        let mut config = node_server(certificate, key, ca, rustls::DEFAULT_VERSIONS)?;
        config.alpn_protocols = alpn(Protocol::Grpc);
        Ok(Self::of(config, true))
    }

    fn of(config: ServerConfig, nodes: bool) -> Self {
        Self {
            config: RwLock::new(Arc::new(config)),
            nodes,
        }
    }

    /// New connections use what this one has.
    pub fn replace(&self, fresh: &Self) {
        let fresh = Arc::clone(&fresh.config.read().unwrap_or_else(PoisonError::into_inner));
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = fresh;
    }

    /// The handshake of a connection, within `limit`.
    ///
    /// # Errors
    /// Why there is none; the connection is closed.
    pub async fn accept(&self, connection: Counted, limit: Duration) -> io::Result<TlsStream<Counted>> {
        let config = Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner));
        let handshake = TlsAcceptor::from(config).accept(connection);
        let stream = tokio::time::timeout(limit, handshake)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, format!("no TLS handshake within {limit:?}")))??;
        if self.nodes {
            let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
            is_node(shown).map_err(io::Error::other)?;
        }
        Ok(stream.into())
    }
}

/// The client's side between nodes.
#[derive(Debug)]
pub struct ClientTls {
    config: RwLock<Arc<ClientConfig>>,
    name: ServerName<'static>,
}

impl ClientTls {
    /// A node's: it shows its certificate, and wants one of this CA with [`NODE_NAME`].
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn node(certificate: &[u8], key: &[u8], ca: &[u8]) -> Result<Self, TlsError> {
        is_node(&certificates(certificate, "certificate")?)?;
        Self::unchecked(certificate, key, ca)
    }

    /// The same with whatever certificate.
    pub(super) fn unchecked(certificate: &[u8], key: &[u8], ca: &[u8]) -> Result<Self, TlsError> {
        let mut config = node_client(certificate, key, ca, rustls::DEFAULT_VERSIONS)?;
        config.alpn_protocols = alpn(Protocol::Grpc);
        Ok(Self {
            config: RwLock::new(Arc::new(config)),
            name: node_name()?,
        })
    }

    /// New connections use what this one has.
    pub fn replace(&self, fresh: &Self) {
        let fresh = Arc::clone(&fresh.config.read().unwrap_or_else(PoisonError::into_inner));
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = fresh;
    }

    /// The handshake of a connection. Bounded by its caller.
    ///
    /// # Errors
    /// Why there is none; the connection is closed.
    pub async fn connect(&self, connection: Counted) -> io::Result<TlsStream<Counted>> {
        let config = Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner));
        let stream = TlsConnector::from(config)
            .connect(self.name.clone(), connection)
            .await?;
        Ok(stream.into())
    }
}

/// What the data plane speaks TLS with, on both sides: the certificate, the CA and the name of the control plane. TLS 1.3 alone, for
/// both ends are ours, and one direction is closed there while the other goes on.
pub(super) fn data(certificate: &[u8], key: &[u8], ca: &[u8]) -> Result<(ClientConfig, ServerConfig), TlsError> {
    let versions = &[&rustls::version::TLS13];
    Ok((
        node_client(certificate, key, ca, versions)?,
        node_server(certificate, key, ca, versions)?,
    ))
}

type Versions = [&'static SupportedProtocolVersion];

fn node_server(certificate: &[u8], key: &[u8], ca: &[u8], versions: &Versions) -> Result<ServerConfig, TlsError> {
    let roots = Arc::new(roots(ca)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
    let verifier = verifier
        .build()
        .map_err(|error| TlsError::Unusable(error.to_string()))?;
    let chain = certificates(certificate, "certificate")?;
    is_node(&chain)?;
    let builder = server_builder(versions)?.with_client_cert_verifier(verifier);
    let mut config = builder.with_single_cert(chain, private_key(key)?).map_err(unusable)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn node_client(certificate: &[u8], key: &[u8], ca: &[u8], versions: &Versions) -> Result<ClientConfig, TlsError> {
    let chain = certificates(certificate, "certificate")?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .map_err(unusable)?
        .with_root_certificates(roots(ca)?);
    let mut config = builder
        .with_client_auth_cert(chain, private_key(key)?)
        .map_err(unusable)?;
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The one that is in the program already.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn server_builder(versions: &Versions) -> Result<rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier>, TlsError> {
    ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .map_err(unusable)
}

fn alpn(protocol: Protocol) -> Vec<Vec<u8>> {
    match protocol {
        Protocol::Http => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        Protocol::Grpc => vec![b"h2".to_vec()],
    }
}

fn certificates(pem: &[u8], of: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| TlsError::NoCertificate(of))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate(of));
    }
    Ok(chain)
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    // What it says never holds the key.
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| TlsError::NoKey(error.to_string()))
}

fn roots(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, "CA")? {
        roots.add(certificate).map_err(unusable)?;
    }
    Ok(roots)
}

fn unusable(error: rustls::Error) -> TlsError {
    TlsError::Unusable(error.to_string())
}

pub(super) fn node_name() -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(NODE_NAME).map_err(|error| TlsError::Unusable(error.to_string()))
}

/// Whether a certificate is one of a node.
fn is_node(chain: &[CertificateDer<'_>]) -> Result<(), TlsError> {
    let first = chain.first().ok_or(TlsError::NoCertificate("certificate"))?;
    let parsed = ParsedCertificate::try_from(first).map_err(unusable)?;
    rustls::client::verify_server_name(&parsed, &node_name()?).map_err(|_| TlsError::NotANode)
}
