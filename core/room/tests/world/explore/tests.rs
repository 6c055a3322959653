//! The searches, each of at most `EXPLORE_LIMIT` states. `EXPLORE_CASE=n` (with `EXPLORE_FAULTS`, `EXPLORE_LAGS`) searches
//! one case.

use std::io::Write;
use std::time::Instant;

use crate::explore::silence::Closures;
use crate::explore::{Budget, Case, Explorer};
use crate::world::World;

/// Says what was explored, also where the test runner keeps to itself what is printed.
fn report(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Explores a case with a budget, says what was seen, and fails with the story of the first run that goes wrong.
fn explore(case: &Case, budget: Budget, limit: usize) -> Closures {
    let began = Instant::now();
    let mut explorer = Explorer::new(case, limit);
    let found = explorer.search(budget);
    let seen = &explorer.seen;
    let whole = if seen.states() >= limit {
        "NOT ALL of them; "
    } else {
        ""
    };
    report(&format!(
        "explored \"{}\", {} faults, {} deviations: {whole}{} states, {} steps, depth {}, {} runs to rest ({} then served \
         again), {} times left in silence, {:.1} s",
        case.name,
        budget.faults,
        budget.lags,
        seen.states(),
        seen.steps,
        seen.deepest,
        seen.ends,
        seen.healed,
        seen.closures.run,
        began.elapsed().as_secs_f64()
    ));
    if let Some(found) = found {
        println!("COUNTEREXAMPLE in \"{}\"", case.name);
        println!("what is done, and before which step: {:?}", found.path);
        let world = World::replay(case, &found.path);
        let what = world.named(&found.what);
        println!("WRONG: {what}");
        panic!("{}: {what}", case.name);
    }
    explorer.seen.closures
}

/// Explores cases one after the other, and says how long silence took at most, by the phase in which it fell.
fn explore_all(cases: impl IntoIterator<Item = Case>, budget: Budget) {
    let mut longest = Closures::default();
    for case in cases {
        longest.merge(&explore(&case, budget, limit()));
    }
    for (phase, (answered, over)) in &longest.longest {
        report(&format!(
            "    longest silence from {phase}: all answered after {answered} ms, nothing lived after {over} ms"
        ));
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

fn small(value: Option<u64>, default: u8) -> u8 {
    value.and_then(|value| u8::try_from(value).ok()).unwrap_or(default)
}

/// How many states a search visits at most: some two minutes of one processor. What is cut off is said.
fn limit() -> usize {
    let asked = number("EXPLORE_LIMIT").and_then(|limit| usize::try_from(limit).ok());
    asked.unwrap_or(5_000_000)
}

#[test]
fn one_case() {
    let Some(case) = number("EXPLORE_CASE") else { return };
    let cases: Vec<Case> = Case::all().into_iter().chain(Case::remote()).collect();
    let case = cases.into_iter().nth(usize::from(small(Some(case), 0)));
    let Some(case) = case else {
        panic!("there is no such case")
    };
    let budget = Budget {
        faults: small(number("EXPLORE_FAULTS"), 1),
        lags: small(number("EXPLORE_LAGS"), 0),
    };
    explore(&case, budget, limit());
}

/// Every fault at every state, in every case; nothing but what is canonical first, so that stories stay short.
#[test]
fn one_fault_at_every_state() {
    for faults in 0..=1 {
        explore_all(Case::all(), Budget { faults, lags: 0 });
    }
}

/// The same where engines are processes of their own.
#[test]
fn one_fault_at_every_state_with_remote_engines() {
    for faults in 0..=1 {
        explore_all(Case::remote(), Budget { faults, lags: 0 });
    }
}

/// Two faults that meet, at every pair of states.
#[test]
fn two_faults_that_meet() {
    explore_all(Case::pairs().into_iter().take(1), Budget { faults: 2, lags: 0 });
}

/// Every fault at every state, and one step out of order.
#[test]
fn one_fault_and_one_deviation() {
    explore_all(Case::all().into_iter().take(2), Budget { faults: 1, lags: 1 });
}

/// The other canonical order: one chain of messages runs to its end before the next one moves.
#[test]
fn one_fault_in_the_other_order() {
    let cases = Case::all().into_iter().take(4).map(|case| case.newest_first());
    explore_all(cases, Budget { faults: 1, lags: 0 });
}

#[test]
#[ignore = "minutes: run by make verify"]
fn deep_one_fault_and_two_deviations() {
    explore_all(Case::all(), Budget { faults: 1, lags: 2 });
}

#[test]
#[ignore = "minutes: run by make verify"]
fn deep_one_fault_in_the_other_order() {
    let cases = Case::all().into_iter().map(|case| case.newest_first());
    explore_all(cases, Budget { faults: 1, lags: 0 });
}

#[test]
#[ignore = "minutes: run by make verify"]
fn deep_two_faults_in_two_orders() {
    let cases = [Case::all().remove(0), Case::pairs().remove(1)];
    let both = cases.into_iter().flat_map(|case| [case.newest_first(), case]);
    explore_all(both, Budget { faults: 2, lags: 0 });
}
