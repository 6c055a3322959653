//! `innkeeper check`: whether a cluster answers, and whether nothing in it is stuck. For `helm test` and for whoever wants
//! an exit status.

use std::time::Duration;

use anyhow::Context;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::RouterArgs;
use super::http::{Client, NODE_DEADLINE, base, client, get, nodes};
use super::rooms::cell;

/// Between two looks at what is not yet as it should be.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// The gauge that must be 0: live parts of rooms that are older than their absolute deadline + 1 s.
const STUCK: &str = "innkeeper_stuck_rooms";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    router: RouterArgs,
    /// How long the whole check may take, in milliseconds: a cluster that is coming up is waited for.
    #[arg(long, default_value_t = 60_000, value_name = "MS")]
    within_ms: u64,
    /// The prompt of the completion.
    #[arg(long, default_value = "An innkeeper is", value_name = "TEXT")]
    prompt: String,
    /// Tokens of the completion.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_tokens: u32,
}

/// Sends one completion, from its prompt through prefill and decode to the answer, and then asks every node for stuck
/// rooms.
pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let limit = Duration::from_millis(args.within_ms);
    let until = Instant::now() + limit;
    let router = &args.router.router;
    let quick = client(&args.router, Some(NODE_DEADLINE))?;
    retried(until, || async {
        get::<Value>(&quick, router, "/ready")
            .await
            .context("the router is not ready")
    })
    .await?;

    let tokens = timeout(limit, complete(args))
        .await
        .with_context(|| format!("the completion was not there within {} ms", args.within_ms))??;
    println!("completion: {tokens} tokens, through prefill and decode");

    // A node that has just gone is still listed for a moment.
    let count = retried(until, || async { nothing_is_stuck(&quick).await }).await?;
    println!("stuck rooms: none, at {count} nodes");
    Ok(())
}

/// The tokens of one answer.
async fn complete(args: &Args) -> anyhow::Result<u64> {
    let router = &args.router.router;
    let models: Value = get(&client(&args.router, Some(NODE_DEADLINE))?, router, "/v1/models").await?;
    let body = json!({
        "model": models["data"][0]["id"],
        "prompt": args.prompt,
        "max_tokens": args.max_tokens,
        "temperature": 0,
    });
    let asked = client(&args.router, None)?.request(Method::POST, router, "/v1/completions")?;
    let response = asked.json(&body).send().await;
    let response = response.with_context(|| format!("no answer from {}/v1/completions", base(router)))?;
    let status = response.status();
    let answer: Value = response.json().await.context("the answer is not JSON")?;
    anyhow::ensure!(
        status.is_success(),
        "the completion failed ({status}): {}",
        cell(&answer["error"]["message"])
    );
    let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap_or_default();
    anyhow::ensure!(tokens > 0, "the completion has no token: {answer}");
    Ok(tokens)
}

/// How many nodes were asked. One that does not answer may hold anything, so it counts as a failure.
async fn nothing_is_stuck(client: &Client) -> anyhow::Result<usize> {
    let nodes = nodes(client).await?;
    for node in &nodes {
        let who = format!("{} {}", cell(&node["role"]), cell(&node["name"]));
        let addr = cell(&node["http"]);
        let page = client.get(&addr, "/metrics")?.send().await;
        let page = page
            .with_context(|| format!("{who} does not answer at {addr}"))?
            .text()
            .await?;
        let stuck = gauge(&page, STUCK).with_context(|| format!("the ledger of {who} does not answer"))?;
        anyhow::ensure!(
            stuck == 0.0,
            "{who} has {stuck} rooms that are older than their deadline; `innkeeper rooms ls` names them"
        );
    }
    for role in ["router", "prefill", "decode"] {
        anyhow::ensure!(
            nodes.iter().any(|node| node["role"] == role),
            "the router knows no {role} node"
        );
    }
    Ok(nodes.len())
}

/// The value of a gauge without labels.
fn gauge(page: &str, name: &str) -> Option<f64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    page.lines().find_map(value)
}

/// Tries again until it works or the time is over; then the last error.
async fn retried<T, F, Fut>(until: Instant, mut attempt: F) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<T>>,
{
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() + LOOK_AGAIN > until => return Err(error),
            Err(_) => sleep(LOOK_AGAIN).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_is_found_by_its_whole_name() {
        let page = "# TYPE innkeeper_stuck_rooms gauge\ninnkeeper_stuck_rooms_of_another 3\ninnkeeper_stuck_rooms 2\n";
        assert_eq!(gauge(page, STUCK), Some(2.0));
        assert_eq!(
            gauge("innkeeper_zombies 0\n", STUCK),
            None,
            "left out: the ledger did not answer"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_tried_again_until_the_time_is_over() {
        let until = Instant::now() + Duration::from_secs(2);
        let mut tries = 0;
        let third = retried(until, || {
            tries += 1;
            std::future::ready(if tries == 3 {
                Ok(tries)
            } else {
                Err(anyhow::anyhow!("not yet"))
            })
        });
        assert_eq!(third.await.unwrap(), 3);
        let never = retried(until, || std::future::ready(Err::<(), _>(anyhow::anyhow!("never"))));
        assert_eq!(never.await.unwrap_err().to_string(), "never");
        assert!(Instant::now() <= until);
    }
}
