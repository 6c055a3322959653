//! `innkeeper bench`: ratios in one run, so that a slow or busy machine does not lie.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use innkeeper_engine::{Engine, monolithic};
use innkeeper_node::config::{EngineArgs, EngineConfig, EngineKind, SettingsArgs, exit_with};
use innkeeper_node::faults::Faults;
use innkeeper_node::model::Model;
use innkeeper_node::random;
use innkeeper_room::{Settings, Work};
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{RouterArgs, http};
use crate::{loading, up};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Megabytes that the data plane moves.
    #[arg(long, default_value_t = 1024, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    megabytes: u64,
    /// Tokens of the prompt whose time to the first token is compared.
    #[arg(long, default_value_t = 1024, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(16..=8000))]
    prompt_tokens: u32,
    /// Rounds of each measurement; the median counts.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let settings = args.settings.resolve().unwrap_or_else(|error| exit_with(&error));
    let config = args.engine.resolve().unwrap_or_else(|error| exit_with(&error));
    println!(
        "data plane: {}",
        innkeeper_transfer::bench::compare(args.megabytes << 20)?
    );

    let model = loading::load(&config, true)?;
    let engine = model
        .engine(0, &settings, &Faults::none())
        .context("the model was loaded without its weights")?;
    let alone = engine_alone(&*engine, args)?;
    drop(engine);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let through = runtime.block_on(first_tokens(&model, &settings, &config, args))?;
    println!(
        "time to first token, {} tokens: alone {:.1} ms, disaggregated {:.1} ms, ratio {:.2}",
        args.prompt_tokens,
        millis(alone),
        millis(through),
        through.as_secs_f64() / alone.as_secs_f64()
    );
    runtime.block_on(router_overhead(&settings, args))?;
    runtime.shutdown_background();
    Ok(())
}

/// Prefill and decode rates; the time to the first token without any transfer.
fn engine_alone(engine: &dyn Engine, args: &Args) -> anyhow::Result<Duration> {
    const OUTPUT: u32 = 33;
    let (mut first, mut rest) = (vec![], vec![]);
    for round in 0..args.rounds {
        let work = Arc::new(Work {
            prompt: prompt(args.prompt_tokens, round).into(),
            ..Work::default()
        });
        let began = Instant::now();
        let mut at_first = None;
        monolithic::generate(engine, random::room_id()?, &work, OUTPUT, &mut |_, _| {
            at_first.get_or_insert_with(|| began.elapsed());
        })?;
        let at_first = at_first.context("the engine gave no token")?;
        first.push(at_first);
        rest.push(began.elapsed().saturating_sub(at_first));
    }
    let (first, rest) = (median(first), median(rest));
    println!(
        "engine: prefill {:.0} tokens/s at {} tokens, decode {:.1} tokens/s for one room",
        f64::from(args.prompt_tokens) / first.as_secs_f64(),
        args.prompt_tokens,
        f64::from(OUTPUT - 1) / rest.as_secs_f64()
    );
    Ok(first)
}

/// The time to the first token through router, prefill worker, transfer and decode worker.
async fn first_tokens(
    model: &Arc<Model>,
    settings: &Settings,
    config: &EngineConfig,
    args: &Args,
) -> anyhow::Result<Duration> {
    // The engine alone computes every prompt: so does this, however many rounds there are.
    let settings = Settings {
        prefix_cache_percent: 0,
        ..settings.clone()
    };
    let cluster = up::embedded::bench_cluster(model, &settings, config).await?;
    let mut times = vec![];
    for round in 0..args.rounds {
        let body = json!({
            "model": model.name(), "prompt": prompt(args.prompt_tokens, round),
            "max_tokens": 1, "temperature": 0, "ignore_eos": true,
        });
        times.push(ask(&cluster.addr, &body).await?);
    }
    cluster.end().await;
    Ok(median(times))
}

/// What router, rooms, leases and transfer add to an engine that takes no time.
async fn router_overhead(settings: &Settings, args: &Args) -> anyhow::Result<()> {
    const REQUESTS: u32 = 200;
    let mut config = EngineArgs {
        engine: Some(EngineKind::Mock),
        ..EngineArgs::default()
    }
    .resolve()?;
    (config.mock.prefill_us_per_token, config.mock.decode_us_per_token) = (0, 0);
    let model = Model::load(&config, true, &|_| {})?;
    let cluster = up::embedded::bench_cluster(&model, settings, &config).await?;
    let body = json!({ "model": model.name(), "prompt": "hello", "max_tokens": 1, "temperature": 0 });
    let mut times = vec![];
    for _ in 0..REQUESTS * args.rounds {
        times.push(ask(&cluster.addr, &body).await?);
    }
    cluster.end().await;
    times.sort_unstable();
    let p99 = times
        .get((times.len().saturating_sub(1)) * 99 / 100)
        .copied()
        .unwrap_or_default();
    println!(
        "whole path with a mock engine that takes no time: p50 {:.2} ms, p99 {:.2} ms, one request at a time",
        millis(median(times)),
        millis(p99)
    );
    Ok(())
}

async fn ask(addr: &str, body: &Value) -> anyhow::Result<Duration> {
    let client = http::client(&RouterArgs::at(addr), None)?;
    let began = Instant::now();
    let response = client
        .request(Method::POST, addr, "/v1/completions")?
        .json(body)
        .send()
        .await?;
    let status = response.status();
    let text = response.text().await?;
    anyhow::ensure!(status.is_success(), "the cluster answered {status}: {text}");
    Ok(began.elapsed())
}

/// Ids that every vocabulary has, another prompt for each round.
fn prompt(tokens: u32, round: u32) -> Vec<u32> {
    (0..tokens).map(|at| 32 + (at * 7 + round * 13) % 200).collect()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
