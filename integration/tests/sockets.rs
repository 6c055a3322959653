//! No socket of Innkeeper waits for acknowledgements before it sends a small message: TCP_NODELAY is set on every one that
//! it makes or accepts.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use innkeeper_integration::rpc::generate_text;
use innkeeper_integration::{Cluster, Options, completion, oracle, skipped, until};
use rustix::fd::OwnedFd;
use rustix::net::sockopt::{socket_acceptconn, socket_type, tcp_nodelay};
use rustix::net::{AddressFamily, SocketType, getpeername, getsockname};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

const SOON: Duration = Duration::from_secs(20);

/// One end of a TCP connection.
#[derive(Debug)]
struct End {
    local: SocketAddr,
    peer: SocketAddr,
    nodelay: bool,
}

/// The ends of connections that a process holds, by looking at copies of its descriptors; an error where the kernel does not
/// give them.
fn ends(pid: u32) -> Result<Vec<End>, String> {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    let process = pidfd_open(process, PidfdFlags::empty()).map_err(|error| format!("pidfd_open: {error}"))?;
    let mut ends = vec![];
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).map_err(|error| error.to_string())?;
    for entry in open.flatten() {
        let link = std::fs::read_link(entry.path()).unwrap_or_default();
        if !link.to_string_lossy().starts_with("socket:") {
            continue;
        }
        let number = entry.file_name().to_string_lossy().parse().unwrap();
        match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) {
            Ok(socket) => ends.extend(end(&socket)),
            // Closed meanwhile.
            Err(rustix::io::Errno::BADF) => {}
            Err(error) => return Err(format!("pidfd_getfd: {error}")),
        }
    }
    Ok(ends)
}

fn end(socket: &OwnedFd) -> Option<End> {
    let local = getsockname(socket).ok()?;
    let is_tcp = matches!(local.address_family(), AddressFamily::INET | AddressFamily::INET6)
        && socket_type(socket).ok()? == SocketType::STREAM
        && !socket_acceptconn(socket).ok()?;
    is_tcp.then_some(())?;
    Some(End {
        local: local.try_into().ok()?,
        peer: getpeername(socket).ok().flatten()?.try_into().ok()?,
        nodelay: tcp_nodelay(socket).ok()?,
    })
}

fn port(value: &serde_json::Value) -> Option<u16> {
    value.as_str()?.rsplit(':').next()?.parse().ok()
}

#[tokio::test]
async fn every_socket_of_a_running_cluster_has_it() {
    let slow = Options::mock()
        .etcd()
        .flag("mock-kv-bytes-per-token", 4_096)
        .flag("transfer-max-bytes-per-second", 100_000);
    let mut cluster = Cluster::start(slow).await;
    let etcd = cluster.etcd().endpoint();
    let etcd: u16 = etcd.rsplit(':').next().unwrap().parse().unwrap();
    let nodes = cluster.ps().await;
    let mut kinds: BTreeMap<u16, &str> = BTreeMap::from([(etcd, "etcd")]);
    for node in &nodes {
        for kind in ["http", "control", "data"] {
            kinds.extend(port(&node[kind]).map(|port| (port, kind)));
        }
    }
    // One of each client, so that there is a connection of each kind.
    let mut call = cluster.inference().await;
    let _stream = call.generate(generate_text("x", 1)).await.unwrap();
    let asked = cluster.submit(&completion("mock", "p".repeat(120), 4));
    cluster.wait_phase("transferring", SOON).await;

    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut slow = vec![];
    for node in &nodes {
        let (name, pid) = (node["name"].as_str().unwrap(), node["pid"].as_u64().unwrap());
        let ends = match ends(u32::try_from(pid).unwrap()) {
            Ok(ends) => ends,
            Err(why) => return skipped(&format!("the kernel shows no sockets of another process: {why}")),
        };
        for end in ends {
            let role = node["role"].as_str().unwrap();
            let kind = match (kinds.get(&end.local.port()), kinds.get(&end.peer.port())) {
                (Some(kind), _) => format!("{role} accepts {kind}"),
                (_, Some(kind)) => format!("{role} calls {kind}"),
                (None, None) => format!("{role} has another"),
            };
            if !end.nodelay {
                slow.push(format!("{name}: {kind}: {end:?}"));
            }
            *seen.entry(kind).or_default() += 1;
        }
    }
    assert!(slow.is_empty(), "sockets without TCP_NODELAY: {slow:#?}");
    for kind in [
        "router accepts http",
        "router calls control",
        "router calls etcd",
        "prefill accepts control",
        "prefill calls data",
        "prefill calls etcd",
        "decode accepts control",
        "decode accepts data",
        "decode calls etcd",
    ] {
        assert!(
            seen.contains_key(kind),
            "no socket of the kind `{kind}` was open: {seen:#?}"
        );
    }
    assert_eq!(asked.await.unwrap().status, 200);
    oracle(&cluster).await;
}

#[tokio::test]
async fn what_a_node_accepts_has_it_too_where_nobody_connects_for_long() {
    let cluster = Cluster::start(Options::mock()).await;
    let http = cluster.client.base().trim_start_matches("http://").to_owned();
    let held = tokio::net::TcpStream::connect(&http).await.unwrap();
    let local = held.local_addr().unwrap();
    let pid = cluster.pid("router").await;
    let found = until(SOON, "the router accepts", || async {
        match ends(pid) {
            Ok(ends) => ends
                .into_iter()
                .find(|end| end.peer == local)
                .map(Some)
                .ok_or("not yet"),
            Err(why) => {
                skipped(&format!("the kernel shows no sockets of another process: {why}"));
                Ok(None)
            }
        }
    })
    .await;
    assert!(found.is_none_or(|end| end.nodelay));
}

#[tokio::test]
async fn the_look_itself_sees_a_socket_without_it() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain = tokio::net::TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let quick = tokio::net::TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    quick.set_nodelay(true).unwrap();
    let ends = match ends(std::process::id()) {
        Ok(ends) => ends,
        Err(why) => return skipped(&format!("the kernel shows no sockets of a process: {why}")),
    };
    for (stream, nodelay) in [(plain, false), (quick, true)] {
        let local = stream.local_addr().unwrap();
        let found = ends
            .iter()
            .find(|end| end.local == local)
            .unwrap_or_else(|| panic!("{local} is not in {ends:#?}"));
        assert_eq!(found.nodelay, nodelay);
    }
}

/// The sources of what is shipped, without tests.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir()
            && !["tests", "fuzz", "target", "benches", "integration", "planted"].contains(&name.as_str())
            && !name.starts_with('.')
        {
            sources(&path, found);
        } else if name.ends_with(".rs")
            && !["tests.rs", "testing.rs", "fault.rs", "bench.rs", "harness.rs"].contains(&name.as_str())
        {
            found.push(path);
        }
    }
}

/// Where a source makes or accepts a connection: the lines that follow, up to where the option must have been set.
fn makes(source: &str) -> Vec<(usize, String)> {
    let product = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines: Vec<&str> = product.lines().collect();
    let made = |line: &str| line.contains("TcpStream::connect(") || line.contains(".accept()");
    let places = lines.iter().enumerate().filter(|(_, line)| made(line));
    places
        .map(|(at, _)| (at + 1, lines[at..(at + 12).min(lines.len())].join("\n")))
        .collect()
}

#[test]
fn every_source_that_makes_a_connection_sets_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = vec![];
    for dir in ["core", "actors", "services"] {
        sources(&root.join(dir), &mut found);
    }
    let mut places = 0;
    for path in found {
        let source = std::fs::read_to_string(&path).unwrap();
        for (line, after) in makes(&source) {
            places += 1;
            // `prepared` is where the data plane sets its options, and what its `accept` begins with; that it does is seen above, on
            // live sockets.
            let sets = ["set_nodelay(true)", "prepared(stream", "open::accept(stream"];
            let set = sets.iter().any(|how| after.contains(how));
            assert!(
                set,
                "{}:{line} makes a connection and does not set TCP_NODELAY:\n{after}",
                path.display()
            );
        }
    }
    assert!(places >= 4, "only {places} places were found");
}
