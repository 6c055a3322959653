use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use crate::wait::within;

/// The interpreter that `make test` sets up, with the clients of others in it.
pub(crate) fn interpreter() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/venv/bin/python");
    let python = std::env::var_os("INNKEEPER_TEST_PYTHON").map_or(default, PathBuf::from);
    assert!(
        python.is_file(),
        "there is no Python with the clients of the API at {}: `make test` sets it up (or `deploy/setup.sh test` alone)",
        python.display()
    );
    python
}

/// Runs Python with these arguments, and returns what it printed; panics with all of it if it fails.
pub async fn python(args: &[&str], dir: &Path, limit: Duration) -> String {
    let mut command = Command::new(interpreter());
    // Nobody's proxy stands before a cluster of this machine.
    for name in [
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ] {
        command.env_remove(name);
    }
    let output = command.args(args).current_dir(dir).kill_on_drop(true).output();
    let output = within(limit, &format!("python {args:?}"), output).await;
    let output = output.unwrap_or_else(|error| panic!("python {args:?} cannot be run: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "python {args:?} failed ({}):\n{stdout}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    stdout
}
