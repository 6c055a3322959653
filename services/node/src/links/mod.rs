//! R's links to workers over gRPC.
//!
//! ```text
//! TonicLinks   one channel per worker's life; all tasks are owned by the node's `Tasks`
//! ├─ room      one task per room and worker: Open, what R says, what the worker says, and exactly one end
//! ├─ node      one task per worker: Hello, reports, questions; reconnects
//! └─ broken    whether a connection broke, or only a stream ended
//! ```

mod broken;
#[cfg(test)]
mod harness;
mod node;
mod room;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use innkeeper_actors::ports::{Links, NodeLink, OpenRoom, RoomLink, Target};
use innkeeper_room::{Incarnation, Settings};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::faults::Faults;
use crate::grpc::{ChannelError, channel};
use crate::net::Connections;
use crate::security::ClientTls;
use crate::tasks::Tasks;

/// Most connections to workers at once. Far more workers than one router serves; a bound against a wild member list.
const MAX_CONNECTIONS: usize = 4096;

/// R's links to workers over gRPC. Dropping it ends all of them.
#[derive(Debug)]
pub struct TonicLinks {
    router: Incarnation,
    settings: Settings,
    tasks: Tasks,
    connections: Connections,
    stop: CancellationToken,
    faults: Arc<Faults>,
    tls: Option<Arc<ClientTls>>,
    workers: Mutex<HashMap<Incarnation, Worker>>,
}

/// The connection to one life of a worker.
#[derive(Clone, Debug)]
struct Worker {
    control: String,
    channel: Result<Channel, ChannelError>,
    /// Ends its streams.
    stop: CancellationToken,
}

impl TonicLinks {
    /// The links of a router. Their tasks are counted in `tasks` as `room_link` and `node_link`.
    #[must_use]
    pub fn new(router: Incarnation, settings: Settings, tasks: Tasks) -> Self {
        let connections = Connections::new("control_out", MAX_CONNECTIONS);
        let stop = tasks.token().child_token();
        Self {
            router,
            settings,
            tasks,
            connections,
            stop,
            faults: Faults::none(),
            tls: None,
            workers: Mutex::default(),
        }
    }

    /// The same, whose messages may meet faults that tests ask for.
    #[must_use]
    pub fn with_faults(mut self, faults: Arc<Faults>) -> Self {
        self.faults = faults;
        self
    }

    /// The same over TLS between nodes, if there is one.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Arc<ClientTls>>) -> Self {
        self.tls = tls;
        self
    }

    /// Connections to workers.
    #[must_use]
    pub const fn connections(&self) -> &Connections {
        &self.connections
    }

    fn worker(&self, target: &Target) -> Worker {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || Worker {
            control: target.control.clone(),
            channel: channel(&target.control, &self.settings, &self.connections, self.tls.clone()),
            stop: self.stop.child_token(),
        };
        match workers.entry(target.incarnation) {
            Entry::Vacant(place) => place.insert(fresh()).clone(),
            Entry::Occupied(known) if known.get().control == target.control => known.get().clone(),
            Entry::Occupied(mut moved) => {
                moved.insert(fresh()).stop.cancel();
                moved.get().clone()
            }
        }
    }
}

impl Links for TonicLinks {
    fn open(&self, target: &Target, open: OpenRoom) -> RoomLink {
        let worker = self.worker(target);
        room::open(
            worker.channel,
            worker.stop,
            &self.settings,
            (&self.tasks, &self.faults),
            open,
        )
    }

    fn node(&self, target: &Target) -> NodeLink {
        let worker = self.worker(target);
        let meant = node::Meant {
            router: self.router,
            worker: target.incarnation,
        };
        node::open(worker.channel, worker.stop, &self.settings, &self.tasks, meant)
    }

    fn forget(&self, incarnation: Incarnation) {
        let known = self
            .workers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&incarnation);
        if let Some(worker) = known {
            worker.stop.cancel();
        }
    }
}

impl Drop for TonicLinks {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
