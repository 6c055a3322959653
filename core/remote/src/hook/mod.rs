//! How an engine's process is ended and another one started: the last fence, and the only one that a wedged engine cannot
//! ignore.

mod memory;
mod process;

use std::str::FromStr;
use std::time::Duration;

pub use process::{Process, Status};

/// Who starts the engine anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The worker, whose child it is.
    Child,
    /// This command, given to a shell.
    Exec(String),
    /// The platform, once the worker's `/engine/livez` says so.
    Probe,
    /// Nobody: the worker takes no rooms and calls somebody.
    None,
}

/// The text names no hook.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no way to restart an engine: write child, probe, none, or exec: and a command")]
pub struct NoHook(String);

impl std::fmt::Display for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Child => f.write_str("child"),
            Self::Exec(command) => write!(f, "exec:{command}"),
            Self::Probe => f.write_str("probe"),
            Self::None => f.write_str("none"),
        }
    }
}

impl FromStr for Hook {
    type Err = NoHook;

    fn from_str(text: &str) -> Result<Self, NoHook> {
        match text {
            "child" => Ok(Self::Child),
            "probe" => Ok(Self::Probe),
            "none" => Ok(Self::None),
            _ => match text.strip_prefix("exec:").map(str::trim) {
                Some(command) if !command.is_empty() => Ok(Self::Exec(command.to_owned())),
                Some(_) | None => Err(NoHook(text.to_owned())),
            },
        }
    }
}

/// An engine could not be ended or started.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The command cannot be started.
    #[error("`{command}` cannot be started: {source}")]
    Start {
        /// The command.
        command: String,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// It did not end in time.
    #[error("`{command}` did not end within {after:?}")]
    Late {
        /// The command.
        command: String,
        /// For how long it was waited.
        after: Duration,
    },
    /// It failed.
    #[error("`{command}` ended with {status}")]
    Failed {
        /// The command.
        command: String,
        /// How.
        status: Status,
    },
}

/// Pauses between starts of a process that does not stay: one second, then twice as long each time, up to half a minute.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The process has ended; it had run for so long. The pause before the next.
    pub fn ended(&mut self, ran: Duration) -> Duration {
        const SHORTEST: Duration = Duration::from_secs(1);
        const LONGEST: Duration = Duration::from_secs(30);
        if ran >= 10 * LONGEST {
            self.failures = 0;
        }
        let pause = SHORTEST.saturating_mul(1 << self.failures.min(5)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        pause
    }
}

/// Runs the command of [`Hook::Exec`] to its end. It is told in `INNKEEPER_ENGINE_URL` which engine is meant.
///
/// # Errors
/// [`HookError`]; a command that is late is killed with all that it started.
pub async fn exec(command: &str, engine: &str, limit: Duration) -> Result<(), HookError> {
    let shell = ["sh".to_owned(), "-c".to_owned(), command.to_owned()];
    let mut process = Process::spawn(&shell, &[("INNKEEPER_ENGINE_URL", engine)])?;
    match tokio::time::timeout(limit, process.ended()).await {
        Ok(status) if status.is_good() => Ok(()),
        Ok(status) => Err(HookError::Failed {
            command: command.to_owned(),
            status,
        }),
        Err(_) => {
            process.kill(limit).await?;
            Err(HookError::Late {
                command: command.to_owned(),
                after: limit,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_by_their_names() {
        assert_eq!("child".parse(), Ok(Hook::Child));
        assert_eq!(
            "exec: systemctl restart vllm".parse(),
            Ok(Hook::Exec("systemctl restart vllm".to_owned()))
        );
        for wrong in ["", "exec:", "exec: ", "systemctl", "Child"] {
            let error = wrong.parse::<Hook>().expect_err(wrong);
            assert!(error.to_string().contains("exec:"));
        }
    }

    #[test]
    fn a_process_that_does_not_stay_is_started_more_and_more_rarely() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..7).map(|_| backoff.ended(Duration::ZERO).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(
            backoff.ended(Duration::from_secs(300)).as_secs(),
            1,
            "one that stayed is forgiven"
        );
    }

    #[tokio::test]
    async fn a_command_is_told_the_engine_and_has_a_deadline() {
        let long = Duration::from_secs(20);
        exec("test \"$INNKEEPER_ENGINE_URL\" = http://e:1", "http://e:1", long)
            .await
            .expect("it says so");
        let error = exec("exit 3", "http://e:1", long).await.expect_err("it failed");
        assert!(error.to_string().contains("status 3"), "{error}");
        let error = exec("sleep 600 & sleep 600", "http://e:1", Duration::from_millis(100))
            .await
            .expect_err("late");
        assert!(matches!(error, HookError::Late { .. }), "{error}");
    }
}
