//! The engine's thread.

use std::collections::VecDeque;
use std::sync::Arc;

use innkeeper_room::{FirstToken, Manifest, SlabError, Token};

use super::Tuning;
use super::backend::{Backend, Chunk, Item};
use super::chunk::ChunkSizer;
use super::jobs::{DecodeRun, End, Job, PrefillRun};
use super::shared::{Shared, guarded};
use crate::port::EngineError;

pub(crate) struct Runner<B: Backend> {
    shared: Arc<Shared<B>>,
    backend: B,
    sizer: ChunkSizer,
    largest_batch: usize,
    prefills: VecDeque<PrefillRun<B::State>>,
    decodes: VecDeque<DecodeRun<B::State>>,
}

impl<B: Backend> Runner<B> {
    pub(crate) fn new(shared: Arc<Shared<B>>, tuning: Tuning, backend: B) -> Self {
        let page = shared.pool.layout().page_tokens;
        let sizer = ChunkSizer::new(tuning.chunk_target, page, tuning.largest_chunk);
        let largest_batch = tuning.largest_batch.max(1);
        Self {
            shared,
            backend,
            sizer,
            largest_batch,
            prefills: VecDeque::new(),
            decodes: VecDeque::new(),
        }
    }

    pub(crate) fn run(mut self) {
        loop {
            let taken = self.shared.take(self.prefills.is_empty() && self.decodes.is_empty());
            for job in taken.jobs {
                match job {
                    Job::Prefill(run) => self.begin_prefill(run),
                    Job::Decode(run) => self.decodes.push_back(run),
                }
            }
            self.drop_ended(taken.stop);
            if taken.stop {
                break;
            }
            self.chunk();
            self.step();
        }
        self.shared.thread_ended();
    }

    /// What is reused is sealed at once.
    fn begin_prefill(&mut self, run: PrefillRun<B::State>) {
        if guarded(|| run.sealed.iter().for_each(|meta| run.sink.sealed(*meta))).is_err() {
            let error = EngineError::Broken("the prefill's sink panicked".to_owned());
            return self.end_prefill(run, End::Failed(error));
        }
        self.prefills.push_back(run);
    }

    /// The boundary: jobs that were cancelled hear `stopped`, and answers that are complete `finished`.
    fn drop_ended(&mut self, all: bool) {
        for run in std::mem::take(&mut self.prefills) {
            if all || run.ticket.is_cancelled() || run.pages.is_closed() {
                self.end_prefill(run, End::Stopped);
            } else {
                self.prefills.push_back(run);
            }
        }
        for run in std::mem::take(&mut self.decodes) {
            if all || run.ticket.is_cancelled() || run.pages.is_closed() {
                self.end_decode(run, End::Stopped);
            } else if run.is_complete() {
                self.finish_decode(run);
            } else {
                self.decodes.push_back(run);
            }
        }
    }

    fn end_prefill(&self, run: PrefillRun<B::State>, end: End) {
        let PrefillRun { ticket, sink, .. } = run;
        self.shared.end(&ticket, || match end {
            End::Stopped => sink.stopped(),
            End::Failed(error) => sink.failed(error),
        });
    }

    fn end_decode(&self, run: DecodeRun<B::State>, end: End) {
        let DecodeRun { ticket, sink, .. } = run;
        self.shared.end(&ticket, || match end {
            End::Stopped => sink.stopped(),
            End::Failed(error) => sink.failed(error),
        });
    }

    /// One chunk of the room whose turn it is.
    fn chunk(&mut self) {
        let Some(mut run) = self.prefills.pop_front() else {
            return;
        };
        let total = u32::try_from(run.work.prompt.len()).unwrap_or(u32::MAX);
        let size = self.sizer.next(run.computed, total - run.computed);
        let (from, to) = (run.computed, run.computed + size);
        let began = self.shared.begin();
        let chunk = Chunk {
            pages: &run.pages,
            work: &run.work,
            from,
            to,
        };
        let result = match guarded(|| self.backend.prefill(chunk, &mut run.state)) {
            Ok(result) => result.and_then(|first| Ok((first, run.pages.seal(to).map_err(closed)?))),
            Err(panic) => Err(EngineError::Broken(format!("a chunk panicked: {panic}"))),
        };
        self.sizer.done(size, began.elapsed());
        self.shared.finish(u64::from(size), 0);
        match result {
            Ok((first, metas)) => {
                run.computed = to;
                self.chunk_done(run, first, metas);
            }
            Err(error) => {
                let end = End::of(error, &run.ticket, &run.pages);
                self.end_prefill(run, end);
            }
        }
    }

    fn chunk_done(
        &mut self,
        mut run: PrefillRun<B::State>,
        first: Option<Token>,
        metas: Vec<innkeeper_room::SlabMeta>,
    ) {
        let told = guarded(|| {
            metas.iter().for_each(|meta| run.sink.sealed(*meta));
            run.sink.computed(run.computed - run.pages.reused_tokens());
        });
        run.sealed.extend(metas);
        if told.is_err() {
            let error = EngineError::Broken("the prefill's sink panicked".to_owned());
            return self.end_prefill(run, End::Failed(error));
        }
        match first {
            Some(first) if (run.computed as usize) == run.work.prompt.len() => self.finish_prefill(run, first),
            _ => self.prefills.push_back(run),
        }
    }

    fn finish_prefill(&self, run: PrefillRun<B::State>, first: Token) {
        let PrefillRun {
            ticket,
            sink,
            computed,
            sealed,
            ..
        } = run;
        let top = first.top.iter().map(|(id, logprob)| (*id, logprob.to_bits())).collect();
        let first_token = FirstToken {
            id: first.id,
            logprob_bits: first.logprob.to_bits(),
            top,
        };
        let manifest = Manifest {
            slabs: sealed,
            token_count: computed,
            first_token,
            ticket: None,
        };
        self.shared.end(&ticket, || sink.finished(manifest));
    }

    /// One step for all rooms, or for the next ones in turn if they are too many.
    fn step(&mut self) {
        let count = self.decodes.len().min(self.largest_batch);
        let mut batch: Vec<_> = self.decodes.drain(..count).collect();
        // A first token that is also the last needs no step; nor does one that was cancelled meanwhile.
        let (mut runs, idle): (Vec<_>, Vec<_>) = batch
            .drain(..)
            .partition(|run| !run.is_complete() && !run.ticket.is_cancelled());
        self.decodes.extend(idle);
        if runs.is_empty() {
            return;
        }
        self.shared.begin();
        let mut items: Vec<_> = runs.iter_mut().map(item).collect();
        let results = match guarded(|| self.backend.step(&mut items)) {
            Ok(results) => results,
            Err(panic) => {
                let error = EngineError::Broken(format!("a step panicked: {panic}"));
                vec![Err(error); items.len()]
            }
        };
        drop(items);
        self.shared
            .finish(0, results.iter().filter(|result| result.is_ok()).count() as u64);
        for (run, result) in runs.into_iter().zip(results) {
            self.step_done(run, result);
        }
    }

    fn step_done(&mut self, mut run: DecodeRun<B::State>, result: Result<Token, EngineError>) {
        let token = match result {
            Ok(token) => token,
            Err(error) => {
                let end = End::of(error, &run.ticket, &run.pages);
                return self.end_decode(run, end);
            }
        };
        // A token that was computed while its room was cancelled is nobody's.
        if run.ticket.is_cancelled() {
            return self.end_decode(run, End::Stopped);
        }
        let position = u32::try_from(run.produced.len()).unwrap_or(u32::MAX);
        run.produced.push(token.id);
        if guarded(|| run.sink.token(position, token)).is_err() {
            let error = EngineError::Broken("the decode's sink panicked".to_owned());
            return self.end_decode(run, End::Failed(error));
        }
        if run.is_complete() {
            self.finish_decode(run)
        } else {
            self.decodes.push_back(run)
        }
    }

    fn finish_decode(&mut self, run: DecodeRun<B::State>) {
        match self.backend.verify(&run.pages, &run.state) {
            Ok(()) => self.shared.end(&run.ticket, || run.sink.finished()),
            Err(error) => {
                let end = End::of(error, &run.ticket, &run.pages);
                self.end_decode(run, end);
            }
        }
    }
}

fn item<S>(run: &mut DecodeRun<S>) -> Item<'_, S> {
    Item {
        pages: &run.pages,
        work: &run.work,
        produced: &run.produced,
        state: &mut run.state,
    }
}

/// The backend's view of pages that were closed under it.
pub(crate) fn closed(error: SlabError) -> EngineError {
    EngineError::Broken(format!("the room's pages: {error}"))
}
