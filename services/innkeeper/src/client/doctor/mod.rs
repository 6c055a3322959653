//! `innkeeper doctor`: looks at a cluster from outside, and says what to fix.
//!
//! ```text
//! mod      asks, judges, prints
//! asked    what was asked and answered: the router, each node, its data port, its metrics
//! checks   what follows from it; pure
//! versions that all nodes run the same, and have partners; pure
//! pairs    the data plane between prefill and decode workers; pure
//! engines  engines next door to workers; pure
//! store    etcd, and the dates of the certificates
//! probe    one request through the router
//! report   findings, as lines and as JSON
//! ```

mod asked;
mod checks;
mod engines;
mod pairs;
mod probe;
mod report;
mod store;
#[cfg(test)]
mod tests;
mod versions;

use std::process::ExitCode;

use innkeeper_node::config::{StoreArgs, StoreConfig, exit_code, exit_with};

use super::RouterArgs;
use super::http::base;
use report::Report;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    router: RouterArgs,
    /// Also send one request for one token through the router.
    #[arg(long)]
    probe: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Looks, prints what it found, and says by its status whether anything has failed (1).
pub(crate) fn run(args: &Args) -> ExitCode {
    let store = args.store.resolve().unwrap_or_else(|error| exit_with(&error));
    let mut failed = false;
    let done = super::run(async {
        let report = examine(args, &store).await?;
        failed = report.failed();
        if args.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{}", report.text());
        }
        Ok(())
    });
    match done {
        Ok(()) if failed => ExitCode::FAILURE,
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            // A wrong flag that only the store's own look finds.
            error
                .downcast_ref()
                .map_or(ExitCode::FAILURE, |error| exit_code(error).into())
        }
    }
}

async fn examine(args: &Args, config: &StoreConfig) -> anyhow::Result<Report> {
    let router = &args.router;
    let mut report = Report::new(base(&router.router));
    let cluster = asked::ask(router).await?;
    checks::router(&cluster, &mut report);
    checks::nodes(&cluster, &mut report);
    checks::gone(&cluster, &mut report);
    engines::engines(&cluster, &mut report);
    versions::versions(&cluster, &mut report);
    pairs::data_ports(&cluster, &mut report);
    pairs::pairs(&cluster, &mut report);
    if config.endpoints.is_empty() {
        checks::no_store(&cluster, &mut report);
    } else {
        store::certificates(config, cluster.now_ms, &mut report);
        store::etcd(config, &cluster, &mut report).await?;
    }
    if args.probe {
        probe::probe(router, &mut report).await?;
    }
    Ok(report)
}
