//! Room leases, doors and members: the [`Store`] trait, an in-process store, and the etcd store.
//!
//! A store is never on the critical path. Every call has a deadline, every answer may be late or missing, and an error is
//! a state of the caller, never a failure of it.

mod backoff;
pub mod etcd;
pub mod keeper;
pub mod keys;
pub mod memory;
pub mod port;
#[cfg(feature = "testing")]
pub mod testing;

pub use etcd::{EtcdConfig, EtcdConfigError, EtcdStore, EtcdTls};
pub use keeper::{KeeperStatus, MemberKeeper};
pub use memory::{MemoryConfig, MemoryStore};
pub use port::*;
