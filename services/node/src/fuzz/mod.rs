//! The body of the fuzz target `control`: bytes that arrive on the control plane → prost → the core's words → a ledger
//! with a live room. No build that serves has it.
//!
//! What must hold whatever arrives: no panic, no invariant broken after any step, an answer for rooms that are not known
//! and no state for them, a deadline for every part, and bounded texts in what is kept.

mod ledgers;
mod router;
mod seeds;
mod worker;

use innkeeper_room::{Millis, Settings};
use innkeeper_transfer::fuzz::Input;

pub use seeds::seeds;

/// The longest queue time that a part is given.
const LONGEST_QUEUE: u64 = 24 * 3600 * 1000;

/// Plays a script; its first byte chooses the node.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let first = input.u8();
    let to_the_end = first & 0x80 != 0;
    match first % 3 {
        0 => worker::run(ledgers::Prefill::new(), input, to_the_end),
        1 => worker::run(ledgers::Decode::new(), input, to_the_end),
        _ => router::run(input, to_the_end),
    }
}

/// Short bounds, so that the end of everything is few steps away.
fn settings() -> Settings {
    Settings {
        queue_timeout: Millis(2000),
        request_timeout: Millis(6000),
        prefill_floor: 1000,
        decode_floor: 1000,
        permits: 4,
        max_requests: 6,
        max_tombstones: 8,
        tombstones_per_client: 3,
        remembered_rooms: 8,
        ..Settings::from_ttl(Millis(1000))
    }
}
