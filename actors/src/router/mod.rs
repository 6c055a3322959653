//! The router's way of executing its ledger's orders.

mod node;
mod nodes;
mod request;
mod room;
mod rooms;

pub use node::{RouterNode, RouterParts};
