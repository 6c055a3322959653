//! The README's tables of error codes say what the code says.

use std::collections::BTreeSet;
use std::path::Path;

use innkeeper_room::Reason;
use innkeeper_router::front::ApiError;

fn readme() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    std::fs::read_to_string(path).expect("there is a README")
}

#[test]
fn every_reason_is_in_the_readme_with_its_status() {
    let readme = readme();
    let missing: Vec<_> = Reason::ALL
        .iter()
        .map(|reason| format!("| `{}` | {} |", reason.code(), reason.http_status()))
        .filter(|row| !readme.contains(row.as_str()))
        .collect();
    assert!(missing.is_empty(), "the README lacks the rows {missing:#?}");
}

#[test]
fn the_readme_lists_no_reason_that_is_gone() {
    let readme = readme();
    let table = readme
        .split("A request that failed in its rooms:")
        .nth(1)
        .and_then(|rest| rest.split("A request that never got as far").next())
        .expect("the table of reasons is where it was");
    let codes: Vec<_> = table
        .lines()
        .filter_map(|row| row.strip_prefix("| `")?.split_once('`'))
        .map(|(code, _)| code)
        .collect();
    assert_eq!(codes.len(), Reason::ALL.len(), "{codes:?}");
    let unknown: Vec<_> = codes.iter().filter(|code| Reason::from_code(code).is_none()).collect();
    assert!(
        unknown.is_empty(),
        "the README explains {unknown:?}, which no answer carries"
    );
}

#[test]
fn the_other_table_of_codes_is_exactly_what_the_front_door_can_say() {
    let readme = readme();
    let table = readme
        .split("A request that never got as far as a room:")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .expect("the table is where it was");
    let rows: BTreeSet<(String, u16)> = table
        .lines()
        .filter_map(|row| row.strip_prefix("| `")?.split_once("` | "))
        .map(|(code, rest)| (code.to_owned(), rest[..3].parse().expect("a status")))
        .collect();
    let codes = ApiError::CODES
        .iter()
        .map(|(code, status)| ((*code).to_owned(), *status));
    assert_eq!(rows, codes.collect());
}
