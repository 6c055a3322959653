use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// Where Debian keeps `ip` and `tc`; not on everybody's PATH.
const SYSTEM_DIRS: &str = "/usr/sbin:/sbin";

/// Runs a command; what it printed.
pub(super) fn commands(command: &[&str]) -> Result<String, String> {
    let output = prepared(command)?.output();
    finished(command, "", output)
}

/// Runs a command.
pub(super) fn run(command: &[&str]) -> Result<(), String> {
    commands(command).map(drop)
}

/// Runs a command that reads lines.
pub(super) fn run_all(command: &[&str], lines: impl IntoIterator<Item = String>) -> Result<(), String> {
    let lines: Vec<String> = lines.into_iter().collect();
    let text = lines.join("\n") + "\n";
    let spawned = prepared(command)?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let output = spawned.and_then(|mut child| {
        if let Some(mut input) = child.stdin.take() {
            input.write_all(text.as_bytes())?;
        }
        child.wait_with_output()
    });
    finished(command, &text, output).map(drop)
}

fn prepared(command: &[&str]) -> Result<Command, String> {
    let (program, args) = command.split_first().ok_or("no command")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{path}:{SYSTEM_DIRS}");
    // The child's PATH is no help in finding the child itself.
    let found = std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| file.is_file());
    let found = found.ok_or_else(|| format!("there is no `{program}`: apt-get install iproute2"))?;
    let mut prepared = Command::new(found);
    prepared.args(args).env("PATH", path).stdin(Stdio::null());
    Ok(prepared)
}

fn finished(command: &[&str], input: &str, output: std::io::Result<Output>) -> Result<String, String> {
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} failed: {} {input}", said.trim()))
}
