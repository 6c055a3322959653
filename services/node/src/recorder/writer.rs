//! The task that writes records of bad ends: one per node. Whoever ends a room never waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::disk::Disk;
use super::record::Record;
use super::{Me, RecorderCounts, unix_ms};
use crate::config::RecorderConfig;
use crate::tasks::Tasks;

/// Records that wait for the disk; more are dropped.
const WAITING: usize = 512;
/// Records that are written at once.
const BATCH: usize = 128;
/// A disk that takes longer at the start is none.
const OPEN_LIMIT: Duration = Duration::from_secs(3);

/// What the task is asked.
pub(super) enum Job {
    /// Write a record.
    Write(Arc<Record>),
    /// Say when all before this is written.
    Flush(oneshot::Sender<()>),
}

/// Opens the folder of a node, and reads what its former lives have left. `None`, said in the log, if it cannot be used.
pub(super) async fn open(config: &RecorderConfig, me: &Me) -> (Option<Disk>, Vec<Record>) {
    let Some(dir) = config.dir.clone() else {
        return (None, vec![]);
    };
    let (config, name, life) = (config.clone(), me.name.clone(), me.incarnation);
    let shown = dir.display().to_string();
    let opening = tokio::task::spawn_blocking(move || Disk::open(&dir, &config, (&name, life), unix_ms()));
    let why = match tokio::time::timeout(OPEN_LIMIT, opening).await {
        Ok(Ok(Ok((disk, history)))) => return (Some(disk), history),
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {OPEN_LIMIT:?}"),
    };
    tracing::warn!(
        dir = shown,
        why,
        "the flight recorder keeps ended rooms in memory only: its directory cannot be used; name another one with \
         --recorder-dir"
    );
    (None, vec![])
}

/// Starts the task; `None` if the node is stopping.
pub(super) fn start(disk: Disk, tasks: &Tasks, counts: Arc<RecorderCounts>) -> Option<mpsc::Sender<Job>> {
    let (jobs, waiting) = mpsc::channel(WAITING);
    let writing = run(waiting, disk, counts, tasks.token().clone());
    tasks.spawn_watching("recorder", writing).ok()?;
    Some(jobs)
}

/// Writes what comes, until the node stops; then what is there.
async fn run(mut waiting: mpsc::Receiver<Job>, disk: Disk, counts: Arc<RecorderCounts>, stop: CancellationToken) {
    let mut disk = Some(disk);
    loop {
        let mut batch = Vec::with_capacity(BATCH);
        tokio::select! {
            biased;
            // No deadline: without bad ends there is nothing to do.
            taken = waiting.recv_many(&mut batch, BATCH) => {
                if taken == 0 {
                    return;
                }
            }
            () = stop.cancelled() => return,
        }
        let mut askers = vec![];
        let mut records = vec![];
        for job in batch {
            match job {
                Job::Write(record) => records.push(record),
                Job::Flush(asker) => askers.push(asker),
            }
        }
        disk = write(disk, records, &counts).await;
        for asker in askers {
            // An asker that gave up is no failure of ours.
            let _ = asker.send(());
        }
    }
}

/// One write at a time, on a thread for that. `None` if that thread died, after which nothing is written any more.
async fn write(disk: Option<Disk>, records: Vec<Arc<Record>>, counts: &RecorderCounts) -> Option<Disk> {
    let number = records.len() as u64;
    let mut disk = disk?;
    if number == 0 {
        return Some(disk);
    }
    let writing = tokio::task::spawn_blocking(move || {
        let done = disk.write(&records);
        (disk, done)
    });
    let (disk, done) = match writing.await {
        Ok((disk, Ok(()))) => (Some(disk), Ok(())),
        Ok((disk, Err(error))) => (Some(disk), Err(error.to_string())),
        Err(error) => (None, Err(error.to_string())),
    };
    match done {
        Ok(()) => counts.written.fetch_add(number, Ordering::Relaxed),
        Err(why) => {
            tracing::warn!(why, records = number, "records of ended rooms could not be written");
            counts.write_failed.fetch_add(number, Ordering::Relaxed)
        }
    };
    disk
}
