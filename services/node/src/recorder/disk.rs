//! Records of bad ends as files: a folder for each node name, in it a file for each life of the node, a record a line.
//! A process writes its own file only; at its start it reads those of former lives, and removes what is beyond the bounds.
//! All of it blocks: it runs on threads for that.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use innkeeper_room::Incarnation;

use super::record::{Kind, Record};
use super::shelf::minor_places;
use crate::config::RecorderConfig;

/// Bytes of all files of a node name.
const MOST_BYTES: u64 = 64 << 20;
/// Longest line: a record is much shorter, so a longer one is none.
const LONGEST_LINE: usize = 256 << 10;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A life's own file.
#[derive(Debug)]
pub(super) struct Disk {
    file: PathBuf,
    rooms: usize,
    /// Its lines, the oldest first.
    lines: Vec<Line>,
    bytes: u64,
}

/// A line of the file.
#[derive(Clone, Copy, Debug)]
struct Line {
    bytes: u64,
    kind: Kind,
}

/// What a former life has left.
struct Left {
    path: PathBuf,
    records: Vec<Record>,
    bytes: u64,
    /// When its last record ended.
    newest: u64,
}

impl Disk {
    /// Opens the folder of a node and reads what is there: the records of former lives, the oldest first.
    ///
    /// # Errors
    /// The folder cannot be made, read or written.
    pub(super) fn open(
        dir: &Path,
        config: &RecorderConfig,
        (name, life): (&str, Incarnation),
        now: u64,
    ) -> io::Result<(Self, Vec<Record>)> {
        let folder = dir.join(folder_name(name));
        fs::create_dir_all(&folder)?;
        let file = folder.join(format!("{life}.jsonl"));
        // Whether it can be written is known from the start.
        File::options().create(true).append(true).open(&file)?;
        let rooms = config.rooms as usize;
        let oldest = now.saturating_sub(u64::try_from(DAY.as_millis()).unwrap_or(0) * u64::from(config.days));
        let records = read_left(&folder, &file, (rooms, oldest))?;
        let disk = Self {
            file,
            rooms,
            lines: vec![],
            bytes: 0,
        };
        Ok((disk, records))
    }

    /// Writes records at the end of the file, which is shortened when it holds too many.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn write(&mut self, records: &[Arc<Record>]) -> io::Result<()> {
        let mut text = Vec::new();
        for record in records {
            let before = text.len();
            serde_json::to_writer(&mut text, &**record)?;
            text.push(b'\n');
            let bytes = (text.len() - before) as u64;
            let kind = record.kind();
            self.lines.push(Line { bytes, kind });
            self.bytes += bytes;
        }
        // Opened each time: the file of a life that was taken for a former one comes back by itself.
        let mut file = File::options().create(true).append(true).open(&self.file)?;
        file.write_all(&text)?;
        if self.lines.len() > 2 * self.rooms || self.bytes > MOST_BYTES / 2 {
            self.shorten()?;
        }
        Ok(())
    }

    /// Keeps the newest lines of each kind only.
    fn shorten(&mut self) -> io::Result<()> {
        let text = fs::read(&self.file)?;
        let mut places = Places::new(self.rooms, MOST_BYTES / 4);
        let mut end = text.len();
        let mut kept: Vec<(Line, &[u8])> = vec![];
        for line in self.lines.iter().rev() {
            let from = end.saturating_sub(usize::try_from(line.bytes).unwrap_or(usize::MAX));
            if places.take(line.kind, line.bytes) {
                kept.push((*line, &text[from..end]));
            }
            end = from;
        }
        kept.reverse();
        let fresh = self.file.with_extension("new");
        let texts: Vec<&[u8]> = kept.iter().map(|(_, text)| *text).collect();
        fs::write(&fresh, texts.concat())?;
        fs::rename(&fresh, &self.file)?;
        self.lines = kept.into_iter().map(|(line, _)| line).collect();
        self.bytes = self.lines.iter().map(|line| line.bytes).sum();
        Ok(())
    }
}

/// Places for records, counted by kind.
struct Places {
    bad: usize,
    minor: usize,
    bytes: u64,
}

impl Places {
    const fn new(rooms: usize, bytes: u64) -> Self {
        Self {
            bad: rooms,
            minor: minor_places(rooms),
            bytes,
        }
    }

    /// Whether there is one left.
    fn take(&mut self, kind: Kind, bytes: u64) -> bool {
        let places = match kind {
            Kind::Good | Kind::Minor => &mut self.minor,
            Kind::Bad => &mut self.bad,
        };
        let fits = *places > 0 && bytes <= self.bytes;
        if fits {
            *places -= 1;
            self.bytes -= bytes;
        }
        fits
    }
}

/// What former lives have left within the bounds, the oldest record first; the rest is removed.
fn read_left(folder: &Path, own: &Path, (rooms, oldest): (usize, u64)) -> io::Result<Vec<Record>> {
    let mut all = vec![];
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_record = path.extension().is_some_and(|extension| extension == "jsonl");
        if is_record && path != own {
            all.push(read(path));
        }
    }
    all.sort_by_key(|left| std::cmp::Reverse(left.newest));
    let mut places = Places::new(rooms, MOST_BYTES);
    let mut kept = vec![];
    for left in all {
        let before = kept.len();
        // A record's share of its file: what was written twice counts twice.
        let each = left.bytes / (left.records.len() as u64).max(1);
        let young = |record: &Record| record.ended_unix_ms.is_some_and(|ended| ended >= oldest);
        let recent = left.records.into_iter().rev();
        kept.extend(recent.filter(|record| young(record) && places.take(record.kind(), each)));
        if kept.len() == before {
            remove(&left.path);
        }
    }
    kept.reverse();
    Ok(kept)
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        // Another process of the same name was faster.
        tracing::debug!(path = %path.display(), %error, "an old file of the recorder was not removed");
    }
}

/// A life's records. A line that is none, as a crash leaves it at the end, is skipped; of a room's lines the last counts.
fn read(path: PathBuf) -> Left {
    let bytes = fs::metadata(&path).map_or(0, |found| found.len());
    let mut records: Vec<Record> = vec![];
    if let Ok(file) = File::open(&path) {
        let mut lines = BufReader::new(file);
        let mut line = Vec::new();
        while let Ok(1..) = lines.read_until(b'\n', &mut line) {
            let record: Option<Record> = Some(&line)
                .filter(|line| line.len() < LONGEST_LINE)
                .and_then(|line| serde_json::from_slice(line).ok());
            line.clear();
            let Some(record) = record else { continue };
            match records.last_mut().filter(|last| last.room == record.room) {
                Some(last) => *last = record,
                None => records.push(record),
            }
        }
    }
    let newest = records.iter().filter_map(|record| record.ended_unix_ms).max();
    Left {
        path,
        records,
        bytes,
        newest: newest.unwrap_or(0),
    }
}

/// A node's name as a folder's: what could be more than a name is written in hexadecimal digits.
pub(super) fn folder_name(name: &str) -> String {
    use std::fmt::Write as _;
    /// Longest name of a folder, with room to spare for a number behind it.
    const LONGEST: usize = 200;
    let mut folder = String::new();
    for (at, byte) in name.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || (byte == b'.' && at > 0);
        if plain {
            folder.push(byte.into());
        } else {
            // Writing to a string does not fail.
            let _ = write!(folder, "%{byte:02x}");
        }
    }
    if folder.len() > LONGEST {
        let number = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        folder.truncate(LONGEST);
        let _ = write!(folder, "-{number:016x}");
    }
    folder
}
