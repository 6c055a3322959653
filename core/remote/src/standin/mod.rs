//! A stand-in for both engines: their HTTP surfaces over pages that have content, a lease, and gauges that only steps
//! publish. What the real ones do that hurts is a switch of [`Bugs`] each.
//!
//! The KV of a page *is* the tokens it was computed for, and each token that is produced is a hash over all of them: a
//! page that belongs to somebody else gives another token, as with a real model, and [`oracle`] says which is right.

mod core;
mod fabric;
mod pages;
mod process;
mod sglang;
mod surface;
mod vllm;

use std::time::Duration;

pub use fabric::Fabric;
pub use process::Standin;

/// Which engine it stands in for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// vLLM with NIXL.
    Vllm,
    /// SGLang's prefill.
    SglangPrefill,
    /// SGLang's decode.
    SglangDecode,
}

/// How large and how fast it is.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which engine.
    pub kind: Kind,
    /// Pages in the pool.
    pub pages: u32,
    /// Tokens in one.
    pub page_tokens: u32,
    /// Most requests in the batch.
    pub max_seqs: usize,
    /// Prompt tokens in one chunk.
    pub chunk: usize,
    /// What a chunk takes.
    pub chunk_time: Duration,
    /// What a step of decode takes.
    pub step_time: Duration,
    /// What a read, or a hand-over, of a whole prompt's KV takes.
    pub pull_time: Duration,
    /// SGLang: how long a request is on its way from the front end to the core, where aborts do not find it.
    pub arrival: Duration,
    /// What the first contact with another engine takes.
    pub wire_up: Duration,
    /// vLLM: how long KV is kept that nobody reads.
    pub lease: Duration,
    /// SGLang: when the transport gives up by itself.
    pub transport_gives_up: Duration,
    /// SGLang: how long a leg without a stream takes to notice that its client has gone.
    pub close_notice: Duration,
    /// What is wrong with it.
    pub bugs: Bugs,
}

impl Config {
    /// A small fast one with everything that was measured on real engines.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            pages: 96,
            page_tokens: 16,
            max_seqs: 8,
            chunk: 64,
            chunk_time: Duration::from_millis(4),
            step_time: Duration::from_millis(2),
            pull_time: Duration::from_millis(5),
            arrival: Duration::ZERO,
            wire_up: Duration::from_millis(20),
            lease: Duration::from_secs(30),
            transport_gives_up: Duration::from_secs(30),
            close_notice: Duration::from_millis(200),
            bugs: Bugs::as_measured(),
        }
    }
}

/// What an engine does that hurts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Bugs {
    /// SGLang: an abort that overtakes its request is lost.
    pub early_abort_lost: bool,
    /// vLLM: closing prefill's leg after it has finished gives nothing back.
    pub close_after_finish_ignored: bool,
    /// vLLM: a read after the lease gives what is in the pages now, and no error.
    pub late_pull_foreign: bool,
    /// vLLM: pages of a read that was given up stay until the peer runs or dies.
    pub aborted_pull_pinned: bool,
    /// `/health` is fine while the core stands still.
    pub health_lies: bool,
    /// Gauges are those of the last step.
    pub metrics_stale: bool,
    /// An abort of an id that is not known is answered like any other.
    pub unknown_abort_ok: bool,
    /// A process that was stopped goes on, when it runs again, as if nothing had been.
    pub finishes_after_cont: bool,
    /// vLLM: the notice that a ticket was given back never arrives. Not seen on real engines.
    pub notice_lost: bool,
    /// vLLM: decode computes the prompt itself although it was given a ticket. Not seen on real engines.
    pub recomputes: bool,
    /// SGLang: prefill's leg does not end although decode has the KV. Not seen on real engines.
    pub keeps_handed_over: bool,
}

impl Bugs {
    /// What real engines were seen to do.
    #[must_use]
    pub const fn as_measured() -> Self {
        Self {
            early_abort_lost: true,
            close_after_finish_ignored: true,
            late_pull_foreign: true,
            aborted_pull_pinned: true,
            health_lies: true,
            metrics_stale: true,
            unknown_abort_ok: true,
            finishes_after_cont: true,
            notice_lost: false,
            recomputes: false,
            keeps_handed_over: false,
        }
    }

    /// A good engine.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            early_abort_lost: false,
            close_after_finish_ignored: false,
            late_pull_foreign: false,
            aborted_pull_pinned: false,
            health_lies: false,
            metrics_stale: false,
            unknown_abort_ok: false,
            finishes_after_cont: false,
            notice_lost: false,
            recomputes: false,
            keeps_handed_over: false,
        }
    }
}

/// Ids are below this.
pub const VOCABULARY: u32 = 1000;
/// Sampling with another temperature than 0 depends on a generator that each request starts anew.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Chooser {
    pub(crate) temperature: f32,
    pub(crate) seed: u64,
}

/// The token that follows `context`, as the `nth` of its request.
pub(crate) fn next_token(context: impl Iterator<Item = u32>, nth: usize, chooser: Chooser) -> u32 {
    // FNV-1a: the same on every machine and in every release.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut eat = |number: u64| {
        for byte in number.to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    context.for_each(|id| eat(u64::from(id)));
    if chooser.temperature > 0.0 {
        eat(chooser.seed);
        eat(nth as u64);
    }
    ((hash >> 20) % u64::from(VOCABULARY)) as u32
}

/// What one engine would answer that computes all itself.
#[must_use]
pub fn oracle(prompt: &[u32], max_tokens: u32, stop_ids: &[u32]) -> Vec<u32> {
    let greedy = Chooser {
        temperature: 0.0,
        seed: 0,
    };
    let mut produced: Vec<u32> = vec![];
    for nth in 0..max_tokens as usize {
        let context = prompt.iter().chain(&produced).copied();
        let token = next_token(context, nth, greedy);
        produced.push(token);
        if stop_ids.contains(&token) {
            break;
        }
    }
    produced
}
