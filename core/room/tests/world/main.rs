//! The world: one router ledger, some prefill and some decode ledgers, the production `step` functions, connected by a
//! simulated network, engines, page pools and a lease store, with a seeded adversary and an oracle.
//!
//! `WORLD_SEED=n cargo test -p innkeeper-room --test world replay -- --nocapture` tells the story of one run;
//! `WORLD_FAULTS` is its number of faults (default 1; of the many-fault test: default 3). `WORLD_RUNS=n` runs more seeds,
//! `WORLD_TABLE=1` shows how rooms ended by kind of fault, `WORLD_SILENCE=n` replays a run that falls silent.

mod breaks;
mod clients;
mod control;
mod data;
mod ends;
mod engines;
mod explore;
mod faults;
mod node;
mod oracle;
mod remote;
mod rng;
mod router;
mod rules;
mod store;
mod story;
mod worker;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use innkeeper_room::ledger::router::Outcome;

use crate::faults::KINDS;
use crate::rng::Rng;
use crate::world::{Shape, World};

/// What a batch of runs has seen.
#[derive(Default)]
struct Tally {
    runs: u64,
    steps: u64,
    done: u64,
    failed: BTreeMap<String, u64>,
    blamed_nobody: u32,
    room_failures: u32,
    /// How rooms ended, by kind of fault, with the first seed that shows it.
    table: BTreeMap<String, (u64, u64)>,
}

fn table_line(world: &World, end: &innkeeper_room::ledger::router::RoomEnd) -> String {
    let fault = format!("{:?}", world.faults.first());
    let kind = fault
        .trim_start_matches("Some(")
        .split(['(', ' ', ')'])
        .next()
        .unwrap_or("")
        .to_owned();
    format!("{kind:<16} {:<20} {}", end.verdict.code(), end.blame.label())
}

fn shape(seed: u64) -> Shape {
    let mut rng = Rng::new(seed ^ 0xabcd);
    let large = rng.one_in(3);
    Shape {
        prefills: if rng.one_in(3) { 1 } else { 2 },
        decodes: if rng.one_in(3) { 1 } else { 2 },
        pages: 24,
        prefill_pages: 24,
        permits: if large { 3 } else { 8 },
        remote: REMOTE.contains(&seed),
        requests: if large {
            12
        } else {
            u32::try_from(rng.between(1, 5)).unwrap_or(1)
        },
    }
}

/// In half of all worlds prefill workers keep what they compute; engines that are processes of their own keep it for themselves.
fn keeps_prefixes(seed: u64) -> bool {
    !REMOTE.contains(&seed) && Rng::new(seed ^ 0xcac4e).one_in(2)
}

/// The requests of a run.
fn arrivals(world: &mut World) {
    for _ in 0..world.shape.requests {
        // Most are short; some outlive a lease that is not renewed, and take nearly all pages.
        let long = world.rng.one_in(5);
        let prompt = u32::try_from(world.rng.between(1, if long { 12 } else { 44 })).unwrap_or(1);
        let tokens = if long {
            world.rng.between(50, 80)
        } else {
            world.rng.between(1, 12)
        };
        let tokens = u32::try_from(tokens).unwrap_or(1);
        let arrives = world.rng.between(300, 1200);
        world.new_client(prompt, tokens, arrives);
    }
}

/// One run: requests, faults, healing, new requests.
fn run(seed: u64, faults: u64, loud: bool) -> (World, (u32, u32)) {
    let mut world = World::new(seed, shape(seed), loud);
    if POLICIES.contains(&seed) {
        world.choose_by(seed);
    }
    world.cached = keeps_prefixes(seed);
    arrivals(&mut world);
    // Each layer must do without the others: in some worlds no ping and no kernel finds a silence.
    world.deaf = Rng::new(seed ^ 0x77).one_in(3);
    for number in 0..faults {
        let kind = if number == 0 { seed } else { world.rng.bits() };
        world.plan_fault(kind % KINDS);
    }
    let ttl = world.settings.progress_ttl.0;
    let off = if faults == 0 { 1500 } else { 1500 + ttl * 5 / 2 };
    world.run_until(off);
    let mut end = off;
    while !world.all_answered() && end < off + 60_000 && world.errors.is_empty() {
        end += 500;
        world.run_until(end);
    }
    // Clean: pages within 2 TTL, keys within the lease's TTL + 1 s.
    let clean = (2 * ttl).max(world.settings.lease_ttl.0 + 1000) + 1000;
    world.run_until(end + clean);
    world.check_clean();
    world.check_heals();
    world.check_answers();
    let blame = world.check_blame();
    (world, blame)
}

fn batch(seeds: impl Iterator<Item = u64>, faults: u64) -> Tally {
    let mut tally = Tally::default();
    let mut wrong = vec![];
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| run(seed, faults, false))) {
            Ok((world, (nobody, failed))) => {
                tally.runs += 1;
                tally.steps += world.steps;
                tally.blamed_nobody += nobody;
                tally.room_failures += failed;
                for client in world.clients.values() {
                    match client.answer {
                        Some((Outcome::Done, _)) => tally.done += 1,
                        Some((Outcome::Failed { reason, .. }, _)) => {
                            *tally.failed.entry(reason.code().to_owned()).or_default() += 1;
                        }
                        None => *tally.failed.entry("router died".to_owned()).or_default() += 1,
                    }
                }
                if std::env::var("WORLD_TABLE").is_ok() {
                    for end in world.ends.values() {
                        let entry = tally.table.entry(table_line(&world, end)).or_insert((0, seed));
                        entry.0 += 1;
                    }
                }
                if !world.errors.is_empty() {
                    wrong.push(format!("seed {seed}, {:?}: {}", world.faults, world.errors.join("; ")));
                }
            }
            Err(_) => wrong.push(format!("seed {seed}: a ledger panicked")),
        }
        if wrong.len() >= 40 {
            break;
        }
    }
    for (line, (rooms, seed)) in &tally.table {
        println!("{line:<46} {rooms:>6} rooms, first in seed {seed}");
    }
    println!(
        "{} runs with {faults} faults: {} steps, {} Done, {:?}; blame names nobody in {} of {} failed rooms",
        tally.runs, tally.steps, tally.done, tally.failed, tally.blamed_nobody, tally.room_failures
    );
    assert!(
        wrong.is_empty(),
        "{} runs went wrong; replay one with WORLD_SEED=n WORLD_FAULTS={faults}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    tally
}

/// Seeds of worlds in which workers are not chosen as by default.
const POLICIES: std::ops::Range<u64> = 20_000..30_000;

/// Seeds of worlds in which engines are processes of their own.
const REMOTE: std::ops::Range<u64> = 40_000..50_000;

fn runs(default: u64) -> u64 {
    std::env::var("WORLD_RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok())
        .unwrap_or(default)
}

#[test]
fn healthy_worlds_answer_everything_and_give_everything_back() {
    let tally = batch(0..runs(40).min(400), 0);
    assert!(tally.failed.is_empty(), "{:?}", tally.failed);
}

#[test]
fn one_fault() {
    batch(0..runs(600), 1);
}

#[test]
fn three_faults() {
    let faults = std::env::var("WORLD_FAULTS")
        .ok()
        .and_then(|faults| faults.parse().ok())
        .unwrap_or(3);
    batch(10_000..10_000 + runs(600) / 3, faults);
}

#[test]
fn healthy_worlds_of_remote_engines_answer_everything_too() {
    let first = REMOTE.start;
    let tally = batch(first..first + runs(40).min(400), 0);
    assert!(tally.failed.is_empty(), "{:?}", tally.failed);
}

#[test]
fn one_fault_with_remote_engines() {
    let first = REMOTE.start;
    batch(first..first + (runs(600) / 2).min(10_000), 1);
}

#[test]
fn three_faults_with_remote_engines() {
    let first = REMOTE.start;
    batch(first..first + (runs(600) / 4).min(10_000), 3);
}

#[test]
fn one_fault_under_every_policy() {
    let first = POLICIES.start;
    batch(first..first + (runs(600) / 4).min(10_000), 1);
}

/// One run in which at some moment nobody hears anything any more.
fn silence(seed: u64, loud: bool) -> World {
    let mut world = World::new(seed, shape(seed), loud);
    world.cached = keeps_prefixes(seed);
    arrivals(&mut world);
    let moment = world.rng.between(300, 2500);
    world.run_until(moment);
    world.fall_silent(seed.is_multiple_of(2));
    world.check_closure();
    world
}

#[test]
fn in_silence_everybodys_own_timers_end_everything() {
    let mut wrong = vec![];
    for seed in 0..runs(600) / 3 {
        match catch_unwind(|| silence(seed, false)) {
            Ok(world) if world.errors.is_empty() => {}
            Ok(world) => wrong.push(format!("seed {seed}: {}", world.errors.join("; "))),
            Err(_) => wrong.push(format!("seed {seed}: a ledger panicked")),
        }
    }
    assert!(
        wrong.is_empty(),
        "replay one with WORLD_SILENCE=n:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn replay() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    if let Some(seed) = number("WORLD_SILENCE") {
        let world = silence(seed, true);
        assert!(world.errors.is_empty(), "{}", world.errors.join("\n"));
    }
    let Some(seed) = number("WORLD_SEED") else { return };
    let (world, _) = run(seed, number("WORLD_FAULTS").unwrap_or(1), true);
    assert!(
        world.errors.is_empty(),
        "{:?}: {}",
        world.faults,
        world.errors.join("\n")
    );
}
