//! `make bench-tracing`: what spans cost. Three clusters (a router, a prefill and a decode worker of their own each, real etcd,
//! a mock engine that takes no time) are asked the same in turn, in rounds: one without spans, one that has a collector and
//! samples nothing, one that traces every request to a real Jaeger. Printed is the CPU time of the three processes, the median
//! of all rounds, and the median of its ratios to that without spans in the same round: a machine that is slower for a while is
//! so for all three. Who is first changes from round to round.
//!
//! `BENCH_ROUNDS` (15 by default) of `BENCH_REQUESTS` each (1,000 by default).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench fails as tests do")]

#[path = "../front_door/cpu.rs"]
mod cpu;
#[allow(dead_code, reason = "latencies are of interest there alone")]
#[path = "../front_door/load.rs"]
mod load;

use innkeeper_integration::{Cluster, Jaeger, Options};

use crate::load::{Kind, Target};

/// Enough that both cores are busy, few enough that nothing waits for long.
const CONNECTIONS: usize = 8;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(bench());
}

fn options() -> Options {
    Options::mock()
        .etcd()
        .flag("mock-prefill-us-per-token", 0)
        .flag("mock-decode-us-per-token", 0)
        // All requests are alike: each is computed.
        .flag("prefix-cache-percent", 0)
        .flag("log", "warn")
}

async fn target(name: &'static str, options: Options) -> (Cluster, Target) {
    let cluster = Cluster::start(options).await;
    let mut pids = vec![];
    for node in ["router", "prefill-0", "decode-0"] {
        pids.push(cluster.pid(node).await);
    }
    let address = cluster.client.base().trim_start_matches("http://").to_owned();
    let target = Target::new(name, &address, &pids);
    (cluster, target)
}

async fn bench() {
    let jaeger = Jaeger::start().await;
    let collector = || options().flag("otlp", jaeger.otlp_grpc());
    let all = [
        target("no collector", options()).await,
        target("nothing sampled", collector().flag("trace-ratio", 0)).await,
        target("every request traced", collector()).await,
    ];
    for kind in [Kind::Unary, Kind::Stream] {
        println!("\n{}\n", kind.says());
        println!("| spans | CPU ms per 1,000, median of rounds | least to most | to none, median of rounds |");
        println!("|---|---|---|---|");
        let mut rounds: Vec<Vec<f64>> = vec![vec![]; all.len()];
        for (_, target) in &all {
            load::run(target, kind, CONNECTIONS, load::requests()).await;
        }
        for round in 0..number_of_rounds() {
            for turn in 0..all.len() {
                let which = (round + turn) % all.len();
                let measured = load::run(&all[which].1, kind, CONNECTIONS, load::requests()).await;
                rounds[which].push(measured.cpu.iter().sum());
            }
        }
        print_rows(&all.each_ref().map(|(_, target)| target.name), &rounds);
    }
}

fn print_rows(names: &[&str], rounds: &[Vec<f64>]) {
    for (name, taken) in names.iter().zip(rounds) {
        let ratios = taken.iter().zip(&rounds[0]).map(|(cpu, none)| cpu / none).collect();
        let sorted = sorted(taken.clone());
        println!(
            "| {name} | {:.0} | {:.0} to {:.0} | {:.3} |",
            median(taken.clone()),
            sorted[0],
            sorted[sorted.len() - 1],
            median(ratios),
        );
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

fn median(values: Vec<f64>) -> f64 {
    let sorted = sorted(values);
    sorted[sorted.len() / 2]
}

fn number_of_rounds() -> usize {
    let asked = std::env::var("BENCH_ROUNDS").ok().and_then(|value| value.parse().ok());
    asked.unwrap_or(15).max(1)
}
