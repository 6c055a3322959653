//! Simulated time of a mock engine: waits that tests can wedge, speed up, and fail.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::sync::lock;

/// A wedged thread looks up this often even if nobody woke it.
const LOOK: Duration = Duration::from_millis(200);

pub(super) struct Clock {
    prefill_micros: AtomicU64,
    decode_micros: AtomicU64,
    fail: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stalled: bool,
    abandoned: bool,
}

impl Clock {
    pub(super) fn new(prefill_micros: u64, decode_micros: u64) -> Self {
        Self {
            prefill_micros: AtomicU64::new(prefill_micros),
            decode_micros: AtomicU64::new(decode_micros),
            fail: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Waits as long as a chunk of `tokens` tokens takes; whether it succeeded.
    pub(super) fn chunk(&self, tokens: u32) -> bool {
        self.spend(
            self.prefill_micros
                .load(Ordering::Relaxed)
                .saturating_mul(u64::from(tokens)),
        )
    }

    /// Waits as long as a step takes; whether it succeeded.
    pub(super) fn step(&self) -> bool {
        self.spend(self.decode_micros.load(Ordering::Relaxed))
    }

    fn spend(&self, micros: u64) -> bool {
        let until = Instant::now() + Duration::from_micros(micros);
        let mut state = lock(&self.state);
        while !state.abandoned {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() && !state.stalled {
                break;
            }
            let slice = if left.is_zero() { LOOK } else { left.min(LOOK) };
            state = self
                .changed
                .wait_timeout(state, slice)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        !state.abandoned && !self.fail.swap(false, Ordering::AcqRel)
    }

    pub(super) fn stall(&self) {
        lock(&self.state).stalled = true;
    }

    pub(super) fn resume(&self) {
        lock(&self.state).stalled = false;
        self.changed.notify_all();
    }

    pub(super) fn is_stalled(&self) -> bool {
        lock(&self.state).stalled
    }

    pub(super) fn abandon(&self) {
        lock(&self.state).abandoned = true;
        self.changed.notify_all();
    }

    pub(super) fn fail_next(&self) {
        self.fail.store(true, Ordering::Release);
    }

    pub(super) fn set_speed(&self, prefill_micros: u64, decode_micros: u64) {
        self.prefill_micros.store(prefill_micros, Ordering::Relaxed);
        self.decode_micros.store(decode_micros, Ordering::Relaxed);
    }
}
