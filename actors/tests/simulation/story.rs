//! What happened, numbered and timed: told when a seed is replayed, and always summed, so that two runs can be compared.

use std::hash::Hasher;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// Locks; a panic while a lock is held has ended the run anyway.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The story of one run.
pub(crate) struct Story {
    began: Instant,
    loud: bool,
    /// Also what is only noted.
    all: bool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    lines: u64,
    /// FNV-1a over all lines: no key, so the same in every process.
    sum: Fnv,
    wrong: Vec<String>,
}

impl Story {
    /// An empty one; `loud`: it is printed as it happens.
    pub(crate) fn new(loud: bool) -> Self {
        Self {
            began: Instant::now(),
            loud,
            all: loud && std::env::var_os("SIM_ALL").is_some(),
            inner: Mutex::default(),
        }
    }

    /// Virtual milliseconds since the run began.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Something worth reading.
    pub(crate) fn tell(&self, line: &str) {
        let (number, now) = self.sum(line);
        if self.loud && !self.all {
            println!("{number:>6} {now:>6} ms  {line}");
        }
    }

    /// Something that only has to be the same when the seed is.
    pub(crate) fn note(&self, line: &str) {
        self.sum(line);
    }

    /// Something that must not be.
    pub(crate) fn wrong(&self, what: &str) {
        let line = format!("WRONG: {what}");
        self.tell(&line);
        let now = self.now();
        let mut inner = lock(&self.inner);
        if inner.wrong.len() < 20 {
            inner.wrong.push(format!("at {now} ms: {what}"));
        }
    }

    /// What was wrong so far.
    pub(crate) fn wrongs(&self) -> Vec<String> {
        lock(&self.inner).wrong.clone()
    }

    /// The number of lines, and their sum.
    pub(crate) fn total(&self) -> (u64, u64) {
        let inner = lock(&self.inner);
        (inner.lines, inner.sum.finish())
    }

    fn sum(&self, line: &str) -> (u64, u64) {
        let now = self.now();
        let mut inner = lock(&self.inner);
        inner.lines += 1;
        inner.sum.write_u64(now);
        inner.sum.write(line.as_bytes());
        if self.all {
            println!("{:>6} {now:>6} ms      {line}", inner.lines);
        }
        (inner.lines, now)
    }
}

struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Tells a line of the story.
macro_rules! tell {
    ($story:expr, $($line:tt)*) => { $story.tell(&format!($($line)*)) };
}
/// Notes a line of the story.
macro_rules! note {
    ($story:expr, $($line:tt)*) => { $story.note(&format!($($line)*)) };
}
/// Tells what must not be.
macro_rules! wrong {
    ($story:expr, $($line:tt)*) => { $story.wrong(&format!($($line)*)) };
}
pub(crate) use {note, tell, wrong};
