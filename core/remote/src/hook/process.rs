//! A process with all that it starts: a group of its own, ended as a whole.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

use super::{HookError, memory};

/// A process group. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    command: String,
    child: Child,
    group: Option<Pid>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(Option<ExitStatus>);

impl Status {
    /// Whether it ended by itself and said that all was well.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.0.is_some_and(|status| status.success())
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.map(|status| (status, status.code())) {
            Some((_, Some(code))) => write!(f, "status {code}"),
            Some((status, None)) => write!(f, "{status}"),
            None => f.write_str("an unknown status"),
        }
    }
}

impl Process {
    /// Starts a command. Its output goes where ours goes; it gets no input.
    ///
    /// # Errors
    /// [`HookError::Start`].
    pub fn spawn(command: &[String], environment: &[(&str, &str)]) -> Result<Self, HookError> {
        let name = command.join(" ");
        let failed = |source| HookError::Start {
            command: name.clone(),
            source,
        };
        let (program, arguments) = command
            .split_first()
            .ok_or_else(|| failed(std::io::ErrorKind::InvalidInput.into()))?;
        let child = Command::new(program)
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let number = child.id().and_then(|id| i32::try_from(id).ok());
        Ok(Self {
            command: name,
            group: number.and_then(Pid::from_raw),
            child,
        })
    }

    /// Its process id, which is that of its group.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Whether its first process has ended.
    #[must_use]
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Returns when the first process of the group has ended, however; what is left of the group ends with it. May be given up
    /// and asked again.
    pub async fn ended(&mut self) -> Status {
        let status = self.child.wait().await.ok();
        self.signal();
        Status(status)
    }

    /// Kills the whole group (a stopped process ignores everything else) and removes the shared memory that only it had. How
    /// many segments that were.
    ///
    /// # Errors
    /// [`HookError::Late`] if it is not gone within `limit`: a process that cannot be killed waits for a device.
    pub async fn kill(mut self, limit: Duration) -> Result<usize, HookError> {
        let group = self.group.map_or(0, Pid::as_raw_pid);
        // Reading all of /proc takes a moment.
        let segments = tokio::task::spawn_blocking(move || memory::own_segments(group));
        let segments = segments.await.unwrap_or_default();
        self.signal();
        let ended = tokio::time::timeout(limit, self.child.wait()).await;
        if ended.is_err() {
            return Err(HookError::Late {
                command: self.command.clone(),
                after: limit,
            });
        }
        Ok(memory::sweep(&segments))
    }

    /// Once: the number of a group that is gone may become another's.
    fn signal(&mut self) {
        if let Some(group) = self.group.take() {
            // A group without processes is what is wanted.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Process {
        let command = ["sh", "-c", script].map(str::to_owned);
        Process::spawn(&command, &[]).expect("a shell")
    }

    /// Whether any process of this group still runs (one that has ended and was not waited for is none).
    fn lives(group: u32) -> bool {
        let runs = |stat: &str| {
            let (_, rest) = stat.rsplit_once(')')?;
            let mut fields = rest.split_whitespace();
            let state = fields.next()?;
            let of: u32 = fields.nth(1)?.parse().ok()?;
            Some(of == group && state != "Z")
        };
        let processes = std::fs::read_dir("/proc").expect("Linux").flatten();
        let mut stats = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        stats.any(|stat| runs(&stat) == Some(true))
    }

    async fn until_gone(group: u32) {
        let began = Instant::now();
        while lives(group) {
            assert!(began.elapsed() < LONG, "the group lives on");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn a_process_ends_by_itself_and_says_how() {
        assert!(shell("exit 0").ended().await.is_good());
        let mut lasting = shell("sleep 600");
        assert!(!lasting.is_over());
        lasting.kill(LONG).await.expect("killed");
        let status = shell("exit 7").ended().await;
        assert_eq!((status.is_good(), status.to_string()), (false, "status 7".to_owned()));
    }

    #[tokio::test]
    async fn a_stopped_tree_that_ignores_signals_is_killed() {
        let process = shell("trap '' TERM; sleep 600 & sh -c 'kill -STOP $$; sleep 600' & wait");
        let group = process.id().expect("it runs");
        assert!(lives(group));
        process.kill(LONG).await.expect("killed");
        until_gone(group).await;
    }

    #[tokio::test]
    async fn dropping_it_kills_the_tree() {
        let process = shell("sleep 600 & sleep 600");
        let group = process.id().expect("it runs");
        drop(process);
        until_gone(group).await;
    }

    #[test]
    fn a_command_that_is_not_there_is_named() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let _inside = runtime.enter();
        let error = Process::spawn(&["/no/such/engine".to_owned()], &[]).expect_err("not there");
        assert!(error.to_string().contains("/no/such/engine"));
        assert!(Process::spawn(&[], &[]).is_err());
    }
}
