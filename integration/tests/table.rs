//! `docs/faults.md` is true: every scenario that it names exists.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Rows of the public reports that were collected.
const CASES: usize = 112;

fn page() -> String {
    std::fs::read_to_string(Path::new(ROOT).join("docs/faults.md")).unwrap()
}

/// `file.rs::name` in backticks.
fn scenarios(page: &str) -> Vec<(String, String)> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|text| text.split_once("::"))
        .map(|(file, name)| (file.to_owned(), name.to_owned()))
        .collect()
}

#[test]
fn every_scenario_that_is_named_exists() {
    let named = scenarios(&page());
    assert!(named.len() > 70, "only {} scenarios are named", named.len());
    let mut sources: BTreeMap<String, String> = BTreeMap::new();
    for (file, name) in named {
        let source = sources.entry(file.clone()).or_insert_with(|| {
            let path = Path::new(ROOT).join(&file);
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"))
        });
        assert!(source.contains(&format!("fn {name}(")), "{file} has no {name}");
    }
}

#[test]
fn every_case_has_its_row() {
    let page = page();
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let first_cells = rows.filter_map(|line| line.trim_start_matches("| ").split(" | ").next());
    let cases: Vec<&str> = first_cells
        .flat_map(|cell| cell.split(", "))
        .filter_map(|case| case.split_once(" (").map(|(id, _)| id))
        .filter(|id| id.starts_with(['S', 'V', 'D']) && id[1..].parse::<u32>().is_ok())
        .collect();
    let mut once = cases.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!((cases.len(), once.len()), (CASES, CASES), "{cases:?}");
}
