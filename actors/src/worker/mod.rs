//! What the prefill and the decode worker have in common.

pub mod craft;
pub mod ledger;
pub mod node;
pub mod room;
pub mod rooms;
