use std::time::Duration;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::metrics::Metrics;
use crate::options::Store;
use crate::wait::until;

/// Beyond 2 TTL, the bound of the protocol: keys of a dead node's lease, and a starved machine.
const SLACK: Duration = Duration::from_secs(10);
/// Tasks that live only as long as a room does.
const TASKS_OF_ROOMS: &[&str] = &["room_link", "room_stream", "transfer", "lease"];

/// Waits until nothing is left of any room on any node, and panics with what is left if that takes too long: rooms, pages,
/// permits, tasks, connections, zombies, and keys in etcd.
pub async fn oracle(cluster: &Cluster) {
    let limit = 2 * cluster.options.ttl + SLACK;
    until(limit, "nothing is left behind", || async {
        let left = leftovers(cluster).await;
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

async fn leftovers(cluster: &Cluster) -> Vec<String> {
    let mut left = vec![];
    let nodes = match cluster.try_ps().await {
        Ok(nodes) => nodes,
        Err(error) => return vec![error],
    };
    let expected = cluster.options.prefill + cluster.options.decode + 1;
    if nodes.len() != expected as usize {
        left.push(format!("{} nodes instead of {expected}: {nodes:?}", nodes.len()));
    }
    for node in &nodes {
        let name = node["name"].as_str().unwrap_or_default();
        let mut says = |what: String| left.push(format!("{name}: {what}"));
        if node["state"] != "serving" {
            says(format!("is {}", node["state"]));
        }
        match cluster.metrics(node["http"].as_str().unwrap_or_default()).await {
            Ok(metrics) => left_on_node(node, &metrics, &mut says),
            Err(error) => says(error),
        }
    }
    match cluster.try_rooms().await {
        Ok(rooms) if rooms.is_empty() => {}
        Ok(rooms) => left.push(format!("rooms ls: {rooms:?}")),
        Err(error) => left.push(error),
    }
    if cluster.options.store != Store::Embedded {
        left_in_etcd(cluster, expected as usize, &mut left).await;
    }
    left
}

fn left_on_node(node: &Value, metrics: &Metrics, says: &mut dyn FnMut(String)) {
    let mut zero = |name: &str, labels: &[(&str, &str)]| {
        if !metrics.has(name, &[]) {
            says(format!("has no metric {name}"));
        }
        let value = metrics.sum(name, labels);
        if value != 0.0 {
            says(format!("{name}{labels:?} = {value}"));
        }
    };
    zero("innkeeper_rooms", &[]);
    zero("innkeeper_pages", &[("state", "held")]);
    zero("innkeeper_pages", &[("state", "quarantined")]);
    for kind in ["room", "session", "engine", "request"] {
        zero("innkeeper_permits", &[("kind", kind)]);
    }
    for kind in TASKS_OF_ROOMS {
        zero("innkeeper_tasks", &[("kind", kind)]);
    }
    zero("innkeeper_connections", &[("kind", "data_in")]);
    zero("innkeeper_connections", &[("kind", "data_out")]);
    zero("innkeeper_zombies", &[]);
    zero("innkeeper_stuck_rooms", &[]);
    let pages = |state| metrics.sum("innkeeper_pages", &[("state", state)]);
    let total = metrics.sum("innkeeper_pages_total", &[]);
    if (pages("free") + pages("cached")).to_bits() != total.to_bits() {
        says(format!(
            "{} pages are free and {} cached of {total}",
            pages("free"),
            pages("cached")
        ));
    }
    if node["role"] != "router" && total == 0.0 {
        says("has no pages at all".to_owned());
    }
}

async fn left_in_etcd(cluster: &Cluster, members: usize, left: &mut Vec<String>) {
    match cluster.keys().await {
        Ok(keys) => {
            let others: Vec<_> = keys
                .iter()
                .filter(|key| !key.starts_with("/innkeeper/v1/members/"))
                .collect();
            if !others.is_empty() {
                left.push(format!("etcd has the keys {others:?}"));
            }
            if keys.len() - others.len() != members {
                left.push(format!("etcd has the members {keys:?}, expected are {members}"));
            }
        }
        Err(error) => left.push(error),
    }
}
