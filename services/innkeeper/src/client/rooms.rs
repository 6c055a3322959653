//! `innkeeper rooms`: one row per room, from its owner; a part whose owner does not answer is shown from its worker.

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};

use super::look::{look, merged};
use super::{RouterArgs, evict, explain, table, watch};

/// So many of the rooms that are over are listed.
const ENDED_ROWS: u32 = 200;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the live rooms of a running cluster, or those that are over.
    Ls(Ls),
    /// Show one room as each of its nodes sees it.
    Show(Show),
    /// Explain what happened to a room, live or over: who owed the next step, since when, and on what evidence.
    Explain(explain::Explain),
    /// Print the trace of a room's request.
    Trace(explain::Trace),
    /// End a room, as a revocation of its lease does; its request goes on with the next attempt.
    Evict(evict::Args),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    router: RouterArgs,
    /// Rooms that are over, newest first.
    #[arg(long)]
    ended: bool,
    /// Print JSON; with --watch a line for each look.
    #[arg(long)]
    json: bool,
    /// Look again and again until Ctrl-C: a terminal is redrawn in place, anything else gets one table after the other.
    #[arg(long)]
    watch: bool,
    /// With --watch: from one look to the next, in milliseconds.
    #[arg(long, default_value_t = 1000, value_name = "MS", value_parser = clap::value_parser!(u64).range(50..=3_600_000))]
    every_ms: u64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// The room's id, as `rooms ls` prints it.
    #[arg(value_name = "ID")]
    room: innkeeper_room::RoomId,
    #[command(flatten)]
    router: RouterArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Ls(args) => ls(args).await,
        Command::Show(args) => show(args).await,
        Command::Explain(args) => explain::explain(args).await,
        Command::Trace(args) => explain::trace(args).await,
        Command::Evict(args) => evict::run(args).await,
    }
}

/// What a list showed at one look.
pub(crate) struct Listing {
    /// One row per room.
    rows: Vec<Value>,
    ended: bool,
    /// The router does not answer; in one sentence.
    pub(crate) away: Option<String>,
    /// Nodes that do not answer, in a sentence each.
    pub(crate) silent: Vec<String>,
}

impl Listing {
    /// One look.
    async fn take(args: &Ls) -> anyhow::Result<Self> {
        let router = &args.router;
        if args.ended {
            return Ok(Self {
                rows: explain::ended(router, ENDED_ROWS).await?,
                ended: true,
                away: None,
                silent: vec![],
            });
        }
        let look = look(router).await?;
        Ok(Self {
            rows: merged(&look.seen),
            ended: false,
            away: look.away,
            silent: look.silent,
        })
    }

    /// A list of live rooms, for tests.
    #[cfg(test)]
    pub(crate) fn of_rows(rows: Vec<Value>, away: Option<String>, silent: Vec<String>) -> Self {
        Self {
            rows,
            ended: false,
            away,
            silent,
        }
    }

    pub(crate) fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(&self.rows)
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn table(&self) -> String {
        if self.ended {
            return explain::ended_table(&self.rows);
        }
        let columns = [
            "room",
            "request",
            "attempt",
            "phase",
            "epoch",
            "age_ms",
            "phase_age_ms",
            "deadline_ms",
            "budget_ms",
            "prefill",
            "decode",
            "owner",
            "owes",
            "leased",
        ];
        let cells = self.rows.iter();
        let cells: Vec<_> = cells
            .map(|row| columns.iter().map(|column| cell(&row[*column])).collect())
            .collect();
        table(&columns, &cells)
    }
}

async fn ls(args: &Ls) -> anyhow::Result<()> {
    if args.watch {
        let every = Duration::from_millis(args.every_ms);
        return watch::run(&args.router.router, every, args.json, || Listing::take(args)).await;
    }
    let listing = Listing::take(args).await?;
    let notes = listing.away.iter().chain(&listing.silent);
    notes.for_each(|note| eprintln!("{note}"));
    if args.json {
        println!("{}", serde_json::to_string_pretty(&listing.rows)?);
    } else {
        print!("{}", listing.table());
    }
    Ok(())
}

async fn show(args: &Show) -> anyhow::Result<()> {
    let id = args.room.to_string();
    let look = look(&args.router).await?;
    look.away
        .iter()
        .chain(&look.silent)
        .for_each(|note| eprintln!("{note}"));
    let parts: Vec<_> = look
        .seen
        .iter()
        .flat_map(|seen| {
            seen.rooms
                .iter()
                .filter(|room| room["room"] == id.as_str())
                .map(|room| (&seen.node, room))
        })
        .map(|(node, room)| json!({ "role": node["role"], "node": node["name"], "part": room }))
        .collect();
    anyhow::ensure!(
        !parts.is_empty(),
        "no node has a live room {id}: it never existed, or it has ended (`innkeeper rooms explain {id}` says how)"
    );
    if args.json {
        println!("{}", serde_json::to_string_pretty(&parts)?);
        return Ok(());
    }
    for part in &parts {
        println!("{} {}", cell(&part["role"]), cell(&part["node"]));
        if let Some(fields) = part["part"].as_object() {
            for (name, value) in fields {
                println!("  {name:14} {}", cell(value));
            }
        }
    }
    Ok(())
}

/// A value as people read it.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}
