//! Engines: what turns a prompt into KV pages and KV pages into tokens.
//!
//! ```text
//! port        the trait that workers drive; everything else here stands behind it
//! pool        KV pages by their ids: who has which, and the handles through which they are read and written
//! driver      one thread per engine: jobs, chunks round robin, batched steps, sealing, cancel, status
//! mock        a deterministic engine without a model: its output depends on every byte of KV
//! embedded    SmolLM2 (Llama architecture) on the CPU, bit-identical for any chunking, batching and thread count
//! text        tokenizer, incremental detokenizer, chat template
//! sample      choosing a token from logits
//! fetch       how a model gets onto this machine
//! monolithic  prompt to answer in one engine, without a transfer
//! ```

#[cfg(not(target_endian = "little"))]
compile_error!("KV pages travel as little-endian f16; this engine was not written for big-endian machines");

mod driver;
pub mod embedded;
pub mod fetch;
pub mod mock;
pub mod monolithic;
pub mod pool;
pub mod port;
pub mod sample;
mod sync;
pub mod text;

pub use embedded::{EmbeddedConfig, EmbeddedEngine, Weights};
pub use mock::{MockConfig, MockEngine};
pub use port::*;
