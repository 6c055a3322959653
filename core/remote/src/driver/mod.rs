//! One engine, driven: what its rooms share, and the two legs of a room with all that is promised about them.
//!
//! ```text
//! watcher   looks at the gauges, sends canaries, finds another process: one per engine, run by its owner
//! vllm      leg 1 with the age of its lease; leg 2 with the proof that it read in time; tickets given back
//! sglang    both legs at once; those that nobody wants are aborted until they have ended
//! keeper    ends and restarts its process when the fence says so: one per engine, run by its owner
//! ```

mod keeper;
pub mod sglang;
mod vllm;
mod watcher;

pub use keeper::{Care, Condition, Keeper, Pinned};
pub use sglang::{Meeting, SglangDriver};
pub use vllm::{Kept, Landed, VllmDriver};
pub use watcher::{Aside, Clock, Open, Probe, Watcher};
