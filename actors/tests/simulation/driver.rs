//! The simulated engine's one task: chunks in turn, batched steps, and who hears what when.

use std::sync::Arc;
use std::time::Duration;

use innkeeper_engine::{DecodeSink, EngineError, PrefillSink};
use innkeeper_room::{FirstToken, Manifest, RoomId, SlabError, SlabMeta, Token, Work};
use tokio::time::Instant;

use crate::answers::{Digest, GROUPS, Prefix};
use crate::engine::{Job, Kind, Pace, Shared};
use crate::pages::RoomPages;
use crate::story::{lock, wrong};

const CHUNK: u32 = 32;

enum Word {
    Stopped,
    Failed,
}

impl Shared {
    pub(crate) fn enter(
        &self,
        room: RoomId,
        work: Arc<Work>,
        kind: Kind,
        prepare: impl FnOnce(&RoomPages),
    ) -> Result<(), EngineError> {
        let mut state = lock(&self.state);
        if state.jobs.contains_key(&room) {
            return Err(EngineError::Exists(room));
        }
        let pages = state.rooms.get(&room).cloned().ok_or(EngineError::Unknown(room))?;
        prepare(&pages);
        let job = Job {
            work,
            pages,
            kind,
            prefix: Prefix::default(),
            digest: Digest::default(),
            cancelled: false,
        };
        state.jobs.insert(room, job);
        Ok(())
    }

    /// A prefill begins behind what is reused, which is sealed at once.
    pub(crate) fn reuse(&self, room: RoomId) {
        let mut state = lock(&self.state);
        let told = state.jobs.get_mut(&room).and_then(|job| job.reuse().ok());
        drop(state);
        if let Some((sink, metas)) = told {
            metas.into_iter().for_each(|meta| sink.sealed(meta));
        }
    }

    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            self.pass().await;
            self.drop_cancelled();
            let prefill = lock(&self.state).prefills.pop_front();
            if let Some(room) = prefill {
                self.chunk(room).await;
            }
            let decodes: Vec<RoomId> = {
                let state = lock(&self.state);
                let jobs = state.jobs.iter();
                jobs.filter(|(_, job)| matches!(job.kind, Kind::Decode(..)))
                    .map(|(room, _)| *room)
                    .collect()
            };
            if !decodes.is_empty() {
                self.steps(&decodes).await;
            } else if prefill.is_none() {
                self.wake.notified().await;
            }
        }
    }

    /// Waits while the engine stands still.
    async fn pass(&self) {
        loop {
            {
                let state = lock(&self.state);
                if !state.stalled && !state.frozen {
                    return;
                }
            }
            self.wake.notified().await;
        }
    }

    /// The time that a chunk or step takes, in which it is in hand; whether it succeeded.
    async fn spend(&self, cost: impl FnOnce(&Pace) -> Duration) -> bool {
        let cost = {
            let mut state = lock(&self.state);
            state.began = Some(Instant::now());
            cost(&state.pace) * state.pace.slow
        };
        tokio::time::sleep(cost).await;
        self.pass().await;
        let mut state = lock(&self.state);
        state.began = None;
        state.progress += 1;
        !std::mem::take(&mut state.fail_next)
    }

    fn drop_cancelled(&self) {
        let gone: Vec<RoomId> = {
            let state = lock(&self.state);
            state
                .jobs
                .iter()
                .filter(|(_, job)| job.cancelled)
                .map(|(room, _)| *room)
                .collect()
        };
        gone.into_iter().for_each(|room| self.end(room, &Word::Stopped));
    }

    fn end(&self, room: RoomId, word: &Word) {
        let mut state = lock(&self.state);
        state.prefills.retain(|waiting| *waiting != room);
        let Some(job) = state.jobs.remove(&room) else { return };
        drop(state);
        let broken = || EngineError::Broken("the simulation told it to".to_owned());
        match (job.kind, word) {
            (Kind::Prefill(sink, _), Word::Stopped) => sink.stopped(),
            (Kind::Prefill(sink, _), Word::Failed) => sink.failed(broken()),
            (Kind::Decode(sink, ..), Word::Stopped) => sink.stopped(),
            (Kind::Decode(sink, ..), Word::Failed) => sink.failed(broken()),
        }
    }

    /// One chunk of the room whose turn it is.
    async fn chunk(&self, room: RoomId) {
        let size = {
            let state = lock(&self.state);
            let Some(job) = state.jobs.get(&room) else { return };
            CHUNK.min(u32::try_from(job.work.prompt.len()).unwrap_or(u32::MAX) - job.digest.tokens)
        };
        let well = self.spend(|pace| pace.prefill * size).await;
        let chunk = {
            let mut state = lock(&self.state);
            let Some(job) = state.jobs.get_mut(&room) else { return };
            if job.cancelled {
                None
            } else {
                Some(if well { job.chunk(size).ok() } else { None })
            }
        };
        match chunk {
            None => self.end(room, &Word::Stopped),
            Some(None) => self.end(room, &Word::Failed),
            Some(Some((sink, metas, computed, manifest))) => {
                metas.into_iter().for_each(|meta| sink.sealed(meta));
                sink.computed(computed);
                let mut state = lock(&self.state);
                match manifest {
                    Some(manifest) => {
                        state.jobs.remove(&room);
                        drop(state);
                        sink.finished(manifest);
                    }
                    None => state.prefills.push_back(room),
                }
            }
        }
    }

    /// One step for all rooms that decode.
    async fn steps(&self, rooms: &[RoomId]) {
        let well = self.spend(|pace| pace.step).await;
        for room in rooms {
            let step = {
                let mut state = lock(&self.state);
                let Some(job) = state.jobs.get_mut(room) else { continue };
                if job.cancelled {
                    None
                } else {
                    Some(if well { job.step() } else { Ok(None) })
                }
            };
            match step {
                None => self.end(*room, &Word::Stopped),
                Some(Ok(None)) => self.end(*room, &Word::Failed),
                Some(Err(error)) => {
                    wrong!(self.story, "I6: {} decodes room {room}: {error}", self.name);
                    self.end(*room, &Word::Failed);
                }
                Some(Ok(Some((sink, position, token, over)))) => {
                    sink.token(position, token);
                    if over {
                        lock(&self.state).jobs.remove(room);
                        sink.finished();
                    }
                }
            }
        }
    }
}

type ChunkDone = (Arc<dyn PrefillSink>, Vec<SlabMeta>, u32, Option<Manifest>);
type StepDone = (Arc<dyn DecodeSink>, u32, Token, bool);

impl Job {
    fn reuse(&mut self) -> Result<(Arc<dyn PrefillSink>, Vec<SlabMeta>), SlabError> {
        let (tokens, metas) = self.pages.reused();
        let ids = self.work.prompt.iter().take(tokens as usize);
        self.prefix = ids.fold(self.prefix, |prefix, id| prefix.push(*id));
        self.pages.digest(&mut self.digest, tokens)?;
        let Kind::Prefill(sink, sealed) = &mut self.kind else {
            return Err(SlabError::Closed);
        };
        sealed.extend_from_slice(metas);
        Ok((Arc::clone(sink), metas.to_vec()))
    }

    fn feed(&mut self, id: u32) -> Result<(), SlabError> {
        self.prefix = self.prefix.push(id);
        let at = self.digest.tokens;
        for group in 0..GROUPS {
            self.pages.write(at, group, &self.prefix.kv(group))?;
        }
        self.pages.digest(&mut self.digest, at + 1)
    }

    fn chunk(&mut self, size: u32) -> Result<ChunkDone, SlabError> {
        let from = self.digest.tokens as usize;
        let work = Arc::clone(&self.work);
        for id in &work.prompt[from..from + size as usize] {
            self.feed(*id)?;
        }
        let computed = self.digest.tokens;
        let metas = self.pages.seal(computed)?;
        let first = self.digest.next();
        let Kind::Prefill(sink, sealed) = &mut self.kind else {
            return Err(SlabError::Closed);
        };
        sealed.extend_from_slice(&metas);
        let last = computed as usize == work.prompt.len();
        let manifest = last.then(|| Manifest {
            slabs: sealed.clone(),
            token_count: computed,
            first_token: FirstToken {
                id: first,
                logprob_bits: 0,
                top: vec![],
            },
            ticket: None,
        });
        let (reused, _) = self.pages.reused();
        Ok((Arc::clone(sink), metas, computed - reused, manifest))
    }

    /// One token, from what the pages hold now.
    fn step(&mut self) -> Result<Option<StepDone>, SlabError> {
        let prompt = u32::try_from(self.work.prompt.len()).unwrap_or(u32::MAX);
        if self.digest.tokens == 0 {
            self.prefix = self
                .work
                .prompt
                .iter()
                .fold(Prefix::default(), |prefix, id| prefix.push(*id));
            self.pages.digest(&mut self.digest, prompt)?;
        }
        let Kind::Decode(_, produced, _) = &self.kind else {
            return Err(SlabError::Closed);
        };
        self.feed(produced.last().copied().unwrap_or_default())?;
        let id = self.digest.next();
        let Kind::Decode(sink, produced, max_tokens) = &mut self.kind else {
            return Err(SlabError::Closed);
        };
        let position = u32::try_from(produced.len()).unwrap_or(u32::MAX);
        produced.push(id);
        let over = produced.len() >= *max_tokens as usize || self.work.stop_ids.contains(&id);
        let token = Token { id, ..Token::default() };
        let sink = Arc::clone(sink);
        if over {
            // Whoever wrote into the pages since is seen here.
            let mut now = Digest::default();
            self.pages.digest(&mut now, self.digest.tokens)?;
            if now != self.digest {
                return Err(SlabError::Closed);
            }
        }
        Ok(Some((sink, position, token, over)))
    }
}
