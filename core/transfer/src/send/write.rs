//! What P says to D.

use std::io;
use std::sync::atomic::Ordering;

use innkeeper_room::{Manifest, SlabError, SlabMeta};
use tokio::time::Instant;

use super::run::{SendTask, Told};
use super::{LastWord, Orders};
use crate::config::MAX_PAYLOAD;
use crate::coverage::Run;
use crate::frame::{Body, HEADER, Header, Kind, encode_manifest};
use crate::port::SendEvent;
use crate::session::{FrameWriter, WriteEnd};

/// Place of the counter in the outbox.
const SENT: usize = 0;
/// After this many frames in a row the other tasks of the thread have their turn: about a millisecond of loopback.
const FRAMES_PER_TURN: u32 = 8;

/// What to do next, the most urgent first.
enum Next {
    Last(LastWord),
    Say(Body),
    Slab(SlabMeta),
    Manifest(Manifest),
    Nothing,
}

/// The slab in hand, how far it is, and the frame it goes out in.
struct Hand {
    slab: Option<(SlabMeta, u32)>,
    frame: Vec<u8>,
    /// Slab bytes handed to the connection in this session.
    handed: u64,
    /// The same with D's coverage, as the owner is told.
    sent: u64,
    frames: u32,
}

/// Why the slab's next frame was not written.
enum Refused {
    Io(io::Error),
    Source(SlabError),
}

impl SendTask {
    /// Writes until the last word, an error, or the loss of the source.
    pub(super) async fn write(&self, writer: &mut FrameWriter, told: &Told) -> WriteEnd {
        match self.write_all(writer, told).await {
            Ok(end) => end,
            Err(error) => WriteEnd::Io(error),
        }
    }

    async fn write_all(&self, writer: &mut FrameWriter, told: &Told) -> io::Result<WriteEnd> {
        writer.control(&self.hello()).await?;
        let mut hand = Hand {
            slab: None,
            frame: Vec::new(),
            handed: 0,
            sent: 0,
            frames: 0,
        };
        loop {
            let ready = told.ready.get();
            match self.next(&hand, ready.is_some()) {
                Next::Last(LastWord::Fail(reason, evidence)) => {
                    writer.control(&Body::Fail(reason, evidence)).await?;
                    return Ok(WriteEnd::LastWord);
                }
                Next::Last(LastWord::Finish) => return Ok(WriteEnd::LastWord),
                Next::Say(body) => writer.control(&body).await?,
                Next::Slab(meta) => self.take_up(&mut hand, meta, ready),
                Next::Manifest(manifest) => self.send_manifest(writer, &manifest).await?,
                Next::Nothing if hand.slab.is_some() && self.window_open(&hand, told) => {
                    match self.send_frame(writer, &mut hand).await {
                        Ok(()) => {}
                        Err(Refused::Io(error)) => return Err(error),
                        Err(Refused::Source(error)) => return self.without_source(writer, error).await,
                    }
                }
                Next::Nothing => self.shared.signals.wake.notified().await,
            }
        }
    }

    fn next(&self, hand: &Hand, ready: bool) -> Next {
        let mut orders = self.shared.orders();
        let Orders {
            started,
            progress,
            lease_age,
            slabs,
            manifest,
            last,
            ..
        } = &mut *orders;
        if let Some(word) = last {
            return Next::Last(*word);
        }
        if std::mem::take(started) {
            return Next::Say(Body::Started);
        }
        if let Some(engine) = progress.take() {
            return Next::Say(Body::Progress(engine));
        }
        if let Some(age) = lease_age.take() {
            return Next::Say(Body::LeaseAge(age));
        }
        if !ready || hand.slab.is_some() {
            return Next::Nothing;
        }
        if let Some(slab) = slabs.pop_front() {
            return Next::Slab(slab);
        }
        manifest.take().map_or(Next::Nothing, Next::Manifest)
    }

    /// Takes a slab in hand, unless D has it.
    fn take_up(&self, hand: &mut Hand, meta: SlabMeta, covered: Option<&Vec<Run>>) {
        if meta.len == 0 || covered.is_some_and(|runs| covers(runs, meta.id.0)) {
            self.count_sent(hand, meta.len);
        } else {
            hand.slab = Some((meta, 0));
        }
    }

    fn count_sent(&self, hand: &mut Hand, bytes: u32) {
        hand.sent += u64::from(bytes);
        self.outbox.counter(SENT, SendEvent::Sent(hand.sent));
    }

    fn window_open(&self, hand: &Hand, told: &Told) -> bool {
        let outstanding = hand.handed.saturating_sub(told.taken.load(Ordering::Relaxed));
        outstanding == 0 || outstanding + self.config.frame_payload() as u64 <= self.config.window
    }

    /// Sends the next frame of the slab in hand; waits for its turn under the rate cap first.
    async fn send_frame(&self, writer: &mut FrameWriter, hand: &mut Hand) -> Result<(), Refused> {
        let Some((meta, offset)) = hand.slab else { return Ok(()) };
        let rest = meta.len - offset;
        let length = rest.min(u32::try_from(self.config.frame_payload()).unwrap_or(rest));
        if !self.pay(HEADER + length as usize).await {
            return Ok(());
        }
        hand.frame.resize(HEADER + length as usize, 0);
        let (head, payload) = hand.frame.split_at_mut(HEADER);
        self.source.read(meta.id, offset, payload).map_err(Refused::Source)?;
        let (room, epoch) = writer.ids();
        let header = Header {
            kind: Kind::Slab,
            room,
            epoch,
            slab: meta.id.0,
            offset,
            length,
        };
        head.copy_from_slice(&header.encode(payload));
        writer.raw(&hand.frame).await.map_err(Refused::Io)?;
        let next = offset + length;
        hand.slab = (next < meta.len).then_some((meta, next));
        hand.handed += u64::from(length);
        self.count_sent(hand, length);
        hand.frames += 1;
        if hand.frames.is_multiple_of(FRAMES_PER_TURN) {
            // Lets the reader and a kill be seen although the connection takes everything.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Waits until the rate cap allows this many bytes; false if a last word came first.
    async fn pay(&self, bytes: usize) -> bool {
        let Some(bucket) = &self.bucket else { return true };
        let at = bucket.reserve(bytes, Instant::now());
        tokio::select! {
            biased;
            () = self.shared.signals.last.cancelled() => false,
            () = tokio::time::sleep_until(at) => true,
        }
    }

    async fn send_manifest(&self, writer: &mut FrameWriter, manifest: &Manifest) -> io::Result<()> {
        #[cfg(feature = "bug-checksum-at-send")]
        let manifest = &self.with_checksums_of_now(manifest);
        let bytes = encode_manifest(manifest);
        let (room, epoch) = writer.ids();
        let whole = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut offset = 0;
        for piece in bytes.chunks(MAX_PAYLOAD) {
            if !self.pay(HEADER + piece.len()).await {
                return Ok(());
            }
            let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            let header = Header {
                kind: Kind::Manifest,
                room,
                epoch,
                slab: whole,
                offset,
                length,
            };
            let mut frame = Vec::with_capacity(HEADER + piece.len());
            frame.extend_from_slice(&header.encode(piece));
            frame.extend_from_slice(piece);
            writer.raw(&frame).await?;
            offset += length;
        }
        Ok(())
    }

    /// What must never be: a page that changed since it was sealed would then be sent as if that were right.
    #[cfg(feature = "bug-checksum-at-send")]
    fn with_checksums_of_now(&self, manifest: &Manifest) -> Manifest {
        let mut manifest = manifest.clone();
        for slab in &mut manifest.slabs {
            let mut bytes = vec![0; slab.len as usize];
            if self.source.read(slab.id, 0, &mut bytes).is_ok() {
                slab.checksum = crc32fast::hash(&bytes);
            }
        }
        manifest
    }

    /// The read permit is gone, so the room is over here: what is left is to say why, which the owner does within the grace.
    async fn without_source(&self, writer: &mut FrameWriter, error: SlabError) -> io::Result<WriteEnd> {
        if let SlabError::OutOfRange { .. } = error {
            return Ok(WriteEnd::Broken(format!("a submitted slab cannot be read: {error}")));
        }
        self.outbox.edge(SendEvent::SourceClosed);
        let told = tokio::time::timeout(self.config.grace, self.shared.signals.last.cancelled()).await;
        let word = self.shared.orders().last;
        match (told, word) {
            (Ok(()), Some(LastWord::Fail(reason, evidence))) => {
                writer.control(&Body::Fail(reason, evidence)).await?;
                Ok(WriteEnd::LastWord)
            }
            (Ok(()), Some(LastWord::Finish)) => Ok(WriteEnd::LastWord),
            (Ok(()) | Err(_), _) => Ok(WriteEnd::Silent),
        }
    }
}

/// Whether one of the ascending runs has this slab.
fn covers(runs: &[Run], slab: u32) -> bool {
    let past = runs.partition_point(|run| run.first <= slab);
    past.checked_sub(1)
        .and_then(|at| runs.get(at))
        .is_some_and(|run| slab - run.first < run.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_searched() {
        let runs = [Run { first: 2, count: 3 }, Run { first: 7, count: 1 }];
        let covered: Vec<u32> = (0..10).filter(|slab| covers(&runs, *slab)).collect();
        assert_eq!(covered, [2, 3, 4, 7]);
    }
}
