//! What goes wrong between two ends that want TLS with each other, in words.

use std::io;
use std::time::Duration;

use rustls::{AlertDescription, Error};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// After a handshake that failed: for the peer to read why. Far above a round trip of a data network; who goes on sending holds
/// its place for no longer.
const HEARING: Duration = Duration::from_millis(250);

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The peer does not want us.
    #[error(
        "the peer refuses this node's certificate or TLS ({0}); both need a certificate of the same CA that is good now: --node-cert, \
         --node-key, --node-ca"
    )]
    Refused(String),
    /// We do not want the peer.
    #[error("the peer's certificate is refused ({0}); it must be one of a node, of the CA in --node-ca, and good now")]
    Untrusted(String),
    /// A certificate of the CA that is not a node's.
    #[error("the peer's certificate has not the DNS name `{0}`, which every node's must have")]
    NotANode(String),
    /// TLS, but not with a data plane.
    #[error("the peer speaks TLS, but not as a data plane; look at its address and its version")]
    AnotherProtocol,
    /// Something else than TLS.
    #[error(
        "the peer speaks no TLS on the data plane ({0}); give all nodes --node-cert, --node-key and --node-ca, or none of them"
    )]
    NotTls(String),
    /// It ended before it was made.
    #[error(
        "the connection ended within the TLS handshake ({0}); if the peer is well, it has no TLS on the data plane: give all nodes \
         --node-cert, --node-key and --node-ca, or none of them"
    )]
    Ended(String),
}

impl HandshakeError {
    pub(super) fn of(error: &io::Error) -> Self {
        match inside(error) {
            None => Self::Ended(error.to_string()),
            Some(Error::AlertReceived(AlertDescription::NoApplicationProtocol) | Error::NoApplicationProtocol) => {
                Self::AnotherProtocol
            }
            Some(Error::AlertReceived(alert)) => Self::Refused(format!("{alert:?}")),
            Some(
                wrong @ (Error::InvalidMessage(_)
                | Error::InappropriateMessage { .. }
                | Error::InappropriateHandshakeMessage { .. }),
            ) => Self::NotTls(wrong.to_string()),
            Some(wrong @ (Error::InvalidCertificate(_) | Error::NoCertificatesPresented)) => {
                Self::Untrusted(wrong.to_string())
            }
            Some(other) => Self::Ended(other.to_string()),
        }
    }
}

/// Whether a connection that stood broke because the peer does not take our certificate, and what to do about it. With TLS 1.3
/// that is heard only after the handshake.
pub(crate) fn refusal(error: &io::Error) -> Option<HandshakeError> {
    let Some(Error::AlertReceived(alert)) = inside(error) else {
        return None;
    };
    // Only those that a certificate causes: others may come at any time, as after a byte that was changed on its way.
    let of_certificates = matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError
    );
    of_certificates.then(|| HandshakeError::Refused(format!("{alert:?}")))
}

fn inside(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// Whether bytes are how TLS begins, or how it says that it ends.
pub(crate) fn is_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [0x14..=0x17, 3, 0..=4, ..])
}

/// Half-closes, and reads for a moment what still comes: closing with unread bytes would be a reset, and a reset eats what was
/// said on its way to the peer.
pub(super) async fn let_hear(mut io: impl AsyncRead + AsyncWrite + Unpin) {
    let hearing = async {
        if io.shutdown().await.is_ok() {
            let mut scrap = [0; 4096];
            while let Ok(1..) = io.read(&mut scrap).await {}
        }
    };
    // Either way nothing is left to do.
    let _ = tokio::time::timeout(HEARING, hearing).await;
}
