//! HTTP to routers and nodes, always with a deadline.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use innkeeper_node::config::Secret;
use reqwest::{Method, RequestBuilder, Url};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{RouterArgs, remembered};

/// A node that does not answer within this is named, and never waited for longer.
pub(crate) const NODE_DEADLINE: Duration = Duration::from_secs(1);
/// The router's time to explain a room: it asks the workers meanwhile, with deadlines of its own.
pub(crate) const EXPLAIN_DEADLINE: Duration = Duration::from_millis(2500);
/// Between two looks at a cluster that is coming up.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Asks a router and the nodes that it lists. Routers are shown the keys that the command was given; workers never.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    router: RouterArgs,
    deadline: Option<Duration>,
    /// Addresses of the routers that were listed.
    routers: Arc<Mutex<HashSet<String>>>,
}

/// A client with this deadline for each whole request; `None`: the server's own deadlines rule.
pub(crate) fn client(router: &RouterArgs, deadline: Option<Duration>) -> anyhow::Result<Client> {
    Ok(Client {
        http: builder(router, deadline)?.build()?,
        router: router.clone(),
        deadline,
        routers: Arc::new(Mutex::new(HashSet::from([base(&router.router)]))),
    })
}

fn builder(router: &RouterArgs, deadline: Option<Duration>) -> anyhow::Result<reqwest::ClientBuilder> {
    let mut builder = reqwest::Client::builder()
        .connect_timeout(NODE_DEADLINE)
        .tcp_nodelay(true)
        .no_proxy();
    if let Some(deadline) = deadline {
        builder = builder.timeout(deadline);
    }
    if base(&router.router).starts_with("https://") {
        builder = builder.use_preconfigured_tls(router.trust()?);
    }
    Ok(builder)
}

impl Client {
    /// A GET.
    pub(crate) fn get(&self, addr: &str, path: &str) -> anyhow::Result<RequestBuilder> {
        self.request(Method::GET, addr, path)
    }

    /// A request to a router or another node; a router is shown the key that its path asks for.
    pub(crate) fn request(&self, method: Method, addr: &str, path: &str) -> anyhow::Result<RequestBuilder> {
        let base = base(addr);
        let url: Url = format!("{base}{path}")
            .parse()
            .with_context(|| format!("`{addr}` is no address"))?;
        let is_router = self.routers().contains(&base);
        let request = match self.by_name(&url)? {
            Some((client, url)) => client.request(method, url),
            None => self.http.request(method, url),
        };
        Ok(match self.key(path) {
            Some(key) if is_router => request.bearer_auth(key.reveal()),
            Some(_) | None => request,
        })
    }

    /// Operators' paths take the admin key; a router without one takes API keys there too.
    fn key(&self, path: &str) -> Option<Secret> {
        // An empty variable is none.
        let given = |key: &'_ Option<Secret>| key.clone().filter(|key| !key.reveal().is_empty());
        let (admin, own) = (given(&self.router.admin_key), given(&self.router.api_key));
        if path.starts_with("/innkeeper/") {
            admin.or(own)
        } else {
            own
        }
    }

    /// Routers list themselves by address, and their certificate has a name: the one by which the first router was named.
    fn by_name(&self, url: &Url) -> anyhow::Result<Option<(reqwest::Client, Url)>> {
        let named: Url = base(&self.router.router).parse()?;
        let (Some(name), Some(host), Some(port)) = (named.host_str(), url.host_str(), url.port_or_known_default())
        else {
            return Ok(None);
        };
        let ip = |host: &str| host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        let Ok(addr) = ip(host) else { return Ok(None) };
        if url.scheme() != "https" || ip(name).is_ok() {
            return Ok(None);
        }
        let client = builder(&self.router, self.deadline)?
            .resolve(name, SocketAddr::new(addr, port))
            .build()?;
        let mut by_name = url.clone();
        by_name.set_host(Some(name))?;
        Ok(Some((client, by_name)))
    }

    fn routers(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.routers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, nodes: &[Value]) {
        let routers = nodes.iter().filter(|node| node["role"] == "router");
        self.routers()
            .extend(routers.filter_map(|node| node["http"].as_str()).map(base));
    }
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
pub(crate) async fn get<T: DeserializeOwned>(client: &Client, addr: &str, path: &str) -> anyhow::Result<T> {
    let url = format!("{}{path}", base(addr));
    let response = client
        .get(addr, path)?
        .send()
        .await
        .with_context(|| format!("no answer from {url}"))?;
    let status = response.status();
    anyhow::ensure!(
        status.is_success(),
        "{url} answered {status}: {}{}",
        response.text().await.unwrap_or_default(),
        advice(status)
    );
    response
        .json()
        .await
        .with_context(|| format!("{url} answered something else than was expected"))
}

/// What to do about a status that a flag of the command changes.
fn advice(status: reqwest::StatusCode) -> &'static str {
    if status == reqwest::StatusCode::UNAUTHORIZED {
        " (show a key: INNKEEPER_API_KEY, or INNKEEPER_ADMIN_KEY if the router has one)"
    } else {
        ""
    }
}

/// Gets JSON of something that may not be there: `None` if the server says so.
pub(crate) async fn found<T: DeserializeOwned>(client: &Client, addr: &str, path: &str) -> anyhow::Result<Option<T>> {
    let url = format!("{}{path}", base(addr));
    let response = client.get(addr, path)?.send().await;
    let response = response.with_context(|| format!("no answer from {url}"))?;
    let status = response.status();
    if status == reqwest::StatusCode::NOT_FOUND {
        return Ok(None);
    }
    anyhow::ensure!(status.is_success(), "{url} answered {status}{}", advice(status));
    let answer = response.json().await;
    answer
        .map(Some)
        .with_context(|| format!("{url} answered something else than was expected"))
}

/// The nodes of a cluster, as its router lists them.
pub(crate) async fn nodes(client: &Client) -> anyhow::Result<Vec<Value>> {
    let router = &client.router.router;
    let nodes: Vec<Value> = get(client, router, "/innkeeper/v1/nodes").await.with_context(|| {
        format!(
            "is a router running at {}? Name it with --router or INNKEEPER_ROUTER",
            base(router)
        )
    })?;
    remembered::keep(router, &nodes);
    client.learn(&nodes);
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
pub(crate) async fn listed(client: &Client) -> anyhow::Result<Listed> {
    let error = match nodes(client).await {
        Ok(nodes) => return Ok(Listed { nodes, away: None }),
        Err(error) => error,
    };
    let router = &client.router.router;
    let Some((nodes, age)) = remembered::recall(router) else {
        return Err(error);
    };
    client.learn(&nodes);
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
pub(crate) async fn wait_ready(router: &RouterArgs, prefill: u32, decode: u32, within: Duration) -> anyhow::Result<()> {
    let client = client(router, Some(NODE_DEADLINE))?;
    let wait = async {
        loop {
            if let Ok(nodes) = nodes(&client).await
                && serving(&nodes, "prefill") >= prefill as usize
                && serving(&nodes, "decode") >= decode as usize
                // What load balancers ask; it may lag behind by a report period.
                && get::<Value>(&client, &router.router, "/ready").await.is_ok()
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(client: &Client, addr: &str, path: &str) -> Option<String> {
        let request = client.get(addr, path).unwrap().build().unwrap();
        let header = request.headers().get("authorization")?;
        Some(header.to_str().unwrap().to_owned())
    }

    #[test]
    fn routers_are_shown_keys_and_workers_never() {
        let router = RouterArgs {
            router: "router:8080".to_owned(),
            api_key: Some("own".parse().unwrap()),
            admin_key: Some("admin".parse().unwrap()),
            ..RouterArgs::default()
        };
        let client = client(&router, None).unwrap();
        assert_eq!(
            shown(&client, "router:8080", "/v1/models").as_deref(),
            Some("Bearer own")
        );
        let looked = shown(&client, "http://router:8080/", "/innkeeper/v1/rooms");
        assert_eq!(looked.as_deref(), Some("Bearer admin"));
        assert_eq!(shown(&client, "10.0.0.2:80", "/innkeeper/v1/rooms"), None);
        client.learn(&[
            json!({ "role": "router", "http": "10.0.0.2:80" }),
            json!({ "role": "decode", "http": "10.0.0.3:80" }),
        ]);
        assert!(shown(&client, "10.0.0.2:80", "/innkeeper/v1/rooms").is_some());
        assert_eq!(shown(&client, "10.0.0.3:80", "/innkeeper/v1/rooms"), None);
    }
}
