use std::path::Path;
use std::time::Duration;

use innkeeper_integration::{Cluster, Options, completion, until};
use innkeeper_node::security::{key_line, new_key};

const SOON: Duration = Duration::from_secs(30);
const ADMIN: &str = "admin-2b1f6a7c90d4e83f";
const PASSWORD: &str = "etcd-password-7f3c91ab5d20";

/// All that is below a folder, as text.
fn texts(dir: &Path) -> Vec<(String, String)> {
    let mut all = vec![];
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(texts(&path));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            all.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    all
}

#[tokio::test]
async fn no_secret_is_in_a_log_an_answer_a_record_a_metric_or_a_process_list() {
    let key = new_key().unwrap();
    let wrong = new_key().unwrap();
    let options = Options::mock()
        .etcd_later()
        .key(ADMIN)
        .ttl_ms(2000)
        .flag("etcd-user", "innkeeper")
        .flag("log", "debug,h2=info,hyper=info")
        .env("INNKEEPER_ETCD_PASSWORD", PASSWORD)
        .env("INNKEEPER_ADMIN_KEY", ADMIN)
        .env("INNKEEPER_API_KEYS", &key_line("tenant-a", &key).unwrap());
    let mut cluster = Cluster::start(options).await;
    cluster.etcd().up();
    for command in [
        "user add root --no-password",
        "user grant-role root root",
        "role add innkeeper",
        "role grant-permission innkeeper --prefix=true readwrite /innkeeper",
        &format!("user add innkeeper:{PASSWORD}"),
        "user grant-role innkeeper innkeeper",
        "auth enable",
    ] {
        let arguments: Vec<_> = command.split(' ').collect();
        cluster.etcdctl(&arguments).await.unwrap();
    }
    cluster.wait_whole().await;
    use_it(&cluster, &key, &wrong).await;

    let mut seen = texts(cluster.dir());
    seen.extend(answers(&cluster).await);
    seen.extend(processes(&cluster));
    let bytes: usize = seen.iter().map(|(_, text)| text.len()).sum();
    assert!(
        seen.len() > 15 && bytes > 20_000,
        "{} texts of {bytes} bytes were looked at",
        seen.len()
    );
    let tail = |key: &str| key.trim_start_matches("ik-").to_owned();
    for secret in [tail(&key), tail(&wrong), ADMIN.to_owned(), PASSWORD.to_owned()] {
        for (place, text) in &seen {
            assert!(!text.contains(&secret), "{secret} is in {place}");
        }
    }
    assert!(
        seen.iter()
            .any(|(_, text)| text.contains("kv_corrupt") || text.contains("aborted")),
        "something was recorded"
    );
}

/// Good answers, refused ones, and a room that ends badly and is written to disk.
async fn use_it(cluster: &Cluster, key: &str, wrong: &str) {
    use innkeeper_integration::Client;
    let tenant = Client::of_key(cluster.client.base(), key);
    tenant.complete(&completion("mock", "hello", 4)).await;
    let stranger = Client::of_key(cluster.client.base(), wrong);
    assert_eq!(
        stranger
            .post("/v1/completions", &completion("mock", "hello", 4))
            .await
            .status,
        401
    );
    let leaving = tenant
        .stream("/v1/completions", Some("leaves"), &completion("mock", "hello", 1000))
        .await
        .unwrap();
    drop(leaving);
    let path = "/innkeeper/v1/ended?limit=50";
    until(SOON, "the abort is recorded", || async {
        let ended = cluster.client.get(path).await.unwrap().body.to_string();
        if ended.contains("\"rid\":\"leaves\"") {
            Ok(())
        } else {
            Err(ended)
        }
    })
    .await;
    assert_eq!(stranger.get("/innkeeper/v1/rooms").await.unwrap().status, 401);
    let evict = stranger
        .post("/innkeeper/v1/rooms/0000000000000007/evict", &serde_json::json!({}))
        .await;
    assert_eq!((evict.status, evict.code()), (403, "wrong_admin_key"));
}

async fn answers(cluster: &Cluster) -> Vec<(String, String)> {
    let mut seen = vec![];
    for command in [
        &["ps", "--json"][..],
        &["rooms", "ls", "--json"],
        &["rooms", "ls", "--ended", "--json"],
        &["doctor", "--json"],
    ] {
        let done = cluster.run(command).await;
        let said = [done.stdout, done.stderr].concat();
        seen.push((format!("{command:?}"), String::from_utf8_lossy(&said).into_owned()));
    }
    let nodes = cluster.client.get("/innkeeper/v1/nodes").await.unwrap().body;
    for node in nodes.as_array().unwrap() {
        let http = node["http"].as_str().unwrap();
        for path in ["/metrics", "/health", "/ready", "/innkeeper/v1/ended"] {
            let answer = cluster.ask(http, path).await.unwrap();
            seen.push((format!("{http}{path}"), answer.body.to_string()));
        }
    }
    for path in [
        "/innkeeper/v1/nodes",
        "/innkeeper/v1/node",
        "/innkeeper/v1/rooms",
        "/ui/config.json",
        "/openapi.json",
    ] {
        seen.push((
            path.to_owned(),
            cluster.client.get(path).await.unwrap().body.to_string(),
        ));
    }
    seen
}

/// The arguments of everything that was started.
fn processes(cluster: &Cluster) -> Vec<(String, String)> {
    let pids = cluster.all_pids();
    assert!(pids.len() >= 4, "{pids:?}");
    let line = |pid: u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let lines = pids.into_iter().map(|pid| {
        (
            format!("the arguments of {pid}"),
            String::from_utf8_lossy(&line(pid)).into_owned(),
        )
    });
    lines.collect()
}
