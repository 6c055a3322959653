//! How stand-ins reach each other's memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::process::Shared;

/// The network between engines of one process.
#[derive(Clone, Default)]
pub struct Fabric(Arc<Mutex<Table>>);

#[derive(Default)]
pub(super) struct Table {
    /// vLLM's engines, by the id of their life.
    engines: HashMap<String, Weak<Shared>>,
    /// SGLang's decode engines that wait in a room.
    rooms: HashMap<u64, Weak<Shared>>,
}

impl Fabric {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, id: String, shared: &Arc<Shared>) {
        self.table().engines.insert(id, Arc::downgrade(shared));
    }

    pub(super) fn leave(&self, id: &str) {
        self.table().engines.remove(id);
    }

    /// The engine with this id, if that life of it has not ended.
    pub(super) fn engine(&self, id: &str) -> Option<Arc<Shared>> {
        self.table().engines.get(id).and_then(Weak::upgrade)
    }

    pub(super) fn wait_in(&self, room: u64, shared: &Arc<Shared>) {
        self.table().rooms.insert(room, Arc::downgrade(shared));
    }

    pub(super) fn leave_room(&self, room: u64) {
        self.table().rooms.remove(&room);
    }

    /// Decode's engine in a room.
    pub(super) fn in_room(&self, room: u64) -> Option<Arc<Shared>> {
        self.table().rooms.get(&room).and_then(Weak::upgrade)
    }
}
