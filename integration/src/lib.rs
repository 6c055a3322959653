//! A whole cluster of real processes for tests: the `innkeeper` program, real gRPC, real TCP, and a real etcd where a
//! test asks for one. What a test asks of it is what an outsider may rely on: the HTTP endpoints, the client commands and
//! the metrics.
//!
//! ```text
//! cluster   a running `innkeeper up`, asked through its endpoints and commands
//! options   how it is started
//! process   the program, its children, signals, and their end
//! client    OpenAI requests as a client sends them, streams included
//! metrics   a scrape, parsed
//! oracle    nothing is left behind: the check after every test
//! wait      for a condition, with a limit
//! ```
//!
//! All of it panics when it cannot do its work, with what to do: it is a test's surroundings, not its subject.

mod client;
mod cluster;
mod metrics;
mod options;
mod oracle;
mod process;
mod wait;

pub use client::{Answer, Client, Stream, completion};
pub use cluster::{Cluster, Room};
pub use metrics::Metrics;
pub use options::Options;
pub use oracle::oracle;
pub use process::{program, signal};
pub use wait::{until, within};
