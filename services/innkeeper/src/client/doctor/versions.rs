//! Versions and revisions: nodes of different ones misunderstand each other, or form no pairs.

use std::collections::BTreeSet;

use super::super::rooms::cell;
use super::asked::{Cluster, Node};
use super::report::Report;

/// What the node says that it runs.
pub(super) fn version_of(node: &Node) -> String {
    match &node.said {
        Ok(said) => said.body["version"].as_str().unwrap_or("not known").to_owned(),
        Err(_) => "not known".to_owned(),
    }
}

/// One version everywhere, and a partner of its own revision for each worker.
pub(super) fn versions(cluster: &Cluster, report: &mut Report) {
    let answered: Vec<&Node> = cluster.nodes.iter().filter(|node| node.said.is_ok()).collect();
    if answered.is_empty() {
        return;
    }
    let all: BTreeSet<String> = answered.iter().map(|node| version_of(node)).collect();
    let revisions: BTreeSet<String> = workers(cluster).map(revision).collect();
    match (all.len(), revisions.len()) {
        (0..=1, 0..=1) => report.ok(
            "version",
            "all nodes",
            format!("the same version, {}", all.into_iter().next().unwrap_or_default()),
        ),
        (2.., _) => report.warn(
            "version",
            "all nodes",
            format!("different versions: {}", list(&answered, version_of)),
            "run the same version everywhere; a protocol_error or an answer without a field comes from this",
        ),
        (_, _) => report.warn(
            "version",
            "all workers",
            format!(
                "different revisions: {}",
                list(&workers(cluster).collect::<Vec<_>>(), revision)
            ),
            "only workers of the same --revision form pairs: finish the rollout",
        ),
    }
    for node in workers(cluster) {
        let other = if node.is("prefill") { "decode" } else { "prefill" };
        let partner = workers(cluster).any(|peer| peer.is(other) && revision(peer) == revision(node));
        if !partner {
            report.fail(
                "version",
                node.name(),
                format!(
                    "no {other} worker has its revision {}: it gets no rooms",
                    revision(node)
                ),
                format!(
                    "start a {other} worker with --revision {}, or give this one another",
                    revision(node)
                ),
            );
        }
    }
}

fn workers(cluster: &Cluster) -> impl Iterator<Item = &Node> {
    cluster.nodes.iter().filter(|node| !node.is("router"))
}

fn revision(node: &Node) -> String {
    cell(&node.row["revision"])
}

fn list(nodes: &[&Node], of: fn(&Node) -> String) -> String {
    let each = nodes.iter().map(|node| format!("{} {}", node.name(), of(node)));
    each.collect::<Vec<_>>().join(", ")
}
