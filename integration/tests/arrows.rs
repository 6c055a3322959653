//! The dependency arrows between the crates of this workspace. Each folder may use only those before it in the reading
//! order of `ARCHITECTURE.md`; what a crate needs for its tests or its build script alone does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cargo_metadata::{DependencyKind, MetadataCommand};

/// What the three services wire.
const WIRED: &[&str] = &["proto", "room", "leases", "transfer", "engine", "actors", "node"];
/// What the program for people wires: the services too.
const SERVICES: &[&str] = &[
    "proto",
    "room",
    "leases",
    "transfer",
    "engine",
    "actors",
    "node",
    "router",
    "prefill-worker",
    "decode-worker",
];
/// What the tests of the whole may use. Nobody may use them.
const EVERYTHING: &[&str] = &[
    "proto",
    "room",
    "leases",
    "transfer",
    "engine",
    "actors",
    "node",
    "router",
    "prefill-worker",
    "decode-worker",
    "innkeeper",
];

/// Each crate (without `innkeeper-`), and the crates of this workspace that it may use.
const ARROWS: &[(&str, &[&str])] = &[
    ("proto", &[]),
    ("room", &[]),
    ("leases", &["room", "proto"]),
    ("transfer", &["room", "proto"]),
    ("engine", &["room"]),
    ("remote", &["room", "engine"]),
    ("actors", &["room", "leases", "transfer", "engine"]),
    (
        "node",
        &["proto", "room", "leases", "transfer", "engine", "remote", "actors"],
    ),
    ("router", WIRED),
    ("prefill-worker", WIRED),
    ("decode-worker", WIRED),
    ("innkeeper", SERVICES),
    ("integration", EVERYTHING),
];

/// Crates from outside that would take away what a crate is for: the protocol is pure (no runtime, no wire, no I/O), and
/// the supervision tree knows neither the wire nor the store behind its traits. A name also stands for `name-…`.
const FORBIDDEN: &[(&str, &[&str])] = &[
    (
        "room",
        &[
            "tokio",
            "futures",
            "async-trait",
            "ractor",
            "tonic",
            "prost",
            "hyper",
            "axum",
            "reqwest",
            "etcd-client",
        ],
    ),
    ("actors", &["tonic", "prost", "etcd-client", "axum", "hyper"]),
    ("engine", &["tokio", "ractor", "tonic", "prost", "etcd-client", "axum"]),
    ("transfer", &["ractor", "tonic", "etcd-client", "axum"]),
    ("remote", &["ractor", "tonic", "prost", "etcd-client", "axum"]),
    ("leases", &["ractor", "axum"]),
    ("proto", &["ractor", "etcd-client", "axum"]),
];

/// A crate's name without `innkeeper-`, to the crates that it uses (those of this workspace without `innkeeper-` too).
type Uses = BTreeMap<String, BTreeSet<String>>;

const PREFIX: &str = "innkeeper-";

/// Everything that is wrong with `uses`, as sentences.
fn wrong(uses: &Uses) -> Vec<String> {
    let mut wrong = vec![];
    for (name, used) in uses {
        let Some((_, allowed)) = ARROWS.iter().find(|(crate_name, _)| crate_name == name) else {
            wrong.push(format!(
                "{name} has no row in ARROWS: say there what it may use, and show it in ARCHITECTURE.md"
            ));
            continue;
        };
        let inside = used.iter().filter(|used| uses.contains_key(*used));
        for other in inside.filter(|other| !allowed.contains(&other.as_str())) {
            wrong.push(format!("{name} uses {other}, but may use only {allowed:?}"));
        }
        let forbidden = FORBIDDEN.iter().filter(|(crate_name, _)| crate_name == name);
        for banned in forbidden.flat_map(|(_, banned)| *banned) {
            let family = format!("{banned}-");
            for other in used
                .iter()
                .filter(|other| other == banned || other.starts_with(&family))
            {
                wrong.push(format!("{name} uses {other}, which must stay out of it"));
            }
        }
    }
    let gone = ARROWS.iter().filter(|(name, _)| !uses.contains_key(*name));
    wrong.extend(gone.map(|(name, _)| format!("{name} has a row in ARROWS, but the workspace has no such crate")));
    wrong
}

/// What the workspace's crates use, as their manifests say. Needs neither the network nor a build.
fn declared() -> Uses {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let metadata = MetadataCommand::new()
        .manifest_path(manifest)
        .no_deps()
        .exec()
        .expect("cargo metadata reads the workspace's manifests");
    let short = |name: &str| name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
    let crates = metadata.workspace_packages().into_iter().map(|package| {
        let normal = package
            .dependencies
            .iter()
            .filter(|used| used.kind == DependencyKind::Normal);
        (short(&package.name), normal.map(|used| short(&used.name)).collect())
    });
    crates.collect()
}

/// A workspace in which every crate uses all that it may.
fn allowed() -> Uses {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    ARROWS
        .iter()
        .map(|(name, allowed)| ((*name).to_owned(), set(allowed)))
        .collect()
}

fn with(name: &str, used: &str) -> Uses {
    let mut uses = allowed();
    uses.entry(name.to_owned()).or_default().insert(used.to_owned());
    uses
}

#[test]
fn the_workspace_keeps_its_arrows() {
    let wrong = wrong(&declared());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_manifests_are_really_read() {
    let uses = declared();
    assert!(
        uses["node"].contains("actors") && uses["node"].contains("tonic"),
        "{:?}",
        uses["node"]
    );
    assert!(uses["leases"].contains("etcd-client"), "{:?}", uses["leases"]);
    assert!(
        !uses["room"].contains("proptest"),
        "a test's dependency counts: {:?}",
        uses["room"]
    );
}

#[test]
fn an_arrow_that_points_back_is_seen() {
    assert_eq!(wrong(&allowed()), Vec::<String>::new());
    for (name, used) in [
        ("room", "proto"),
        ("proto", "room"),
        ("leases", "transfer"),
        ("engine", "actors"),
        ("actors", "proto"),
        ("node", "router"),
        ("router", "prefill-worker"),
        ("innkeeper", "integration"),
    ] {
        assert_eq!(wrong(&with(name, used)).len(), 1, "{name} → {used}");
    }
}

#[test]
fn the_reading_order_has_no_way_back() {
    for (at, (name, allowed)) in ARROWS.iter().enumerate() {
        for other in *allowed {
            assert!(
                ARROWS[..at].iter().any(|(earlier, _)| earlier == other),
                "{name} may use {other}, which comes after it"
            );
        }
    }
}

#[test]
fn what_must_stay_out_is_seen() {
    for (name, used) in [
        ("room", "tokio"),
        ("room", "tokio-util"),
        ("room", "prost"),
        ("actors", "tonic"),
        ("actors", "tonic-health"),
        ("actors", "etcd-client"),
    ] {
        assert_eq!(wrong(&with(name, used)).len(), 1, "{name} → {used}");
    }
    assert!(wrong(&with("actors", "tokio-util")).is_empty());
}

#[test]
fn a_crate_without_a_row_and_a_row_without_a_crate_are_seen() {
    assert_eq!(wrong(&with("cellar", "serde")).len(), 1);
    let mut uses = allowed();
    uses.remove("decode-worker");
    assert_eq!(wrong(&uses).len(), 1);
}
