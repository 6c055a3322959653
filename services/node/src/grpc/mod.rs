//! gRPC as every node serves and calls it: windows, pings and limits in one place.
//!
//! The windows are large on both sides because h2 closes a whole connection when too many small unread frames are held,
//! and because one slow reader must not stop the others of its connection.

mod client;
mod health;
#[cfg(test)]
mod tests;

use std::time::Duration;

use innkeeper_room::Settings;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;

pub use client::{ChannelError, channel};
pub use health::{Health, health};

use crate::net::{Connections, CountingListener};

/// Bytes of one stream that may be on the way unread.
pub const STREAM_WINDOW: u32 = 1 << 20;
/// Bytes of one connection that may be on the way unread.
pub const CONNECTION_WINDOW: u32 = 16 << 20;
/// Streams beside the rooms': node streams, health checks, and calls.
const OTHER_STREAMS: u32 = 64;

/// A server with Innkeeper's windows, pings and limits.
#[must_use]
pub fn server(settings: &Settings) -> Server {
    // A stream that ended is drained for a grace while its room's place is taken again: twice the rooms.
    let streams = settings.permits.saturating_mul(2).saturating_add(OTHER_STREAMS);
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keepalive_interval(Some(settings.ping_interval.duration()))
        .http2_keepalive_timeout(Some(settings.ping_timeout.duration()))
        .max_concurrent_streams(streams)
        // The default of 20 closes the connection when a router ends many rooms at once.
        .http2_max_pending_accept_reset_streams(usize::try_from(streams).ok())
}

/// Serves `routes` until `stop`; then no connection is accepted, and what runs may finish within `limit`, after which
/// all connections are broken. Node streams never finish by themselves: cancel their tasks first.
///
/// # Errors
/// If the transport fails as a whole.
pub async fn serve(
    listener: CountingListener,
    settings: &Settings,
    routes: Routes,
    stop: CancellationToken,
    limit: Duration,
) -> Result<(), tonic::transport::Error> {
    let connections = listener.connections().clone();
    let serving = server(settings)
        .add_routes(routes)
        .serve_with_incoming_shutdown(listener.incoming(), stop.clone().cancelled_owned());
    finish_within(serving, stop, limit, &connections)
        .await
        .unwrap_or(Ok(()))
}

/// Waits for a server to finish, at most `limit` after `stop`; then breaks its connections. `None`: it had to.
pub(crate) async fn finish_within<F: Future>(
    serving: F,
    stop: CancellationToken,
    limit: Duration,
    connections: &Connections,
) -> Option<F::Output> {
    let too_late = async {
        stop.cancelled().await;
        tokio::time::sleep(limit).await;
    };
    let outcome = tokio::select! {
        biased;
        outcome = serving => Some(outcome),
        () = too_late => None,
    };
    connections.break_all();
    outcome
}
