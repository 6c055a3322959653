//! Links that break, swallow and drip: between the router and each worker, and between the pair, in each phase (those to
//! etcd: `tests/etcd.rs`). The request is answered by the next attempt, the verdict names the place to look at, and nothing
//! is left once the link is healed.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod control;
mod data;
mod ends;
mod idle;
mod scene;
