//! A whole cluster of real processes for tests: the `innkeeper` program, real gRPC, real TCP, and a real etcd where a
//! test asks for one. What a test asks of it is what an outsider may rely on: the HTTP endpoints, the client commands and
//! the metrics.
//!
//! ```text
//! cluster   a running `innkeeper up`, asked through its endpoints and commands
//! options   how it is started
//! apart     each node in a network namespace of its own
//! netns     such a network, whose links can be cut, black-holed, slowed and healed
//! questions what it is asked
//! join      nodes beside those of `innkeeper up`
//! kit       the fault kit: what a test does to a running cluster
//! process   the program, its children, signals, and their end
//! client    OpenAI requests as a client sends them, streams included
//! load      many requests: so many at a time, or so many a second
//! rpc       the same over gRPC
//! python    the clients of others
//! tap       what a reader of the network sees
//! metrics   a scrape, parsed
//! jaeger    a real Jaeger, and what it says of a trace
//! oracle    nothing is left behind: the check after every test
//! wait      for a condition, with a limit
//! ```
//!
//! All of it panics when it cannot do its work, with what to do: it is a test's surroundings, not its subject.

mod apart;
mod client;
mod cluster;
mod jaeger;
mod join;
mod kit;
/// Many requests.
pub mod load;
mod metrics;
mod netns;
mod options;
mod oracle;
mod process;
mod python;
mod questions;
/// The gRPC service as its clients use it.
pub mod rpc;
mod tap;
mod wait;

pub use apart::{ETCD, skipped};
pub use client::{Answer, Client, Stream, completion};
pub use cluster::{Cluster, free_port};
pub use jaeger::{Jaeger, Span, Trace};
pub use kit::Stopped;
pub use metrics::Metrics;
pub use netns::{Link, Net, TEST};
pub use options::Options;
pub use oracle::oracle;
pub use process::{program, signal};
pub use python::python;
pub use questions::Room;
pub use tap::Tap;
pub use wait::{enough_of, until, verify_everything, within};
