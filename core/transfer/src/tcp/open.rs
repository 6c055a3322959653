//! A connection until its first frame may pass: made or accepted, its socket's options set, and its TLS handshake done.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsStream;

use super::half::Half;
use crate::config::Config;
use crate::link::Link;
use crate::stats::Open;
use crate::tls::{HandshakeError, Tls};

/// Why P has no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{0} cannot be reached: {1}")]
    Unreachable(String, io::Error),
    #[error("{0} did not answer within {1:?}")]
    Silent(String, Duration),
    #[error("the connection to {0} was gone at once: {1}")]
    Gone(String, io::Error),
    #[error("no TLS with {0}: {1}")]
    NoTls(String, HandshakeError),
    #[error(
        "{0} took the connection and came to no TLS handshake within {1:?}: its process is stopped or overloaded, or something else \
         listens there"
    )]
    SlowTls(String, Duration),
}

/// Why D has none.
#[derive(Debug, thiserror::Error)]
pub(super) enum AcceptError {
    #[error("it was gone at once: {0}")]
    Gone(io::Error),
    #[error("no TLS: {0}")]
    NoTls(HandshakeError),
}

/// P's way to D. The connect timeout covers resolving, connecting and the TLS handshake: a peer's network that swallows everything
/// answers none of them.
pub(super) async fn connect(
    addr: String,
    config: Arc<Config>,
    open: Open,
    tls: Option<Arc<Tls>>,
) -> Result<Link, ConnectError> {
    let limit = config.connect_timeout;
    let by = Instant::now() + limit;
    let stream = match timeout_at(by, TcpStream::connect(&addr)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(ConnectError::Unreachable(addr, error)),
        Err(_) => return Err(ConnectError::Silent(addr, limit)),
    };
    let stream = match prepared(stream, &config) {
        Ok(stream) => stream,
        Err(error) => return Err(ConnectError::Gone(addr, error)),
    };
    let Some(tls) = tls else {
        return Ok(plain(stream, &config, open));
    };
    let socket = Arc::downgrade(&stream);
    match timeout_at(by, tls.connect(Half::new(stream, config.sabotage.clone()))).await {
        Ok(Ok(stream)) => Ok(secure(stream, socket, open)),
        Ok(Err(error)) => Err(ConnectError::NoTls(addr, error)),
        Err(_) => Err(ConnectError::SlowTls(addr, limit)),
    }
}

/// What D does with a connection before its first frame. Bounded by the caller.
pub(super) async fn accept(
    stream: TcpStream,
    config: Arc<Config>,
    open: Open,
    tls: Option<Arc<Tls>>,
) -> Result<Link, AcceptError> {
    let stream = prepared(stream, &config).map_err(AcceptError::Gone)?;
    let Some(tls) = tls else {
        return Ok(plain(stream, &config, open));
    };
    let socket = Arc::downgrade(&stream);
    let stream = tls.accept(Half::new(stream, config.sabotage.clone())).await;
    Ok(secure(stream.map_err(AcceptError::NoTls)?, socket, open))
}

/// Sets a connection's options.
fn prepared(stream: TcpStream, config: &Config) -> io::Result<Arc<TcpStream>> {
    let socket = SockRef::from(&stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(config.user_timeout))?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(config.keepalive_idle)
            .with_interval(config.keepalive_interval)
            .with_retries(config.keepalive_probes),
    )?;
    if let Some(bytes) = config.sndbuf {
        socket.set_send_buffer_size(bytes)?;
    }
    Ok(Arc::new(stream))
}

fn plain(stream: Arc<TcpStream>, config: &Config, open: Open) -> Link {
    let socket = Arc::downgrade(&stream);
    let half = |stream| Box::new(Half::new(stream, config.sabotage.clone()));
    Link {
        read: half(Arc::clone(&stream)),
        write: half(stream),
        socket,
        open,
    }
}

/// Both halves are used by one task: the lock that they share is never waited for.
fn secure(stream: TlsStream<Half>, socket: Weak<TcpStream>, open: Open) -> Link {
    let (read, write) = tokio::io::split(stream);
    Link {
        read: Box::new(read),
        write: Box::new(write),
        socket,
        open,
    }
}
