//! `innkeeper rooms`: one row per room, from its owner; a part whose owner does not answer is shown from its worker.

use std::collections::BTreeMap;

use clap::Subcommand;
use serde_json::{Value, json};

use super::http::{NODE_DEADLINE, client, get, nodes_or_last};
use super::{RouterArgs, evict, explain, print_table};

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
    /// Print JSON.
    #[arg(long)]
    json: bool,
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

/// What one node says of its rooms.
struct Seen {
    node: Value,
    rooms: Vec<Value>,
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

async fn ls(args: &Ls) -> anyhow::Result<()> {
    if args.ended {
        return explain::ended(&args.router.router, args.json).await;
    }
    let rows = merged(&look(&args.router.router).await?);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
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
    let table: Vec<_> = rows
        .iter()
        .map(|row| columns.iter().map(|column| cell(&row[*column])).collect())
        .collect();
    print_table(&columns, &table);
    Ok(())
}

async fn show(args: &Show) -> anyhow::Result<()> {
    let id = args.room.to_string();
    let seen = look(&args.router.router).await?;
    let parts: Vec<_> = seen
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

/// Asks all nodes at once. One that does not answer is named on stderr and not waited for.
async fn look(router: &str) -> anyhow::Result<Vec<Seen>> {
    let client = client(Some(NODE_DEADLINE))?;
    let nodes = nodes_or_last(&client, router).await?;
    let questions = nodes.into_iter().map(|node| {
        let client = client.clone();
        async move {
            let addr = cell(&node["http"]);
            match get::<Vec<Value>>(&client, &addr, "/innkeeper/v1/rooms").await {
                Ok(rooms) => Some(Seen { node, rooms }),
                Err(error) => {
                    eprintln!(
                        "{} {} does not answer: {error:#}",
                        cell(&node["role"]),
                        cell(&node["name"])
                    );
                    None
                }
            }
        }
    });
    Ok(futures::future::join_all(questions)
        .await
        .into_iter()
        .flatten()
        .collect())
}

/// One row per room: the owner's if it answered, else a worker's.
fn merged(seen: &[Seen]) -> Vec<Value> {
    let mut rows: BTreeMap<String, Value> = BTreeMap::new();
    let (owners, workers): (Vec<_>, Vec<_>) = seen.iter().partition(|seen| seen.node["role"] == "router");
    let answered: Vec<_> = owners.iter().map(|seen| &seen.node["incarnation"]).collect();
    for room in owners.iter().flat_map(|seen| &seen.rooms) {
        rows.insert(cell(&room["room"]), room.clone());
    }
    // A part that its owner does not list any more is over there, and on its way out here.
    let orphans = workers
        .iter()
        .flat_map(|seen| &seen.rooms)
        .filter(|room| !answered.contains(&&room["owner"]));
    for room in orphans {
        rows.entry(cell(&room["room"])).or_insert_with(|| room.clone());
    }
    rows.into_values().collect()
}

/// A value as people read it.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(role: &str, incarnation: &str, rooms: &[(&str, &str, &str)]) -> Seen {
        Seen {
            node: json!({ "role": role, "incarnation": incarnation }),
            rooms: rooms
                .iter()
                .map(|(room, owner, phase)| json!({ "room": room, "owner": owner, "phase": phase }))
                .collect(),
        }
    }

    #[test]
    fn a_room_is_shown_from_its_owner_and_an_orphan_from_its_worker() {
        let rows = merged(&[
            seen(
                "decode",
                "d",
                &[
                    ("1", "r", "transferring"),
                    ("2", "gone", "decoding"),
                    ("3", "r", "queued"),
                ],
            ),
            seen("router", "r", &[("1", "r", "waiting_for_input")]),
        ]);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0]["phase"], "waiting_for_input");
        assert_eq!(rows[1]["room"], "2");
    }
}
