//! The handles of one room on a decode worker: its coverage, the sessions that fill it, and the tokens it made. Shared by
//! the room's actor, its transfers and the engine's thread; outlives the actor.
//!
//! Once the part is over its fences are executed at once, past the actor's queue, and may overtake the orders that wait
//! there. So each fence is remembered, and what it was to end does not begin any more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use innkeeper_engine::{ClosableSink, DecodeJob, DecodeSink, Engine, EngineError, PullJob, PullSink};
use innkeeper_room::ledger::decode::Event;
use innkeeper_room::{Epoch, FirstToken, Layout, Manifest, Millis, RoomId, SlabId, SlabSink, Token};
use innkeeper_transfer::{Coverage, Grant, RecvSession};
use tokio::sync::oneshot;

use crate::ports::OpenRoom;
use crate::worker::craft::Report;

/// The handles.
pub struct DecodeRoom {
    /// What R asked.
    pub open: OpenRoom,
    report: Report<Event>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    coverage: Option<Arc<Coverage>>,
    sessions: BTreeMap<Epoch, Slot>,
    /// Sessions of this epoch and earlier ones were destroyed, also those that are not kept yet.
    fenced: Epoch,
    /// Sessions that may still write.
    live: u32,
    pages: bool,
    /// The pages were given back, also if they were not taken yet.
    closed: bool,
    /// The engine's job was cancelled, also if it was not submitted yet.
    cancelled: bool,
    manifest: Option<Manifest>,
    /// The engine was asked to read by the manifest's ticket: it is not this worker's to give back any more.
    pulled: bool,
    /// Who waits for P's word about the lease, and on which connection.
    asked: Option<(Epoch, oneshot::Sender<Option<Millis>>)>,
    tokens: Vec<Token>,
}

struct Slot {
    session: Arc<dyn RecvSession>,
    /// The write permit, once it was given.
    permit: Option<Arc<dyn ClosableSink>>,
}

impl DecodeRoom {
    /// A room without pages or sessions.
    pub fn new(open: OpenRoom, report: Report<Event>) -> Self {
        Self {
            open,
            report,
            inner: Mutex::default(),
        }
    }

    /// The room's id.
    pub fn id(&self) -> RoomId {
        self.open.spec.room
    }

    /// Tells the ledger. A ledger that is gone ends the process; there is nobody else to tell.
    pub fn tell(&self, event: Event) {
        (self.report)(event);
    }

    /// Takes pages for the prompt and all tokens; what comes is the prompt's KV.
    pub fn open_pages(&self, engine: &Arc<dyn Engine>, tokens: u32) {
        let room = self.id();
        let lens = slab_lens(engine.layout(), self.open.spec.prompt_tokens);
        let mut inner = self.lock();
        if inner.closed {
            return;
        }
        // Under the lock: pages that were given back meanwhile are another room's, and are not taken for a moment either.
        if let Err(error) = engine.open(room, tokens) {
            drop(inner);
            tracing::error!(%room, %error, "the engine refused pages that the ledger had reserved");
            self.tell(Event::EngineFailed { room });
            return;
        }
        inner.pages = true;
        inner.coverage = Some(Arc::new(Coverage::new(lens)));
    }

    /// Keeps a session that has said hello. False, and it is destroyed, if its epoch was fenced meanwhile.
    pub fn keep(&self, epoch: Epoch, session: Arc<dyn RecvSession>) -> bool {
        let mut inner = self.lock();
        if epoch <= inner.fenced {
            session.kill();
            return false;
        }
        inner.live += 1;
        inner.sessions.insert(epoch, Slot { session, permit: None });
        true
    }

    /// Gives the session of this epoch its write permit, with what earlier epochs have verified. Whether it could.
    pub fn ready(&self, engine: &Arc<dyn Engine>, epoch: Epoch) -> bool {
        let permit = engine.importer(self.id(), self.open.spec.prompt_tokens);
        let mut inner = self.lock();
        let (Some(permit), Some(coverage)) = (permit, inner.coverage.clone()) else {
            return false;
        };
        let Some(slot) = inner.sessions.get_mut(&epoch) else {
            return false;
        };
        let sink = Arc::clone(&permit) as Arc<dyn SlabSink>;
        slot.permit = Some(permit);
        if let Some(tickets) = engine.tickets() {
            // Before the word is out: no lease of this room is older.
            tickets.ready(self.open.spec.room);
        }
        slot.session
            .reply(innkeeper_room::HelloReply::Ready, Some(Grant { sink, coverage }));
        true
    }

    /// The session of an epoch, if it is not over.
    pub fn session(&self, epoch: Epoch) -> Option<Arc<dyn RecvSession>> {
        self.lock().sessions.get(&epoch).map(|slot| Arc::clone(&slot.session))
    }

    /// A session is over and writes nothing any more.
    pub fn session_over(&self, epoch: Epoch) {
        let mut inner = self.lock();
        inner.live = inner.live.saturating_sub(1);
        // Its sender goes with it: nobody will answer on this connection.
        inner.asked.take_if(|(asked, _)| *asked == epoch);
        if let Some(permit) = inner.sessions.remove(&epoch).and_then(|slot| slot.permit) {
            permit.close();
        }
    }

    /// Destroys the session of this epoch, kept or not, and takes its permit back under the pages' own lock. Whether there
    /// was one.
    pub fn kill(&self, epoch: Epoch) -> bool {
        let mut inner = self.lock();
        inner.fenced = inner.fenced.max(epoch);
        match inner.sessions.get(&epoch) {
            Some(slot) => {
                slot.destroy();
                true
            }
            None => false,
        }
    }

    /// Destroys every session, kept or not.
    pub fn kill_all(&self) {
        let mut inner = self.lock();
        inner.fenced = Epoch(u32::MAX);
        inner.sessions.values().for_each(Slot::destroy);
    }

    /// The manifest that the pages match.
    pub fn sealed(&self, manifest: Manifest) {
        self.lock().manifest = Some(manifest);
    }

    /// Has the engine read the KV by the manifest's ticket. It commits, and speaks from the first token on.
    pub fn pull(self: &Arc<Self>, engine: &Arc<dyn Engine>) {
        let room = self.id();
        let ticket = {
            let mut inner = self.lock();
            // The cancel was answered: nobody waits for a word of this job, and `close_pages` gives the ticket back.
            // And one that was given back is nobody's to read by: its pages may be another's long before the lease ends.
            if inner.cancelled || inner.closed {
                return;
            }
            inner.pulled = true;
            inner.manifest.as_ref().and_then(|manifest| manifest.ticket.clone())
        };
        let (Some(tickets), Some(ticket)) = (engine.tickets(), ticket) else {
            self.tell(Event::EngineFailed { room });
            return;
        };
        let asker = Arc::clone(self);
        let job = PullJob {
            work: Arc::clone(&self.open.work),
            attempt: self.open.spec.attempt,
            max_tokens: self.open.spec.max_tokens,
            ticket,
            ask: Box::new(move || {
                let asked = asker.ask_lease_age();
                Box::pin(async move { asked?.await.ok().flatten() })
            }),
        };
        if let Err(error) = tickets.pull(room, job, Arc::clone(self) as Arc<dyn PullSink>) {
            tracing::error!(%room, %error, "the engine refused to read");
            self.engine_failed(&error);
        } else if self.lock().cancelled {
            engine.cancel(room);
        }
    }

    /// Asks P on the newest connection. The sender goes with the connection, so that the wait ends with it.
    fn ask_lease_age(&self) -> Option<oneshot::Receiver<Option<Millis>>> {
        let mut inner = self.lock();
        let (epoch, session) = inner
            .sessions
            .iter()
            .next_back()
            .map(|(epoch, slot)| (*epoch, Arc::clone(&slot.session)))?;
        let (sender, receiver) = oneshot::channel();
        inner.asked = Some((epoch, sender));
        drop(inner);
        session.ask_lease_age();
        Some(receiver)
    }

    /// P's answer.
    pub fn lease_age(&self, epoch: Epoch, age: Option<Millis>) {
        if let Some((_, sender)) = self.lock().asked.take_if(|(asked, _)| *asked == epoch) {
            // Nobody waits any more if the read was given up.
            let _ = sender.send(age);
        }
    }

    fn engine_failed(&self, error: &EngineError) {
        let room = self.id();
        self.tell(match error {
            EngineError::Remote { reason, .. } => Event::EngineEnded { room, reason: *reason },
            _ => Event::EngineFailed { room },
        });
    }

    /// Starts decoding and speaks the first token, which is the manifest's.
    pub fn decode(self: &Arc<Self>, engine: &Arc<dyn Engine>) {
        let room = self.id();
        // The cancel was answered: nobody waits for a word of this job.
        if self.lock().cancelled {
            return;
        }
        let Some(first) = self
            .lock()
            .manifest
            .as_ref()
            .map(|manifest| token(&manifest.first_token))
        else {
            self.tell(Event::EngineFailed { room });
            return;
        };
        let work = Arc::clone(&self.open.work);
        let max_tokens = self.open.spec.max_tokens;
        let last = max_tokens <= 1 || work.stop_ids.contains(&first.id);
        self.lock().tokens = vec![first.clone()];
        self.tell(Event::Made { room, tokens: 1 });
        if last {
            self.tell(Event::EngineFinished { room });
            return;
        }
        let job = DecodeJob {
            work,
            first,
            max_tokens,
        };
        if let Err(error) = engine.decode(room, job, Arc::clone(self) as Arc<dyn DecodeSink>) {
            tracing::error!(%room, %error, "the engine refused to decode what it holds");
            self.tell(Event::EngineFailed { room });
        } else if self.lock().cancelled {
            engine.cancel(room);
        }
    }

    /// Asks the engine to stop; a job that is not there any more is answered as stopped.
    pub fn cancel(&self, engine: &Arc<dyn Engine>) {
        self.lock().cancelled = true;
        if !engine.cancel(self.id()) {
            self.tell(Event::EngineStopped { room: self.id() });
        }
    }

    /// Gives the pages back.
    pub fn close_pages(&self, engine: &Arc<dyn Engine>) {
        let orphan = {
            let mut inner = self.lock();
            inner.closed = true;
            let ticket = inner.manifest.as_ref().and_then(|manifest| manifest.ticket.clone());
            ticket.filter(|_| !std::mem::replace(&mut inner.pulled, true))
        };
        if let (Some(tickets), Some(ticket)) = (engine.tickets(), orphan) {
            // It came, and nobody has read by it: P's engine would keep the KV for its whole lease.
            tickets.release(self.id(), &ticket);
        }
        engine.close(self.id());
        self.lock().pages = false;
    }

    /// Tokens that were made.
    pub fn tokens(&self, position: u32, count: u32) -> Vec<Token> {
        let inner = self.lock();
        inner
            .tokens
            .iter()
            .skip(position as usize)
            .take(count as usize)
            .cloned()
            .collect()
    }

    /// Whether nothing is left that could touch a page.
    pub fn idle(&self) -> bool {
        let inner = self.lock();
        inner.live == 0 && !inner.pages
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete before anything under the lock can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn destroy(&self) {
        if let Some(permit) = &self.permit {
            permit.close();
        }
        self.session.kill();
    }
}

impl DecodeSink for DecodeRoom {
    fn token(&self, position: u32, token: Token) {
        let mut inner = self.lock();
        // The engine speaks in order; anything else would be a token of another life, and is not told.
        if position as usize != inner.tokens.len() {
            return;
        }
        inner.tokens.push(token);
        drop(inner);
        self.tell(Event::Made {
            room: self.id(),
            tokens: position + 1,
        });
    }

    fn finished(&self) {
        self.tell(Event::EngineFinished { room: self.id() });
    }

    fn failed(&self, error: EngineError) {
        tracing::error!(room = %self.id(), %error, "decode failed");
        self.engine_failed(&error);
    }

    fn stopped(&self) {
        self.tell(Event::EngineStopped { room: self.id() });
    }
}

impl PullSink for DecodeRoom {
    fn pulled(&self) {
        self.tell(Event::Pulled { room: self.id() });
    }
}

fn slab_lens(layout: &Layout, tokens: u32) -> Vec<u32> {
    (0..layout.slabs(tokens))
        .map(|slab| layout.slab_len(SlabId(slab), tokens))
        .collect()
}

fn token(first: &FirstToken) -> Token {
    Token {
        id: first.id,
        logprob: f32::from_bits(first.logprob_bits),
        top: first
            .top
            .iter()
            .map(|(id, bits)| (*id, f32::from_bits(*bits)))
            .collect(),
    }
}
