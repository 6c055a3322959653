//! Policies for prefill workers against each other, in simulated time: the production ledger chooses, four workers compute one
//! prompt after the other, 20 µs a token, for twelve clients that ask without a pause. The same numbers on every machine.
//! `cargo run --release -p innkeeper-room --example policies`.
//!
//! Once as if nothing were kept: every prompt is computed from its first token. And once as if each worker kept the pages of its last
//! 1,024 blocks and computed only what it lacks, much as the prefix cache does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use innkeeper_room::ledger::router::{
    Arrival, Config, Effect, Event, Ledger, Load, MemberInfo, OnFailure, Policies, Policy, Side,
};
use innkeeper_room::prefix::Blocks;
use innkeeper_room::{FromWorker, Incarnation, Millis, Moment, RequestKey, Role, RoomId, Settings};

const PREFILL: u64 = 4;
const CLIENTS: u64 = 12;
const PAGE: u32 = 16;
const MICROS_PER_TOKEN: u64 = 20;
/// Blocks that a worker keeps in the second run.
const KEPT: usize = 1024;
const CHATS: u32 = 96;
const TURNS: u32 = 4;
const TURN: u32 = 384;

fn main() {
    let workloads = [
        ("chats that grow by four turns of 384 tokens", chats()),
        (
            "one system prompt of 1,024 tokens in three of four requests",
            one_for_most(),
        ),
        ("prompts that have nothing in common", strangers()),
    ];
    for (name, prompts) in workloads {
        println!("\n{name}, {} requests:\n", prompts.len());
        println!(
            "| policy | sent there before | busiest to mean | p50 ms | p99 ms | if pages were kept: p50 ms | p99 ms |"
        );
        println!("|---|---|---|---|---|---|---|");
        for policy in Policy::ALL {
            let (now, kept) = (Run::of(policy, &prompts, 0), Run::of(policy, &prompts, KEPT));
            println!(
                "| `{policy}` | {:.0} % | {:.2} | {:.0} | {:.0} | {:.0} | {:.0} |",
                now.sent_before(),
                now.busiest(),
                now.took(50),
                now.took(99),
                kept.took(50),
                kept.took(99)
            );
        }
    }
}

/// One policy, from the first request to the last.
struct Run<'a> {
    ledger: Ledger,
    prompts: &'a [Vec<u32>],
    kept: usize,
    next: usize,
    workers: BTreeMap<Incarnation, Worker>,
    /// When prompts are computed, in microseconds: their workers and rooms.
    done: BTreeSet<(u64, Incarnation, RoomId, RequestKey)>,
    now: u64,
    began: BTreeMap<RequestKey, u64>,
    took: Vec<u64>,
    looked_at: u64,
    before: u64,
}

#[derive(Default)]
struct Worker {
    free_at: u64,
    computed: u64,
    pages: VecDeque<u64>,
}

impl<'a> Run<'a> {
    fn of(policy: Policy, prompts: &'a [Vec<u32>], kept: usize) -> Self {
        let mut run = Self {
            ledger: ledger(policy),
            prompts,
            kept,
            next: 0,
            workers: BTreeMap::new(),
            done: BTreeSet::new(),
            now: 1_000_000,
            began: BTreeMap::new(),
            took: vec![],
            looked_at: 0,
            before: 0,
        };
        (0..CLIENTS).for_each(|_| run.ask());
        while let Some((at, _, room, request)) = run.done.pop_first() {
            run.pass_until(at);
            run.step(Event::FromWorker {
                room,
                side: Side::Decode,
                message: FromWorker::Committed,
            });
            run.step(Event::Satisfied { request });
            let began = run.began.remove(&request).unwrap_or(at);
            run.took.push(at - began);
            run.ask();
        }
        assert_eq!(run.took.len(), prompts.len(), "all are answered");
        run.took.sort_unstable();
        run
    }

    /// The next client's request.
    fn ask(&mut self) {
        let Some(prompt) = self.prompts.get(self.next) else {
            return;
        };
        let request = RequestKey(self.next as u64 + 1);
        self.next += 1;
        self.began.insert(request, self.now);
        self.step(Event::Arrive(Arrival {
            request,
            rid: request.0.to_string(),
            client: "client".into(),
            model: None,
            prompt_tokens: u32::try_from(prompt.len()).unwrap_or(u32::MAX),
            blocks: Blocks::of(prompt, PAGE),
            class: innkeeper_room::Class::Normal,
            max_tokens: 1,
            on_failure: OnFailure::Migrate,
            pair: None,
        }));
    }

    fn step(&mut self, event: Event) {
        for effect in self.ledger.step(event, Moment(self.now / 1000)) {
            if let Effect::Begin { spec, chosen, .. } = effect {
                self.looked_at += u64::from(chosen.looked_at);
                self.before += u64::from(chosen.sent_before);
                self.compute(spec.prefill, spec.room, spec.request);
            }
        }
    }

    /// The worker has a prompt more to compute, after those that it has.
    fn compute(&mut self, node: Incarnation, room: RoomId, request: RequestKey) {
        let index = usize::try_from(request.0 - 1).unwrap_or(usize::MAX);
        let prompt = &self.prompts[index];
        let worker = self.workers.entry(node).or_default();
        let blocks = Blocks::of(prompt, PAGE);
        let has = blocks
            .hashes()
            .iter()
            .take_while(|hash| worker.pages.contains(hash))
            .count();
        let tokens = prompt.len() as u64 - has as u64 * u64::from(PAGE);
        worker.pages.retain(|page| !blocks.hashes().contains(page));
        worker.pages.extend(blocks.hashes());
        let most = worker.pages.len().saturating_sub(self.kept);
        worker.pages.drain(..most);
        worker.computed += tokens;
        worker.free_at = worker.free_at.max(self.now) + tokens.max(1) * MICROS_PER_TOKEN;
        self.done.insert((worker.free_at, node, room, request));
    }

    /// Time passes; workers report themselves.
    fn pass_until(&mut self, at: u64) {
        while self.now < at {
            self.now = at.min(self.now + 100_000);
            for incarnation in members().map(|info| info.incarnation) {
                let load = load();
                self.step(Event::Load { incarnation, load });
            }
        }
    }

    fn sent_before(&self) -> f64 {
        100.0 * self.before as f64 / self.looked_at.max(1) as f64
    }

    fn busiest(&self) -> f64 {
        let computed = self.workers.values().map(|worker| worker.computed);
        computed.clone().max().unwrap_or(0) as f64 * PREFILL as f64 / computed.sum::<u64>().max(1) as f64
    }

    fn took(&self, percent: usize) -> f64 {
        self.took[self.took.len() * percent / 100] as f64 / 1000.0
    }
}

fn ledger(policy: Policy) -> Ledger {
    let config = Config {
        settings: Settings {
            canary_period: Millis(0),
            ..Settings::default()
        },
        incarnation: Incarnation::new(9),
        seed: [1, 2],
    };
    let now = Moment(1000);
    let prefill = policy;
    let decode = Policy::LeastLoaded;
    let mut ledger = Ledger::new(config, now).with_policies(Policies { prefill, decode });
    for info in members() {
        let (incarnation, load) = (info.incarnation, load());
        for event in [
            Event::MemberUp(info),
            Event::NodeUp { incarnation },
            Event::Load { incarnation, load },
        ] {
            drop(ledger.step(event, now));
        }
    }
    ledger
}

/// The workers: four for prefill, one for decode.
fn members() -> impl Iterator<Item = MemberInfo> {
    (0..=PREFILL).map(|number| MemberInfo {
        incarnation: Incarnation::new(0x100 + number),
        role: if number < PREFILL { Role::Prefill } else { Role::Decode },
        control: format!("worker-{number}:9000"),
        model: "m".into(),
        class: 1,
        pages: 1 << 20,
        page_tokens: PAGE,
        engine: innkeeper_room::ledger::EngineKind::Own,
        context: 1 << 20,
        permits: 1 << 10,
        serving: true,
    })
}

fn load() -> Load {
    Load {
        free_pages: 1 << 20,
        serving: true,
        ..Load::default()
    }
}

/// Every chat's first turn, then each one's second one, and so on, the chats in another order each time.
fn chats() -> Vec<Vec<u32>> {
    let mut prompts = vec![];
    for turn in 1..=TURNS {
        let mut order: Vec<u32> = (0..CHATS).collect();
        order.sort_by_key(|chat| scattered(chat * TURNS + turn));
        prompts.extend(order.into_iter().map(|chat| text(chat, turn * TURN)));
    }
    prompts
}

fn one_for_most() -> Vec<Vec<u32>> {
    let prompt = |one: u32| match one % 4 {
        0 => text(1000 + one, 1216),
        _ => [text(0, 1024), text(1000 + one, 192)].concat(),
    };
    (0..CHATS * TURNS).map(prompt).collect()
}

fn strangers() -> Vec<Vec<u32>> {
    let prompt = |one: u32| text(one, TURN * (1 + scattered(one) % TURNS));
    (0..CHATS * TURNS).map(prompt).collect()
}

/// Tokens that are like no other one's.
fn text(which: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| which * 10_000 + at).collect()
}

/// A number that looks like chance and is the same in every run.
fn scattered(number: u32) -> u32 {
    let word = number.wrapping_add(1).wrapping_mul(0x9e37_79b9);
    let word = (word ^ (word >> 16)).wrapping_mul(0x85eb_ca6b);
    word ^ (word >> 13)
}
