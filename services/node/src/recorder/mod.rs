//! The flight recorder: what happened to each room, on each node, in bounded memory; what ended badly also on disk, so that
//! it survives the process. `innkeeper rooms explain` is made of it.
//!
//! ```text
//! record    what is kept of one part of a room
//! what      … its words: what can happen, what a verdict follows from, what a client gets
//! timeline  a part that lives: its record as it grows
//! worker    … from what a worker's part and its router say to each other
//! router    … from what a router's ledger is told and orders
//! ended     the list of parts that are over
//! shelf     records of parts that are over, in memory
//! disk      those of bad ends, as files
//! writer    the task that writes them
//! explain   from records to an explanation: pure
//! ```
//! It hears what `hooks.rs` tells, on the ledger's actor, and never waits there. Of tokens nothing is kept but counts.

mod disk;
mod ended;
pub mod explain;
mod record;
mod router;
mod shelf;
#[cfg(test)]
mod tests;
mod timeline;
mod what;
mod worker;
mod writer;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use innkeeper_room::{Incarnation, Layout, Moment, Role, RoomId};
use tokio::sync::{mpsc, oneshot};

pub use ended::Ended;
pub use record::{BrokeNote, Cause, Client, Entry, Kind, LeaseNote, PhaseSpan, Record, Seen, StreamNote, Tokens, What};

use crate::clock::Clock;
use crate::config::NodeConfig;
use crate::tasks::Tasks;
use router::Requests;
use shelf::Shelf;
use timeline::Timeline;
use writer::Job;

/// Parts that live and are recorded; more than any node has places for.
const LIVE: usize = 16_384;

/// What became of records of bad ends.
#[derive(Debug, Default)]
pub struct RecorderCounts {
    written: AtomicU64,
    queue_full: AtomicU64,
    write_failed: AtomicU64,
    no_place: AtomicU64,
}

impl RecorderCounts {
    /// By what became of them: `written`, `queue_full`, `write_failed`, `no_place`.
    #[must_use]
    pub fn get(&self) -> [(&'static str, u64); 4] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("written", read(&self.written)),
            ("queue_full", read(&self.queue_full)),
            ("write_failed", read(&self.write_failed)),
            ("no_place", read(&self.no_place)),
        ]
    }
}

/// A node's flight recorder. Clones are the same one.
#[derive(Clone)]
pub struct Recorder(Arc<Inner>);

struct Inner {
    me: Me,
    clock: Clock,
    table: Mutex<Table>,
    jobs: Option<mpsc::Sender<Job>>,
    counts: Arc<RecorderCounts>,
}

/// Whose recorder it is.
#[derive(Clone, Debug)]
pub struct Me {
    /// What the node is.
    pub role: Role,
    /// Its name.
    pub name: String,
    /// Its life.
    pub incarnation: Incarnation,
    /// The KV layout of its engine; `None` on a router.
    pub layout: Option<Layout>,
}

struct Table {
    revision: String,
    settings: innkeeper_room::Settings,
    live: HashMap<RoomId, Timeline>,
    shelf: Shelf,
    /// Of a router.
    requests: Requests,
}

impl Recorder {
    /// A node's recorder, with what former lives of the node have left. A directory that cannot be used is said in the log,
    /// and then there is only memory. Within a tokio runtime.
    pub async fn start(config: &NodeConfig, me: Me, tasks: &Tasks) -> Self {
        let (disk, history) = writer::open(&config.run.recorder, &me).await;
        let counts = Arc::new(RecorderCounts::default());
        let jobs = disk.and_then(|disk| writer::start(disk, tasks, Arc::clone(&counts)));
        let recorder = Self::with(config, me, jobs, counts);
        let mut table = recorder.table();
        for record in history {
            table.shelf.put(Arc::new(record));
        }
        drop(table);
        recorder
    }

    /// One that keeps nothing on disk.
    #[must_use]
    pub fn in_memory(config: &NodeConfig, me: Me) -> Self {
        Self::with(config, me, None, Arc::default())
    }

    fn with(config: &NodeConfig, me: Me, jobs: Option<mpsc::Sender<Job>>, counts: Arc<RecorderCounts>) -> Self {
        Self(Arc::new(Inner {
            clock: Clock::boot(),
            table: Mutex::new(Table {
                revision: config.run.revision.clone(),
                settings: config.settings.clone(),
                live: HashMap::new(),
                shelf: Shelf::new(config.run.recorder.rooms),
                requests: Requests::new(&config.settings),
            }),
            me,
            jobs,
            counts,
        }))
    }

    /// What became of records of bad ends.
    #[must_use]
    pub fn counts(&self) -> Arc<RecorderCounts> {
        Arc::clone(&self.0.counts)
    }

    /// What is known of a room, live or over.
    #[must_use]
    pub fn record(&self, room: RoomId) -> Option<Record> {
        self.settle();
        let table = self.table();
        let live = table.live.get(&room).map(Timeline::snapshot);
        let found = live.or_else(|| table.requests.closing(room));
        found.or_else(|| table.shelf.get(room).map(|record| (*record).clone()))
    }

    /// The rooms that ended last, newest first.
    #[must_use]
    pub fn ended(&self, limit: usize) -> Vec<Ended> {
        self.settle();
        let newest = self.table().shelf.newest(limit);
        newest.iter().map(|record| Ended::of(record)).collect()
    }

    /// Waits, at most `limit`, until what has ended is written.
    pub async fn flush(&self, limit: Duration) {
        self.settle();
        let Some(jobs) = &self.0.jobs else { return };
        let (done, written) = oneshot::channel();
        let flush = async {
            if jobs.send(Job::Flush(done)).await.is_ok() {
                // A writer that is gone has written what it had.
                let _ = written.await;
            }
        };
        if tokio::time::timeout(limit, flush).await.is_err() {
            tracing::warn!("the last records of rooms were not written in time");
        }
    }

    /// A router's rooms that are over and whose step is over too are put away.
    fn settle(&self) {
        let over = self.table().requests.settle();
        for record in over {
            self.put(record);
        }
    }

    /// A part is over.
    fn put(&self, record: Record) {
        let kept = match record.kind() {
            Kind::Good => false,
            // In a burst there are many, and they say nothing about a worker.
            Kind::Minor => !record.refused,
            Kind::Bad => true,
        };
        let record = Arc::new(record);
        self.table().shelf.put(Arc::clone(&record));
        if let Some(jobs) = self.0.jobs.as_ref().filter(|_| kept)
            && jobs.try_send(Job::Write(record)).is_err()
        {
            self.0.counts.queue_full.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn begin(&self, table: &mut Table, record: Record, now: Moment) {
        if table.live.len() >= LIVE {
            self.0.counts.no_place.fetch_add(1, Ordering::Relaxed);
            return;
        }
        table.live.insert(record.room, Timeline::new(record, now));
    }

    fn now(&self) -> Moment {
        self.0.clock.now()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing is half done when something under the lock panics.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The system's time, in milliseconds since 1970.
#[must_use]
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
