//! The decode ledger.

mod contract;
mod data;
mod engine;
mod hello;
mod ledger;
mod part_d;
mod peers;

#[cfg(test)]
mod chaos;
#[cfg(test)]
mod tests;

pub use contract::*;
pub use ledger::Ledger;

pub use crate::ledger::worker::Config;
