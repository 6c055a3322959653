//! `make bench-overload`: what becomes of goodput when more comes than fits. Real processes, each node one, and etcd; once with a
//! mock engine whose steps take time, which leaves the processors to everything else, and once with the embedded engine and its
//! model, which takes all there is. First as many clients as fit, again and again: the peak. Then so many requests a second, whatever
//! becomes of them, up to four times the peak. `BENCH_SECONDS` (20 by default) is how long each rate lasts; with the embedded engine
//! three times that. Printed is a table; at four times the peak goodput must be nine tenths of it, and nothing may be left behind.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench fails as tests do")]

use std::time::Duration;

use innkeeper_integration::load::{Load, percentile};
use innkeeper_integration::{Cluster, Options, completion, oracle};

/// Not counted: until everything that waits waits.
const WARM: Duration = Duration::from_secs(5);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(bench());
}

/// What is loaded, and with what.
struct Scene {
    name: &'static str,
    options: Options,
    prompt: String,
    answer: u32,
    /// Rooms that fit at once.
    fit: usize,
    /// How long each rate lasts.
    lasting: Duration,
    /// Rates, as parts of the peak; the last one is judged.
    factors: &'static [f64],
}

async fn bench() {
    let seconds = std::env::var("BENCH_SECONDS").ok().and_then(|text| text.parse().ok());
    let lasting = Duration::from_secs(seconds.unwrap_or(20));
    for scene in [mock(lasting), embedded(3 * lasting)] {
        run(scene).await;
    }
}

/// 64 pages at each of two decode workers, and four for each room.
fn mock(lasting: Duration) -> Scene {
    let options = apart(Options::mock().workers(2, 2))
        .flag("kv-pages", 64)
        .flag("mock-decode-us-per-token", 10_000);
    Scene {
        name: "mock engine, two prefill and two decode workers",
        options,
        // A half second of steps.
        prompt: "p".repeat(16),
        answer: 48,
        fit: 32,
        lasting,
        factors: &[0.5, 0.9, 1.0, 1.5, 2.0, 4.0],
    }
}

/// Prompts of some thirty tokens and answers of as many: four pages for each room, of 32.
fn embedded(lasting: Duration) -> Scene {
    let prompt = "The old lighthouse keeper climbed the stairs every evening and lit the lamp, and every morning he ";
    Scene {
        name: "embedded engine, one prefill and one decode worker",
        options: apart(Options::embedded()).flag("kv-pages", 32),
        prompt: prompt.to_owned(),
        answer: 32,
        fit: 8,
        lasting,
        factors: &[1.0, 4.0],
    }
}

fn apart(options: Options) -> Options {
    options
        .etcd()
        // All requests are alike, and the prefix cache is not what is measured.
        .flag("prefix-cache-percent", 0)
        .flag("queue-timeout-ms", 2000)
        .flag("log", "warn")
}

async fn run(scene: Scene) {
    let cluster = Cluster::start(scene.options).await;
    let body = completion(cluster.model(), scene.prompt, scene.answer);
    let lasting = WARM + scene.lasting;
    let peak = Load::closed(&cluster.client, &body, scene.fit, lasting).await;
    let best = peak.goodput(WARM);
    println!(
        "\n{}: {} clients, one request after the other: {best:.1} a second, p50 {} ms\n",
        scene.name,
        scene.fit,
        ms(percentile(peak.of(200, ""), 50))
    );
    println!(
        "| offered a second | of the peak | goodput a second | of the peak | served p50, p99 ms | refused at once | p50, p99 ms | timed out |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut last = 0.0;
    for factor in scene.factors {
        let load = Load::open(&cluster.client, &body, factor * best, lasting).await;
        last = load.goodput(WARM);
        row(&load, best, *factor, last);
        oracle(&cluster).await;
    }
    assert!(
        last >= 0.9 * best,
        "{}: goodput fell to {last:.1} of {best:.1} a second",
        scene.name
    );
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
