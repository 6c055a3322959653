//! What follows from the answers of the router and of each node, apart from the versions.

use serde_json::Value;

use super::super::rooms::cell;
use super::super::top::time;
use super::asked::{Cluster, Metrics, Node, Pulse, Said, Silent};
use super::report::Report;
use super::versions::version_of;

/// This program's version.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Clocks may differ by the time of the question and so much more.
const CLOCK_TOLERANCE_MS: u64 = 1000;
/// An engine that is so late with a step explains why its worker takes no rooms.
const ENGINE_HANGS_MS: u64 = 1000;
/// Gauges that may stand above zero for a moment in a healthy cluster.
pub(super) const PASSING: &[&str] = &[
    "innkeeper_quarantined_bytes",
    "innkeeper_unleased_rooms",
    "innkeeper_zombies",
];

/// The router, and whether it has what it needs.
pub(super) fn router(cluster: &Cluster, report: &mut Report) {
    if let Some(why) = &cluster.away {
        return report.fail(
            "router",
            &cluster.router,
            why,
            "start it, or name another one with --router or INNKEEPER_ROUTER; if its process runs, see whether it is \
             stopped or hangs",
        );
    }
    let version = cluster.nodes.iter().find(|node| node.is("router")).map(version_of);
    match version {
        Some(version) if version == VERSION => {
            report.ok("router", &cluster.router, format!("answers, version {version}"));
        }
        version => report.warn(
            "router",
            &cluster.router,
            format!(
                "answers, version {}; this program is {VERSION}",
                version.unwrap_or_else(|| "not known".to_owned())
            ),
            "use the `innkeeper` of the router's version",
        ),
    }
    for role in ["prefill", "decode"] {
        let serves = |node: &&Node| node.is(role) && node.row["state"] == "serving";
        if !cluster.nodes.iter().any(|node| serves(&node)) {
            report.fail(
                "router",
                &cluster.router,
                format!("has no {role} worker that serves: no request can be answered"),
                format!("start a {role} worker; one that runs must reach the same lease store as the router"),
            );
        }
    }
}

/// Each node: that it answers and serves, its version, its clock, what its metrics say.
pub(super) fn nodes(cluster: &Cluster, report: &mut Report) {
    for node in &cluster.nodes {
        match &node.said {
            // That the router is away has been said.
            Err(_) if node.is("router") && cluster.away.is_some() => {}
            Err(why) => silent(node, why, report),
            Ok(said) => {
                state(node, said, report);
                clock(node, said, report);
            }
        }
        // A node that is silent has been said to be so.
        match (&node.metrics, &node.said) {
            (Ok(metrics), _) => gauges(node, metrics, report),
            (Err(why), Ok(_)) => report.fail(
                "rooms",
                node.name(),
                format!("its metrics cannot be read: {why}"),
                "look at its log",
            ),
            (Err(_), Err(_)) => {}
        }
    }
}

fn silent(node: &Node, silent: &Silent, report: &mut Report) {
    let advice = if silent.gone {
        "its process is gone: see the end of its log, and start it again".to_owned()
    } else {
        wake(&node.row)
    };
    report.fail(
        "node",
        node.name(),
        format!(
            "the {} does not answer at {} ({}); the router saw it last as {}",
            kind(&node.row),
            cell(&node.row["http"]),
            silent.why,
            cell(&node.row["state"])
        ),
        advice,
    );
}

/// What to do about a process that is there and says nothing.
fn wake(row: &Value) -> String {
    let pid = cell(&row["pid"]);
    format!(
        "look at process {pid} on its machine: continue it if it is stopped (kill -CONT {pid}), else restart it; its rooms \
         have been ended and tried again elsewhere"
    )
}

/// Nodes that the router does not name any more: a worker whose lease ended, or one that was taken away.
pub(super) fn gone(cluster: &Cluster, report: &mut Report) {
    for gone in &cluster.gone {
        let name = cell(&gone.row["name"]);
        let (kind, http) = (kind(&gone.row), cell(&gone.row["http"]));
        let since = time(cluster.now_ms.saturating_sub(gone.since_ms));
        let listed = format!("the router has not listed the {kind} for {since}");
        match gone.now {
            Pulse::Answers => report.fail(
                "node",
                name,
                format!("{listed}, and it answers at {http}"),
                "check that it reaches the lease store, and the router its control address",
            ),
            Pulse::Mute => report.fail(
                "node",
                name,
                format!("{listed}; {http} takes connections and answers nothing"),
                wake(&gone.row),
            ),
            Pulse::Nothing => report.warn(
                "node",
                name,
                format!("{listed}, and it is not at {http} any more"),
                "nothing, if somebody took it away; else start it again",
            ),
        }
    }
}

fn kind(row: &Value) -> &'static str {
    match row["role"].as_str() {
        Some("prefill") => "prefill worker",
        Some("decode") => "decode worker",
        _ => "router",
    }
}

/// What the node says of itself counts first, then what the router sees.
fn state(node: &Node, said: &Said, report: &mut Report) {
    let own = cell(&said.body["state"]);
    let seen = cell(&node.row["state"]);
    let name = node.name();
    if said.body["incarnation"] != node.row["incarnation"] {
        return report.warn(
            "node",
            name,
            format!(
                "another node answers at its address: {} in the life {}",
                cell(&said.body["name"]),
                cell(&said.body["incarnation"])
            ),
            "it was just started again, or two nodes share an address: look again, then see --http of both",
        );
    }
    match (own.as_str(), seen.as_str()) {
        ("serving", "serving") => report.ok("node", name, format!("the {} answers and serves", kind(&node.row))),
        ("draining", _) | (_, "draining") => report.warn(
            "node",
            name,
            "it drains: it finishes what it has and takes nothing new",
            "nothing, if somebody stopped it; else see who did",
        ),
        (_, "unreachable" | "lost") => report.fail(
            "node",
            name,
            format!("it answers here, but the router's control connection to it is gone ({seen})"),
            format!(
                "check the network from the router to {}, and that the address is the one that the router can reach",
                cell(&node.row["control"])
            ),
        ),
        (_, "not_serving") => {
            let (found, advice) = unable(node);
            report.fail("node", name, found, advice);
        }
        _ => report.fail(
            "node",
            name,
            format!("it is {own}, and the router sees it as {seen}"),
            "look at its log",
        ),
    }
}

/// Why a worker takes no rooms by its own word, and what to do.
fn unable(node: &Node) -> (String, String) {
    match node.row["engine_owes_ms"].as_u64() {
        Some(owes) if owes >= ENGINE_HANGS_MS => (
            format!(
                "it takes no rooms: its engine has not finished its step for {}",
                time(owes)
            ),
            "look at its log, and restart it".to_owned(),
        ),
        Some(_) | None => (
            "it takes no rooms: nothing arrives at its own data port, or its places are full".to_owned(),
            format!(
                "look at its log; check that it can reach {} itself",
                cell(&node.row["data"])
            ),
        ),
    }
}

/// Its clock against ours. Nothing is decided by clocks; people compare the times of different nodes.
fn clock(node: &Node, said: &Said, report: &mut Report) {
    let Some(time) = said.body["time_ms"].as_u64() else {
        return report.warn(
            "clock",
            node.name(),
            "it does not say its time",
            "it runs another version: see the versions below",
        );
    };
    let round_trip = said.answered_ms.saturating_sub(said.asked_ms);
    let middle = said.asked_ms + round_trip / 2;
    let apart = time.abs_diff(middle);
    if apart <= round_trip + CLOCK_TOLERANCE_MS {
        return report.ok(
            "clock",
            node.name(),
            format!("within {} ms of this machine's", apart.max(round_trip)),
        );
    }
    let way = if time > middle { "ahead of" } else { "behind" };
    report.warn(
        "clock",
        node.name(),
        format!("{}.{:03} s {way} this machine's", apart / 1000, apart % 1000),
        "set both clocks (NTP): rooms end on time all the same, but times of different nodes cannot be compared",
    );
}

/// What must be zero.
fn gauges(node: &Node, metrics: &Metrics, report: &mut Report) {
    let value = |name: &str| metrics.sum(name, "").unwrap_or(0.0);
    let name = node.name();
    let before = report.findings.len();
    if metrics
        .sum("innkeeper_ledger_answers", "")
        .is_none_or(|answers| answers < 1.0)
    {
        return report.fail(
            "rooms",
            name,
            "its ledger does not answer",
            "it hangs: look at its log, and restart it",
        );
    }
    let stuck = value("innkeeper_stuck_rooms");
    if stuck > 0.0 {
        report.fail(
            "rooms",
            &name,
            format!("{stuck} stuck rooms: older than their deadline"),
            "this is a bug: `innkeeper rooms ls` names them; keep `innkeeper rooms explain ID` of one, report it, and \
             restart the node",
        );
    }
    for (metric, what, advice) in WARNINGS {
        let value = value(metric);
        if value > 0.0 {
            report.warn("rooms", &name, format!("{what} ({metric} is {value})"), *advice);
        }
    }
    if report.findings.len() == before {
        report.ok(
            "rooms",
            name,
            "none is stuck, nothing is in quarantine, leases are as they should be",
        );
    }
}

/// A gauge that should be zero, what it means, and what to do.
const WARNINGS: &[(&str, &str, &str)] = &[
    (
        "innkeeper_zombies",
        "actors that did not stop when they were killed",
        "look at its log; a worker exits by itself after a minute, and is to be started again",
    ),
    (
        "innkeeper_quarantined_bytes",
        "KV memory of rooms that are over stays in quarantine: something may still touch it",
        "look again in a minute: a worker that does not get it back exits by itself; its engine or a peer hangs",
    ),
    (
        "innkeeper_degraded",
        "the lease store is away: rooms go on, new ones run without a lease",
        "look at etcd, and at the network from this node to it (--etcd here tries it from this machine)",
    ),
    (
        "innkeeper_unleased_rooms",
        "rooms that should have a lease by now have none",
        "the store is slow or away: look at etcd",
    ),
];

/// etcd was not named.
pub(super) fn no_store(cluster: &Cluster, report: &mut Report) {
    if !cluster.nodes.is_empty() {
        report.limits.push(
            "the lease store was not tried: give --etcd (and its user and TLS files) as the nodes have it, if they use etcd"
                .to_owned(),
        );
    }
}
