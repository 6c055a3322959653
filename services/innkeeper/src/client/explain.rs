//! `innkeeper rooms explain`, `rooms trace`, and `rooms ls --ended`: what became of rooms. The router answers from what it
//! and its workers recorded; without it the nodes that it named last are asked.

use std::collections::BTreeMap;

use anyhow::Context;
use innkeeper_node::recorder::explain::{Case, Explanation, Missing, explain as explain_case, print};
use innkeeper_node::recorder::{Record, unix_ms};
use innkeeper_room::{Role, RoomId};
use serde_json::Value;

use super::http::{Client, EXPLAIN_DEADLINE, NODE_DEADLINE, base, client, found, listed};
use super::rooms::cell;
use super::{RouterArgs, table};

#[derive(Debug, clap::Args)]
pub(crate) struct Explain {
    /// The room's id, as `rooms ls` prints it, and the messages of errors do.
    #[arg(value_name = "ID")]
    room: RoomId,
    #[command(flatten)]
    router: RouterArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Trace {
    /// The room's id.
    #[arg(value_name = "ID")]
    room: RoomId,
    #[command(flatten)]
    router: RouterArgs,
    /// Where Jaeger shows its pages, as http://host:16686: the link to the trace is printed. [default: none]
    #[arg(long = "jaeger", env = "INNKEEPER_JAEGER_URL", value_name = "URL")]
    jaeger_url: Option<String>,
}

pub(crate) async fn explain(args: &Explain) -> anyhow::Result<()> {
    let (explanation, away) = look_up(&args.router, args.room).await?;
    away.iter().for_each(|away| eprintln!("{away}"));
    if args.json {
        println!("{}", serde_json::to_string_pretty(&explanation)?);
    } else {
        print!("{}", print(&explanation));
    }
    Ok(())
}

pub(crate) async fn trace(args: &Trace) -> anyhow::Result<()> {
    let (explanation, away) = look_up(&args.router, args.room).await?;
    away.iter().for_each(|away| eprintln!("{away}"));
    let trace = explanation.trace_id.with_context(|| {
        format!(
            "room {} has no trace: its request was not sampled; start the cluster with --otlp",
            args.room
        )
    })?;
    match &args.jaeger_url {
        Some(jaeger) => println!("{}/trace/{trace}", base(jaeger)),
        None => println!("{trace}"),
    }
    Ok(())
}

/// The router's explanation; without an answer of it, one from what the nodes that it named last recorded, and that it is one.
pub(crate) async fn look_up(router: &RouterArgs, room: RoomId) -> anyhow::Result<(Explanation, Option<String>)> {
    let asking = client(router, Some(EXPLAIN_DEADLINE))?;
    let path = format!("/innkeeper/v1/explain/{room}");
    match found(&asking, &router.router, &path).await {
        Ok(Some(explanation)) => return Ok((explanation, None)),
        Ok(None) => anyhow::bail!(
            "no node has a record of a room {room}: it never existed, it ended too long ago, or it ended well and its nodes \
             were started again since"
        ),
        Err(_) => {}
    }
    let client = client(router, Some(NODE_DEADLINE))?;
    let listed = listed(&client).await?;
    let (records, missing) = gather(&client, &listed.nodes, room).await;
    let case = Case {
        room,
        records: &records,
        missing: &missing,
        row: None,
        now_ms: unix_ms(),
    };
    let explanation =
        explain_case(case).with_context(|| format!("no node that answers has a record of a room {room}"))?;
    Ok((explanation, listed.away))
}

/// What each node recorded, and who says nothing.
async fn gather(client: &Client, nodes: &[Value], room: RoomId) -> (Vec<Record>, Vec<Missing>) {
    let path = format!("/innkeeper/v1/record/{room}");
    let questions = nodes.iter().map(|node| {
        let (client, path) = (client.clone(), path.clone());
        async move { found::<Record>(&client, &cell(&node["http"]), &path).await }
    });
    let answers = futures::future::join_all(questions).await;
    let mut records = vec![];
    let mut missing = vec![];
    for (node, answer) in nodes.iter().zip(answers) {
        match answer {
            Ok(Some(record)) => records.push(record),
            Ok(None) => {}
            Err(error) => missing.extend(silent(node, &error)),
        }
    }
    // Of those that say nothing only the room's own nodes matter, as far as they can be told apart.
    let of_room = |missing: &Missing| {
        records.first().is_none_or(|record: &Record| {
            let node = match missing.role {
                Role::Router => record.router,
                Role::Prefill => record.prefill,
                Role::Decode => record.decode,
            };
            missing.incarnation == node
        })
    };
    missing.retain(of_room);
    (records, missing)
}

fn silent(node: &Value, error: &anyhow::Error) -> Option<Missing> {
    Some(Missing {
        role: serde_json::from_value(node["role"].clone()).ok()?,
        name: node["name"].as_str().map(str::to_owned),
        incarnation: serde_json::from_value(node["incarnation"].clone()).ok()?,
        why: format!("it does not answer: {error:#}"),
    })
}

/// Rooms that are over, newest first: those of the router; without it what its workers recorded, once for each room.
pub(crate) async fn ended(router: &RouterArgs, limit: u32) -> anyhow::Result<Vec<Value>> {
    let client = client(router, Some(NODE_DEADLINE))?;
    let path = format!("/innkeeper/v1/ended?limit={limit}");
    match found(&client, &router.router, &path).await {
        Ok(rows) => Ok(rows.unwrap_or_default()),
        Err(_) => {
            let nodes = listed(&client).await?.nodes;
            let questions = nodes.iter().map(|node| {
                let (client, addr, path) = (client.clone(), cell(&node["http"]), path.clone());
                async move { found::<Vec<Value>>(&client, &addr, &path).await.ok().flatten() }
            });
            let answers = futures::future::join_all(questions).await;
            Ok(merged(answers.into_iter().flatten().flatten().collect()))
        }
    }
}

/// The rows as a table.
pub(crate) fn ended_table(rows: &[Value]) -> String {
    let columns = [
        "room",
        "rid",
        "attempt",
        "verdict",
        "blame",
        "phase",
        "lasted_ms",
        "ago_s",
        "prefill",
        "decode",
    ];
    let now = unix_ms();
    let cells: Vec<_> = rows
        .iter()
        .map(|row| columns.iter().map(|column| shown(row, column, now)).collect())
        .collect();
    table(&columns, &cells)
}

fn merged(rows: Vec<Value>) -> Vec<Value> {
    let mut of_room: BTreeMap<String, Value> = BTreeMap::new();
    for row in rows {
        of_room.entry(cell(&row["room"])).or_insert(row);
    }
    let mut rows: Vec<_> = of_room.into_values().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row["ended_ms"].as_u64()));
    rows
}

fn shown(row: &Value, column: &str, now: u64) -> String {
    let time = |name: &str| row[name].as_u64().unwrap_or(now);
    match column {
        "lasted_ms" => time("ended_ms").saturating_sub(time("began_ms")).to_string(),
        "ago_s" => (now.saturating_sub(time("ended_ms")) / 1000).to_string(),
        "prefill" | "decode" => {
            let name = &row[format!("{column}_name")];
            cell(if name.is_null() { &row[column] } else { name })
        }
        _ => cell(&row[column]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_room_is_listed_once_and_the_newest_first() {
        let row = |room: &str, ended: u64| json!({ "room": room, "ended_ms": ended });
        let rows = merged(vec![row("1", 5), row("2", 9), row("1", 6)]);
        assert_eq!(rows, [row("2", 9), row("1", 5)]);
    }

    #[test]
    fn a_worker_without_a_name_is_shown_by_its_life() {
        let row = json!({ "prefill": "00", "prefill_name": null, "decode": "01", "decode_name": "decode-0", "began_ms": 3,
            "ended_ms": 10 });
        assert_eq!(shown(&row, "prefill", 20), "00");
        assert_eq!(shown(&row, "decode", 20), "decode-0");
        assert_eq!(shown(&row, "lasted_ms", 20), "7");
    }
}
