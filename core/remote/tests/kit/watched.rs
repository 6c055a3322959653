//! An engine that is watched, for the tests of both drivers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use innkeeper_remote::driver::{Clock, Probe, Watcher};
use innkeeper_room::{Millis, Moment};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::kit::TTL;

/// Between two looks.
pub const PERIOD: Duration = Duration::from_millis(50);

/// Watches `engine` until the guard goes.
pub fn watched<P: Probe>(engine: P) -> (Arc<Watcher<P>>, DropGuard) {
    let began = Instant::now();
    let clock: Clock = Arc::new(move || Moment(u64::try_from(began.elapsed().as_millis()).expect("short")));
    let ttl = Millis(u64::try_from(TTL.as_millis()).expect("short"));
    let watcher = Watcher::new(engine, ttl, PERIOD, clock);
    let stop = CancellationToken::new();
    tokio::spawn(Arc::clone(&watcher).run(stop.clone()));
    (watcher, stop.drop_guard())
}
