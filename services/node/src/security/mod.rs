//! Who may ask this node: API keys of clients, certificates of nodes, TLS at the front door.
//!
//! ```text
//! keys     API keys: made, hashed, read, compared
//! tls      certificates read from PEM files into what a server or a client of TLS works with
//! ```

mod keys;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;

use innkeeper_room::Role;
use innkeeper_transfer::Tls;

pub use keys::{KeyError, Keyring, Keys, KnownBy, key_line, new_key, tenant_number};
pub use tls::{ClientTls, NODE_NAME, Protocol, ServerTls, TlsError};

use crate::config::{NodeConfig, SecurityConfig};
use crate::metrics::NodeMetrics;
use crate::reload::{Apply, Files, follow};
use crate::tasks::{Closed, Tasks};

/// What a node cannot start without, once it is asked for.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// The API keys.
    #[error("--api-keys-file or --api-keys: {0}")]
    Keys(String),
    /// The certificate of the front door.
    #[error("--tls-cert, --tls-key: {0}")]
    Tls(String),
    /// The certificate of the node.
    #[error("--node-cert, --node-key, --node-ca: {0}")]
    Node(String),
}

/// What the files of a node's certificate are good for, read together.
struct Read {
    server: ServerTls,
    client: ClientTls,
    data: (rustls::ClientConfig, rustls::ServerConfig),
}

impl Read {
    fn of(contents: &[Vec<u8>]) -> Result<Self, TlsError> {
        Ok(Self {
            server: ServerTls::node(&contents[0], &contents[1], &contents[2])?,
            client: ClientTls::node(&contents[0], &contents[1], &contents[2])?,
            data: tls::data(&contents[0], &contents[1], &contents[2])?,
        })
    }
}

/// What a node's doors are locked with.
#[derive(Clone, Default)]
pub struct Security {
    /// A router's clients must show one of these.
    pub keys: Option<Arc<Keys>>,
    /// A router's front door speaks TLS.
    pub http: Option<Arc<ServerTls>>,
    /// Other nodes must show a certificate here.
    pub control: Option<Arc<ServerTls>>,
    /// Other nodes are shown this certificate.
    pub links: Option<Arc<ClientTls>>,
    /// Both, where KV travels between workers.
    pub data: Option<Arc<Tls>>,
    /// What is read again when it changes.
    followed: Vec<(Files, Apply)>,
}

impl Security {
    /// Reads what the configuration of a node names. Keys and the certificate of the front door are for routers.
    ///
    /// # Errors
    /// [`SecurityError`] names the flags, the file, and what is wrong with it.
    pub fn open(config: &SecurityConfig, role: Role) -> Result<Self, SecurityError> {
        let mut security = Self::default();
        if role == Role::Router {
            security.open_keys(config)?;
            security.open_front(config)?;
        }
        security.open_node(config)?;
        Ok(security)
    }

    fn open_keys(&mut self, config: &SecurityConfig) -> Result<(), SecurityError> {
        if !config.wants_keys() {
            return Ok(());
        }
        let inline = config.api_keys.join("\n");
        let read = move |contents: &[Vec<u8>]| {
            let file = contents.first().map_or(&[][..], Vec::as_slice);
            let file = std::str::from_utf8(file).map_err(|_| "the file is not UTF-8".to_owned())?;
            if !contents.is_empty() {
                // A file that says nothing is a mistake, whatever else there is.
                Keyring::parse(&[file]).map_err(|error| error.to_string())?;
            }
            Keyring::parse(&[&inline, file]).map_err(|error| error.to_string())
        };
        let (files, contents) = Files::open("api_keys", config.api_keys_file.iter()).map_err(SecurityError::Keys)?;
        let keys = Arc::new(Keys::new(read(&contents).map_err(SecurityError::Keys)?));
        self.keys = Some(Arc::clone(&keys));
        self.followed.push((
            files,
            Arc::new(move |contents| {
                keys.replace(read(contents)?);
                Ok(())
            }),
        ));
        Ok(())
    }

    fn open_front(&mut self, config: &SecurityConfig) -> Result<(), SecurityError> {
        let Some(pair) = &config.tls else { return Ok(()) };
        let (files, contents) =
            Files::open("tls", [&pair.certificate, &pair.key].into_iter()).map_err(SecurityError::Tls)?;
        let tls =
            ServerTls::front(&contents[0], &contents[1]).map_err(|error| SecurityError::Tls(error.to_string()))?;
        let tls = Arc::new(tls);
        self.http = Some(Arc::clone(&tls));
        self.followed.push((
            files,
            Arc::new(move |contents| {
                let fresh = ServerTls::front(&contents[0], &contents[1]).map_err(|error| error.to_string())?;
                tls.replace(&fresh);
                Ok(())
            }),
        ));
        Ok(())
    }

    fn open_node(&mut self, config: &SecurityConfig) -> Result<(), SecurityError> {
        let Some((pair, ca)) = &config.node else {
            return Ok(());
        };
        let (files, contents) =
            Files::open("node_tls", [&pair.certificate, &pair.key, ca].into_iter()).map_err(SecurityError::Node)?;
        let read = |contents: &[Vec<u8>]| Read::of(contents).map_err(|error| error.to_string());
        let node_name = tls::node_name().map_err(|error| SecurityError::Node(error.to_string()))?;
        let now = read(&contents).map_err(SecurityError::Node)?;
        let (client, server) = now.data;
        let data = Arc::new(Tls::new(client, server, node_name));
        let (server, client) = (Arc::new(now.server), Arc::new(now.client));
        (self.control, self.links) = (Some(Arc::clone(&server)), Some(Arc::clone(&client)));
        self.data = Some(Arc::clone(&data));
        self.followed.push((
            files,
            Arc::new(move |contents| {
                let fresh = read(contents)?;
                server.replace(&fresh.server);
                client.replace(&fresh.client);
                data.replace(fresh.data.0, fresh.data.1);
                Ok(())
            }),
        ));
        Ok(())
    }

    /// Reads the files again when they change, until the node ends.
    ///
    /// # Errors
    /// The node is being stopped.
    pub fn follow(&self, tasks: &Tasks, metrics: &Arc<NodeMetrics>) -> Result<(), Closed> {
        for (files, apply) in &self.followed {
            if !files.is_empty() {
                tasks.spawn("reload", follow(files.clone(), Arc::clone(apply), Arc::clone(metrics)))?;
            }
        }
        Ok(())
    }

    /// Says in the log what is open beyond this machine.
    pub fn warn_of_open_doors(&self, config: &NodeConfig, http: SocketAddr, control: SocketAddr) {
        let beyond = |addr: SocketAddr| !addr.ip().is_loopback();
        if config.role == Role::Router && beyond(http) {
            if self.keys.is_none() {
                tracing::warn!(%http, "whoever reaches this address may use the API: no --api-keys-file is given");
            } else if self.http.is_none() {
                tracing::warn!(%http, "API keys come in clear text: give --tls-cert, or end TLS in front of this router");
            }
        }
        if beyond(control) && self.control.is_none() {
            tracing::warn!(
                %control,
                "whoever reaches this address may open and end rooms: give --node-cert, --node-key and --node-ca, or let only \
                 nodes reach it"
            );
        }
    }
}
