//! `make bench-front`: what the front door costs, beside a bare forwarder in the same run.
//!
//! Three things are asked the same: a mock engine itself, a forwarder of some fifty lines in front of it, and Innkeeper (a
//! router, a prefill and a decode worker of their own, real etcd, leases on) with a mock engine that takes no time. Each is a
//! process of its own. Printed are the CPU time of 1,000 requests and the latency that each adds to the engine's own.
//!
//! `BENCH_REQUESTS` of each kind and number of connections (1,000 by default).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench fails as tests do")]

mod cpu;
mod engine;
mod forwarder;
mod load;

use std::process::{Child, Command, Stdio};

use innkeeper_integration::{Cluster, Options};

use crate::load::{Kind, Measured, Target};

const CONNECTIONS: [usize; 4] = [1, 16, 64, 256];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    match args.get(1).map(String::as_str) {
        Some("engine") => runtime.block_on(engine::serve()),
        Some("forwarder") => runtime.block_on(forwarder::serve(&args[2])),
        _ => runtime.block_on(bench()),
    }
}

/// A role of this program as a process; it says where it listens as its first line, and ends with this one.
struct Role {
    child: Child,
    address: String,
}

impl Role {
    fn start(args: &[&str]) -> Self {
        use std::io::BufRead as _;
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.args(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut address = String::new();
        std::io::BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut address)
            .unwrap();
        Self {
            child,
            address: address.trim().to_owned(),
        }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

async fn bench() {
    let engine = Role::start(&["engine"]);
    let forwarder = Role::start(&["forwarder", &engine.address]);
    let options = Options::mock()
        .etcd()
        .flag("mock-prefill-us-per-token", 0)
        .flag("mock-decode-us-per-token", 0)
        // All requests are alike: each is computed, as the engine alone computes it.
        .flag("prefix-cache-percent", 0)
        .flag("permits", 1024)
        .flag("max-requests", 4096)
        .flag("log", "warn");
    let cluster = Cluster::start(options).await;
    let pids = [
        cluster.pid("router").await,
        cluster.pid("prefill-0").await,
        cluster.pid("decode-0").await,
    ];
    let targets = [
        Target::new("engine alone", &engine.address, &[]),
        Target::new("bare forwarder", &forwarder.address, &[forwarder.child.id()]),
        Target::new("Innkeeper", cluster.client.base().trim_start_matches("http://"), &pids),
    ];
    for kind in [Kind::Unary, Kind::Stream] {
        println!("\n{}\n", kind.says());
        println!(
            "| connections | of | p50 ms | p99 ms | added p50 | added p99 | CPU ms per 1,000 | of it the router | to the forwarder |"
        );
        println!("|---|---|---|---|---|---|---|---|---|");
        for connections in CONNECTIONS {
            // What is loaded, connected or compiled at first use is not what is measured.
            let mut measured = vec![];
            for target in &targets {
                load::run(target, kind, connections, connections * 4).await;
                measured.push(load::run(target, kind, connections, load::requests()).await);
            }
            measured.iter().for_each(|row| print_row(connections, row, &measured));
        }
    }
}

fn print_row(connections: usize, row: &Measured, all: &[Measured]) {
    let (engine, forwarder) = (&all[0], &all[1]);
    let first = row.cpu.first().copied().unwrap_or_default();
    let total: f64 = row.cpu.iter().sum();
    let whole = if row.cpu.is_empty() {
        "–".to_owned()
    } else {
        format!("{total:.0}")
    };
    let (router, ratio) = match row.cpu.len() {
        3 => (format!("{first:.0}"), format!("{:.2}", first / forwarder.cpu[0])),
        _ => ("–".to_owned(), "–".to_owned()),
    };
    println!(
        "| {connections} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {whole} | {router} | {ratio} |",
        row.name,
        row.p50,
        row.p99,
        row.p50 - engine.p50,
        row.p99 - engine.p99,
    );
}
