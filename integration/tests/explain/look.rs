//! The clusters whose rooms are explained, and looks at explanations.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use innkeeper_integration::{Cluster, Options, completion, until};
use serde_json::Value;

/// What a machine with two busy processors adds to a bound.
pub(crate) const STARVED: Duration = Duration::from_secs(1);
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// The bound of a silent fault, and of the wait for blame.
pub(crate) const SILENT: Duration = Duration::from_millis(2000 + 1000 + 250);
/// An explanation waits for nobody longer than this: a node's deadline, and the command's own start.
pub(crate) const EXPLAINED: Duration = Duration::from_millis(800 + 1000);
pub(crate) const KEY: &str = "the-key-of-this-test";

pub(crate) fn options() -> Options {
    Options::mock()
        .workers(2, 2)
        .etcd()
        .ttl_ms(2000)
        .flag("mock-prefill-us-per-token", 5_000)
        .flag("prefix-cache-percent", 0)
        .flag("mock-decode-us-per-token", 20_000)
        .flag("mock-kv-bytes-per-token", 4_096)
        .flag("transfer-max-bytes-per-second", 200_000)
        .env("INNKEEPER_ADMIN_KEY", KEY)
}

/// 120 tokens: 0.6 s of computing and 2.4 s of transfer.
pub(crate) fn transfer() -> Value {
    completion("mock", "p".repeat(120), 5)
}

/// An answer of two seconds.
pub(crate) fn decode() -> Value {
    completion("mock", "decode", 100)
}

pub(crate) fn unix_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// `rooms explain ID --json`.
pub(crate) async fn explain(cluster: &Cluster, room: &str) -> Result<Value, String> {
    let output = cluster.run(&["rooms", "explain", room, "--json"]).await;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

/// The explanation of a room that is over, and over for its client.
pub(crate) async fn explained(cluster: &Cluster, room: &str, limit: Duration) -> Value {
    until(limit, "the room is explained", || async {
        let of = explain(cluster, room).await?;
        if of["live"] == false
            && !of["client"]
                .as_str()
                .unwrap_or_default()
                .contains("waits for another pair")
        {
            Ok(of)
        } else {
            Err(of["headline"].to_string())
        }
    })
    .await
}

pub(crate) fn has(of: &Value, field: &str, parts: &[&str]) {
    let lines = of[field].as_array().unwrap();
    let found = lines
        .iter()
        .filter_map(Value::as_str)
        .any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(found, "{parts:?} in no line of {field}: {of:#}");
}

pub(crate) fn part<'a>(of: &'a Value, role: &str) -> &'a Value {
    let parts = of["parts"].as_array().unwrap();
    parts.iter().find(|part| part["role"] == role).unwrap()
}

/// The time of a Unix millisecond against another one, whichever is first.
pub(crate) fn near(of: &Value, field: &str, expected: u64, within: u64) {
    let at = of[field].as_u64().unwrap_or_else(|| panic!("no {field}: {of:#}"));
    assert!(
        at.abs_diff(expected) <= within,
        "{field} = {at}, expected {expected} ± {within}: {of:#}"
    );
}
