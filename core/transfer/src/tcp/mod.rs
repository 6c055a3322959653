//! The default backend: framed TCP, over mutual TLS where there are certificates.

mod half;
pub(crate) mod info;
mod open;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use innkeeper_room::SlabSource;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::accept::Door;
use crate::bucket::Bucket;
use crate::config::Config;
use crate::outbox::Outbox;
use crate::port::{Acceptor, Backend, Dial, ListenError, Listener, SendEvent, SendSession};
use crate::send::{SendShared, SendTask};
use crate::stats::{Open, Side, Stats};
use crate::tls::Tls;

/// After a failed accept (out of descriptors, most likely): long enough not to spin, short enough not to be noticed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// KV over TCP, one connection per session. Dropping it destroys its sessions and listeners. Its methods need a tokio
/// runtime around them.
pub struct TcpBackend {
    config: Arc<Config>,
    stats: Arc<Stats>,
    bucket: Option<Arc<Bucket>>,
    tls: Option<Arc<Tls>>,
    tasks: TaskTracker,
    stop: DropGuard,
}

impl TcpBackend {
    /// A backend with these bounds, without TLS.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            bucket: config.rate_cap.map(|cap| Arc::new(Bucket::new(cap))),
            config: Arc::new(config),
            stats: Arc::default(),
            tls: None,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new().drop_guard(),
        }
    }

    /// The same over TLS, if there is one to be spoken: then nothing else is, in either direction.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Arc<Tls>>) -> Self {
        self.tls = tls;
        self
    }
}

#[async_trait]
impl Backend for TcpBackend {
    fn dial(&self, dial: Dial, source: Arc<dyn SlabSource>) -> (Arc<dyn SendSession>, mpsc::Receiver<SendEvent>) {
        let shared = Arc::new(SendShared::new(
            self.stop.token().child_token(),
            self.config.sabotage.clone(),
        ));
        let (outbox, events) = Outbox::new();
        let connect = open::connect(
            dial.addr.clone(),
            Arc::clone(&self.config),
            Open::new(Arc::clone(&self.stats), Side::Out),
            self.tls.clone(),
        );
        let connect = Box::pin(async move { connect.await.map_err(|error| error.to_string()) });
        let task = SendTask {
            dial,
            source,
            shared: Arc::clone(&shared),
            outbox,
            config: Arc::clone(&self.config),
            stats: Arc::clone(&self.stats),
            bucket: self.bucket.clone(),
        };
        self.tasks.spawn(task.run(connect));
        (shared, events)
    }

    async fn listen(&self, addr: &str, acceptor: Arc<dyn Acceptor>) -> Result<Box<dyn Listener>, ListenError> {
        let fault = |source| ListenError {
            addr: addr.to_owned(),
            source,
        };
        let socket = TcpListener::bind(addr).await.map_err(fault)?;
        let local = socket.local_addr().map_err(fault)?;
        let stop = self.stop.token().child_token();
        let door = Door::new(
            acceptor,
            Arc::clone(&self.config),
            Arc::clone(&self.stats),
            stop.clone(),
        );
        self.tasks
            .spawn(accept_all(socket, door, self.tls.clone(), self.tasks.clone()));
        Ok(Box::new(TcpDoor {
            local,
            stop: stop.drop_guard(),
        }))
    }

    fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }
}

/// A listening socket; dropping it is a shutdown.
struct TcpDoor {
    local: SocketAddr,
    stop: DropGuard,
}

impl Listener for TcpDoor {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn shutdown(&self) {
        self.stop.token().cancel();
    }
}

async fn accept_all(socket: TcpListener, door: Arc<Door>, tls: Option<Arc<Tls>>, tasks: TaskTracker) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = door.stop.cancelled() => return,
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok(_) if door.full() => Stats::add(&door.stats.refused_connections, 1),
            Ok((stream, peer)) => {
                let open = Open::new(Arc::clone(&door.stats), Side::In);
                let opening = open::accept(stream, Arc::clone(&door.config), open, tls.clone());
                tasks.spawn(Arc::clone(&door).serve(opening, peer.to_string()));
            }
            Err(error) => {
                tracing::warn!(%error, "accepting data connections fails; trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
