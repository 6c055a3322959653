//! Files that are read again when they change. What cannot be used is said, counted, and leaves what was good in its place.
//!
//! Files are looked at by their content, every second: a symbolic link that now leads elsewhere, as Kubernetes swaps the files
//! of a Secret, is a change like any other, and a clock or a time of change that lies hides nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ring::digest::{Context, SHA256};

use crate::metrics::NodeMetrics;

/// Between two looks: what an operator changes counts within this and a little.
pub(super) const PERIOD: Duration = Duration::from_secs(1);
/// Far beyond any file of keys, certificates or limits.
const LARGEST: u64 = 4 << 20;

/// Takes new contents over, one for each file, or says why they cannot be used.
pub type Apply = Arc<dyn Fn(&[Vec<u8>]) -> Result<(), String> + Send + Sync>;

/// Files that are only good together.
#[derive(Clone, Debug)]
pub struct Files {
    what: &'static str,
    paths: Vec<PathBuf>,
    /// Of what they held when they were read last; contents are not kept.
    seen: Vec<u8>,
}

impl Files {
    /// Reads them for the first time.
    ///
    /// # Errors
    /// Names the file that cannot be read.
    pub fn open<'a>(
        what: &'static str,
        paths: impl Iterator<Item = &'a PathBuf>,
    ) -> Result<(Self, Vec<Vec<u8>>), String> {
        let paths: Vec<PathBuf> = paths.cloned().collect();
        let contents = read(&paths)?;
        let seen = digest(&contents);
        Ok((Self { what, paths, seen }, contents))
    }

    /// One file that somebody else reads: whatever it holds is new at the first look.
    #[must_use]
    pub fn unread(what: &'static str, path: PathBuf) -> Self {
        Self {
            what,
            paths: vec![path],
            seen: vec![],
        }
    }

    /// None are named: there is nothing to follow.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// What they hold, if that is new; a file that is away for a moment, as while it is replaced, is as good as another content.
    fn fresh(&mut self) -> Option<Result<Vec<Vec<u8>>, String>> {
        let contents = read(&self.paths);
        let seen = match &contents {
            Ok(contents) => digest(contents),
            Err(why) => why.as_bytes().to_vec(),
        };
        if self.seen == seen {
            return None;
        }
        self.seen = seen;
        Some(contents)
    }
}

fn read(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, String> {
    let one = |path: &PathBuf| {
        let fail = |why: String| format!("{}: {why}", path.display());
        let size = std::fs::metadata(path).map_err(|error| fail(error.to_string()))?.len();
        if size > LARGEST {
            return Err(fail(format!("larger than {LARGEST} bytes")));
        }
        std::fs::read(path).map_err(|error| fail(error.to_string()))
    };
    paths.iter().map(one).collect()
}

fn digest(contents: &[Vec<u8>]) -> Vec<u8> {
    let mut context = Context::new(&SHA256);
    for content in contents {
        context.update(&content.len().to_be_bytes());
        context.update(content);
    }
    context.finish().as_ref().to_vec()
}

/// Whether they changed, and what they hold then. It reads files: off the runtime's own threads. `None` only while the runtime
/// ends.
pub(super) async fn look(mut files: Files) -> Option<(Files, Option<Result<Vec<Vec<u8>>, String>>)> {
    let look = tokio::task::spawn_blocking(move || {
        let fresh = files.fresh();
        (files, fresh)
    });
    look.await.ok()
}

/// Looks at the files until it is dropped, and has what is new applied.
pub async fn follow(mut files: Files, apply: Apply, metrics: Arc<NodeMetrics>) {
    let what = files.what;
    metrics.reload_works(what);
    loop {
        tokio::time::sleep(PERIOD).await;
        let Some((looked, fresh)) = look(files).await else {
            return;
        };
        files = looked;
        match fresh.map(|fresh| fresh.and_then(|contents| apply(&contents))) {
            None => {}
            Some(Ok(())) => {
                tracing::info!(what, "files were read again");
                metrics.reloaded(what, true);
            }
            Some(Err(why)) => {
                tracing::error!(
                    what,
                    why,
                    "files changed and cannot be used; what was read before still counts"
                );
                metrics.reloaded(what, false);
            }
        }
    }
}
