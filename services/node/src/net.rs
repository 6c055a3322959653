//! Listeners and connections that count themselves, are bounded, and have TCP_NODELAY.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// After an accept that failed (mostly: no file descriptor is free) the next one waits this long, instead of spinning.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Counts and bounds the connections of one kind. Clones share one count.
#[derive(Clone, Debug)]
pub struct Connections {
    kind: &'static str,
    limit: usize,
    places: Arc<Semaphore>,
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

    /// Wraps a connection, if there is a place.
    ///
    /// # Errors
    /// If the limit is reached; the connection is closed.
    pub fn admit(&self, stream: TcpStream) -> io::Result<Counted> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
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

impl tonic::transport::server::Connected for Counted {
    type ConnectInfo = tonic::transport::server::TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

/// A listener whose connections are counted. For axum and tonic alike.
#[derive(Debug)]
pub struct CountingListener {
    listener: TcpListener,
    connections: Connections,
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
        Ok(Self { listener, connections })
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

    /// The next connection. One that finds no place is closed; failures are waited out. Cancel-safe.
    pub async fn next(&mut self) -> (Counted, SocketAddr) {
        loop {
            let accepted = match self.listener.accept().await {
                Ok((stream, peer)) => {
                    // Without it a small message waits for an acknowledgement; a failure costs only time.
                    let _ = stream.set_nodelay(true);
                    self.connections.admit(stream).map(|counted| (counted, peer))
                }
                Err(error) => Err(error),
            };
            match accepted {
                Ok(pair) => return pair,
                Err(error) => {
                    tracing::warn!(%error, kind = self.connections.kind, "no connection accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// The connections as an endless stream, as tonic takes them.
    pub fn incoming(self) -> impl futures::Stream<Item = io::Result<Counted>> {
        futures::stream::unfold(self, |mut listener| async move {
            let (connection, _) = listener.next().await;
            Some((Ok(connection), listener))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_are_counted_and_bounded() {
        let connections = Connections::new("test", 1);
        let mut listener = CountingListener::bind(([127, 0, 0, 1], 0).into(), connections.clone())
            .await
            .unwrap();
        let addr = listener.addr().unwrap();
        let _one = TcpStream::connect(addr).await.unwrap();
        let (first, _) = listener.next().await;
        assert!(first.stream().nodelay().unwrap());
        assert_eq!(connections.count(), ("test", 1));
        let two = TcpStream::connect(addr).await.unwrap();
        let refused = tokio::time::timeout(Duration::from_millis(200), listener.next()).await;
        assert!(refused.is_err(), "the second finds no place");
        two.readable().await.unwrap();
        assert_eq!(two.try_read(&mut [0; 8]).unwrap(), 0, "and is closed");
        drop(first);
        assert_eq!(connections.count(), ("test", 0));
    }

    #[tokio::test]
    async fn breaking_all_wakes_who_waits() {
        let connections = Connections::new("test", 2);
        let mut listener = CountingListener::bind(([127, 0, 0, 1], 0).into(), connections.clone())
            .await
            .unwrap();
        let _peer = TcpStream::connect(listener.addr().unwrap()).await.unwrap();
        let (mut waiting, _) = listener.next().await;
        let mut byte = [0; 1];
        let read = tokio::io::AsyncReadExt::read(&mut waiting, &mut byte);
        let (heard, ()) = tokio::join!(read, async { connections.break_all() });
        assert_eq!(heard.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
}
