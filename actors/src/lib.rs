//! The supervision tree that drives rooms to an end.
//!
//! ```text
//! root               permanent; the process exits when a permanent child spends its budget, or the ledger dies
//! ├─ keeper          this node's member record
//! ├─ watch           the lease store's watch: members, and this node's doors
//! └─ rooms           the ledger: decides, and executes through
//!    └─ room         one actor per room (on a router below its request); never restarted
//!       └─ transfer  one actor per epoch
//! ```
//! No handler awaits I/O: that lives in owned tasks ([`tasks`]) that cast their results back.

pub mod budget;
pub mod clock;
pub mod decode;
pub mod hooks;
pub mod keeper;
pub mod outbox;
pub mod ports;
pub mod prefill;
pub mod reaper;
pub mod root;
pub mod router;
pub mod tasks;
pub mod timer;
pub mod watch;
pub mod worker;
