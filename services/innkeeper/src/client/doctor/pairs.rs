//! The data plane between prefill and decode workers, as far as it can be seen from outside.

use serde_json::Value;

use super::super::rooms::cell;
use super::asked::{Cluster, Node, Refused};
use super::report::Report;
use crate::client::top::time;

/// Up to so many pairs have a line each; beyond that only those that are avoided do.
const EACH: usize = 16;

/// Each decode worker's data port, from here.
pub(super) fn data_ports(cluster: &Cluster, report: &mut Report) {
    // Of one that says nothing it has been said.
    for node in cluster.nodes.iter().filter(|node| node.said.is_ok()) {
        let addr = cell(&node.row["data"]);
        match &node.data {
            None => {}
            Some(Ok(())) => report.ok("data", node.name(), format!("{addr} takes connections from this machine")),
            Some(Err(Refused::Closed(why))) => report.fail(
                "data",
                node.name(),
                format!("nothing listens at its data address {addr} ({why})"),
                "see --data and --advertise-host of the worker, and its log; restart it",
            ),
            Some(Err(Refused::Unreached(why))) => report.warn(
                "data",
                node.name(),
                format!("{addr} cannot be reached from this machine ({why})"),
                "if this machine should be on the data network: check routes and firewalls to it; else ask from a prefill \
                 worker's machine",
            ),
        }
    }
}

/// Each pair: what the router thinks of it, and what passed it last.
pub(super) fn pairs(cluster: &Cluster, report: &mut Report) {
    if cluster.away.is_some() {
        return;
    }
    let of = |role: &'static str| cluster.nodes.iter().filter(move |node| node.is(role));
    let all: Vec<(&Node, &Node)> = of("prefill")
        .flat_map(|prefill| of("decode").map(move |decode| (prefill, decode)))
        .filter(|(prefill, decode)| prefill.row["revision"] == decode.row["revision"])
        .collect();
    let mut sound = 0;
    for (prefill, decode) in &all {
        let name = format!("{} → {}", prefill.name(), decode.name());
        match avoided(prefill, decode) {
            Some((found, advice)) => report.fail("pair", name, found, advice),
            None if all.len() <= EACH => report.ok("pair", name, last_passed(cluster, prefill, decode)),
            None => sound += 1,
        }
    }
    if sound > 0 {
        report.ok("pair", "the others", format!("{sound} pairs are not avoided"));
    }
    if !all.is_empty() {
        report.limits.push(format!(
            "from outside only a data port can be tried, not the way from a prefill worker to it: that is tested by each \
             room, and by the router's canaries through pairs that idle ({})",
            canaries(cluster)
        ));
    }
}

/// Why the router sends no rooms through this pair, and what to do.
fn avoided(prefill: &Node, decode: &Node) -> Option<(String, String)> {
    for node in [prefill, decode] {
        let breaker = node.row["breaker"].as_str().unwrap_or("closed");
        if breaker != "closed" {
            return Some((
                format!(
                    "{} was blamed for several rooms in a row and is avoided ({breaker})",
                    node.name()
                ),
                format!(
                    "look at it: `innkeeper rooms ls --ended` has the rooms, `innkeeper rooms explain ID` says what {} \
                     owed; a canary brings it back by itself",
                    node.name()
                ),
            ));
        }
    }
    let lists = |node: &Node, peer: &Node| {
        let peers = node.row["avoided_peers"].as_array();
        peers.is_some_and(|peers| peers.contains(&peer.row["incarnation"]))
    };
    (lists(prefill, decode) || lists(decode, prefill)).then(|| {
        (
            "the link between them was blamed for several rooms in a row and is avoided".to_owned(),
            format!(
                "check the network from {} to {} ({}); a canary brings it back by itself",
                prefill.name(),
                decode.name(),
                cell(&decode.row["data"])
            ),
        )
    })
}

/// The room or canary that passed it last, as far as the router remembers.
fn last_passed(cluster: &Cluster, prefill: &Node, decode: &Node) -> String {
    let through = |row: &&Value| {
        row["verdict"] == "done"
            && row["prefill"] == prefill.row["incarnation"]
            && row["decode"] == decode.row["incarnation"]
    };
    let last = cluster
        .ended
        .iter()
        .filter(through)
        .max_by_key(|row| row["ended_ms"].as_u64());
    let Some(row) = last else {
        return "not avoided; nothing has passed it that the router remembers".to_owned();
    };
    let ago = cluster
        .now_ms
        .saturating_sub(row["ended_ms"].as_u64().unwrap_or(cluster.now_ms));
    let what = if row["canary"] == true { "a canary" } else { "a room" };
    format!("not avoided; {what} passed it {} ago", time(ago))
}

fn canaries(cluster: &Cluster) -> String {
    let router = cluster.nodes.iter().find(|node| node.is("router"));
    let metrics = router.and_then(|node| node.metrics.as_ref().ok());
    let sum = |label| metrics.and_then(|metrics| metrics.sum("innkeeper_canaries_total", label));
    let (all, done) = (sum("").unwrap_or(0.0), sum("outcome=\"done\"").unwrap_or(0.0));
    if all > 0.0 {
        format!("so far {all}, of which {done} came through")
    } else {
        "none so far: no pair has been idle for --canary-period-ms, or that is 0".to_owned()
    }
}
