//! Attacks, each with the answer that it gets: the table in SECURITY.md names these tests.
//!
//! ```text
//! raw      bytes on a socket, as no client library sends them
//! keys     API keys: none, wrong ones, replaced ones; what stays open; the tools
//! requests what a client must not be able to say
//! limits   too slow, too large, too many
//! front    TLS at the front door
//! nodes    the control ports of nodes, and tokens on data ports
//! data     TLS between prefill and decode
//! secrets  none is in a log, an answer, a record, a metric or a process list
//! ```

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod data;
mod front;
mod keys;
mod limits;
mod nodes;
mod raw;
mod requests;
mod secrets;
