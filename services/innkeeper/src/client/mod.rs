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
mod watch;

use std::future::Future;

/// Where the router is.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RouterArgs {
    /// The router's HTTP address.
    #[arg(long, default_value = "http://127.0.0.1:8080", value_name = "URL")]
    pub(crate) router: String,
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
