//! A GGUF file of a Hugging Face repository.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder};

use super::{FetchError, ModelFiles, Progress, check_gguf};

/// The repository's list of files is small: a hub that does not send it in this time cannot be reached.
const LIST_LIMIT: Duration = Duration::from_secs(15);
/// A download that brings nothing for this long has stalled.
const STALL_LIMIT: Duration = Duration::from_secs(60);

/// What the thread that downloads says. It says it at most as often as it is heard: progress that finds the queue full
/// is dropped.
enum Word {
    Listed,
    Bytes(u64, u64),
    Done(Result<PathBuf, String>),
}

pub(super) fn fetch(repository: &str, cache: &Path, progress: &dyn Fn(Progress)) -> Result<ModelFiles, FetchError> {
    let name = repository.rsplit('/').next().unwrap_or(repository).to_owned();
    let home = cache.join("hub");
    if let Some(gguf) = find_cached(&home, repository) {
        return Ok(ModelFiles { gguf, name });
    }
    let hub = |cause: String| FetchError::Hub {
        repository: repository.to_owned(),
        cause,
    };
    let created = std::fs::create_dir_all(&home);
    created.map_err(|error| FetchError::Cache {
        path: home.clone(),
        cause: error.to_string(),
    })?;
    let api = ApiBuilder::new()
        .with_cache_dir(home)
        .with_progress(false)
        .with_retries(1)
        .build();
    let api = api.map_err(|error| hub(error.to_string()))?;
    let (words, heard) = sync_channel(16);
    let asked = repository.to_owned();
    // The client library has no deadlines of its own. A thread that is given up ends with its connection, or with the
    // process; all it can still do is complete a file in the cache.
    let thread = std::thread::Builder::new().name("hub-fetch".to_owned());
    thread
        .spawn(move || download(&api, &asked, &words))
        .map_err(|error| hub(error.to_string()))?;
    let mut limit = LIST_LIMIT;
    loop {
        match heard.recv_timeout(limit) {
            Ok(Word::Listed) => limit = STALL_LIMIT,
            Ok(Word::Bytes(bytes, total)) => progress(Progress::Downloading {
                bytes,
                total: Some(total),
            }),
            Ok(Word::Done(Ok(gguf))) => {
                check_gguf(&gguf, None)?;
                return Ok(ModelFiles { gguf, name });
            }
            Ok(Word::Done(Err(cause))) => return Err(hub(cause)),
            Err(RecvTimeoutError::Timeout) => {
                return Err(FetchError::Timeout {
                    what: format!("hearing from Hugging Face about `{repository}`"),
                    limit,
                });
            }
            Err(RecvTimeoutError::Disconnected) => return Err(hub("its thread ended early".to_owned())),
        }
    }
}

/// A file of an earlier fetch: it is used without asking the network.
fn find_cached(home: &Path, repository: &str) -> Option<PathBuf> {
    let snapshots = home
        .join(format!("models--{}", repository.replace('/', "--")))
        .join("snapshots");
    let revisions = std::fs::read_dir(snapshots).ok()?.flatten();
    let mut files: Vec<PathBuf> = revisions
        .filter_map(|revision| std::fs::read_dir(revision.path()).ok())
        .flat_map(|files| files.flatten().map(|file| file.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "gguf") && check_gguf(path, None).is_ok())
        .collect();
    files.sort();
    files.into_iter().next()
}

fn download(api: &Api, repository: &str, words: &SyncSender<Word>) {
    let result = list_and_get(api, repository, words);
    // Nobody listens any more if it took too long.
    let _ = words.send(Word::Done(result));
}

fn list_and_get(api: &Api, repository: &str, words: &SyncSender<Word>) -> Result<PathBuf, String> {
    let files = api.model(repository.to_owned());
    let reach = |error| format!("{error}; check the network and the name, or give the path of a GGUF file");
    let info = files.info().map_err(reach)?;
    let names: Vec<String> = info.siblings.into_iter().map(|file| file.rfilename).collect();
    let file = choose(&names).ok_or("it has no GGUF file; choose a repository whose name ends in -GGUF")?;
    let _ = words.try_send(Word::Listed);
    let told = Told {
        words: words.clone(),
        bytes: 0,
        total: 0,
    };
    files.download_with_progress(file, told).map_err(reach)
}

/// The GGUF file to take: weights become f32 anyway, so the smallest of the formats that hardly lose anything.
fn choose(names: &[String]) -> Option<&str> {
    let models: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| name.ends_with(".gguf"))
        .collect();
    let liked = ["q8_0", "f16", "bf16", "q6_k", "q5_1", "q4_1"];
    let find = |format: &str| models.iter().find(|name| name.to_lowercase().contains(format));
    liked.into_iter().find_map(find).or_else(|| models.first()).copied()
}

struct Told {
    words: SyncSender<Word>,
    bytes: u64,
    total: u64,
}

impl hf_hub::api::Progress for Told {
    fn init(&mut self, size: usize, _filename: &str) {
        self.total = size as u64;
    }

    fn update(&mut self, size: usize) {
        self.bytes += size as u64;
        let _ = self.words.try_send(Word::Bytes(self.bytes, self.total));
    }

    fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_a_good_format_and_only_gguf() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let some = names(&["README.md", "m-Q2_K.gguf", "m-Q8_0.gguf", "m-f16.gguf"]);
        assert_eq!(choose(&some), Some("m-Q8_0.gguf"));
        assert_eq!(choose(&names(&["a.gguf"])), Some("a.gguf"));
        assert_eq!(choose(&names(&["model.safetensors"])), None);
    }

    #[test]
    fn an_earlier_fetch_needs_no_network() {
        let cache = tempfile::tempdir().expect("a directory");
        let place = cache.path().join("hub/models--org--name/snapshots/abc");
        std::fs::create_dir_all(&place).expect("creates");
        std::fs::write(place.join("m.gguf"), b"GGUF....").expect("writes");
        let files = fetch("org/name", cache.path(), &|_| ()).expect("from the cache");
        assert_eq!((files.gguf, files.name.as_str()), (place.join("m.gguf"), "name"));
    }
}
