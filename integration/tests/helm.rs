//! The chart, without a cluster: what it makes of values, held against Kubernetes' own schemas and the program that reads it; and
//! the command that `helm test` runs. `make e2e` installs it.

use std::path::Path;
use std::time::Duration;

use innkeeper_integration::{Cluster, Options, oracle, program, python, skipped, within};
use tokio::process::Command;

/// Helm is started a hundred times.
const LIMIT: Duration = Duration::from_secs(480);

async fn chart(class: &str) {
    let program = program();
    let program = program.to_string_lossy();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes");
    let said = python(&["chart_test.py", &program, class], &folder, LIMIT).await;
    for why in said.lines().filter_map(|line| line.strip_prefix("SKIPPED: ")) {
        skipped(why);
    }
}

#[tokio::test]
async fn good_values_become_the_pods_that_they_should() {
    chart("Pods").await;
}

#[tokio::test]
async fn good_values_become_the_objects_around_them_that_they_should() {
    chart("Around").await;
}

#[tokio::test]
async fn an_engine_beside_each_worker_is_told_what_its_worker_is_told() {
    chart("Engine").await;
}

#[tokio::test]
async fn bad_values_are_refused_with_what_would_be_right() {
    chart("Bad").await;
}

#[tokio::test]
async fn the_chart_is_whole_and_can_be_upgraded() {
    chart("Whole").await;
}

#[tokio::test]
async fn the_image_holds_what_the_program_needs_and_no_more() {
    chart("Image").await;
}

async fn check(router: &str, within_ms: u32) -> (bool, String) {
    let mut command = Command::new(program());
    command.args(["check", "--router", router, "--within-ms", &within_ms.to_string()]);
    let output = within(
        Duration::from_secs(120),
        "the check",
        command.kill_on_drop(true).output(),
    )
    .await;
    let output = output.unwrap_or_else(|error| panic!("the check cannot be run: {error}"));
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[tokio::test]
async fn the_check_passes_where_all_is_well_and_fails_where_nothing_answers() {
    let cluster = Cluster::start(Options::mock().workers(2, 1)).await;
    let (passed, said) = check(cluster.client.base(), 60_000).await;
    assert!(passed, "{said}");
    assert!(said.contains("completion: 8 tokens"), "{said}");
    assert!(said.contains("stuck rooms: none, at 4 nodes"), "{said}");
    oracle(&cluster).await;
    let address = cluster.client.base().to_owned();
    drop(cluster);
    let (passed, said) = check(&address, 1_000).await;
    assert!(!passed, "{said}");
    assert!(said.contains("the router is not ready"), "{said}");
}
