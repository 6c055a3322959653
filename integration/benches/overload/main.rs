//! `make bench-overload`: what becomes of goodput when more comes than fits. Real processes (a router, two prefill and two decode
//! workers, etcd), a mock engine whose steps take time, and pages for 32 rooms at once. First as many clients as fit, again and again:
//! the peak. Then so many requests a second, whatever becomes of them, from half of the peak to four times that, each rate for
//! `BENCH_SECONDS` (20 by default). Printed is a table; at four times the peak goodput must be nine tenths of it, and nothing may be
//! left behind.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench fails as tests do")]

use std::time::Duration;

use innkeeper_integration::load::{Load, percentile};
use innkeeper_integration::{Cluster, Options, completion, oracle};

/// Rooms that fit at once: 64 pages at each decode worker, and four for each room.
const FIT: usize = 32;
/// Not counted: until everything that waits waits.
const WARM: Duration = Duration::from_secs(5);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(bench());
}

async fn bench() {
    let seconds = std::env::var("BENCH_SECONDS").ok().and_then(|text| text.parse().ok());
    let lasting = WARM + Duration::from_secs(seconds.unwrap_or(20));
    let options = Options::mock()
        .workers(2, 2)
        .etcd()
        .flag("kv-pages", 64)
        .flag("mock-decode-us-per-token", 10_000)
        .flag("queue-timeout-ms", 2000)
        .flag("log", "warn");
    let cluster = Cluster::start(options).await;
    // A half second of steps.
    let body = completion("mock", "p".repeat(16), 48);
    let peak = Load::closed(&cluster.client, &body, FIT, lasting).await;
    let best = peak.goodput(WARM);
    println!(
        "\n{FIT} clients, one request after the other: {best:.1} a second, p50 {}\n",
        ms(percentile(peak.of(200, ""), 50))
    );
    println!(
        "| offered a second | of the peak | goodput a second | of the peak | served p50, p99 ms | refused at once | p50, p99 ms | timed out |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut last = 0.0;
    for factor in [0.5, 0.9, 1.0, 1.5, 2.0, 4.0] {
        let load = Load::open(&cluster.client, &body, factor * best, lasting).await;
        last = load.goodput(WARM);
        row(&load, best, factor, last);
        oracle(&cluster).await;
    }
    assert!(last >= 0.9 * best, "goodput fell to {last:.1} of {best:.1} a second");
}

fn row(load: &Load, best: f64, factor: f64, good: f64) {
    let (served, refused) = (|| load.of(200, ""), || load.of(503, "overloaded"));
    let refusals = if refused().next().is_some() {
        format!("{}, {}", ms(percentile(refused(), 50)), ms(percentile(refused(), 99)))
    } else {
        "–".to_owned()
    };
    println!(
        "| {:.1} | {factor} | {good:.1} | {:.0} % | {}, {} | {} | {refusals} | {} |",
        factor * best,
        100.0 * good / best,
        ms(percentile(served(), 50)),
        ms(percentile(served(), 99)),
        refused().count(),
        load.of(503, "queue_timeout").count(),
    );
    let known = load
        .heard
        .iter()
        .filter(|heard| [200, 503].contains(&heard.status))
        .count();
    assert_eq!(known, load.heard.len(), "{:?}", load.tally());
}

fn ms(time: Duration) -> String {
    format!("{}", time.as_millis())
}
