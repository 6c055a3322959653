//! One look at the rooms of a cluster: every node is asked at once, and nobody is waited for longer than a second.

use std::collections::BTreeMap;

use serde_json::Value;

use super::RouterArgs;
use super::http::{Listed, NODE_DEADLINE, client, get, listed};
use super::rooms::cell;

/// What one node says of its rooms.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) node: Value,
    pub(crate) rooms: Vec<Value>,
}

/// What all nodes say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    /// The nodes, as the router lists them.
    pub(crate) nodes: Vec<Value>,
    /// The router does not answer; in one sentence.
    pub(crate) away: Option<String>,
    /// Those that answered.
    pub(crate) seen: Vec<Seen>,
    /// Those that did not, in a sentence each.
    pub(crate) silent: Vec<String>,
}

/// Asks all nodes at once. Says nothing by itself.
///
/// # Errors
/// The router does not answer, and never named its nodes before.
pub(crate) async fn look(router: &RouterArgs) -> anyhow::Result<Look> {
    let client = client(router, Some(NODE_DEADLINE))?;
    let Listed { nodes, away } = listed(&client).await?;
    let questions = nodes.iter().map(|node| {
        let (client, addr) = (client.clone(), cell(&node["http"]));
        async move { get::<Vec<Value>>(&client, &addr, "/innkeeper/v1/rooms").await }
    });
    let answers = futures::future::join_all(questions).await;
    let mut look = Look {
        away,
        ..Look::default()
    };
    for (node, answer) in nodes.iter().zip(answers) {
        match answer {
            Ok(rooms) => look.seen.push(Seen {
                node: node.clone(),
                rooms,
            }),
            Err(error) => look.silent.push(format!(
                "{} {} does not answer: {error:#}",
                cell(&node["role"]),
                cell(&node["name"])
            )),
        }
    }
    look.nodes = nodes;
    Ok(look)
}

/// One row per room: the owner's if it answered, else a worker's.
pub(crate) fn merged(seen: &[Seen]) -> Vec<Value> {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

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
