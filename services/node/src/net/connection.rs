//! A connection with or without TLS, and one that must say something soon.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::TlsStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::Counted;

/// A counted connection.
pub enum Connection {
    /// As it is.
    Plain(Counted),
    /// Over TLS, on either side.
    Tls(Box<TlsStream<Counted>>),
}

impl Connection {
    /// The TCP connection below.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        match self {
            Self::Plain(counted) => counted.stream(),
            Self::Tls(tls) => tls.get_ref().0.stream(),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(counted) => Pin::new(counted).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(counted) => Pin::new(counted).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(counted) => Pin::new(counted).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(counted) => Pin::new(counted).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(counted) => Pin::new(counted).poll_write_vectored(cx, bufs),
            Self::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(counted) => counted.is_write_vectored(),
            Self::Tls(tls) => tls.is_write_vectored(),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream().connect_info()
    }
}

/// As many bytes as tell HTTP/2 from HTTP/1. No HTTP/1.1 request is shorter.
const FIRST_BYTES: usize = 24;

/// A connection that must say its first bytes soon: until they tell which protocol it speaks, no other deadline holds it.
pub struct Hasty<C> {
    connection: C,
    /// Until the first bytes are there.
    deadline: Option<Pin<Box<Sleep>>>,
    came: usize,
}

impl<C> Hasty<C> {
    /// The connection, whose first bytes must be there within `limit`.
    pub fn new(connection: C, limit: Duration) -> Self {
        Self {
            connection,
            deadline: Some(Box::pin(tokio::time::sleep(limit))),
            came: 0,
        }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Hasty<C> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let own = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut own.connection).poll_read(cx, buf);
        let Some(deadline) = &mut own.deadline else {
            return read;
        };
        own.came += buf.filled().len() - before;
        if own.came >= FIRST_BYTES {
            own.deadline = None;
        } else if read.is_pending() && deadline.as_mut().poll(cx).is_ready() {
            let late = "the connection's first bytes did not come in time";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, late)));
        }
        read
    }
}

impl<C: Connected> Connected for Hasty<C> {
    type ConnectInfo = C::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.connection.connect_info()
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Hasty<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }
}
