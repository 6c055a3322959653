//! `innkeeper rooms evict`: an operator ends a room.

use anyhow::Context;
use innkeeper_node::config::Secret;
use innkeeper_room::RoomId;
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
    /// The router's key; better given as INNKEEPER_ADMIN_KEY, which no process list shows. [default: none]
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    admin_key: Option<Secret>,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let url = format!("{}/innkeeper/v1/rooms/{}/evict", base(&args.router.router), args.room);
    // The router asks its ledger twice.
    let mut request = client(Some(2 * NODE_DEADLINE))?.post(&url);
    if let Some(key) = &args.admin_key {
        request = request.bearer_auth(key.reveal());
    }
    let answer = request.send().await.with_context(|| {
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
