//! The nodes that a router named last, kept on this machine: when the router itself does not answer, its workers can still
//! be asked for the parts that they hold; and a worker that it does not name any more is not forgotten at once. A convenience
//! for looking; nothing is decided by it.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use innkeeper_engine::fetch::default_cache_dir;
use innkeeper_node::recorder::unix_ms;
use serde_json::{Value, json};

/// In a row: since when the router does not name it, unix milliseconds.
const GONE: &str = "gone_ms";
/// For so long it is remembered.
const GONE_FOR_MS: u64 = 24 * 60 * 60 * 1000;

/// Keeps the list. That it cannot be kept is no failure of the command.
pub(crate) fn keep(router: &str, nodes: &[Value]) {
    let path = path(router);
    let Some(folder) = path.parent() else { return };
    let rows: Vec<Value> = nodes
        .iter()
        .cloned()
        .chain(missed(&rows(router), nodes, unix_ms()))
        .collect();
    let Ok(text) = serde_json::to_vec(&rows) else { return };
    // Written beside it and renamed: two commands at once never leave half a list.
    let fresh = folder.join(format!("{}.{}", file_name(router), std::process::id()));
    let kept = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&fresh, text))
        .and_then(|()| std::fs::rename(&fresh, &path));
    if kept.is_err() {
        let _ = std::fs::remove_file(&fresh);
    }
}

/// The list that was kept last, and how old it is.
pub(crate) fn recall(router: &str) -> Option<(Vec<Value>, Duration)> {
    let mut nodes = rows(router);
    nodes.retain(|row| row[GONE].is_null());
    if nodes.is_empty() {
        return None;
    }
    let changed = std::fs::metadata(path(router))
        .and_then(|found| found.modified())
        .ok()?;
    let age = SystemTime::now().duration_since(changed).unwrap_or_default();
    Some((nodes, age))
}

/// The nodes that the router named and does not name any more, and since when, unix milliseconds.
pub(crate) fn gone(router: &str) -> Vec<(Value, u64)> {
    let rows = rows(router).into_iter();
    rows.filter_map(|row| row[GONE].as_u64().map(|since| (row, since)))
        .collect()
}

/// Those of `old` that `new` lacks. Another router starts without any: what it never named it cannot miss.
fn missed(old: &[Value], new: &[Value], now_ms: u64) -> Vec<Value> {
    let routers = |rows: &[Value]| -> Vec<Value> {
        let routers = rows.iter().filter(|row| row["role"] == "router" && row[GONE].is_null());
        routers.map(|row| row["incarnation"].clone()).collect()
    };
    let known = routers(old);
    if !routers(new).iter().any(|router| known.contains(router)) {
        return vec![];
    }
    let absent = old
        .iter()
        .filter(|row| new.iter().all(|node| node["name"] != row["name"]));
    let marked = absent.cloned().map(|mut row| {
        if row[GONE].is_null() {
            row[GONE] = json!(now_ms);
        }
        row
    });
    marked
        .filter(|row| {
            row[GONE]
                .as_u64()
                .is_some_and(|since| now_ms.saturating_sub(since) < GONE_FOR_MS)
        })
        .collect()
}

fn rows(router: &str) -> Vec<Value> {
    let text = std::fs::read(path(router)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn path(router: &str) -> PathBuf {
    default_cache_dir().join("nodes").join(file_name(router))
}

fn file_name(router: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' };
    let name: String = super::http::base(router).chars().map(plain).collect();
    format!("{name}.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_not_named_any_more_is_missed_until_its_name_is_back() {
        let node = |role: &str, name: &str, life: &str| json!({ "role": role, "name": name, "incarnation": life });
        let (router, worker) = (node("router", "r", "1"), node("decode", "d", "2"));
        let first = missed(&[router.clone(), worker.clone()], std::slice::from_ref(&router), 50);
        assert_eq!(
            (first.len(), &first[0]["name"], &first[0][GONE]),
            (1, &json!("d"), &json!(50))
        );
        let kept = [router.clone(), first[0].clone()];
        assert_eq!(
            missed(&kept, std::slice::from_ref(&router), 90),
            first,
            "since the first time"
        );
        assert!(
            missed(&kept, std::slice::from_ref(&router), 50 + GONE_FOR_MS).is_empty(),
            "not for ever"
        );
        assert!(
            missed(&kept, &[router.clone(), node("decode", "d", "3")], 90).is_empty(),
            "it is back"
        );
        assert!(
            missed(&kept, &[node("router", "r", "9")], 90).is_empty(),
            "another router"
        );
    }

    #[test]
    fn what_is_kept_is_recalled() {
        let router = format!("http://[::1]:{}/", std::process::id());
        assert!(recall(&router).is_none());
        keep(&router, &[json!({ "name": "decode-0" })]);
        let (nodes, age) = recall(&router).unwrap();
        assert_eq!(nodes, [json!({ "name": "decode-0" })]);
        assert!(age < Duration::from_secs(60));
        std::fs::remove_file(path(&router)).unwrap();
    }
}
