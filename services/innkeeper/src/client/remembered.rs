//! The nodes that a router named last, kept on this machine: when the router itself does not answer, its workers can still
//! be asked for the parts that they hold. A convenience for looking; nothing is decided by it.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use innkeeper_engine::fetch::default_cache_dir;
use serde_json::Value;

/// Keeps the list. That it cannot be kept is no failure of the command.
pub(crate) fn keep(router: &str, nodes: &[Value]) {
    let path = path(router);
    let Some(folder) = path.parent() else { return };
    let Ok(text) = serde_json::to_vec(nodes) else { return };
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
    let path = path(router);
    let text = std::fs::read(&path).ok()?;
    let changed = std::fs::metadata(&path).and_then(|found| found.modified()).ok()?;
    let age = SystemTime::now().duration_since(changed).unwrap_or_default();
    Some((serde_json::from_slice(&text).ok()?, age))
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
    use serde_json::json;

    use super::*;

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
