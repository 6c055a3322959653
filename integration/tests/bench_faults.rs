//! `make bench-faults`: for each fault what the client saw, how long it took until the room was over on the router and on
//! both workers, and whether anything was left. `BENCH_RUNS` runs of each (20 by default).

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use innkeeper_integration::{Cluster, Options, Room, Stopped, completion, oracle};
use serde_json::Value;

const TTL_MS: u64 = 2000;
const SOON: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(15);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What is done.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Abort,
    Leave,
    Revoke,
    Kill(Who),
    Stop(Who),
    Stall(Who),
    StopEtcd,
    CutData,
    HoleData,
    CutControl(Who),
    HoleControl(Who),
}

#[derive(Clone, Copy, Debug)]
enum Who {
    Prefill,
    Decode,
}

const TRANSFER: &str = "transferring";
const DECODE: &str = "decoding";

/// Name, phase, fault, and what the protocol promises for the end on all nodes, in seconds.
const FAULTS: [(&str, &str, Fault, f64); 17] = [
    ("abort", TRANSFER, Fault::Abort, 0.25),
    ("abort", DECODE, Fault::Abort, 0.25),
    ("the client leaves", DECODE, Fault::Leave, 0.25),
    ("lease revoked by hand", DECODE, Fault::Revoke, 0.25),
    ("prefill killed", TRANSFER, Fault::Kill(Who::Prefill), 0.5),
    ("decode killed", TRANSFER, Fault::Kill(Who::Decode), 0.5),
    ("decode killed", DECODE, Fault::Kill(Who::Decode), 0.5),
    ("prefill stopped", TRANSFER, Fault::Stop(Who::Prefill), 3.0),
    ("decode stopped", TRANSFER, Fault::Stop(Who::Decode), 3.0),
    ("decode stopped", DECODE, Fault::Stop(Who::Decode), 3.0),
    ("decode's engine hangs", DECODE, Fault::Stall(Who::Decode), 3.0),
    ("etcd stopped", DECODE, Fault::StopEtcd, 0.0),
    ("data link cut", TRANSFER, Fault::CutData, 3.0),
    ("data link swallows", TRANSFER, Fault::HoleData, 3.0),
    (
        "control link to decode cut",
        DECODE,
        Fault::CutControl(Who::Decode),
        0.5,
    ),
    (
        "control link to decode swallows",
        DECODE,
        Fault::HoleControl(Who::Decode),
        3.0,
    ),
    (
        "control link to prefill swallows",
        TRANSFER,
        Fault::HoleControl(Who::Prefill),
        3.0,
    ),
];

impl Fault {
    /// Whether it is one of links, for which each node lives in a network of its own.
    const fn of_link(self) -> bool {
        matches!(
            self,
            Self::CutData | Self::HoleData | Self::CutControl(_) | Self::HoleControl(_)
        )
    }
}

fn options() -> Options {
    Options::mock()
        .workers(2, 2)
        .etcd()
        .ttl_ms(TTL_MS)
        .flag("mock-decode-us-per-token", 20_000)
        .flag("mock-kv-bytes-per-token", 4_096)
        .flag("transfer-max-bytes-per-second", 400_000)
        .flag("retry-bucket", 1000)
        .fault("on")
}

fn body(phase: &str) -> Value {
    if phase == DECODE {
        completion("mock", "decode", 150)
    } else {
        completion("mock", "p".repeat(200), 5)
    }
}

/// The room's nodes: `(name, http)` of router, prefill and decode.
async fn nodes(cluster: &Cluster, room: &Room) -> [(String, String); 3] {
    let all = cluster.ps().await;
    let of = |incarnation: &str| {
        let node = all.iter().find(|node| node["incarnation"] == incarnation).unwrap();
        let text = |key: &str| node[key].as_str().unwrap().to_owned();
        (text("name"), text("http"))
    };
    [of(&room.owner), of(&room.prefill), of(&room.decode)]
}

/// Until a node does not have the room any more; `None`: it is dead or stopped, or has it still after the limit.
async fn over(cluster: &Cluster, http: &str, room: &str, since: Instant) -> Option<Duration> {
    while since.elapsed() < LIMIT {
        match cluster.ask(http, "/innkeeper/v1/rooms").await {
            Ok(answer) => {
                let rows = answer.body.as_array().cloned().unwrap_or_default();
                if !rows.iter().any(|row| row["room"] == room) {
                    return Some(since.elapsed());
                }
            }
            Err(_) => return None,
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    None
}

/// What takes a fault back.
#[derive(Default)]
struct Heal {
    stopped: Option<Stopped>,
    resume: Option<String>,
    etcd: bool,
    link: Option<(String, String)>,
    replace: Option<String>,
}

async fn strike(cluster: &mut Cluster, fault: Fault, room: &Room, names: &[(String, String); 3]) -> Heal {
    let name = |who| match who {
        Who::Prefill => names[1].0.clone(),
        Who::Decode => names[2].0.clone(),
    };
    let mut heal = Heal::default();
    match fault {
        Fault::Abort => drop(cluster.client.abort("bench").await),
        Fault::Leave => {}
        Fault::Revoke => cluster.revoke(room).await,
        Fault::Kill(who) => cluster.kill(&name(who)).await,
        Fault::Stop(who) => heal.stopped = Some(cluster.stop(&name(who)).await),
        Fault::Stall(who) => {
            cluster.order(&name(who), "stall-engine").await;
            heal.resume = Some(name(who));
        }
        Fault::StopEtcd => {
            cluster.etcd().stop();
            heal.etcd = true;
        }
        Fault::CutData | Fault::HoleData => {
            let link = (name(Who::Prefill), name(Who::Decode));
            break_link(cluster, &link, matches!(fault, Fault::CutData));
            heal.link = Some(link);
        }
        Fault::CutControl(who) | Fault::HoleControl(who) => {
            let link = ("router".to_owned(), name(who));
            break_link(cluster, &link, matches!(fault, Fault::CutControl(_)));
            heal.link = Some(link);
        }
    }
    heal
}

fn break_link(cluster: &Cluster, (one, other): &(String, String), cut: bool) {
    let link = cluster.link(one, other);
    if cut { link.cut() } else { link.black_hole() }
}

async fn heal(cluster: &mut Cluster, heal: Heal) {
    drop(heal.stopped);
    if let Some(name) = heal.resume {
        cluster.order(&name, "resume-engine").await;
    }
    if heal.etcd {
        cluster.etcd().cont();
    }
    if let Some((one, other)) = heal.link {
        cluster.link(&one, &other).heal();
    }
    if let Some(name) = heal.replace {
        cluster.replace(&name);
    }
    cluster.wait_whole().await;
}

/// What one run saw.
struct Run {
    client: String,
    times: [Option<Duration>; 3],
}

async fn run(cluster: &mut Cluster, phase: &str, fault: Fault) -> Run {
    let (client, body) = (cluster.client.clone(), body(phase));
    let asked = tokio::spawn(async move { client.try_post("/v1/completions", Some("bench"), &body).await });
    let room = cluster.wait_phase(phase, SOON).await;
    let names = nodes(cluster, &room).await;
    // The moment counts from before the fault: what the order itself takes is in it.
    let since = Instant::now();
    if matches!(fault, Fault::Leave) {
        asked.abort();
    }
    let back = strike(cluster, fault, &room, &names).await;
    let times = if matches!(fault, Fault::StopEtcd) {
        [None; 3]
    } else {
        let [router, prefill, decode] = &names;
        let (one, two, three) = tokio::join!(
            over(cluster, &router.1, &room.room, since),
            over(cluster, &prefill.1, &room.room, since),
            over(cluster, &decode.1, &room.room, since)
        );
        [one, two, three]
    };
    let client = match asked.await {
        Ok(Ok(answer)) if answer.status == 200 => "200".to_owned(),
        Ok(Ok(answer)) => format!("{} {}", answer.status, answer.code()),
        Ok(Err(error)) => format!("cut off: {error}"),
        Err(_) => "it left".to_owned(),
    };
    heal(cluster, back).await;
    oracle(cluster).await;
    Run { client, times }
}

fn column(runs: &[Run], node: usize) -> String {
    let mut times: Vec<Duration> = runs.iter().filter_map(|run| run.times[node]).collect();
    times.sort_unstable();
    match (times.get(times.len() / 2), times.last()) {
        (Some(median), Some(most)) => format!("{:.2} / {:.2}", median.as_secs_f64(), most.as_secs_f64()),
        _ => "–".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a bench: make bench-faults"]
async fn how_long_faults_take() {
    let number = std::env::var("BENCH_RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok())
        .unwrap_or(20);
    let mut lines = vec![];
    for of_link in [false, true] {
        let started = if of_link {
            Cluster::start_apart(options()).await
        } else {
            Some(Cluster::start(options()).await)
        };
        let Some(mut cluster) = started else { continue };
        for (name, phase, fault, bound) in FAULTS.into_iter().filter(|(_, _, fault, _)| fault.of_link() == of_link) {
            let mut runs = vec![];
            for _ in 0..number {
                runs.push(run(&mut cluster, phase, fault).await);
            }
            let mut client: BTreeMap<&str, usize> = BTreeMap::new();
            for run in &runs {
                *client.entry(&run.client).or_default() += 1;
            }
            let client: Vec<String> = client.iter().map(|(said, count)| format!("{said} ×{count}")).collect();
            let promised = if bound > 0.0 {
                format!("{bound:.2}")
            } else {
                "goes on".to_owned()
            };
            let line = format!(
                "| {name}, {phase} | {} | {} | {} | {} | {promised} | nothing |",
                client.join(", "),
                column(&runs, 0),
                column(&runs, 1),
                column(&runs, 2)
            );
            eprintln!("{line}");
            lines.push(line);
        }
    }
    println!("progress TTL {TTL_MS} ms, {number} runs each; seconds until the room is over, p50 / max");
    println!("| fault, phase | the client saw | router | prefill | decode | promised | left behind |");
    println!("|---|---|---|---|---|---|---|");
    lines.iter().for_each(|line| println!("{line}"));
}
