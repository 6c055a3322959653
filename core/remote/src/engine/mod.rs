//! Engines of others behind the worker's engine port.
//!
//! ```text
//! vllm     vLLM with NIXL: keeps prompts for readers, reads by tickets
//! legs     its two legs, each a task
//! book     which pages of its pool are reserved for whom
//! settle   when it has the pages back of a room that was given up
//! jobs     the legs that are out
//! slabs    the slabs that it does not have
//! ```
//!
//! The workers' own promises hold for these as far as the engines let them: pages are *reserved* in the ledger, and the engine's
//! gauge is asked whether they are back; foreign bytes are kept out by the proof that a read ended inside of its lease.

mod book;
mod jobs;
mod legs;
mod settle;
mod slabs;
mod vllm;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use innkeeper_engine::Limits;
use innkeeper_room::Layout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use vllm::VllmEngine;

use crate::look::PoolSize;

/// How large an engine is, and whose KV fits its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// No groups: it has no slabs. Model, kind and release of the engine are in its name, so that only pairs that fit are made.
    pub layout: Layout,
    /// Its pool.
    pub pool: PoolSize,
    /// Longest prompt and answer together, in tokens.
    pub context: u32,
    /// Ids are below this.
    pub vocabulary: u32,
}

/// Pages that no room gets: the engine's own empty one, and one for a canary.
const OWN_PAGES: u32 = 2;

impl Shape {
    /// Of an engine of this kind and release, e.g. `vllm-0.32.0`, that serves a model.
    #[must_use]
    pub fn new(model: &str, engine: &str, pool: PoolSize, context: u32, vocabulary: u32) -> Self {
        Self {
            layout: Layout {
                model: format!("{model}/{engine}"),
                page_tokens: pool.page_tokens,
                groups: 0,
                group_token_bytes: 0,
            },
            pool,
            context,
            vocabulary,
        }
    }

    /// Pages that rooms may have.
    #[must_use]
    pub const fn usable_pages(&self) -> u32 {
        self.pool.pages.saturating_sub(OWN_PAGES)
    }

    /// What it can hold.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        Limits {
            total_pages: self.usable_pages(),
            context: self.context,
            vocabulary: self.vocabulary,
        }
    }
}

/// What an engine's driver has counted since its start.
#[derive(Debug, Default)]
struct Counted {
    prompt: AtomicU64,
    output: AtomicU64,
    kept: AtomicU64,
    reads: AtomicU64,
    orphans: AtomicU64,
    unproven: AtomicU64,
}

impl Counted {
    fn prompt(&self, tokens: u32) {
        self.kept.fetch_add(1, Ordering::Relaxed);
        self.prompt.fetch_add(u64::from(tokens), Ordering::Relaxed);
    }

    fn output(&self, tokens: u64) {
        self.output.fetch_add(tokens, Ordering::Relaxed);
    }

    fn orphan(&self) {
        self.orphans.fetch_add(1, Ordering::Relaxed);
    }

    fn unproven(&self) {
        self.unproven.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// Prompts kept, and reads proven.
    fn good(&self) -> (u64, u64) {
        (self.kept.load(Ordering::Relaxed), self.reads.load(Ordering::Relaxed))
    }

    /// Tickets given back, and reads that were not proven.
    fn lost(&self) -> (u64, u64) {
        (
            self.orphans.load(Ordering::Relaxed),
            self.unproven.load(Ordering::Relaxed),
        )
    }

    fn prompt_tokens(&self) -> u64 {
        self.prompt.load(Ordering::Relaxed)
    }

    fn output_tokens(&self) -> u64 {
        self.output.load(Ordering::Relaxed)
    }
}

/// Ends an engine's tasks and waits for them at most `limit`; whether they ended. The wait blocks: not on a runtime that has one
/// thread only.
fn shutdown(tasks: &TaskTracker, stop: &CancellationToken, limit: Duration) -> bool {
    stop.cancel();
    tasks.close();
    let until = Instant::now() + limit;
    while !tasks.is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    tasks.is_empty()
}
