//! Calling other nodes.

use std::sync::Arc;

use hyper_util::rt::TokioIo;
use innkeeper_room::Settings;
use tonic::transport::{Channel, Endpoint, Uri};

use super::{CONNECTION_WINDOW, STREAM_WINDOW};
use crate::net::{Connection, Connections, connect};
use crate::security::ClientTls;

/// An address at which nothing can be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{addr}` is no address of a control plane ({why}); it must be host:port")]
pub struct ChannelError {
    /// The address.
    pub addr: String,
    /// What is wrong with it.
    pub why: String,
}

/// A channel to a node's control plane at `host:port`. Connects at the first call, and anew at the first call after its
/// connection broke. Pings go on while nothing is called: a stopped peer is seen within interval + timeout.
/// With `tls` both ends show each other certificates of nodes.
///
/// # Errors
/// [`ChannelError`] if the address is none.
pub fn channel(
    addr: &str,
    settings: &Settings,
    connections: &Connections,
    tls: Option<Arc<ClientTls>>,
) -> Result<Channel, ChannelError> {
    let fail = |why: String| ChannelError {
        addr: addr.to_owned(),
        why,
    };
    let endpoint = Endpoint::from_shared(format!("http://{addr}")).map_err(|error| fail(error.to_string()))?;
    if endpoint.uri().port_u16().is_none() || endpoint.uri().path() != "/" {
        return Err(fail("no port, or more than host and port".to_owned()));
    }
    let connections = connections.clone();
    let connect = move |uri: Uri| connected(uri, connections.clone(), tls.clone());
    Ok(endpoint
        .connect_timeout(settings.connect_timeout.duration())
        .http2_keep_alive_interval(settings.ping_interval.duration())
        .keep_alive_timeout(settings.ping_timeout.duration())
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .connect_with_connector_lazy(tower::service_fn(connect)))
}

async fn connected(
    uri: Uri,
    connections: Connections,
    tls: Option<Arc<ClientTls>>,
) -> std::io::Result<TokioIo<Connection>> {
    let addr = uri.authority().map(ToString::to_string).unwrap_or_default();
    // Bounded by the channel's connect timeout, the handshake included.
    connect(&addr, &connections, tls.as_deref()).await.map(TokioIo::new)
}
