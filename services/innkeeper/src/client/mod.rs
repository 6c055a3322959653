//! The client commands: they find the router by `--router` or `INNKEEPER_ROUTER`, and ask every node themselves.

pub(crate) mod check;
pub(crate) mod doctor;
mod evict;
mod explain;
pub(crate) mod http;
mod look;
pub(crate) mod ps;
mod remembered;
pub(crate) mod rooms;
pub(crate) mod top;
mod trust;
mod watch;

use std::future::Future;
use std::path::PathBuf;

use innkeeper_node::config::Secret;
use trust::Trust;

/// Where the router is, and what it is shown.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct RouterArgs {
    /// The router's HTTP address, as http(s)://host:port.
    #[arg(long, default_value = "http://127.0.0.1:8080", value_name = "URL")]
    pub(crate) router: String,
    /// An API key of the router; better given as INNKEEPER_API_KEY, which no process list shows. [default: none]
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    pub(crate) api_key: Option<Secret>,
    /// The router's admin key; better given as INNKEEPER_ADMIN_KEY. [default: none]
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    pub(crate) admin_key: Option<Secret>,
    /// PEM file of the CA that signed the router's certificate. [default: the system's CAs]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// A certificate that is taken as it is, in place of a CA.
    #[arg(skip)]
    pub(crate) pinned: Option<PathBuf>,
}

impl RouterArgs {
    /// A router at this address, that is shown nothing.
    pub(crate) fn at(addr: &str) -> Self {
        Self {
            router: addr.to_owned(),
            ..Self::default()
        }
    }

    /// What a client of TLS trusts.
    pub(crate) fn trust(&self) -> anyhow::Result<rustls::ClientConfig> {
        let trust = match (&self.pinned, &self.ca) {
            (Some(own), _) => Trust::Exactly(own.clone()),
            (None, Some(ca)) => Trust::Ca(ca.clone()),
            (None, None) => Trust::System,
        };
        trust.config()
    }
}

/// Runs a client command on this thread.
pub(crate) fn run(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(command)
}

/// Prints a table: columns as wide as their widest cell.
pub(crate) fn print_table(head: &[&str], rows: &[Vec<String>]) {
    print!("{}", table(head, rows));
}

/// The table as text.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut line = |cells: Vec<&str>| {
        let padded: Vec<_> = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    };
    line(head.to_vec());
    for row in rows {
        line(row.iter().map(String::as_str).collect());
    }
    text
}
