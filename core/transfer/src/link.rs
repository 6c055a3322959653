//! A connection as sessions see it: two halves of a byte stream, and a probe into the transport below.

use std::io;
use std::sync::{Mutex, PoisonError, Weak};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::stats::Open;

/// The reading half.
pub(crate) type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
/// The writing half.
pub(crate) type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

/// A connection. Dropping it closes it.
pub(crate) struct Link {
    pub(crate) read: ReadHalf,
    pub(crate) write: WriteHalf,
    /// The socket, if there is one.
    pub(crate) socket: Weak<TcpStream>,
    pub(crate) open: Open,
}

/// Looks at the transport of a session; keeps no connection open.
#[derive(Debug, Default)]
pub(crate) struct Probe(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    socket: Weak<TcpStream>,
    last: bool,
}

impl Probe {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn attach(&self, socket: Weak<TcpStream>) {
        self.inner().socket = socket;
    }

    /// Whether bytes are unacknowledged by the peer's kernel for a while; after the end, whether they were then.
    pub(crate) fn unacked(&self) -> bool {
        let mut inner = self.inner();
        if let Some(socket) = inner.socket.upgrade() {
            // Nothing to be learnt from a socket that is gone already: the last answer stands.
            if let Some(now) = crate::tcp::info::unacked(&socket) {
                inner.last = now;
            }
        }
        inner.last
    }

    /// The connection broke: the kernel has forgotten what was in flight, but a timeout means that probes or bytes
    /// went unanswered.
    pub(crate) fn broke(&self, timed_out: bool) -> bool {
        let unacked = self.unacked() || timed_out;
        let mut inner = self.inner();
        inner.last = unacked;
        inner.socket = Weak::new();
        unacked
    }

    /// Makes the close that follows a reset: what waits in our kernel is thrown away, not delivered.
    pub(crate) fn reset(&self) {
        if let Some(socket) = self.inner().socket.upgrade() {
            // Fails only for a socket that is closed already.
            let _ = socket2::SockRef::from(&*socket).set_linger(Some(std::time::Duration::ZERO));
        }
    }
}

/// Whether an error of a connection means that the peer's kernel stayed silent.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable
    )
}
