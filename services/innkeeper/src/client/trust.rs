//! Whose certificate a router may show.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// Where systems keep the CAs that they trust, unless SSL_CERT_FILE says otherwise.
const SYSTEM: &str = "/etc/ssl/certs/ca-certificates.crt";

/// What is trusted.
#[derive(Clone, Debug, Default)]
pub(crate) enum Trust {
    /// The CAs of the system.
    #[default]
    System,
    /// This CA alone.
    Ca(PathBuf),
    /// The certificate in this file itself, whoever signed it: the one that a router on this machine was given.
    Exactly(PathBuf),
}

impl Trust {
    /// As a client of TLS works with it.
    ///
    /// # Errors
    /// Names the file that cannot be used.
    pub(crate) fn config(&self) -> anyhow::Result<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let roots = match self {
            Self::System => roots(&system())?,
            Self::Ca(path) => roots(path)?,
            Self::Exactly(path) => {
                let own = certificates(path)?.into_iter().next();
                let own = own.with_context(|| format!("{} holds no certificate", path.display()))?;
                let verifier = Arc::new(Pinned { own, provider });
                let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
                return Ok(builder.with_no_client_auth());
            }
        };
        Ok(builder.with_root_certificates(roots).with_no_client_auth())
    }
}

fn system() -> PathBuf {
    let named = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty());
    named.map_or_else(|| SYSTEM.into(), PathBuf::from)
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let pem = std::fs::read(path)
        .with_context(|| format!("{} cannot be read; name the router's CA with --ca", path.display()))?;
    let all = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    all.with_context(|| format!("{} holds what is no certificate", path.display()))
}

fn roots(path: &Path) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let (good, _) = roots.add_parsable_certificates(certificates(path)?);
    anyhow::ensure!(good > 0, "{} holds no certificate of a CA", path.display());
    Ok(roots)
}

/// Takes one certificate and no other.
#[derive(Debug)]
struct Pinned {
    own: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if *shown == self.own {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::General(
                "the router shows another certificate than it was given".to_owned(),
            ))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
