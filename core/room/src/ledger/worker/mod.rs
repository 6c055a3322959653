//! What the two worker ledgers share: the table of parts, permits and pages, quarantine and fences, the engine's watch.
//!
//! ```text
//! Table        live parts, ended rooms (LRU), closing rooms (quarantine), pages, permits, deadlines
//! ├─ Part      prefill::Part or decode::Part: phase, epoch, counters, and its timers as a pure function of them
//! │  └─ Base   what both kinds of part have
//! ├─ Closing   a room that is over but whose permits are not all back: grace → kill, TTL → destroy, then the process:
//! │            the worker's, or (Pinned) that of an engine which is not the worker's own
//! ├─ Engine    the engine's watch: wedged if it owes and finishes nothing for a progress TTL
//! └─ Gate      serving, draining, fenced
//! ```

mod answers;
mod closing;
mod config;
mod engine;
mod gate;
mod orders;
mod part;
mod permits;
mod pinned;
mod reborn;
mod settle;
mod table;
mod timer;
mod views;

pub use config::{Config, EngineKind};
pub(crate) use engine::EngineWatch;
pub(crate) use orders::Orders;
pub(crate) use part::{Base, LastWord, Part};
pub use pinned::{Accused, Pinned};
pub(crate) use table::{Ending, Env, Gone, Key, Table};
pub(crate) use timer::{Timer, TimerKind, Timers};
