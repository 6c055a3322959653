//! The task of a sending session.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use innkeeper_room::SlabSource;
use tokio::sync::OnceCell;

use super::SendShared;
use crate::bucket::Bucket;
use crate::config::Config;
use crate::coverage::Run;
use crate::frame::{Body, FrameReader, HelloBody};
use crate::link::Link;
use crate::outbox::{Outbox, Quiesce};
use crate::port::{Dial, SendEvent};
use crate::session::{Broken, Ending, FrameWriter, converse, part_in_peace};
use crate::stats::Stats;

/// Makes the connection; the error is for people.
pub(crate) type Connect = Pin<Box<dyn Future<Output = Result<Link, String>> + Send>>;

/// Everything that a sending session needs.
pub(crate) struct SendTask {
    pub(crate) dial: Dial,
    pub(crate) source: Arc<dyn SlabSource>,
    pub(crate) shared: Arc<SendShared>,
    pub(crate) outbox: Arc<Outbox<SendEvent>>,
    pub(crate) config: Arc<Config>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) bucket: Option<Arc<Bucket>>,
}

/// What the reader tells the writer.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// D's coverage, once it is ready: what it has not is to be sent.
    pub(super) ready: OnceCell<Vec<Run>>,
    /// Slab bytes that D has taken in this session.
    pub(super) taken: AtomicU64,
}

impl Told {
    pub(super) fn take(&self, taken: u64) {
        self.taken.fetch_max(taken, Ordering::Relaxed);
    }
}

impl SendTask {
    /// Runs the session to its end. `Quiesced` is sent when everything inside is dropped, also if it never runs.
    pub(crate) fn run(self, connect: Connect) -> impl Future<Output = ()> + Send {
        let quiesce = Quiesce::new(Arc::clone(&self.outbox), SendEvent::Quiesced);
        let shared = Arc::clone(&self.shared);
        let sabotage = self.config.sabotage.clone();
        // In the order in which they are dropped.
        let parts = (self.session(connect), quiesce);
        async move {
            let (session, _quiesce) = parts;
            tokio::select! {
                biased;
                () = shared.signals.killed() => {}
                () = session => {}
            }
            sabotage.let_go().await;
        }
    }

    async fn session(self, connect: Connect) {
        let connected = tokio::select! {
            biased;
            // Nothing was said to anybody: no word is owed.
            () = self.shared.signals.last.cancelled() => return,
            connected = connect => connected,
        };
        match connected {
            Ok(link) => self.talk(link).await,
            Err(why) => self.outbox.edge(SendEvent::Broken {
                why,
                unacked: false,
                refused: true,
            }),
        }
    }

    async fn talk(self, link: Link) {
        let _open = link.open;
        let probe = &self.shared.signals.probe;
        probe.attach(link.socket);
        let mut reader = FrameReader::new(link.read, Arc::clone(&self.stats));
        let mut writer = FrameWriter::new(link.write, self.dial.room, self.dial.epoch, Arc::clone(&self.stats));
        let told = Told::default();
        let grace = self.config.grace;
        // What takes little goes first: it never starves what takes much.
        let ending = tokio::select! {
            biased;
            () = self.outbox.flush_loop(self.config.ack_delay) => Ending::Silent,
            () = self.watch() => Ending::Silent,
            ending = converse(
                self.read(&mut reader, &told),
                self.write(&mut writer, &told),
                &self.shared.signals.last,
                grace,
            ) => ending,
        };
        match ending {
            Ending::Peer(event) => {
                self.outbox.edge(event);
                part_in_peace(&mut reader, &mut writer, grace).await;
            }
            Ending::Own => part_in_peace(&mut reader, &mut writer, grace).await,
            Ending::Broken(Broken {
                why,
                timed_out,
                refused,
            }) => {
                let unacked = probe.broke(timed_out);
                probe.reset();
                self.outbox.edge(SendEvent::Broken { why, unacked, refused });
            }
            Ending::Silent => probe.reset(),
        }
    }

    /// Looks at the transport now and then: once it broke the kernel has forgotten what was unacknowledged. Never returns.
    async fn watch(&self) {
        loop {
            tokio::time::sleep(self.config.user_timeout / 8).await;
            self.shared.signals.probe.unacked();
        }
    }

    pub(super) fn hello(&self) -> Body {
        Body::Hello(HelloBody {
            token: self.dial.token,
            prefill: self.dial.prefill,
            decode: self.dial.decode,
        })
    }
}
