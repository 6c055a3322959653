//! `innkeeper ps`: the nodes.

use super::http::{NODE_DEADLINE, client, nodes};
use super::{RouterArgs, print_table};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    router: RouterArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let client = client(&args.router, Some(NODE_DEADLINE))?;
    let nodes = nodes(&client).await?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&nodes)?);
        return Ok(());
    }
    let columns = [
        "role",
        "name",
        "pid",
        "incarnation",
        "state",
        "rooms",
        "free_pages",
        "http",
        "control",
        "data",
    ];
    let rows: Vec<_> = nodes
        .iter()
        .map(|node| {
            columns
                .iter()
                .map(|column| super::rooms::cell(&node[*column]))
                .collect()
        })
        .collect();
    print_table(&columns, &rows);
    Ok(())
}
