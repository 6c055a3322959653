//! The room protocol as pure functions: state × event × now → state × effects. No I/O, no clock, no runtime.
//!
//! Words: see `ARCHITECTURE.md`. The only entries that actors call are the `step` functions of the three ledgers.

pub mod blame;
pub mod breaker;
pub mod bucket;
pub mod cache;
pub mod class;
pub mod deadlines;
pub mod evidence;
pub mod id_source;
pub mod ids;
pub mod invariant;
pub mod ledger;
pub mod lru;
pub mod message;
pub mod pages;
pub mod pause;
pub mod phase;
pub(crate) mod planted;
pub mod prefix;
pub mod reason;
pub mod request;
pub mod room;
pub mod settings;
pub mod slab;
pub mod spec;
pub mod time;
pub mod tombstones;
pub mod vouch;

pub use cache::BlockHash;
pub use class::Class;
pub use evidence::{Evidence, Owes};
pub use ids::{Attempt, Epoch, Incarnation, RequestKey, Role, RoomId};
pub use invariant::{Invariant, Violation};
pub use message::{Counters, FromWorker, HelloReply, PartState, Refusal, ToWorker};
pub use phase::Phase;
pub use reason::{Blame, PartEnd, Reason, Verdict};
pub use settings::Settings;
pub use slab::{FirstToken, Layout, Manifest, SlabError, SlabId, SlabMeta, SlabSink, SlabSource, Ticket, TicketLength};
pub use spec::{RoomSpec, Sampling, Token, Work};
pub use time::{Millis, Moment};
