//! SGLang in disaggregated mode. Both legs at once, under one number: the bootstrap room.

mod ask;
mod client;
mod gauges;
mod order;
mod reply;

pub use client::{Answer, Sglang};
pub use gauges::{Identity, handed_over_next, identity, look};
pub use order::{Asked, Order, Turn};
pub use reply::{Cursor, ended};
