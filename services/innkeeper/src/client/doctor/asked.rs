//! What was asked and answered. Everybody is asked at once, and nobody is waited for longer than a second.

use std::time::{Duration, Instant};

use innkeeper_node::recorder::unix_ms;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::super::RouterArgs;
use super::super::explain::ended;
use super::super::http::{Client, NODE_DEADLINE, base, client, get, listed};
use super::super::remembered;
use super::super::rooms::cell;

/// Ended rooms that are looked through for what passed a pair last.
const ENDED_ROWS: u32 = 1000;
/// What may be there for a moment is looked at again after this long.
const AGAIN: Duration = Duration::from_secs(1);

/// A cluster, as it answered.
#[derive(Clone, Debug, Default)]
pub(super) struct Cluster {
    /// The router's address.
    pub(super) router: String,
    /// Why the router does not list its nodes.
    pub(super) away: Option<String>,
    /// The nodes: as the router lists them, or as it did last.
    pub(super) nodes: Vec<Node>,
    /// Nodes that the router named and does not name any more.
    pub(super) gone: Vec<Gone>,
    /// Rooms that are over, as `rooms ls --ended --json` has them; as far as the router answers.
    pub(super) ended: Vec<Value>,
    /// Our time, unix milliseconds.
    pub(super) now_ms: u64,
}

/// One node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Its row in the router's list.
    pub(super) row: Value,
    /// What it says of itself, or why it does not.
    pub(super) said: Result<Said, Silent>,
    /// Its metrics, or why there are none.
    pub(super) metrics: Result<Metrics, String>,
    /// Whether its data port takes a connection from here; `None` if it has none.
    pub(super) data: Option<Result<(), Refused>>,
}

impl Node {
    pub(super) fn name(&self) -> String {
        cell(&self.row["name"])
    }

    pub(super) fn is(&self, role: &str) -> bool {
        self.row["role"] == role
    }
}

/// A node that the router has given up, or that left.
#[derive(Clone, Debug)]
pub(super) struct Gone {
    /// Its last row.
    pub(super) row: Value,
    /// Since when it is missed, unix milliseconds.
    pub(super) since_ms: u64,
    pub(super) now: Pulse,
}

/// What is at the address of a node that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pulse {
    /// The node itself, and it answers.
    Answers,
    /// Connections are taken, and nothing is answered: it is stopped, or hangs.
    Mute,
    /// Nothing, or another node.
    Nothing,
}

/// A node's answer about itself.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) body: Value,
    /// Between asking and its answer, by our clock: unix milliseconds.
    pub(super) asked_ms: u64,
    pub(super) answered_ms: u64,
}

/// Why a node says nothing of itself.
#[derive(Clone, Debug)]
pub(super) struct Silent {
    pub(super) why: String,
    /// Nothing listens there: the process is gone.
    pub(super) gone: bool,
}

impl Silent {
    fn of(error: &anyhow::Error) -> Self {
        let kinds = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
        Self {
            // What the layers above it say is in the finding.
            why: error.root_cause().to_string(),
            gone: kinds
                .map(std::io::Error::kind)
                .any(|kind| kind == std::io::ErrorKind::ConnectionRefused),
        }
    }
}

/// Why a data port was not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Somebody answers there, and it is not listening.
    Closed(String),
    /// Nobody answers: this machine may not be on that network at all.
    Unreached(String),
}

/// A scrape. Sums over labels are all that is needed here.
#[derive(Clone, Debug, Default)]
pub(super) struct Metrics(Vec<(String, f64)>);

impl Metrics {
    /// Reads Prometheus's text format: `name{labels} value`.
    pub(super) fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let samples = lines.filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        });
        Self(samples.collect())
    }

    /// The sum of a metric's samples that have `label`, as `kind="x"`; `None` if it has no sample at all.
    pub(super) fn sum(&self, name: &str, label: &str) -> Option<f64> {
        let of = self.0.iter().filter(|(series, _)| {
            let rest = series.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
        });
        let mut of = of.peekable();
        of.peek()?;
        Some(
            of.filter(|(series, _)| series.contains(label))
                .map(|(_, value)| value)
                .sum(),
        )
    }
}

/// Asks them all.
pub(super) async fn ask(router: &RouterArgs) -> anyhow::Result<Cluster> {
    let client = client(router, Some(NODE_DEADLINE))?;
    let (rows, away) = match listed(&client).await {
        Ok(listed) => (listed.nodes, listed.away),
        Err(error) => (vec![], Some(format!("{error:#}"))),
    };
    let over = async {
        match &away {
            None => ended(router, ENDED_ROWS).await.unwrap_or_default(),
            Some(_) => vec![],
        }
    };
    let nodes = futures::future::join_all(rows.into_iter().map(|row| node(&client, row)));
    let missed = remembered::gone(&router.router).into_iter();
    let gone = futures::future::join_all(missed.map(|(row, since_ms)| gone(&client, row, since_ms)));
    let (nodes, gone, ended) = tokio::join!(nodes, gone, over);
    Ok(Cluster {
        router: base(&router.router),
        away,
        nodes,
        gone,
        ended,
        now_ms: unix_ms(),
    })
}

async fn node(client: &Client, row: Value) -> Node {
    let http = cell(&row["http"]);
    let data = row["data"].as_str().filter(|addr| !addr.is_empty());
    let port = async {
        match data {
            // Only a decode worker listens there for others.
            Some(addr) if row["role"] == "decode" => Some(connect(addr).await),
            Some(_) | None => None,
        }
    };
    let (said, metrics, data) = tokio::join!(said(client, &http), metrics(client, &http), port);
    Node {
        said,
        metrics,
        data,
        row,
    }
}

async fn gone(client: &Client, row: Value, since_ms: u64) -> Gone {
    let http = cell(&row["http"]);
    let now = match said(client, &http).await {
        Ok(said) if said.body["incarnation"] == row["incarnation"] => Pulse::Answers,
        Ok(_) => Pulse::Nothing,
        Err(_) if connect(&http).await.is_ok() => Pulse::Mute,
        Err(_) => Pulse::Nothing,
    };
    Gone { row, since_ms, now }
}

async fn said(client: &Client, http: &str) -> Result<Said, Silent> {
    let asked_ms = unix_ms();
    let began = Instant::now();
    let body: Value = get(client, http, "/innkeeper/v1/node")
        .await
        .map_err(|error| Silent::of(&error))?;
    let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Said {
        body,
        asked_ms,
        answered_ms: asked_ms.saturating_add(took),
    })
}

async fn metrics(client: &Client, http: &str) -> Result<Metrics, String> {
    let first = scrape(client, http).await?;
    if !super::checks::PASSING
        .iter()
        .any(|name| first.sum(name, "").is_some_and(|value| value > 0.0))
    {
        return Ok(first);
    }
    tokio::time::sleep(AGAIN).await;
    scrape(client, http).await
}

async fn scrape(client: &Client, http: &str) -> Result<Metrics, String> {
    let asked = async {
        let answer = client.get(http, "/metrics")?.send().await?.error_for_status()?;
        anyhow::Ok(answer.text().await?)
    };
    asked
        .await
        .map(|text| Metrics::parse(&text))
        .map_err(|error| error.to_string())
}

async fn connect(addr: &str) -> Result<(), Refused> {
    match timeout(NODE_DEADLINE, TcpStream::connect(addr)).await {
        Ok(Ok(stream)) => {
            // As every connection here; nothing is sent on this one, so a refusal is no finding.
            let _ = stream.set_nodelay(true);
            Ok(())
        }
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            Err(Refused::Closed(error.to_string()))
        }
        Ok(Err(error)) => Err(Refused::Unreached(error.to_string())),
        Err(_) => Err(Refused::Unreached(format!(
            "no answer within {} ms",
            NODE_DEADLINE.as_millis()
        ))),
    }
}
