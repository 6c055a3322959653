//! `innkeeper generate`: one answer, through a running cluster or in this process without any transfer, for comparison.

use std::io::Write;
use std::sync::Arc;

use anyhow::Context;
use innkeeper_engine::monolithic;
use innkeeper_engine::text::{Detokenizer, Message};
use innkeeper_node::config::{EngineArgs, exit_with};
use innkeeper_node::faults::Faults;
use innkeeper_node::random;
use innkeeper_room::{Sampling, Settings, Work};
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{self, RouterArgs, http};
use crate::loading;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to ask.
    #[arg(value_name = "PROMPT")]
    prompt: String,
    /// Compute in this process alone, without a cluster and without any transfer.
    #[arg(long)]
    monolithic: bool,
    /// A plain completion without chat template; prints the text alone.
    #[arg(long)]
    raw: bool,
    /// Most tokens to produce.
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_tokens: u32,
    /// 0 always takes the most likely token; up to 2.
    #[arg(long, default_value_t = 0.0, value_name = "T")]
    temperature: f32,
    /// The seed of the choice, where the temperature is not 0.
    #[arg(long, default_value_t = 0, value_name = "S", value_parser = clap::value_parser!(u64).range(0..=i64::MAX as u64))]
    seed: u64,
    #[command(flatten)]
    router: RouterArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!(
        (0.0..=2.0).contains(&args.temperature),
        "--temperature = {} is wrong: it must be between 0 and 2",
        args.temperature
    );
    if args.monolithic {
        alone(args)
    } else {
        client::run(through_cluster(args))
    }
}

fn alone(args: &Args) -> anyhow::Result<()> {
    let config = args.engine.resolve().unwrap_or_else(|error| exit_with(&error));
    let model = loading::load(&config, true)?;
    let engine = model
        .engine(0, &Settings::default(), &Faults::none())
        .context("the model was loaded without its weights")?;
    let tokenizer = model.tokenizer();
    let prompt = if args.raw {
        tokenizer.encode(&args.prompt, false)?
    } else {
        tokenizer.chat(&[Message::new("user", args.prompt.as_str())])?
    };
    let work = Arc::new(Work {
        prompt: prompt.into(),
        sampling: Sampling {
            temperature: args.temperature,
            seed: args.seed,
            ..Sampling::default()
        },
        stop_ids: tokenizer.eos_ids().into(),
        ..Work::default()
    });
    let mut text = Detokenizer::new(Arc::clone(&tokenizer));
    let mut out = std::io::stdout().lock();
    let mut failed = None;
    monolithic::generate(&*engine, random::room_id()?, &work, args.max_tokens, &mut |_, token| {
        if !tokenizer.eos_ids().contains(&token.id) {
            failed = failed.take().or(print(&mut out, &text.push(token.id)).err());
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    print(&mut out, &text.finish())?;
    print(&mut out, "\n")
}

async fn through_cluster(args: &Args) -> anyhow::Result<()> {
    let mut body = json!({
        "model": model(args).await?,
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "seed": args.seed,
        "stream": true,
    });
    let path = if args.raw {
        body["prompt"] = json!(args.prompt);
        "/v1/completions"
    } else {
        body["messages"] = json!([{ "role": "user", "content": args.prompt }]);
        "/v1/chat/completions"
    };
    // The router has a deadline for the whole request and answers within it.
    let asked = http::client(&args.router, None)?.request(Method::POST, &args.router.router, path)?;
    let mut response = asked.json(&body).send().await?;
    if !response.status().is_success() {
        let answer: Value = response.json().await?;
        anyhow::bail!("{}", client::rooms::cell(&answer["error"]["message"]));
    }
    let mut out = std::io::stdout().lock();
    let mut events = Events::default();
    while let Some(bytes) = response.chunk().await.context("the answer broke off")? {
        for event in events.push(&bytes) {
            if event == "[DONE]" {
                return print(&mut out, "\n");
            }
            let event: Value = serde_json::from_str(&event)?;
            if !event["error"].is_null() {
                anyhow::bail!(
                    "the answer broke off: {}",
                    client::rooms::cell(&event["error"]["message"])
                );
            }
            let choice = &event["choices"][0];
            let piece = choice["text"].as_str().or(choice["delta"]["content"].as_str());
            print(&mut out, piece.unwrap_or_default())?;
        }
    }
    anyhow::bail!("the answer broke off without its end")
}

/// The model that the router serves.
async fn model(args: &Args) -> anyhow::Result<Value> {
    let client = http::client(&args.router, Some(http::NODE_DEADLINE))?;
    let models: Value = http::get(&client, &args.router.router, "/v1/models")
        .await
        .context("is a cluster running? Start one with `innkeeper up`, or use --monolithic")?;
    Ok(models["data"][0]["id"].clone())
}

fn print(out: &mut impl Write, text: &str) -> anyhow::Result<()> {
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Server-sent events out of bytes as they come.
#[derive(Default)]
struct Events {
    buffer: Vec<u8>,
}

impl Events {
    /// The data of the events that are whole now; comments are left out.
    fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.buffer.extend_from_slice(bytes);
        let mut events = vec![];
        while let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
            let event = String::from_utf8_lossy(&event).into_owned();
            events.extend(
                event
                    .lines()
                    .filter_map(|line| line.strip_prefix("data: "))
                    .map(str::to_owned),
            );
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_out_whole_however_they_were_cut() {
        let text = ": keep-alive\n\ndata: {\"a\":1}\n\ndata: [DONE]\n\n".as_bytes();
        for cut in 0..text.len() {
            let mut events = Events::default();
            let got = [events.push(&text[..cut]), events.push(&text[cut..])].concat();
            assert_eq!(got, ["{\"a\":1}", "[DONE]"]);
        }
    }
}
