//! Listeners and connections that count themselves, are bounded, and have TCP_NODELAY. With or without TLS.

mod connection;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

pub use connection::{Connection, Hasty};

use crate::security::{ClientTls, ServerTls};

/// For the first bytes of a connection and a TLS handshake, unless a listener is told otherwise.
const PATIENCE: Duration = Duration::from_secs(30);
/// What strangers can cause as often as they like is said at most this often.
const SAY_AGAIN: Duration = Duration::from_secs(1);
/// One of so many places may be held by a TLS handshake.
const HANDSHAKES: usize = 4;
/// After an accept that failed (mostly: no file descriptor is free) the next one waits this long, instead of spinning.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Counts and bounds the connections of one kind. Clones share one count.
#[derive(Clone, Debug)]
pub struct Connections {
    kind: &'static str,
    limit: usize,
    places: Arc<Semaphore>,
    refused: Arc<AtomicU64>,
    end: CancellationToken,
}

impl Connections {
    /// At most `limit` connections at once.
    #[must_use]
    pub fn new(kind: &'static str, limit: usize) -> Self {
        let limit = limit.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            kind,
            limit,
            places: Arc::new(Semaphore::new(limit)),
            refused: Arc::default(),
            end: CancellationToken::new(),
        }
    }

    /// The kind and how many there are, for `innkeeper_connections{kind}`.
    #[must_use]
    pub fn count(&self) -> (&'static str, u64) {
        (
            self.kind,
            self.limit.saturating_sub(self.places.available_permits()) as u64,
        )
    }

    /// The kind, and how many found no place or came to no handshake, for `innkeeper_connections_refused_total{kind}`.
    #[must_use]
    pub fn refused(&self) -> (&'static str, u64) {
        (self.kind, self.refused.load(Ordering::Relaxed))
    }

    /// Wraps a connection, if there is a place.
    ///
    /// # Errors
    /// If the limit is reached; the connection is closed.
    pub fn admit(&self, stream: TcpStream) -> io::Result<Counted> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            io::Error::other(format!(
                "{} connections are open, the most of kind {}",
                self.limit, self.kind
            ))
        })?;
        Ok(Counted {
            stream,
            _place: place,
            end: Box::pin(self.end.clone().cancelled_owned()),
            ended: false,
        })
    }

    /// Breaks all connections, those to come included: whatever waits on one hears an error. The last step of a shutdown.
    pub fn break_all(&self) {
        self.end.cancel();
    }
}

/// A TCP connection that holds its place in the count.
pub struct Counted {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
    end: Pin<Box<WaitForCancellationFutureOwned>>,
    ended: bool,
}

impl Counted {
    /// The connection itself.
    #[must_use]
    pub const fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// An error once all connections were broken. Whoever serves a connection always waits for bytes: it wakes here.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.ended = self.ended || self.end.as_mut().poll(cx).is_ready();
        if self.ended {
            Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the node is shutting down",
            ))
        } else {
            Ok(())
        }
    }
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_end(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Connects to another node: counted, with TCP_NODELAY, and over its TLS if there is one. Bounded by the caller.
///
/// # Errors
/// Why there is no connection.
pub async fn connect(addr: &str, connections: &Connections, tls: Option<&ClientTls>) -> io::Result<Connection> {
    let stream = TcpStream::connect(addr).await?;
    stream.set_nodelay(true)?;
    let counted = connections.admit(stream)?;
    match tls {
        None => Ok(Connection::Plain(counted)),
        Some(tls) => {
            let refused = |error: io::Error| io::Error::new(error.kind(), format!("no TLS with {addr}: {error}"));
            let stream = tls.connect(counted).await.map_err(refused)?;
            Ok(Connection::Tls(Box::new(stream)))
        }
    }
}

/// A listener whose connections are counted. For axum and tonic alike.
#[derive(Debug)]
pub struct CountingListener {
    listener: TcpListener,
    connections: Connections,
    tls: Option<Arc<ServerTls>>,
    patience: Duration,
    /// Owned here: they end with the listener.
    handshakes: JoinSet<Option<(Connection, SocketAddr)>>,
    /// Those that run, the oldest first.
    oldest: VecDeque<AbortHandle>,
    said: Option<Instant>,
}

impl CountingListener {
    /// Listens at `addr`; port 0 takes a free one.
    ///
    /// # Errors
    /// With the address in the text.
    pub async fn bind(addr: SocketAddr, connections: Connections) -> io::Result<Self> {
        let listener = TcpListener::bind(addr).await.map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("listening at {addr} ({}): {error}", connections.kind),
            )
        })?;
        Ok(Self {
            listener,
            connections,
            tls: None,
            patience: PATIENCE,
            handshakes: JoinSet::new(),
            oldest: VecDeque::new(),
            said: None,
        })
    }

    /// The same over TLS, if there is one to be spoken.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Arc<ServerTls>>) -> Self {
        self.tls = tls;
        self
    }

    /// The same, that waits so long for a connection's first bytes and its TLS handshake.
    #[must_use]
    pub const fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How long it waits for a connection's first bytes, and for its TLS handshake.
    #[must_use]
    pub const fn patience(&self) -> Duration {
        self.patience
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the OS does not say.
    pub fn addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The count of its connections.
    #[must_use]
    pub const fn connections(&self) -> &Connections {
        &self.connections
    }

    /// The next connection, its TLS handshake done. One that finds no place is closed at once; failures are waited out.
    /// Handshakes run beside each other, each with a place in the count, so that none holds up another; of too many the oldest is
    /// given up. Cancel-safe.
    pub async fn next(&mut self) -> (Connection, SocketAddr) {
        loop {
            let accepted = tokio::select! {
                Some(done) = self.handshakes.join_next() => match done {
                    Ok(Some(pair)) => return pair,
                    // It said why; or it died.
                    Ok(None) | Err(_) => continue,
                },
                accepted = self.listener.accept() => accepted.inspect(|(stream, _)| {
                    // Without it a small message waits for an acknowledgement; a failure costs only time.
                    let _ = stream.set_nodelay(true);
                }),
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, kind = self.connections.kind, "no connection accepted");
                    // A stop meanwhile loses nothing: nothing was accepted.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match (self.connections.admit(stream), &self.tls) {
                (Err(error), _) => self.say_refused(&error, peer),
                (Ok(counted), None) => return (Connection::Plain(counted), peer),
                (Ok(counted), Some(tls)) => {
                    let handshake = handshake(Arc::clone(tls), counted, peer, self.patience, self.connections.clone());
                    self.make_room();
                    self.oldest.push_back(self.handshakes.spawn(handshake));
                }
            }
        }
    }

    /// Connections that have shown nothing yet hold a quarter of all places at the most, and the one that has taken longest
    /// makes room: who never speaks keeps nobody out who does.
    fn make_room(&mut self) {
        self.oldest.retain(|handshake| !handshake.is_finished());
        let most = (self.connections.limit / HANDSHAKES).max(1);
        while self.oldest.len() >= most {
            if let Some(oldest) = self.oldest.pop_front() {
                oldest.abort();
                self.connections.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn say_refused(&mut self, error: &io::Error, peer: SocketAddr) {
        if self.said.is_none_or(|said| said.elapsed() > SAY_AGAIN) {
            self.said = Some(Instant::now());
            tracing::warn!(%error, %peer, kind = self.connections.kind, "a connection was refused");
        }
    }

    /// The connections as an endless stream, as tonic takes them. Each owes its first bytes soon.
    pub fn incoming(self) -> impl futures::Stream<Item = io::Result<Hasty<Connection>>> {
        futures::stream::unfold(self, |mut listener| async move {
            let (connection, _) = listener.next().await;
            Some((Ok(Hasty::new(connection, listener.patience)), listener))
        })
    }
}

async fn handshake(
    tls: Arc<ServerTls>,
    counted: Counted,
    peer: SocketAddr,
    limit: Duration,
    connections: Connections,
) -> Option<(Connection, SocketAddr)> {
    match tls.accept(counted, limit).await {
        Ok(stream) => Some((Connection::Tls(Box::new(stream)), peer)),
        Err(error) => {
            connections.refused.fetch_add(1, Ordering::Relaxed);
            // Strangers cause it as often as they like; the count is what is looked at.
            tracing::debug!(%error, %peer, kind = connections.kind, "no TLS handshake");
            None
        }
    }
}
