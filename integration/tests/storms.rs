//! Many things at once: aborts, clients that leave, a full worker that stops or dies, a role that is gone, a router that
//! stands still with a hundred rooms. Every request has its one answer, the others keep their pace, and goodput is back
//! within one request's time.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use innkeeper_integration::{Answer, Client, Cluster, Options, Room, completion, oracle, signal, until};
use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet};

const PATH: &str = "/v1/completions";
/// One storm at a time: each takes the whole machine.
static ALONE: Mutex<()> = Mutex::const_new(());
const SOON: Duration = Duration::from_secs(40);
/// What a machine whose processors a storm keeps busy may add to a request of a few milliseconds. (Ratios are measured by
/// benches.)
const STARVED: Duration = Duration::from_secs(4);

fn options() -> Options {
    Options::mock()
        .workers(2, 2)
        .etcd()
        .flag("permits", 1200)
        .flag("max-requests", 4000)
        .flag("kv-pages", 65_536)
        .flag("queue-timeout-ms", 60_000)
}

fn short() -> Value {
    completion("mock", "short", 4)
}

/// Requests that arrive all at once under ids of their own.
fn submit(cluster: &Cluster, kind: &str, number: usize, body: &Value) -> JoinSet<Answer> {
    let mut asked = JoinSet::new();
    for index in 0..number {
        let (client, body, rid) = (cluster.client.clone(), body.clone(), format!("{kind}-{index}"));
        asked.spawn(async move { client.post_as(&rid, PATH, &body).await });
    }
    asked
}

/// How many answers there were by status and code.
async fn tally(mut asked: JoinSet<Answer>) -> BTreeMap<(u16, String), usize> {
    let mut tally = BTreeMap::new();
    while let Some(answer) = asked.join_next().await {
        let answer = answer.unwrap();
        *tally.entry((answer.status, answer.code().to_owned())).or_default() += 1;
    }
    tally
}

/// A client that asks for little, again and again; what it was answered, and how long each answer took.
struct Steady {
    stop: tokio::sync::watch::Sender<bool>,
    task: JoinHandle<Vec<(u16, Duration)>>,
}

impl Steady {
    fn start(client: Client) -> Self {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let task = tokio::spawn(async move {
            let mut seen = vec![];
            while !*stopped.borrow() {
                let began = Instant::now();
                let answer = client.post(PATH, &short()).await;
                seen.push((answer.status, began.elapsed()));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            seen
        });
        Self { stop, task }
    }

    /// The median of its latencies; all answers must be whole.
    async fn end(self) -> Duration {
        let _ = self.stop.send(true);
        let seen = self.task.await.unwrap();
        assert!(seen.iter().all(|(status, _)| *status == 200), "{seen:?}");
        let mut took: Vec<Duration> = seen.into_iter().map(|(_, took)| took).collect();
        took.sort_unstable();
        took[took.len() / 2]
    }
}

/// The latency of a request while nothing else happens.
async fn calm(cluster: &Cluster) -> Duration {
    let steady = Steady::start(cluster.client.clone());
    tokio::time::sleep(Duration::from_secs(1)).await;
    steady.end().await
}

/// Goodput is back within one request's time.
async fn serves_again(cluster: &Cluster) {
    let began = Instant::now();
    let tally = tally(submit(cluster, "again", 16, &short())).await;
    assert_eq!(tally, BTreeMap::from([((200, String::new()), 16)]));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

async fn wait_rooms(cluster: &Cluster, at_least: usize) -> Vec<Room> {
    until(SOON, &format!("{at_least} rooms live"), || async {
        let rooms = cluster.router_rooms().await?;
        if rooms.len() >= at_least {
            Ok(rooms)
        } else {
            Err(format!("{} do", rooms.len()))
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_aborts_in_a_second() {
    let _alone = ALONE.lock().await;
    let cluster = Cluster::start(options().flag("mock-decode-us-per-token", 1_000_000)).await;
    let calm = calm(&cluster).await;
    let asked = submit(&cluster, "storm", 500, &completion("mock", "long", 2000));
    wait_rooms(&cluster, 400).await;
    let steady = Steady::start(cluster.client.clone());
    let began = Instant::now();
    let mut aborts = JoinSet::new();
    for index in 0..500 {
        let client = cluster.client.clone();
        aborts.spawn(async move { client.abort(&format!("storm-{index}")).await });
    }
    let said = aborts.join_all().await;
    let (took, pace) = (began.elapsed(), steady.end().await);
    // Some may come before their requests, and then wait for them.
    let heard = |said: &String| said == "aborted" || said == "accepted";
    assert!(said.iter().all(heard), "{said:?}");
    assert_eq!(
        tally(asked).await,
        BTreeMap::from([((499, "aborted".to_owned()), 500)]),
        "each has its one answer"
    );
    eprintln!(
        "500 aborts in {} ms; another client's median: {calm:?} before, {pace:?} meanwhile",
        took.as_millis()
    );
    assert!(pace < 2 * calm + STARVED, "{calm:?} before, {pace:?} meanwhile");
    oracle(&cluster).await;
    serves_again(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_clients_leave_before_the_first_token() {
    let _alone = ALONE.lock().await;
    let cluster = Cluster::start(
        options()
            .flag("mock-prefill-us-per-token", 20_000)
            .flag("prefix-cache-percent", 0),
    )
    .await;
    let slow = completion("mock", "p".repeat(200), 50);
    let mut asked = submit(&cluster, "leaver", 200, &slow);
    wait_rooms(&cluster, 150).await;
    asked.abort_all();
    while asked.join_next().await.is_some() {}
    let began = Instant::now();
    oracle(&cluster).await;
    eprintln!(
        "200 clients left: nothing of them was there {} ms later",
        began.elapsed().as_millis()
    );
    serves_again(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_with_a_thousand_rooms_stops() {
    let _alone = ALONE.lock().await;
    let flags = options()
        .flag("mock-decode-us-per-token", 2_000_000)
        .flag("peer-share-percent", 100);
    let cluster = Cluster::start(flags).await;
    let (victim, node) = (cluster.pid("decode-0").await, cluster.node("decode-0").await);
    let incarnation = node["incarnation"].as_str().unwrap();
    // There are pages for 1,800 of them; the rest waits at the router.
    let mut asked = submit(&cluster, "many", 2000, &completion("mock", "m", 300));
    let rooms = wait_rooms(&cluster, 1400).await;
    let there = rooms.iter().filter(|room| room.decode == incarnation).count();
    assert!(there >= 500, "only {there} rooms are at it");
    signal(victim, Signal::STOP);
    let began = Instant::now();
    until(Duration::from_secs(30), "no room is left at it", || async {
        let rooms = cluster.router_rooms().await?;
        let left = rooms.iter().filter(|room| room.decode == incarnation).count();
        if left == 0 {
            Ok(())
        } else {
            Err(format!("{left} of {}", rooms.len()))
        }
    })
    .await;
    eprintln!(
        "{there} rooms of a stopped worker were over after {} ms",
        began.elapsed().as_millis()
    );
    // Those that have their answer by now have a typed one; the others leave, all at once.
    let mut answers: BTreeMap<(u16, String), usize> = BTreeMap::new();
    while let Some(answer) = asked.try_join_next() {
        let answer = answer.unwrap();
        *answers.entry((answer.status, answer.code().to_owned())).or_default() += 1;
    }
    let typed = |(status, code): &(u16, String)| matches!(status, 502..=504) && !code.is_empty();
    assert!(answers.keys().all(typed), "{answers:?}");
    eprintln!("answers: {answers:?}");
    asked.abort_all();
    while asked.join_next().await.is_some() {}
    signal(victim, Signal::CONT);
    cluster.wait_whole().await;
    oracle(&cluster).await;
    serves_again(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_dies_with_a_full_queue() {
    let _alone = ALONE.lock().await;
    let cluster = Cluster::start(
        options()
            .flag("mock-prefill-us-per-token", 2_000)
            .flag("prefix-cache-percent", 0),
    )
    .await;
    let asked = submit(&cluster, "queued", 100, &completion("mock", "q".repeat(50), 3));
    wait_rooms(&cluster, 80).await;
    cluster.kill("prefill-0").await;
    let tally = tally(asked).await;
    // The bucket of extra attempts holds twenty, and each admission gives a tenth.
    let done = tally.get(&(200, String::new())).copied().unwrap_or_default();
    let typed = tally
        .keys()
        .all(|(status, code)| *status == 200 || code == "prefill_lost");
    assert!(typed && done >= 50, "{tally:?}");
    assert_eq!(tally.values().sum::<usize>(), 100);
    cluster.wait_whole().await;
    oracle(&cluster).await;
    serves_again(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_decode_workers_are_gone_for_ten_seconds() {
    let _alone = ALONE.lock().await;
    let cluster = Cluster::start(options()).await;
    let stopped = [cluster.stop("decode-0").await, cluster.stop("decode-1").await];
    let gone = Instant::now();
    let mut answers = vec![];
    while gone.elapsed() < Duration::from_secs(10) {
        let began = Instant::now();
        let answer = cluster.client.post(PATH, &short()).await;
        answers.push((answer.status, answer.code().to_owned()));
        assert!(began.elapsed() < Duration::from_secs(8), "{answers:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let typed = answers
        .iter()
        .all(|(status, code)| matches!(status, 502..=504) && !code.is_empty());
    assert!(typed, "{answers:?}");
    assert_eq!(answers.last().map(|(_, code)| code.as_str()), Some("no_decode_worker"));
    stopped.into_iter().for_each(innkeeper_integration::Stopped::cont);
    let back = Instant::now();
    until(SOON, "it is served again", || async {
        let answer = cluster.client.post(PATH, &short()).await;
        if answer.status == 200 { Ok(()) } else { Err(answer) }
    })
    .await;
    eprintln!(
        "served again {} ms after the workers went on",
        back.elapsed().as_millis()
    );
    cluster.wait_whole().await;
    oracle(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_stands_still_for_ten_seconds_with_a_hundred_rooms() {
    let _alone = ALONE.lock().await;
    let cluster = Cluster::start(options().flag("mock-decode-us-per-token", 50_000)).await;
    let asked = submit(&cluster, "still", 100, &completion("mock", "s", 200));
    wait_rooms(&cluster, 100).await;
    let stopped = cluster.stop("router").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    stopped.cont();
    // A stop of the router costs no attempt and blames nobody; where its workers are not back when its grace is over, it
    // says so.
    let answers = tally(asked).await;
    let honest = |(status, code): &(u16, String)| *status == 200 || (*status, code.as_str()) == (503, "self_paused");
    assert!(answers.keys().all(honest), "{answers:?}");
    assert_eq!(answers.values().sum::<usize>(), 100);
    eprintln!("answers: {answers:?}");
    oracle(&cluster).await;
    serves_again(&cluster).await;
}
