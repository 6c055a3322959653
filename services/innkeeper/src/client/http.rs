//! HTTP to routers and nodes, always with a deadline.

use std::time::Duration;

use anyhow::Context;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::remembered;

/// A node that does not answer within this is named, and never waited for longer.
pub(crate) const NODE_DEADLINE: Duration = Duration::from_secs(1);
/// The router's time to explain a room: it asks the workers meanwhile, with deadlines of its own.
pub(crate) const EXPLAIN_DEADLINE: Duration = Duration::from_millis(2500);
/// Between two looks at a cluster that is coming up.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A client with this deadline for each whole request; `None`: the server's own deadlines rule.
pub(crate) fn client(deadline: Option<Duration>) -> anyhow::Result<reqwest::Client> {
    let builder = reqwest::Client::builder()
        .connect_timeout(NODE_DEADLINE)
        .tcp_nodelay(true)
        .no_proxy();
    let builder = match deadline {
        Some(deadline) => builder.timeout(deadline),
        None => builder,
    };
    Ok(builder.build()?)
}

/// `http://` is assumed where no scheme is given.
pub(crate) fn base(addr: &str) -> String {
    let addr = addr.trim_end_matches('/');
    if addr.contains("://") {
        addr.to_owned()
    } else {
        format!("http://{addr}")
    }
}

/// Gets JSON.
pub(crate) async fn get<T: DeserializeOwned>(client: &reqwest::Client, addr: &str, path: &str) -> anyhow::Result<T> {
    let url = format!("{}{path}", base(addr));
    let response = client
        .get(&url)
        .send()
        .await
        .with_context(|| format!("no answer from {url}"))?;
    let status = response.status();
    anyhow::ensure!(
        status.is_success(),
        "{url} answered {status}: {}",
        response.text().await.unwrap_or_default()
    );
    response
        .json()
        .await
        .with_context(|| format!("{url} answered something else than was expected"))
}

/// Gets JSON of something that may not be there: `None` if the server says so.
pub(crate) async fn found<T: DeserializeOwned>(
    client: &reqwest::Client,
    addr: &str,
    path: &str,
) -> anyhow::Result<Option<T>> {
    let url = format!("{}{path}", base(addr));
    let response = client.get(&url).send().await;
    let response = response.with_context(|| format!("no answer from {url}"))?;
    if response.status() == reqwest::StatusCode::NOT_FOUND {
        return Ok(None);
    }
    anyhow::ensure!(response.status().is_success(), "{url} answered {}", response.status());
    let answer = response.json().await;
    answer
        .map(Some)
        .with_context(|| format!("{url} answered something else than was expected"))
}

/// The nodes of a cluster, as its router lists them.
pub(crate) async fn nodes(client: &reqwest::Client, router: &str) -> anyhow::Result<Vec<Value>> {
    let nodes: Vec<Value> = get(client, router, "/innkeeper/v1/nodes").await.with_context(|| {
        format!(
            "is a router running at {}? Name it with --router or INNKEEPER_ROUTER",
            base(router)
        )
    })?;
    remembered::keep(router, &nodes);
    Ok(nodes)
}

/// The nodes of a cluster, as well as they are known.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    /// The nodes.
    pub(crate) nodes: Vec<Value>,
    /// The router does not answer, and these are the nodes that it named last; in one sentence.
    pub(crate) away: Option<String>,
}

/// The nodes that the router lists, or those that it named last if it does not answer.
pub(crate) async fn listed(client: &reqwest::Client, router: &str) -> anyhow::Result<Listed> {
    let error = match nodes(client, router).await {
        Ok(nodes) => return Ok(Listed { nodes, away: None }),
        Err(error) => error,
    };
    let Some((nodes, age)) = remembered::recall(router) else {
        return Err(error);
    };
    let away = format!(
        "the router at {} does not answer; asking the nodes that it named {} s ago",
        base(router),
        age.as_secs()
    );
    Ok(Listed {
        nodes,
        away: Some(away),
    })
}

/// Waits until the router can use so many workers of each role.
pub(crate) async fn wait_ready(addr: &str, prefill: u32, decode: u32, within: Duration) -> anyhow::Result<()> {
    let client = client(Some(NODE_DEADLINE))?;
    let wait = async {
        loop {
            if let Ok(nodes) = nodes(&client, addr).await
                && serving(&nodes, "prefill") >= prefill as usize
                && serving(&nodes, "decode") >= decode as usize
                // What load balancers ask; it may lag behind by a report period.
                && get::<Value>(&client, addr, "/ready").await.is_ok()
            {
                return;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::time::timeout(within, wait).await.with_context(|| {
        format!(
            "the cluster was not ready within {} s; see the logs above",
            within.as_secs()
        )
    })
}

fn serving(nodes: &[Value], role: &str) -> usize {
    nodes
        .iter()
        .filter(|node| node["role"] == role && node["state"] == "serving")
        .count()
}
