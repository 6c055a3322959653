//! What D hears from P.

use std::sync::atomic::Ordering;

use innkeeper_room::{SlabError, SlabId};

use super::check::{PageSums, check_manifest};
use super::run::{RecvTask, Tally};
use crate::coverage::CoverageError;
use crate::frame::{Body, FrameError, FrameReader, Header, Kind, ManifestPieces, ReadError};
use crate::link::ReadHalf;
use crate::port::{Grant, RecvEvent};
use crate::session::{Broken, ReadEnd};
use crate::stats::Stats;

/// Places of the counters in the outbox.
const VERIFIED: usize = 0;
const PROGRESS: usize = 1;
/// After this many frames in a row the other tasks of the thread have their turn: about a millisecond of loopback.
const FRAMES_PER_TURN: u32 = 8;

/// The reader's state.
struct Hearing {
    /// The write permit; dropped once the manifest was looked at.
    grant: Option<Grant>,
    pieces: Option<ManifestPieces>,
    /// Sums over the pages of slabs that this session completed.
    sums: PageSums,
    /// The manifest was looked at: nothing is written any more.
    judged: bool,
    started: bool,
    frames: u32,
}

impl RecvTask {
    /// Reads until P's last word, the end of the connection, or a bad frame.
    pub(super) async fn read(&self, reader: &mut FrameReader<ReadHalf>, tally: &Tally) -> ReadEnd<RecvEvent> {
        let mut hearing = Hearing {
            grant: None,
            pieces: None,
            sums: PageSums::default(),
            judged: false,
            started: false,
            frames: 0,
        };
        loop {
            let mut gate = |header: &Header| self.gate(&mut hearing, tally, header);
            let (header, payload) = match reader.next(&mut gate).await {
                Ok(Some(frame)) => frame,
                Ok(None) => return ReadEnd::Broken(Broken::new("the prefill worker closed the data connection")),
                Err(error) => return ReadEnd::Broken(error.into()),
            };
            let done = match header.kind {
                Kind::Slab => self.slab(&mut hearing, tally, &header, payload).await,
                Kind::Manifest => self.manifest(&mut hearing, tally, &header, payload).await,
                kind => match self.control(&mut hearing, kind, payload) {
                    Ok(Some(event)) => return ReadEnd::LastWord(event),
                    Ok(None) => Ok(()),
                    Err(error) => Err(Stop::Broken(error.into())),
                },
            };
            match done {
                Ok(()) => {}
                Err(Stop::Broken(broken)) => return ReadEnd::Broken(broken),
                Err(Stop::Closed) => {
                    drop(hearing);
                    return self.without_sink().await;
                }
            }
        }
    }

    /// Looks at a header before any of its payload is waited for.
    fn gate(&self, hearing: &mut Hearing, tally: &Tally, header: &Header) -> Result<(), ReadError> {
        if (header.room, header.epoch) != (self.room, self.epoch) {
            return Err(ReadError::Fenced);
        }
        match header.kind {
            Kind::Started | Kind::Progress | Kind::Fail | Kind::LeaseAge => Ok(()),
            Kind::Slab | Kind::Manifest => {
                let refused = |why: &str| Err(ReadError::Refused(format!("a {:?} frame {why}", header.kind)));
                if hearing.judged {
                    return refused("after the manifest");
                }
                if hearing.grant.is_none() {
                    hearing.grant = tally.grant();
                }
                let Some(grant) = &hearing.grant else {
                    return refused("before Ready");
                };
                if header.kind == Kind::Manifest {
                    return if grant.coverage.is_complete() {
                        Ok(())
                    } else {
                        refused("before the last slab")
                    };
                }
                let checked = grant.coverage.check(SlabId(header.slab), header.offset, header.length);
                checked.map_err(|error| ReadError::Refused(error.to_string()))
            }
            kind => Err(ReadError::Refused(format!("a {kind:?} frame from the prefill worker"))),
        }
    }

    /// Writes a verified frame under the write permit, then counts it.
    async fn slab(&self, hearing: &mut Hearing, tally: &Tally, header: &Header, payload: &[u8]) -> Result<(), Stop> {
        let Some(grant) = &hearing.grant else {
            return Err(Broken::new("a Slab frame before Ready").into());
        };
        if self.shared.signals.last.is_cancelled() {
            // The part is over here and its last word is on the way: what still comes is thrown away.
            return Ok(());
        }
        let slab = SlabId(header.slab);
        // Bytes that are verified already are not written again: what is in the page is what was counted.
        if !grant.coverage.has(slab) {
            grant.sink.write(slab, header.offset, payload)?;
        }
        let marked = grant.coverage.mark(slab, header.offset, header.length);
        let verified = marked.map_err(|error: CoverageError| Broken::new(error.to_string()))?;
        hearing.sums.completed(slab, grant)?;
        tally.taken.fetch_add(u64::from(header.length), Ordering::Relaxed);
        tally.verified.store(verified, Ordering::Relaxed);
        self.shared.signals.wake.notify_one();
        self.outbox.counter(VERIFIED, RecvEvent::Verified(verified));
        hearing.frames += 1;
        if hearing.frames.is_multiple_of(FRAMES_PER_TURN) {
            // Lets the writer and a kill be seen although the connection always has bytes.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    async fn manifest(
        &self,
        hearing: &mut Hearing,
        tally: &Tally,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), Stop> {
        let Some(grant) = &hearing.grant else {
            return Err(Broken::new("a Manifest frame before Ready").into());
        };
        let slabs = grant.coverage.slabs();
        let pieces = hearing.pieces.get_or_insert_with(|| ManifestPieces::new(slabs));
        let pushed = pieces.push(header, payload).map_err(|error| self.bad(&error));
        let Some(manifest) = pushed? else { return Ok(()) };
        let verdict = check_manifest(&manifest, grant, &hearing.sums).await?;
        hearing.judged = true;
        hearing.pieces = None;
        // No byte will be written any more: the permit goes before the event.
        hearing.grant = None;
        tally.flush.store(true, Ordering::Relaxed);
        self.shared.signals.wake.notify_one();
        self.outbox.edge(match verdict {
            Ok(()) => RecvEvent::Complete(manifest),
            Err(why) => RecvEvent::Corrupt(why),
        });
        Ok(())
    }

    /// A frame without slab bytes; P's last word, if it is that.
    fn control(&self, hearing: &mut Hearing, kind: Kind, payload: &[u8]) -> Result<Option<RecvEvent>, ReadError> {
        match Body::decode(kind, payload).inspect_err(|_| Stats::add(&self.stats.bad_frames, 1))? {
            Body::Started => {
                if !std::mem::replace(&mut hearing.started, true) {
                    self.outbox.edge(RecvEvent::Started);
                }
                Ok(None)
            }
            Body::Progress(engine) => {
                self.outbox.counter(PROGRESS, RecvEvent::PeerProgress(engine));
                Ok(None)
            }
            Body::LeaseAge(age) => {
                let mut orders = self.shared.orders();
                if !std::mem::take(&mut orders.asks.open) {
                    return Err(ReadError::Refused("an answer that nobody asked for".into()));
                }
                drop(orders);
                self.outbox.edge(RecvEvent::LeaseAge(age));
                Ok(None)
            }
            Body::Fail(reason, evidence) => Ok(Some(RecvEvent::PeerFailed(reason, evidence))),
            other => Err(ReadError::Refused(format!(
                "a {:?} frame from the prefill worker",
                other.kind()
            ))),
        }
    }

    /// The write permit is gone, so the part is over here: what is left is to say why, which the owner does within the
    /// grace. The writer says it and ends the session.
    async fn without_sink(&self) -> ReadEnd<RecvEvent> {
        let last = &self.shared.signals.last;
        match tokio::time::timeout(self.config.grace, last.cancelled()).await {
            // Not for ever: a last word has its own deadline.
            Ok(()) => std::future::pending().await,
            Err(_) => ReadEnd::Broken(Broken::new("the write permit was taken back")),
        }
    }

    fn bad(&self, error: &FrameError) -> Broken {
        Stats::add(&self.stats.bad_frames, 1);
        Broken::new(error.to_string())
    }
}

/// Why nothing more is heard.
enum Stop {
    Broken(Broken),
    /// The write permit was taken back.
    Closed,
}

impl From<Broken> for Stop {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl From<SlabError> for Stop {
    fn from(error: SlabError) -> Self {
        match error {
            SlabError::Closed => Self::Closed,
            SlabError::OutOfRange { .. } => Self::Broken(Broken::new(format!("the pages refused the bytes: {error}"))),
        }
    }
}
