//! The prefill ledger.

mod admit;
mod contract;
mod data;
mod ledger;
mod part_p;
mod rate;

#[cfg(test)]
mod chaos;
#[cfg(test)]
mod tests;

pub use contract::*;
pub use ledger::Ledger;

pub use crate::ledger::worker::Config;
