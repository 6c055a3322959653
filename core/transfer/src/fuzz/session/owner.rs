//! D's owner of a session, as a script says, and what it may be told.

use std::sync::{Arc, Mutex, PoisonError};

use innkeeper_room::{HelloReply, Manifest};
use tokio::sync::mpsc;

use super::pool::Pool;
use crate::coverage::Coverage;
use crate::frame::{Body, FrameError, Kind, decode_frame};
use crate::fuzz::{Input, script};
use crate::port::{Acceptor, Grant, Hello, MOST_ASKS, RecvEvent, RecvSession};

type Session = (Arc<dyn RecvSession>, mpsc::Receiver<RecvEvent>);

/// Where the door leaves a session.
#[derive(Clone, Default)]
pub(super) struct Hosted(Arc<Mutex<Option<Session>>>);

impl Acceptor for Hosted {
    fn hello(&self, _: Hello, session: Arc<dyn RecvSession>, events: mpsc::Receiver<RecvEvent>) {
        let before = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace((session, events));
        assert!(before.is_none(), "one connection made two sessions");
    }
}

/// The owner of one session.
pub(super) struct Owner {
    pool: Arc<Pool>,
    coverage: Arc<Coverage>,
    session: Option<Arc<dyn RecvSession>>,
    events: Option<mpsc::Receiver<RecvEvent>>,
    /// What it was told, counters apart.
    told: Vec<RecvEvent>,
    verified: u64,
    /// Answers about the lease.
    ages: u32,
    complete: Option<Manifest>,
    /// Ready was said.
    ready: bool,
}

impl Owner {
    pub(super) fn new(pool: Arc<Pool>, coverage: Arc<Coverage>) -> Self {
        Self {
            pool,
            coverage,
            session: None,
            events: None,
            told: Vec::new(),
            verified: 0,
            ages: 0,
            complete: None,
            ready: false,
        }
    }

    /// Does something that an owner may do at any time.
    pub(super) fn act(&mut self, input: &mut Input<'_>) {
        let Some(session) = self.session.clone() else { return };
        match input.u8() % 10 {
            // Twice is one too often, which must not matter.
            0..=3 => {
                if !self.ready {
                    self.pool.grant(true);
                }
                self.ready = true;
                let grant = Grant {
                    sink: Arc::<Pool>::clone(&self.pool),
                    coverage: Arc::clone(&self.coverage),
                };
                session.reply(HelloReply::Ready, Some(grant));
            }
            4 => session.reply(HelloReply::Wait, None),
            5 => {
                let others = [
                    HelloReply::Committed,
                    HelloReply::Unknown,
                    HelloReply::Stale,
                    HelloReply::Ready,
                ];
                let reply = others.get(usize::from(input.u8() % 5)).copied();
                session.reply(reply.unwrap_or(HelloReply::Ended(script::reason(input))), None);
            }
            6 => self.pool.grant(false),
            7 => session.committed(),
            8 if input.u8().is_multiple_of(2) => session.ask_lease_age(),
            8 => session.fail(script::reason(input), script::evidence(input)),
            _ => session.kill(),
        }
    }

    /// Takes the session once it is there, and hears what it says.
    pub(super) fn look(&mut self, hosted: &Hosted) {
        if let Some((session, events)) = hosted.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.session = Some(session);
            self.events = Some(events);
        }
        let Some(mut events) = self.events.take() else { return };
        while let Ok(event) = events.try_recv() {
            self.hear(event);
        }
        self.events = Some(events);
    }

    fn hear(&mut self, event: RecvEvent) {
        assert!(!self.told.contains(&RecvEvent::Quiesced), "{event:?} after Quiesced");
        match event {
            RecvEvent::Verified(bytes) => {
                assert!(bytes >= self.verified, "verified bytes went back");
                self.verified = bytes;
                return;
            }
            RecvEvent::PeerProgress(_) => return,
            RecvEvent::Complete(ref manifest) => {
                self.pool.judged();
                assert!(self.complete.is_none(), "complete twice");
                self.complete = Some(manifest.clone());
                // As it is at this moment: what is committed is what was sealed.
                self.match_exactly(manifest);
            }
            RecvEvent::Corrupt(_) => self.pool.judged(),
            RecvEvent::LeaseAge(_) => {
                assert!(self.ready, "an answer about KV that nobody may bring");
                self.ages += 1;
                assert!(self.ages <= MOST_ASKS, "more answers than questions");
                return;
            }
            RecvEvent::Started | RecvEvent::PeerFailed(..) | RecvEvent::Broken { .. } | RecvEvent::Quiesced => {}
        }
        let over = |event: &RecvEvent| matches!(event, RecvEvent::PeerFailed(..) | RecvEvent::Broken { .. });
        assert!(
            event == RecvEvent::Quiesced || !self.told.iter().any(over),
            "{event:?} after {:?}",
            self.told
        );
        let same = |told: &RecvEvent| std::mem::discriminant(told) == std::mem::discriminant(&event);
        assert!(!self.told.iter().any(same), "{event:?} twice");
        self.told.push(event);
    }

    fn match_exactly(&self, manifest: &Manifest) {
        assert!(self.ready, "complete without a permit");
        assert!(self.coverage.is_complete(), "complete, and slabs are missing");
        assert_eq!(manifest.slabs.len(), self.coverage.slabs());
        for (at, slab) in manifest.slabs.iter().enumerate() {
            let there = self.pool.slab(at);
            assert_eq!(slab.id.0 as usize, at);
            assert_eq!(slab.len as usize, there.len());
            assert_eq!(
                slab.checksum,
                crc32fast::hash(&there),
                "slab {at} is not what was sealed"
            );
        }
    }

    /// After the end: the last event is the last, and what was committed still stands.
    pub(super) fn judge(&self, lens: &[u32]) {
        let judged = self
            .told
            .iter()
            .filter(|event| matches!(event, RecvEvent::Complete(_) | RecvEvent::Corrupt(_)));
        assert!(judged.count() <= 1, "{:?}", self.told);
        assert_eq!(
            self.session.is_some(),
            self.told.last() == Some(&RecvEvent::Quiesced),
            "{:?}",
            self.told
        );
        assert_eq!(self.coverage.slabs(), lens.len());
        if let Some(manifest) = &self.complete {
            self.match_exactly(manifest);
        }
        self.pool.check();
    }

    /// What D said on the connection: frames that can be read, of this session, such as D has.
    pub(super) fn heard(&self, mut bytes: &[u8]) {
        loop {
            match decode_frame(bytes) {
                Ok((header, payload, rest)) => {
                    let body = Body::decode(header.kind, payload);
                    assert!(body.is_ok(), "D said {:?} that cannot be read", header.kind);
                    assert!(!matches!(
                        header.kind,
                        Kind::Hello | Kind::Started | Kind::Slab | Kind::Manifest | Kind::Progress | Kind::LeaseAge
                    ));
                    bytes = rest;
                }
                // A session that was destroyed may have stopped within a frame.
                Err(FrameError::Short) => return,
                Err(error) => panic!("D said what is no frame: {error}"),
            }
        }
    }
}
