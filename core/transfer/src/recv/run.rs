//! The task of a receiving session.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use innkeeper_room::{Epoch, RoomId};

use super::RecvShared;
use crate::config::Config;
use crate::frame::FrameReader;
use crate::link::{ReadHalf, WriteHalf};
use crate::outbox::{Outbox, Quiesce};
use crate::port::{Grant, RecvEvent};
use crate::session::{Broken, Ending, FrameWriter, converse, part_in_peace};
use crate::stats::Stats;

/// Everything that a receiving session needs, from its hello on.
pub(crate) struct RecvTask {
    pub(crate) room: RoomId,
    pub(crate) epoch: Epoch,
    pub(crate) shared: Arc<RecvShared>,
    pub(crate) outbox: Arc<Outbox<RecvEvent>>,
    pub(crate) config: Arc<Config>,
    pub(crate) stats: Arc<Stats>,
}

/// What the reader tells the writer, and the other way round.
#[derive(Default)]
pub(super) struct Tally {
    /// The write permit, from Ready until the manifest was checked.
    grant: Mutex<Option<Grant>>,
    /// Slab bytes taken in this session.
    pub(super) taken: AtomicU64,
    /// Bytes verified over all epochs.
    pub(super) verified: AtomicU64,
    /// Tell Verified now.
    pub(super) flush: AtomicBool,
}

impl Tally {
    pub(super) fn put(&self, grant: Grant) {
        *self.grant.lock().unwrap_or_else(PoisonError::into_inner) = Some(grant);
    }

    pub(super) fn grant(&self) -> Option<Grant> {
        self.grant.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl RecvTask {
    /// Runs the session to its end. `Quiesced` is sent when everything inside is dropped, also if it never runs.
    pub(crate) fn run(self, reader: FrameReader<ReadHalf>, write: WriteHalf) -> impl Future<Output = ()> + Send {
        let quiesce = Quiesce::new(Arc::clone(&self.outbox), RecvEvent::Quiesced);
        let shared = Closing(Arc::clone(&self.shared));
        let sabotage = self.config.sabotage.clone();
        // In the order in which they are dropped.
        let parts = (self.session(reader, write), shared, quiesce);
        async move {
            let (session, shared, _quiesce) = parts;
            tokio::select! {
                biased;
                () = shared.0.signals.killed() => {}
                () = session => {}
            }
            drop(shared);
            sabotage.let_go().await;
        }
    }

    async fn session(self, mut reader: FrameReader<ReadHalf>, write: WriteHalf) {
        let mut writer = FrameWriter::new(write, self.room, self.epoch, Arc::clone(&self.stats));
        let tally = Tally::default();
        let grace = self.config.grace;
        // What takes little goes first: it never starves what takes much.
        let ending = tokio::select! {
            biased;
            () = self.outbox.flush_loop(self.config.ack_delay) => Ending::Silent,
            ending = converse(
                self.read(&mut reader, &tally),
                self.write(&mut writer, &tally),
                &self.shared.signals.last,
                grace,
            ) => ending,
        };
        // The write permit goes before the last words: it may take the peer a while to close.
        drop(tally);
        self.shared.close();
        let probe = &self.shared.signals.probe;
        match ending {
            Ending::Peer(event) => {
                self.outbox.edge(event);
                part_in_peace(&mut reader, &mut writer, grace).await;
            }
            Ending::Own => part_in_peace(&mut reader, &mut writer, grace).await,
            Ending::Broken(Broken { why, .. }) => {
                probe.reset();
                self.outbox.edge(RecvEvent::Broken { why });
            }
            Ending::Silent => probe.reset(),
        }
    }
}

/// Closes the shared state when the task ends, however it ends: no grant stays behind in it.
struct Closing(Arc<RecvShared>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}
