//! The page at `/ui` in a real browser: against a made-up router that shows it all that there can be, and against a cluster
//! with a worker that was stopped.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use innkeeper_integration::{Cluster, Options, oracle, python, skipped};

/// A browser starts within a second or two; a starved machine needs many times as long for all of it.
const LIMIT: Duration = Duration::from_secs(240);

const SHOWN: [&str; 6] = [
    "shows_pairs_rooms_and_nodes",
    "a_worker_that_vanishes_is_remembered",
    "rooms_move_through_phases",
    "budget_is_told_by_shape_and_words",
    "an_empty_cluster",
    "a_router_without_records",
];
const AWAY: [&str; 1] = ["the_router_goes_away_and_comes_back"];
const ONE_ROOM: [&str; 4] = [
    "an_eviction_is_explained_by_one_press",
    "a_live_room_is_followed_to_its_end",
    "only_a_key_evicts",
    "a_locked_router_is_looked_at_with_its_key",
];
const STRANGERS: [&str; 1] = ["hostile_text_is_text"];
const MANY: [&str; 1] = ["ten_thousand_rooms"];
const EVERYBODY: [&str; 3] = [
    "no_accessibility_violation",
    "nothing_is_wider_than_the_page",
    "everything_by_keyboard",
];

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python/ui")
}

/// The browser that `deploy/setup.sh test` installs, or one like it; `None` is said as a skipped test.
fn browser() -> Option<String> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|program| program.is_file());
    if found.is_none() {
        skipped("there is no Chromium: apt-get install chromium");
    }
    found.map(|program| program.to_str().unwrap().to_owned())
}

/// Runs these checks of `checks.py`; what it said.
async fn check(arguments: &[&str]) -> Option<String> {
    let browser = browser()?;
    let all: Vec<_> = ["checks.py", &browser]
        .into_iter()
        .chain(arguments.iter().copied())
        .collect();
    let said = python(&all, &scripts(), LIMIT).await;
    assert_eq!(said.lines().last(), Some("ok"), "{said}");
    println!("{said}");
    Some(said)
}

#[tokio::test]
async fn what_runs_is_shown() {
    check(&SHOWN).await;
}

#[tokio::test]
async fn a_router_that_is_away_is_said_and_found_again() {
    check(&AWAY).await;
}

#[tokio::test]
async fn one_room_is_explained_followed_and_evicted() {
    check(&ONE_ROOM).await;
}

#[tokio::test]
async fn what_strangers_wrote_is_text() {
    check(&STRANGERS).await;
}

#[tokio::test]
async fn ten_thousand_rooms_keep_the_page_responsive() {
    check(&MANY).await;
}

#[tokio::test]
async fn everybody_can_use_it() {
    check(&EVERYBODY).await;
}

/// A check that nobody runs is none.
#[test]
fn every_check_is_run() {
    let text = std::fs::read_to_string(scripts().join("checks.py")).unwrap();
    let list = text.split_once("\nCHECKS = [\n").unwrap().1;
    let list = list.split_once("\n]").unwrap().0;
    let mut written: Vec<_> = list.lines().map(|line| line.trim().trim_end_matches(',')).collect();
    let groups: [&[&str]; 6] = [&SHOWN, &AWAY, &ONE_ROOM, &STRANGERS, &MANY, &EVERYBODY];
    let mut run = groups.concat();
    written.sort_unstable();
    run.sort_unstable();
    assert_eq!(run, written);
}

/// A decode worker is stopped in the middle of a transfer: the page shows it, and explains what became of the room.
#[tokio::test]
async fn a_stopped_worker_of_a_real_cluster_is_seen_and_explained() {
    let options = Options::mock()
        .workers(1, 2)
        .etcd()
        .ttl_ms(2000)
        .flag("mock-kv-bytes-per-token", 4_096)
        .flag("transfer-max-bytes-per-second", 200_000)
        .flag("jaeger-url", "http://127.0.0.1:16686");
    let cluster = Cluster::start(options).await;
    let config = cluster.client.get("/ui/config.json").await.unwrap();
    assert_eq!(config.body["jaeger_url"], "http://127.0.0.1:16686");
    check(&["real", cluster.client.base()]).await;
    cluster.wait_whole().await;
    oracle(&cluster).await;
}
