//! Mutual TLS for data connections: only nodes speak, and nobody else reads along.
//!
//! A connection keeps what it was made with; new ones use what was read last. Both ends show the certificate of a node, and both
//! ask for the protocol of the data plane by name, so that no other port of a node can be talked to as if it were this one.

mod handshake;
pub mod throwaway;

use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, CommonState, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

pub use handshake::HandshakeError;
pub(crate) use handshake::{is_tls, refusal};

/// What the data plane is called within TLS.
pub const PROTOCOL: &[u8] = b"innkeeper-kv/1";

/// Both sides of TLS between nodes.
#[derive(Debug)]
pub struct Tls {
    current: RwLock<Current>,
    /// In the certificate of every node.
    name: ServerName<'static>,
}

#[derive(Clone, Debug)]
struct Current {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Current {
    fn new(mut client: ClientConfig, mut server: ServerConfig) -> Self {
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        Self {
            client: Arc::new(client),
            server: Arc::new(server),
        }
    }
}

impl Tls {
    /// Of these configurations, which must show a certificate and ask for one. `name` is the DNS name that makes a certificate one
    /// of a node. Closing one direction while the other goes on is used here: let them speak TLS 1.3 alone.
    #[must_use]
    pub fn new(client: ClientConfig, server: ServerConfig, name: ServerName<'static>) -> Self {
        Self {
            current: RwLock::new(Current::new(client, server)),
            name,
        }
    }

    /// New connections use these.
    pub fn replace(&self, client: ClientConfig, server: ServerConfig) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Current::new(client, server);
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// P's handshake. Bounded by the caller. With TLS 1.3 D looks at our certificate only after it: what it thinks of it is in the
    /// first bytes that come back.
    ///
    /// # Errors
    /// Why there is no connection; it is closed.
    pub async fn connect<IO>(&self, io: IO) -> Result<TlsStream<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let connecting = TlsConnector::from(self.current().client).connect(self.name.clone(), io);
        let stream = connecting.await.map_err(|error| HandshakeError::of(&error))?;
        names_protocol(stream.get_ref().1)?;
        Ok(stream.into())
    }

    /// D's handshake. Bounded by the caller.
    ///
    /// # Errors
    /// Why there is no connection; it is closed.
    pub async fn accept<IO>(&self, io: IO) -> Result<TlsStream<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let accepting = TlsAcceptor::from(self.current().server).accept(io).into_fallible();
        match accepting.await {
            Ok(stream) => {
                let state = stream.get_ref().1;
                let shown = state.peer_certificates().unwrap_or_default();
                if let Err(error) = self.is_node(shown).and_then(|()| names_protocol(state)) {
                    handshake::let_hear(stream).await;
                    return Err(error);
                }
                Ok(stream.into())
            }
            Err((error, io)) => {
                handshake::let_hear(io).await;
                Err(HandshakeError::of(&error))
            }
        }
    }

    /// A CA may sign other things than nodes; a client verifies the name of its server by itself, a server that of its client not.
    fn is_node(&self, shown: &[CertificateDer<'_>]) -> Result<(), HandshakeError> {
        let named = shown.first().is_some_and(|first| {
            ParsedCertificate::try_from(first)
                .and_then(|parsed| rustls::client::verify_server_name(&parsed, &self.name))
                .is_ok()
        });
        if named {
            Ok(())
        } else {
            Err(HandshakeError::NotANode(self.name.to_str().into_owned()))
        }
    }
}

fn names_protocol(state: &CommonState) -> Result<(), HandshakeError> {
    if state.alpn_protocol() == Some(PROTOCOL) {
        Ok(())
    } else {
        Err(HandshakeError::AnotherProtocol)
    }
}
