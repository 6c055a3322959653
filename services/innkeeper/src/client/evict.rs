//! `innkeeper rooms evict`: an operator ends a room.

use anyhow::Context;
use innkeeper_room::RoomId;
use reqwest::Method;
use serde_json::Value;

use super::RouterArgs;
use super::http::{NODE_DEADLINE, base, client};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The room's id, as `rooms ls` prints it.
    #[arg(value_name = "ID")]
    room: RoomId,
    #[command(flatten)]
    router: RouterArgs,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let path = format!("/innkeeper/v1/rooms/{}/evict", args.room);
    // The router asks its ledger twice.
    let client = client(&args.router, Some(2 * NODE_DEADLINE))?;
    let answer = client
        .request(Method::POST, &args.router.router, &path)?
        .send()
        .await
        .with_context(|| {
            format!(
                "is a router running at {}? Name it with --router or INNKEEPER_ROUTER",
                base(&args.router.router)
            )
        })?;
    let status = answer.status();
    let said: Value = answer.json().await.unwrap_or_default();
    if !status.is_success() {
        let why = said["error"]["message"]
            .as_str()
            .unwrap_or("the router does not say why");
        anyhow::bail!("room {} is not evicted: {why} ({status})", args.room);
    }
    println!("evicted: {}", args.room);
    Ok(())
}
