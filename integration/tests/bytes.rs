//! The corpus of the fuzz targets, through the same functions that fuzzing runs. `integration/fuzz/run.sh` looks for more.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

type Seeds = Vec<(String, Vec<u8>)>;

/// A target: its name, its body, and what its corpus begins with.
struct Target {
    name: &'static str,
    run: fn(&[u8]),
    seeds: fn() -> Seeds,
}

const TARGETS: [Target; 4] = [
    Target {
        name: "frame",
        run: innkeeper_transfer::fuzz::frame::run,
        seeds: innkeeper_transfer::fuzz::frame::seeds,
    },
    Target {
        name: "session",
        run: innkeeper_transfer::fuzz::session::run,
        seeds: innkeeper_transfer::fuzz::session::seeds,
    },
    Target {
        name: "control",
        run: innkeeper_node::fuzz::run,
        seeds: innkeeper_node::fuzz::seeds,
    },
    Target {
        name: "http",
        run: innkeeper_router::fuzz::run,
        seeds: innkeeper_router::fuzz::seeds,
    },
];

fn folder(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target)
}

/// What fuzzing begins with, named as the files are.
fn seeds(target: &Target) -> Seeds {
    let mut all: Seeds = (target.seeds)()
        .into_iter()
        .map(|(name, bytes)| (format!("seed-{name}"), bytes))
        .collect();
    all.sort();
    all
}

/// The files of a target's corpus, by name.
fn corpus(target: &str) -> Seeds {
    let folder = folder(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut all: Seeds = files
        .map(|file| {
            let file = file.expect("a file of the corpus");
            let bytes = fs::read(file.path()).expect("a file of the corpus can be read");
            (file.file_name().to_string_lossy().into_owned(), bytes)
        })
        .collect();
    all.sort();
    all
}

#[test]
fn every_file_of_the_corpus_runs_through_its_target() {
    let mut broken = Vec::new();
    for target in &TARGETS {
        for (name, bytes) in corpus(target.name) {
            // What the assertion says is printed by the panic itself.
            if catch_unwind(AssertUnwindSafe(|| (target.run)(&bytes))).is_err() {
                broken.push(format!("{}/{name}", target.name));
            }
        }
    }
    assert!(
        broken.is_empty(),
        "these files of integration/fuzz/corpus break something: {broken:?}"
    );
}

#[test]
fn the_corpus_has_the_seeds_that_are_generated_now() {
    for target in &TARGETS {
        let generated = seeds(target);
        assert!(generated.len() >= 20, "{} has {} seeds", target.name, generated.len());
        let there: Seeds = corpus(target.name)
            .into_iter()
            .filter(|(name, _)| name.starts_with("seed-"))
            .collect();
        assert!(
            there == generated,
            "the seeds of `{}` are not those of its generator; run integration/fuzz/run.sh seeds",
            target.name
        );
    }
}

#[test]
fn the_corpus_stays_small() {
    for target in &TARGETS {
        let bytes: usize = corpus(target.name).iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(bytes < 256 * 1024, "the corpus of {} has {bytes} bytes", target.name);
    }
}

/// What fuzzing has found stays.
#[test]
#[ignore = "writes files: integration/fuzz/run.sh seeds"]
fn the_seeds_are_written_anew() {
    for target in &TARGETS {
        let folder = folder(target.name);
        fs::create_dir_all(&folder).expect("the corpus has a folder for each target");
        for (name, _) in corpus(target.name) {
            if name.starts_with("seed-") {
                fs::remove_file(folder.join(name)).expect("an old seed can be removed");
            }
        }
        for (name, bytes) in seeds(target) {
            fs::write(folder.join(name), bytes).expect("a seed can be written");
        }
    }
}
