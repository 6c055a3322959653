//! Counters of a backend, for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a backend has counted since it was made. Gauges go up and down, the others only up.
#[derive(Debug, Default)]
pub struct Stats {
    /// Gauge: connections open that others made to us.
    pub connections_in: AtomicU64,
    /// Gauge: connections open that we made (connecting ones included).
    pub connections_out: AtomicU64,
    /// Frames of another room or epoch, and hellos answered `Stale`: nothing of them was applied.
    pub fenced_frames: AtomicU64,
    /// Frames that could not be read or were not allowed where they came.
    pub bad_frames: AtomicU64,
    /// Connections closed before their hello: too slow, evicted by newer ones, one too many, or without TLS where there must be.
    pub refused_connections: AtomicU64,
    /// Bytes read from connections, headers included.
    pub bytes_in: AtomicU64,
    /// Bytes written to connections, headers included.
    pub bytes_out: AtomicU64,
}

impl Stats {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    /// Reads one of the counters.
    #[must_use]
    pub fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

/// Which gauge a connection counts in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    In,
    Out,
}

/// Counts one open connection for as long as it lives.
#[derive(Debug)]
pub(crate) struct Open {
    stats: Arc<Stats>,
    side: Side,
}

impl Open {
    pub(crate) fn new(stats: Arc<Stats>, side: Side) -> Self {
        Stats::add(gauge(&stats, side), 1);
        Self { stats, side }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        gauge(&self.stats, self.side).fetch_sub(1, Ordering::Relaxed);
    }
}

const fn gauge(stats: &Stats, side: Side) -> &AtomicU64 {
    match side {
        Side::In => &stats.connections_in,
        Side::Out => &stats.connections_out,
    }
}
