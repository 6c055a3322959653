//! The default backend: framed TCP.

mod half;
pub(crate) mod info;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use innkeeper_room::SlabSource;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use self::half::Half;
use crate::accept::Door;
use crate::bucket::Bucket;
use crate::config::Config;
use crate::link::Link;
use crate::outbox::Outbox;
use crate::port::{Acceptor, Backend, Dial, ListenError, Listener, SendEvent, SendSession};
use crate::send::{SendShared, SendTask};
use crate::stats::{Open, Side, Stats};

/// After a failed accept (out of descriptors, most likely): long enough not to spin, short enough not to be noticed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// KV over TCP, one connection per session. Dropping it destroys its sessions and listeners. Its methods need a tokio
/// runtime around them.
pub struct TcpBackend {
    config: Arc<Config>,
    stats: Arc<Stats>,
    bucket: Option<Arc<Bucket>>,
    tasks: TaskTracker,
    stop: DropGuard,
}

impl TcpBackend {
    /// A backend with these bounds.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            bucket: config.rate_cap.map(|cap| Arc::new(Bucket::new(cap))),
            config: Arc::new(config),
            stats: Arc::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new().drop_guard(),
        }
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
        let connect = Box::pin(connect(
            dial.addr.clone(),
            Arc::clone(&self.config),
            Arc::clone(&self.stats),
        ));
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
        self.tasks.spawn(accept_all(socket, door, self.tasks.clone()));
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

async fn accept_all(socket: TcpListener, door: Arc<Door>, tasks: TaskTracker) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = door.stop.cancelled() => return,
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok(_) if door.full() => Stats::add(&door.stats.refused_connections, 1),
            Ok((stream, peer)) => match link(stream, &door.config, Open::new(Arc::clone(&door.stats), Side::In)) {
                Ok(link) => {
                    tasks.spawn(Arc::clone(&door).serve(link, peer.to_string()));
                }
                Err(error) => tracing::debug!(%peer, %error, "a data connection was gone at once"),
            },
            Err(error) => {
                tracing::warn!(%error, "accepting data connections fails; trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connect(addr: String, config: Arc<Config>, stats: Arc<Stats>) -> Result<Link, String> {
    let open = Open::new(stats, Side::Out);
    // Covers resolving and connecting: a peer's network that swallows everything answers neither.
    let connecting = tokio::time::timeout(config.connect_timeout, TcpStream::connect(&addr));
    let stream = match connecting.await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(format!("{addr} cannot be reached: {error}")),
        Err(_) => return Err(format!("{addr} did not answer within {:?}", config.connect_timeout)),
    };
    link(stream, &config, open).map_err(|error| format!("the connection to {addr} was gone at once: {error}"))
}

/// Sets a connection's options and splits it.
fn link(stream: TcpStream, config: &Config, open: Open) -> io::Result<Link> {
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
    let stream = Arc::new(stream);
    let socket = Arc::downgrade(&stream);
    let half = |stream| Box::new(Half::new(stream, config.sabotage.clone()));
    Ok(Link {
        read: half(Arc::clone(&stream)),
        write: half(stream),
        socket,
        open,
    })
}
