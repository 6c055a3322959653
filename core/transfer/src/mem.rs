//! The in-process backend: the same sessions as over TCP, over pipes in memory, with faults on demand.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use innkeeper_room::SlabSource;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::accept::Door;
use crate::bucket::Bucket;
use crate::config::Config;
use crate::fault::{Faults, relay};
use crate::link::Link;
use crate::outbox::Outbox;
use crate::port::{Acceptor, Backend, Dial, ListenError, Listener, SendEvent, SendSession};
use crate::send::{SendShared, SendTask};
use crate::stats::{Open, Side, Stats};

/// What the pipe holds, as a kernel's buffers would.
const PIPE: usize = 256 * 1024;

/// The listeners of one imaginary network, by address. Backends that share one reach each other.
#[derive(Clone, Default)]
pub struct MemNetwork(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    doors: HashMap<String, Entry>,
    last_port: u16,
}

#[derive(Clone)]
struct Entry {
    door: Arc<Door>,
    tasks: TaskTracker,
}

impl MemNetwork {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// KV within one process. Dropping it destroys its sessions and listeners. Its methods need a tokio runtime around them.
pub struct MemBackend {
    network: MemNetwork,
    faults: Faults,
    config: Arc<Config>,
    stats: Arc<Stats>,
    bucket: Option<Arc<Bucket>>,
    tasks: TaskTracker,
    stop: DropGuard,
}

impl MemBackend {
    /// A backend on this network.
    #[must_use]
    pub fn new(config: Config, network: MemNetwork) -> Self {
        Self {
            network,
            faults: Faults::default(),
            bucket: config.rate_cap.map(|cap| Arc::new(Bucket::new(cap))),
            config: Arc::new(config),
            stats: Arc::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new().drop_guard(),
        }
    }

    /// The faults of the connections that this backend dials.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }
}

#[async_trait]
impl Backend for MemBackend {
    fn dial(&self, dial: Dial, source: Arc<dyn SlabSource>) -> (Arc<dyn SendSession>, mpsc::Receiver<SendEvent>) {
        let stop = self.stop.token().child_token();
        let shared = Arc::new(SendShared::new(stop.clone(), self.config.sabotage.clone()));
        let (outbox, events) = Outbox::new();
        let wire = Wire {
            network: self.network.clone(),
            faults: self.faults.clone(),
            stats: Arc::clone(&self.stats),
            tasks: self.tasks.clone(),
            // A relay outlives a killed session: an end that sees nothing of the kill is one of the faults.
            stop: self.stop.token().child_token(),
        };
        let addr = dial.addr.clone();
        let task = SendTask {
            dial,
            source,
            shared: Arc::clone(&shared),
            outbox,
            config: Arc::clone(&self.config),
            stats: Arc::clone(&self.stats),
            bucket: self.bucket.clone(),
        };
        self.tasks.spawn(task.run(Box::pin(async move { wire.connect(&addr) })));
        (shared, events)
    }

    async fn listen(&self, addr: &str, acceptor: Arc<dyn Acceptor>) -> Result<Box<dyn Listener>, ListenError> {
        let stop = self.stop.token().child_token();
        let door = Door::new(
            acceptor,
            Arc::clone(&self.config),
            Arc::clone(&self.stats),
            stop.clone(),
        );
        let entry = Entry {
            door,
            tasks: self.tasks.clone(),
        };
        let mut table = self.network.table();
        table.last_port = table.last_port.wrapping_add(1).max(1);
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, table.last_port));
        let mut names = vec![local.to_string()];
        if !addr.ends_with(":0") {
            names.push(addr.to_owned());
        }
        if names.iter().any(|name| table.doors.contains_key(name)) {
            let source = std::io::Error::from(std::io::ErrorKind::AddrInUse);
            return Err(ListenError {
                addr: addr.to_owned(),
                source,
            });
        }
        for name in &names {
            table.doors.insert(name.clone(), entry.clone());
        }
        drop(table);
        let network = Arc::downgrade(&self.network.0);
        Ok(Box::new(MemDoor {
            local,
            names,
            network,
            stop: stop.drop_guard(),
        }))
    }

    fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }
}

/// What it takes to connect.
struct Wire {
    network: MemNetwork,
    faults: Faults,
    stats: Arc<Stats>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Wire {
    fn connect(self, addr: &str) -> Result<Link, String> {
        let entry = self.network.table().doors.get(addr).cloned();
        let script = self.faults.next();
        let Some(entry) = entry.filter(|entry| !script.refuse && !entry.door.stop.is_cancelled() && !entry.door.full())
        else {
            return Err(format!("{addr} cannot be reached: connection refused"));
        };
        let (prefill, prefill_far) = tokio::io::duplex(PIPE);
        let (decode, decode_far) = tokio::io::duplex(PIPE);
        let between = relay(
            tokio::io::split(prefill_far),
            tokio::io::split(decode_far),
            script,
            self.faults,
        );
        self.tasks.spawn(self.stop.run_until_cancelled_owned(between));
        let open = Open::new(Arc::clone(&entry.door.stats), Side::In);
        entry
            .tasks
            .spawn(Arc::clone(&entry.door).serve(opened(link(decode, open)), format!("mem:{addr}")));
        Ok(link(prefill, Open::new(self.stats, Side::Out)))
    }
}

fn link(stream: DuplexStream, open: Open) -> Link {
    let (read, write) = tokio::io::split(stream);
    Link {
        read: Box::new(read),
        write: Box::new(write),
        socket: Weak::new(),
        open,
    }
}

/// Nothing comes before the first frame.
fn opened(link: Link) -> impl Future<Output = Result<Link, Infallible>> {
    std::future::ready(Ok(link))
}

/// A listening name; dropping it is a shutdown.
struct MemDoor {
    local: SocketAddr,
    names: Vec<String>,
    network: Weak<Mutex<Table>>,
    stop: DropGuard,
}

impl Listener for MemDoor {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn shutdown(&self) {
        self.stop.token().cancel();
        if let Some(network) = self.network.upgrade() {
            let mut table = network.lock().unwrap_or_else(PoisonError::into_inner);
            table
                .doors
                .retain(|name, entry| !(self.names.contains(name) && entry.door.stop.is_cancelled()));
        }
    }
}

impl Drop for MemDoor {
    fn drop(&mut self) {
        self.shutdown();
    }
}
