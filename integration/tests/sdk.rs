//! OpenAI's own Python client, unchanged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use innkeeper_integration::{Cluster, Options, oracle, within};
use tokio::process::Command;

/// The interpreter that `make test` sets up.
fn python() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/venv/bin/python");
    std::env::var_os("INNKEEPER_TEST_PYTHON").map_or(default, PathBuf::from)
}

#[tokio::test]
async fn the_openai_client_works_unchanged() {
    let python = python();
    assert!(
        python.is_file(),
        "there is no Python with OpenAI's client at {}: `make test` sets it up (or `deploy/setup.sh test` alone)",
        python.display()
    );
    let context = 512;
    let cluster = Cluster::start(Options::mock().flag("context", context)).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/openai_sdk.py");
    let mut command = Command::new(python);
    command
        .arg(script)
        .args([cluster.client.base(), cluster.model(), &context.to_string()]);
    let output = within(
        Duration::from_secs(90),
        "the script",
        command.kill_on_drop(true).output(),
    )
    .await
    .unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success() && output.stdout == b"ok\n", "{said}");
    oracle(&cluster).await;
}
