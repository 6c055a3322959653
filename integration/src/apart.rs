//! A cluster whose nodes live in network namespaces of their own, etcd included: for what links do.

use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};

use innkeeper_leases::testing::EtcdServer;

use crate::cluster::Cluster;
use crate::netns::Net;
use crate::options::{Options, Store};
use crate::process::Launch;

/// etcd's own name in the network.
pub const ETCD: &str = "etcd";
const HTTP: u16 = 8000;
const CONTROL: u16 = 9000;
pub(crate) const DATA: u16 = 9100;

impl Cluster {
    /// Starts a cluster with each node in a namespace of its own, at the same ports in each, and waits until it is ready.
    /// Nobody starts a node again that died: see [`Cluster::replace`]. `None`, said loudly, where the kernel gives no
    /// namespaces: the test has to end.
    pub async fn start_apart(options: Options) -> Option<Self> {
        let net = match Net::start(&names(&options)) {
            Ok(net) => net,
            Err(why) => {
                skipped(&why);
                return None;
            }
        };
        let mut etcd = EtcdServer::down_at(net.address(ETCD), net.launcher(ETCD));
        if options.store != Store::EtcdLater {
            etcd.up();
        }
        let launches: Vec<_> = names(&options)
            .iter()
            .filter(|name| *name != ETCD)
            .map(|name| launch(&options, &net, name, &etcd.endpoint()))
            .collect();
        let listen = format!("{}:{HTTP}", net.address("router"));
        let mut cluster = Self::launch(options, &launches, &listen, Some(etcd), Some(net));
        cluster.wait_started().await;
        Some(cluster)
    }
}

fn names(options: &Options) -> Vec<String> {
    let workers = |role: &'static str, count| (0..count).map(move |number| format!("{role}-{number}"));
    workers("decode", options.decode)
        .chain(workers("prefill", options.prefill))
        .chain(["router", ETCD].map(str::to_owned))
        .collect()
}

fn launch(options: &Options, net: &Net, name: &str, etcd: &str) -> Launch {
    let address = net.address(name);
    let role = name.split('-').next().unwrap_or(name);
    let own = [
        "node".to_owned(),
        role.to_owned(),
        "--with-parent".to_owned(),
        format!("--name={name}"),
        format!("--http={address}:{HTTP}"),
        format!("--control={address}:{CONTROL}"),
        format!("--data={address}:{DATA}"),
        format!("--etcd={etcd}"),
        format!("--engine={}", options.engine),
        // Its end is waited for after each test.
        "--drain-timeout-ms=2000".to_owned(),
        format!("--canary-period-ms={}", options.canary_ms),
    ];
    Launch {
        name: name.to_owned(),
        launcher: net.launcher(name),
        args: own.into_iter().chain(options.flags.iter().cloned()).collect(),
        env: options.env.clone(),
    }
}

/// Says that the running test is skipped and why, past the test harness, which would swallow it; and counts.
pub fn skipped(why: &str) {
    static SKIPPED: AtomicU32 = AtomicU32::new(0);
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // A closed stderr is no reason to fail.
    let line = format!("\nSKIPPED: {test}: {why} ({count} skipped so far in this test program)\n");
    drop(std::io::stderr().write_all(line.as_bytes()));
}
