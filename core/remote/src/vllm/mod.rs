//! vLLM with a KV connector that pulls (NIXL). Two legs, one after the other: prefill's gives a ticket, decode's reads by it.

mod ask;
mod client;
mod gauges;
mod reply;

pub use client::{Answer, Vllm};
pub use gauges::{Identity, look};
pub use reply::{Computed, computed, piece};
