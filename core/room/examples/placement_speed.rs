//! What a placement costs the router's ledger, by policy, number of workers and length of the prompt: from a request's arrival
//! to its room's end, less what the same costs with one pair and no prompt to look at. `cargo run --release -p innkeeper-room
//! --example placement_speed`.

use std::time::{Duration, Instant};

use innkeeper_room::ledger::router::{Arrival, Config, Event, Ledger, Load, MemberInfo, OnFailure, Policies, Policy};
use innkeeper_room::prefix::Blocks;
use innkeeper_room::{Incarnation, Moment, RequestKey, Role, Settings};

const NOW: Moment = Moment(1000);
const REQUESTS: u64 = 20_000;
const PAGE: u32 = 16;

fn main() {
    let base = measure(Policy::LeastLoaded, 1, 0);
    println!(
        "one pair, no prompt: {:.1} µs a request; the rest is more than that, in µs",
        micros(base)
    );
    println!("| policy | 4 × 4 workers | 64 × 64 | 4 × 4, 512 tokens | 4 × 4, 4,096 tokens |");
    println!("|---|---|---|---|---|");
    for policy in Policy::ALL {
        let cells = [(4, 0), (64, 0), (4, 512), (4, 4096)].map(|(workers, tokens)| {
            let more = measure(policy, workers, tokens).saturating_sub(base);
            format!("{:.1}", micros(more))
        });
        println!("| `{policy}` | {} |", cells.join(" | "));
    }
}

/// The time of one request in the middle of a full memory of prompts: half of each is one of 64 beginnings, the rest is its own.
fn measure(policy: Policy, workers: u64, tokens: u32) -> Duration {
    let mut ledger = ledger(policy, workers);
    let arrivals: Vec<Arrival> = (0..REQUESTS * 3 / 2).map(|key| arrival(key, tokens)).collect();
    let mut began = Instant::now();
    for (number, arrival) in (0..).zip(arrivals) {
        if number == REQUESTS / 2 {
            began = Instant::now();
        }
        let request = arrival.request;
        let effects = ledger.step(Event::Arrive(arrival), NOW);
        assert!(!effects.is_empty(), "it begins");
        drop(ledger.step(Event::Satisfied { request }, NOW));
    }
    began.elapsed() / u32::try_from(REQUESTS).unwrap_or(u32::MAX)
}

fn ledger(policy: Policy, workers: u64) -> Ledger {
    let config = Config {
        settings: Settings::default(),
        incarnation: Incarnation::new(9),
        seed: [1, 2],
    };
    let mut ledger = Ledger::new(config, NOW).with_policies(Policies {
        prefill: policy,
        decode: policy,
    });
    for (first, role) in [(0x100, Role::Prefill), (0x200, Role::Decode)] {
        for incarnation in (first..first + workers).map(Incarnation::new) {
            let info = MemberInfo {
                incarnation,
                role,
                control: format!("{incarnation}:9000"),
                model: "m".into(),
                class: 1,
                pages: 1 << 20,
                page_tokens: PAGE,
                engine: innkeeper_room::ledger::EngineKind::Own,
                context: 1 << 20,
                permits: 1 << 10,
                serving: true,
            };
            let load = Load {
                free_pages: 1 << 20,
                serving: true,
                ..Load::default()
            };
            for event in [
                Event::MemberUp(info),
                Event::NodeUp { incarnation },
                Event::Load { incarnation, load },
            ] {
                drop(ledger.step(event, NOW));
            }
        }
    }
    ledger
}

fn arrival(key: u64, tokens: u32) -> Arrival {
    let seed = u32::try_from(key).unwrap_or(u32::MAX);
    let own = |at: u32| seed.wrapping_mul(0x9e37_79b9).wrapping_add(at);
    let ids: Vec<u32> = (0..tokens)
        .map(|at| {
            if at < tokens / 2 {
                seed % 64 * 100_000 + at
            } else {
                own(at)
            }
        })
        .collect();
    Arrival {
        request: RequestKey(key),
        rid: format!("rid-{key}"),
        client: "client".into(),
        model: None,
        prompt_tokens: tokens.max(1),
        blocks: Blocks::of(&ids, PAGE),
        class: innkeeper_room::Class::Normal,
        max_tokens: 1,
        on_failure: OnFailure::Migrate,
        pair: None,
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
