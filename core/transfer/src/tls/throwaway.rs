//! Certificates that are good for a benchmark or a test and for nothing else: made in memory, signed by themselves, never stored.
//! Real ones come from files.

use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::Tls;

/// The DNS name that nodes have here.
pub const NAME: &str = "innkeeper-node";

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum ThrowawayError {
    /// No key.
    #[error("no key can be made: the system gives no random numbers")]
    Key,
    /// What was made cannot be used.
    #[error("the certificate that was made cannot be used: {0}")]
    Unusable(String),
}

/// A certificate and its key.
#[derive(Debug)]
pub struct Throwaway {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Throwaway {
    /// One with this DNS name, of fewer than 64 bytes.
    ///
    /// # Errors
    /// [`ThrowawayError::Key`].
    pub fn new(name: &str) -> Result<Self, ThrowawayError> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| ThrowawayError::Key)?;
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).map_err(|_| ThrowawayError::Key)?;
        Ok(Self {
            certificate: CertificateDer::from(certificate(&pair, name)),
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(document.as_ref().to_vec())),
        })
    }

    /// Shows this one, and takes `trusted` alone.
    ///
    /// # Errors
    /// [`ThrowawayError::Unusable`].
    pub fn tls(&self, trusted: &Self) -> Result<Tls, ThrowawayError> {
        let (client, server) = self.configurations(trusted)?;
        let name = ServerName::try_from(NAME).map_err(unusable)?;
        Ok(Tls::new(client, server, name))
    }

    /// What [`Tls`] is made of.
    ///
    /// # Errors
    /// [`ThrowawayError::Unusable`].
    pub fn configurations(&self, trusted: &Self) -> Result<(ClientConfig, ServerConfig), ThrowawayError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(trusted.certificate.clone()).map_err(unusable)?;
        let roots = Arc::new(roots);
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let chain = vec![self.certificate.clone()];
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain.clone(), self.key.clone_key())
            .map_err(unusable)?;
        client.resumption = Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier.build().map_err(unusable)?)
            .with_single_cert(chain, self.key.clone_key())
            .map_err(unusable)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok((client, server))
    }
}

fn unusable(error: impl ToString) -> ThrowawayError {
    ThrowawayError::Unusable(error.to_string())
}

/// DER tags.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const BITS: u8 = 0x03;
const OCTETS: u8 = 0x04;
const TIME: u8 = 0x17;
/// The object identifiers of Ed25519, of a common name, and of alternative names.
const ED25519: &[u8] = &[0x06, 3, 0x2b, 0x65, 0x70];
const COMMON_NAME: &[u8] = &[0x06, 3, 0x55, 0x04, 0x03];
const ALTERNATIVE_NAMES: &[u8] = &[0x06, 3, 0x55, 0x1d, 0x11];
/// The numbers 2 (which is version 3) and 1.
const VERSION: &[u8] = &[0x02, 1, 2];
const SERIAL: &[u8] = &[0x02, 1, 1];

/// X.509 (RFC 5280), version 3, with one extension: the alternative name.
fn certificate(pair: &Ed25519KeyPair, name: &str) -> Vec<u8> {
    let bits = |bytes: &[u8]| value(BITS, &[&[0], bytes]);
    let algorithm = value(SEQUENCE, &[ED25519]);
    let text = value(0x0c, &[name.as_bytes()]);
    let issuer = value(SEQUENCE, &[&value(SET, &[&value(SEQUENCE, &[COMMON_NAME, &text])])]);
    let valid = value(
        SEQUENCE,
        &[&value(TIME, &[b"200101000000Z"]), &value(TIME, &[b"491231235959Z"])],
    );
    let key = value(SEQUENCE, &[&algorithm, &bits(pair.public_key().as_ref())]);
    let names = value(SEQUENCE, &[&value(0x82, &[name.as_bytes()])]);
    let extension = value(SEQUENCE, &[ALTERNATIVE_NAMES, &value(OCTETS, &[&names])]);
    let body = value(
        SEQUENCE,
        &[
            &value(0xa0, &[VERSION]),
            SERIAL,
            &algorithm,
            &issuer,
            &valid,
            &issuer,
            &key,
            &value(0xa3, &[&value(SEQUENCE, &[&extension])]),
        ],
    );
    let signature = pair.sign(&body);
    value(SEQUENCE, &[&body, &algorithm, &bits(signature.as_ref())])
}

/// A DER value of fewer than 65,536 bytes.
fn value(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let [.., high, low] = content.len().to_be_bytes();
    let mut bytes = match (high, low) {
        (0, 0..=0x7f) => vec![tag, low],
        (0, _) => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    bytes.extend_from_slice(&content);
    bytes
}
