//! Every planted bug has a row in `planted.tsv`, and every row names a bug and a test that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const ROOM: &str = env!("CARGO_MANIFEST_DIR");

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_bug_has_its_row_and_every_row_its_bug_and_its_test() {
    let room = Path::new(ROOM);
    let folders = [room.to_owned(), room.join("../transfer")];
    let mut bugs = BTreeSet::new();
    let mut files = vec![];
    for folder in &folders {
        let manifest = read(&folder.join("Cargo.toml"));
        let features = manifest.lines().filter_map(|line| line.strip_suffix(" = []"));
        bugs.extend(features.filter(|name| name.starts_with("bug-")).map(str::to_owned));
        sources(&folder.join("src"), &mut files);
        sources(&folder.join("tests"), &mut files);
    }
    let code: String = files.iter().map(|file| read(file)).collect();
    let table = read(&room.join("planted.tsv"));
    let mut rows = BTreeSet::new();
    for row in table.lines().filter(|row| !row.starts_with('#')) {
        let cells: Vec<&str> = row.split('\t').collect();
        let [bug, _program, test, says] = cells.as_slice() else {
            panic!("a row of planted.tsv has four cells: {row}");
        };
        let name = test.rsplit("::").next().unwrap_or(test);
        assert!(code.contains(&format!("fn {name}(")), "{bug}: there is no test {name}");
        assert!(!says.is_empty(), "{bug}: what does the test say?");
        assert!(rows.insert((*bug).to_owned()), "{bug} has two rows");
    }
    assert_eq!(rows, bugs);
    assert!(bugs.len() >= 12, "{bugs:?}");
}
