//! What the tests of both clients need.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use innkeeper_remote::Leg;
use innkeeper_room::{Attempt, RoomId, Work};

/// The progress TTL of these tests. Probes have half of it.
pub const TTL: Duration = Duration::from_secs(2);
/// Longer than anything that comes.
pub const LONG: Duration = Duration::from_secs(20);
/// Long enough to see that nothing comes.
pub const SHORT: Duration = Duration::from_millis(300);

/// A request of its own, greedy.
pub fn leg(number: u64, tokens: usize, most: u32) -> Leg {
    let prompt: Arc<[u32]> = (0..tokens as u64)
        .map(|at| u32::try_from((at * 7 + number * 31) % 1000).expect("small"))
        .collect();
    let work = Work {
        prompt,
        ..Work::default()
    };
    Leg::new(RoomId::from_random(number), Attempt(1), &work, most)
}

/// Waits until it is so; fails with its name if it never is.
pub async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is().await {
        assert!(began.elapsed() < LONG, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
