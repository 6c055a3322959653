use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Beyond the cluster's own drain, from SIGTERM to SIGKILL.
const END_LIMIT: Duration = Duration::from_secs(12);
/// From the end of `up` to the end of what it started: their standard input ends with it.
const CHILDREN_LIMIT: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Lines of each log that are shown when a test fails.
const SHOWN_LINES: usize = 120;

/// The `innkeeper` program of this build. Cargo builds programs of other packages only when it is asked to.
#[must_use]
pub fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_else(|error| panic!("this test has no path: {error}"));
    let found = test
        .ancestors()
        .skip(1)
        .map(|dir| dir.join("innkeeper"))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "there is no `innkeeper` above {}: run `cargo build --workspace --bins` first",
            test.display()
        )
    })
}

/// Signals one process by its id; panics if it cannot be.
pub fn signal(pid: u32, signal: Signal) {
    if let Err(error) = send(pid, signal) {
        panic!("process {pid} cannot be sent {signal:?}: {error}");
    }
}

fn send(pid: u32, signal: Signal) -> rustix::io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.ok_or(rustix::io::Errno::SRCH)?, signal)
}

/// The process may have ended just now, which is as good.
pub(crate) fn try_signal(pid: u32, signal: Signal) {
    if let Err(error) = send(pid, signal) {
        tracing::debug!(pid, ?signal, %error, "not signalled");
    }
}

/// How `innkeeper` is run.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// For people, and for the names of its logs.
    pub(crate) name: String,
    /// What goes before the program, such as a namespace to run in.
    pub(crate) launcher: Vec<String>,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// Variables of its environment.
    pub(crate) env: Vec<(String, String)>,
}

/// A running `innkeeper` in a process group of its own. Dropping it ends it and everything that it started.
#[derive(Debug)]
pub(crate) struct Process {
    launch: Launch,
    child: Child,
    dir: PathBuf,
}

impl Process {
    /// Starts the program; what it prints goes to files in `dir`.
    pub(crate) fn start(launch: &Launch, dir: &Path) -> Self {
        let log = |stream: &str| {
            let path = dir.join(format!("{}-{stream}", launch.name));
            // One that is started again goes on in the log of the one before.
            let log = File::options().create(true).append(true).open(&path);
            log.unwrap_or_else(|error| panic!("no log at {}: {error}", path.display()))
        };
        let child = command_after(&launch.launcher, &launch.args)
            // What a test's rooms leave behind goes with the test.
            .env("INNKEEPER_RECORDER_DIR", dir.join("recorder"))
            .envs(launch.env.clone())
            // A node that watches its parent ends with this end of it.
            .stdin(Stdio::piped())
            .stdout(log("stdout"))
            .stderr(log("stderr"))
            .process_group(0)
            .spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot run {}: {error}", program().display()));
        Self {
            launch: launch.clone(),
            child,
            dir: dir.to_owned(),
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.launch.name
    }

    /// Kills it, and starts another one in its place.
    pub(crate) fn replace(&mut self) {
        // Fails only if it is gone, which is what is wanted.
        drop(self.child.kill());
        drop(self.child.wait());
        *self = Self::start(&self.launch.clone(), &self.dir.clone());
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its status, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub(crate) fn stdout(&self) -> String {
        std::fs::read_to_string(self.dir.join(format!("{}-stdout", self.name()))).unwrap_or_default()
    }

    pub(crate) fn stderr(&self) -> String {
        std::fs::read_to_string(self.dir.join(format!("{}-stderr", self.name()))).unwrap_or_default()
    }

    /// The end of what it printed.
    pub(crate) fn logs(&self) -> String {
        [("stdout", self.stdout()), ("stderr", self.stderr())]
            .map(|(name, text)| {
                let lines: Vec<_> = text.lines().collect();
                let last = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
                format!("--- {name} of {} ---\n{}\n", self.name(), last.join("\n"))
            })
            .concat()
    }

    /// The processes that it started and that live.
    pub(crate) fn children(&self) -> Vec<u32> {
        let own = self.pid();
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .filter(|pid| parent(*pid) == Some(own))
            .collect()
    }

    /// SIGTERM; what it has started.
    pub(crate) fn ask_to_end(&mut self) -> Vec<u32> {
        let children = self.children();
        // A stopped process hears nothing.
        for pid in &children {
            try_signal(*pid, Signal::CONT);
        }
        if self.ended().is_none() {
            try_signal(self.pid(), Signal::CONT);
            try_signal(self.pid(), Signal::TERM);
        }
        children
    }

    /// After [`Self::ask_to_end`]: its drain, then SIGKILL; and the same for what it started.
    pub(crate) fn end(&mut self, children: Vec<u32>) -> Option<ExitStatus> {
        let status = self.wait(END_LIMIT);
        if status.is_none() {
            drop(self.child.kill());
            drop(self.child.wait());
        }
        let deadline = Instant::now() + CHILDREN_LIMIT;
        while children.iter().any(|pid| is_ours(*pid)) && Instant::now() < deadline {
            std::thread::sleep(LOOK_AGAIN);
        }
        for pid in children.into_iter().filter(|pid| is_ours(*pid)) {
            try_signal(pid, Signal::KILL);
        }
        status
    }

    /// Its status, if it ends within `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            let ended = self.ended();
            if ended.is_some() || Instant::now() >= deadline {
                return ended;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let children = self.ask_to_end();
        self.end(children);
    }
}

/// `PPid` of a process, if it lives.
fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

/// Whether this id still belongs to a running `innkeeper`: by the time it is looked at it may be anybody's.
fn is_ours(pid: u32) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    command
        .split(|byte| *byte == 0)
        .next()
        .is_some_and(|name| name == program().as_os_str().as_encoded_bytes())
}

/// Innkeeper's own variables, but for the place of the models: what somebody has set for a cluster of their own must not
/// reach a test's.
pub(crate) fn foreign_settings() -> Vec<String> {
    std::env::vars()
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("INNKEEPER_") && name != "INNKEEPER_CACHE")
        .collect()
}

/// The program with these arguments, and without [`foreign_settings`].
pub(crate) fn command(args: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>) -> Command {
    command_after(&[], args)
}

/// The same, with something before it.
fn command_after(launcher: &[String], args: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>) -> Command {
    let mut command = match launcher.split_first() {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program());
            command
        }
        None => Command::new(program()),
    };
    command.args(args).stdin(Stdio::null());
    for name in foreign_settings() {
        command.env_remove(name);
    }
    command
}
