//! Engines that run next door to workers: what each is, whether its role was proven by a read, and what of the guarantee it does not
//! let hold.

use serde_json::Value;

use super::asked::{Cluster, Node};
use super::report::Report;
use crate::client::rooms::cell;

/// A block for each engine; and that their leases are said to be the same.
pub(super) fn engines(cluster: &Cluster, report: &mut Report) {
    let engines: Vec<(&Node, &Value)> = cluster
        .nodes
        .iter()
        .filter_map(|node| Some((node, node.said.as_ref().ok()?.body.get("engine")?)))
        .collect();
    for (node, engine) in &engines {
        report.ok("engine", node.name(), what_it_is(engine));
        role(node, engine, report);
        trouble(node, engine, report);
    }
    leases(&engines, report);
    let mut partial: Vec<&str> = engines
        .iter()
        .flat_map(|(_, engine)| {
            engine["partial"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
        })
        .collect();
    partial.sort_unstable();
    partial.dedup();
    report
        .limits
        .extend(partial.into_iter().map(|what| format!("with these engines: {what}")));
}

fn number(engine: &Value, name: &str) -> u64 {
    engine[name].as_u64().unwrap_or_default()
}

fn what_it_is(engine: &Value) -> String {
    format!(
        "{} at {} serves {}; {} KV pages, {} in use; lease {} s; transport {}; restarted by {}",
        cell(&engine["engine"]),
        cell(&engine["url"]),
        cell(&engine["model"]),
        number(engine, "pages"),
        number(engine, "used_pages"),
        number(engine, "lease_ms") / 1000,
        cell(&engine["transport"]),
        cell(&engine["restart"]),
    )
}

/// Whether it was seen to do what its worker's role needs.
fn role(node: &Node, engine: &Value, report: &mut Report) {
    let (kept, reads) = (number(engine, "kept"), number(engine, "reads"));
    if node.is("prefill") && kept > 0 {
        report.ok("engine", node.name(), format!("has kept {kept} prompts for readers"));
    } else if node.is("decode") && reads > 0 && number(engine, "external_tokens") > 0 {
        report.ok(
            "engine",
            node.name(),
            format!("has read {reads} prompts from the other engine"),
        );
    } else if node.is("decode") && reads > 0 {
        report.fail(
            "engine",
            node.name(),
            format!("answered {reads} requests with tickets, and says that no token of a prompt came from another engine: it computes them again"),
            "start it with --kv-transfer-config and a NixlConnector in the consumer's role",
        );
    } else {
        report.warn(
            "engine",
            node.name(),
            "its role is not proven: no room has passed it yet",
            "send a request, e.g. with `innkeeper doctor --probe`, and look again",
        );
    }
}

fn trouble(node: &Node, engine: &Value, report: &mut Report) {
    if engine["given_up"] == true {
        report.fail(
            "engine",
            node.name(),
            format!(
                "is given up: no step was seen for {} ms, or it keeps pages, and nobody starts it anew",
                number(engine, "step_age_ms")
            ),
            "start it anew, or let --engine-restart do it",
        );
    }
    if cell(&engine["restart"]) == "none" {
        report.warn(
            "engine",
            node.name(),
            "nobody starts it anew if it hangs: its pages would stay where they are",
            "set --engine-restart to probe or exec:COMMAND",
        );
    }
    let unproven = number(engine, "unproven");
    if unproven > 0 {
        report.warn(
            "engine",
            node.name(),
            format!("{unproven} reads were not proven to lie within the lease, and were thrown away"),
            "raise the engine's kv_lease_duration, and --engine-kv-lease with it",
        );
    }
}

fn leases(engines: &[(&Node, &Value)], report: &mut Report) {
    let mut said: Vec<u64> = engines.iter().map(|(_, engine)| number(engine, "lease_ms")).collect();
    said.sort_unstable();
    said.dedup();
    if said.len() > 1 {
        report.fail(
            "engine",
            "all",
            format!("workers are told different leases: {said:?} ms"),
            "give all workers one --engine-kv-lease, which is the engines' kv_lease_duration",
        );
    }
}
