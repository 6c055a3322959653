//! What of the configuration may change while a node runs: read again when its file has changed, and on SIGHUP. Flags and
//! variables go before the file, as at the start. What is wrong is said in the log and changes nothing.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::files::{Files, PERIOD, look};
use crate::config::ConfigError;

/// How a part of the configuration is read again.
pub struct Reload<T> {
    file: Option<Files>,
    read: Arc<dyn Fn() -> Result<T, ConfigError> + Send + Sync>,
}

impl<T: PartialEq + Send + 'static> Reload<T> {
    /// `read` gives that part anew, from the process's arguments, its environment and the file, if there is one.
    #[must_use]
    pub fn new(file: Option<PathBuf>, read: impl Fn() -> Result<T, ConfigError> + Send + Sync + 'static) -> Self {
        Self {
            // The first look reads it: it may have changed since the process began.
            file: file.map(|path| Files::unread("config", path)),
            read: Arc::new(read),
        }
    }

    /// Listens from now on; the future that comes back never ends, and tells `apply` whatever differs from what was last told
    /// (`now` at first).
    ///
    /// # Errors
    /// If the handler of SIGHUP cannot be installed.
    pub fn watch(self, now: T, apply: impl Fn(&T) + Send) -> io::Result<impl Future<Output = ()> + Send> {
        Ok(self.follow(signal(SignalKind::hangup())?, now, apply))
    }

    async fn follow(mut self, mut hangup: Signal, mut now: T, apply: impl Fn(&T) + Send) {
        loop {
            let asked = tokio::select! {
                _ = hangup.recv() => true,
                () = tokio::time::sleep(PERIOD), if self.file.is_some() => false,
            };
            let mut changed = false;
            if let Some(file) = self.file.take() {
                let Some((file, fresh)) = look(file).await else { return };
                changed = fresh.is_some();
                self.file = Some(file);
            }
            if !asked && !changed {
                continue;
            }
            let read = Arc::clone(&self.read);
            // It reads files. It fails only while the runtime ends.
            let Ok(read) = tokio::task::spawn_blocking(move || read()).await else {
                return;
            };
            match read {
                Ok(read) if read != now => {
                    apply(&read);
                    now = read;
                }
                Ok(_) if asked => {
                    tracing::info!("the configuration was read again: nothing of it that may change has changed");
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "the configuration is wrong now and is not taken over"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;
    use crate::config::{EngineArgs, NodeArgs, parse_from};

    #[derive(clap::Parser)]
    struct Args {
        #[command(flatten)]
        node: NodeArgs,
        #[command(flatten)]
        _engine: EngineArgs,
    }

    /// Waits for what was told to be so.
    async fn told(all: &Mutex<Vec<u8>>, wanted: &[u8]) {
        let wait = async {
            while *all.lock().unwrap() != wanted {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(20), wait).await;
        assert!(in_time.is_ok(), "{wanted:?} expected, not {:?}", all.lock().unwrap());
    }

    #[tokio::test]
    async fn a_changed_file_and_a_signal_are_heard_and_what_is_wrong_changes_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();
        write("max-attempts = 2");
        let path = file.path().to_str().unwrap().to_owned();
        let reads = Arc::new(Mutex::new(0));
        let (read, counted) = (path.clone(), Arc::clone(&reads));
        let reload = Reload::new(Some(file.path().to_owned()), move || {
            *counted.lock().unwrap() += 1;
            let args: Args = parse_from(["router", "--config", &read])?;
            Ok(args.node.settings.resolve()?.max_attempts)
        });
        let all = Arc::new(Mutex::new(vec![]));
        let tell = Arc::clone(&all);
        let following = reload
            .watch(2, move |attempts| tell.lock().unwrap().push(*attempts))
            .unwrap();
        let following = async {
            tokio::select! {
                () = following => unreachable!("it never ends"),
                () = async {
                    write("max-attempts = 3");
                    told(&all, &[3]).await;
                    // Wrong, which is read once, and then another one.
                    let before = *reads.lock().unwrap();
                    write("max-attempts = 'many'");
                    while *reads.lock().unwrap() == before {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    write("max-attempts = 4");
                    told(&all, &[3, 4]).await;
                    let before = *reads.lock().unwrap();
                    kill_process(getpid(), Signal::HUP).unwrap();
                    while *reads.lock().unwrap() == before {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                } => {}
            }
        };
        tokio::time::timeout(Duration::from_secs(60), following).await.unwrap();
        assert_eq!(*all.lock().unwrap(), [3, 4], "the signal found nothing new");
    }
}
