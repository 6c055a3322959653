//! `innkeeper rooms explain` against real faults: it names who owed the next step, since when and on what evidence, while
//! others still hang, after everybody was started again, and without the router.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod look;

use std::time::Instant;

use innkeeper_integration::{Cluster, Room, completion, oracle, until, within};
use look::{
    EXPLAINED, KEY, SILENT, SOON, STARVED, decode, explain, explained, has, near, options, part, transfer, unix_ms,
};
use serde_json::Value;

fn prefill_of(room: &Room) -> &str {
    &room.prefill
}

fn decode_of(room: &Room) -> &str {
    &room.decode
}

#[tokio::test]
async fn faults_are_explained_at_once_and_after_a_restart() {
    let cluster = Cluster::start(options()).await;
    let (room, victim) = a_stopped_worker(&cluster, "transferring", decode_of, "decode").await;
    let (_, _) = a_stopped_worker(&cluster, "waiting_for_input", prefill_of, "prefill").await;
    a_client_that_left(&cluster).await;
    a_revoked_lease(&cluster).await;
    an_operator_evicts(&cluster).await;
    a_stopped_router(&cluster).await;
    oracle(&cluster).await;
    everybody_is_started_again(&cluster, &room, &victim).await;
}

/// SIGSTOP while it owes: it is named while it is still stopped. The room, and the worker's name.
async fn a_stopped_worker(cluster: &Cluster, phase: &str, victim: fn(&Room) -> &str, role: &str) -> (String, String) {
    let asked = cluster.submit(&transfer());
    let room = cluster.wait_phase(phase, SOON).await;
    let name = cluster.name_of(victim(&room)).await;
    let stopped = cluster.stop(&name).await;
    let struck = unix_ms();
    let of = explained(cluster, &room.room, SILENT + EXPLAINED + STARVED).await;
    let look = Instant::now();
    let text = cluster.run(&["rooms", "explain", &room.room]).await;
    assert!(look.elapsed() < EXPLAINED + STARVED, "{:?}", look.elapsed());
    eprintln!("{}", String::from_utf8_lossy(&text.stdout));
    assert!(String::from_utf8_lossy(&text.stdout).contains(&name));
    assert_eq!(
        (&of["blame"], &of["blame_name"]),
        (&role.into(), &name.as_str().into()),
        "{of:#}"
    );
    assert_eq!(of["owed_role"], role, "{of:#}");
    assert!(of["owed"].as_str().unwrap().ends_with(&name), "{of:#}");
    assert!(of["headline"].as_str().unwrap().contains(&name), "{of:#}");
    // Nothing moved since it was stopped, or since the report before that.
    near(&of, "since_ms", struck, 1500);
    near(&of, "ended_ms", struck + 1200, 2500);
    has(&of, "evidence", &["verified", "of 492 kB"]);
    has(&of, "evidence", &[&name, "says nothing now", "no answer within 800 ms"]);
    has(
        &of,
        "evidence",
        &["the control connection to", &name, "pings were not answered"],
    );
    has(&of, "did", &["connection to", &name, "break"]);
    assert_eq!(part(&of, role)["answered"], false, "{of:#}");
    assert_eq!(part(&of, "router")["answered"], true);
    let other = if role == "decode" { "prefill" } else { "decode" };
    let phases = part(&of, other)["phases"].as_array().unwrap();
    assert!(
        phases
            .iter()
            .any(|span| span["phase"] == phase || span["phase"] == "waiting_for_input"),
        "{of:#}"
    );
    let answer = within(SOON, "the next attempt's answer", asked).await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    let of = explained(cluster, &room.room, STARVED).await;
    let next = of["next_room"].as_str().unwrap();
    has(&of, "did", &["attempt 2", next]);
    assert!(of["client"].as_str().unwrap().contains(next), "{of:#}");
    stopped.cont();
    cluster.wait_whole().await;
    (room.room, name)
}

async fn a_client_that_left(cluster: &Cluster) {
    let asked = cluster.submit(&decode());
    let room = cluster.wait_phase("decoding", SOON).await;
    // Its connection closes.
    asked.abort();
    let of = explained(cluster, &room.room, SOON).await;
    assert_eq!(
        (&of["verdict"], &of["blame"]),
        (&"aborted".into(), &"nobody".into()),
        "{of:#}"
    );
    assert_eq!(
        (&of["owed"], &of["since_ms"]),
        (&"nobody".into(), &Value::Null),
        "{of:#}"
    );
    has(&of, "did", &["for its client"]);
    assert!(of["client"].as_str().unwrap().contains("was gone"), "{of:#}");
}

async fn leased(cluster: &Cluster) -> Room {
    until(SOON, "a leased room decodes", || async {
        let rooms = cluster.router_rooms().await?;
        let found = rooms.iter().find(|room| room.phase == "decoding" && room.leased);
        found.cloned().ok_or(format!("{rooms:?}"))
    })
    .await
}

/// Its trace is the one that its client sent.
async fn a_revoked_lease(cluster: &Cluster) {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let client = cluster.client.clone();
    let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let asked = tokio::spawn(async move { client.post_traced(&traceparent, "traced", &decode()).await });
    let room = leased(cluster).await;
    let live = explain(cluster, &room.room).await.unwrap();
    assert_eq!(
        (&live["live"], &live["owed_role"]),
        (&true.into(), &"decode".into()),
        "{live:#}"
    );
    cluster.revoke(&room).await;
    let of = explained(cluster, &room.room, SOON).await;
    assert_eq!(
        (&of["verdict"], &of["blame"]),
        (&"lease_revoked".into(), &"nobody".into()),
        "{of:#}"
    );
    has(&of, "did", &["lease end in the store"]);
    assert_eq!(
        (&of["trace_id"], &of["rid"]),
        (&TRACE.into(), &"traced".into()),
        "{of:#}"
    );
    let link = cluster
        .run(&["rooms", "trace", &room.room, "--jaeger=http://jaeger:16686/"])
        .await;
    assert_eq!(
        String::from_utf8_lossy(&link.stdout).trim(),
        format!("http://jaeger:16686/trace/{TRACE}")
    );
    assert_eq!(asked.await.unwrap().status, 200);
}

async fn an_operator_evicts(cluster: &Cluster) {
    let asked = cluster.submit(&decode());
    let room = cluster.wait_phase("decoding", SOON).await.room;
    for key in [None, Some("--admin-key=wrong")] {
        let args: Vec<&str> = ["rooms", "evict", &room].into_iter().chain(key).collect();
        let refused = cluster.run(&args).await;
        assert!(!refused.status.success());
        assert!(String::from_utf8_lossy(&refused.stderr).contains("key"), "{refused:?}");
    }
    let right = format!("--admin-key={KEY}");
    let done = cluster.run(&["rooms", "evict", &room, &right]).await;
    assert!(done.status.success(), "{done:?}");
    let of = explained(cluster, &room, SOON).await;
    assert_eq!(
        (&of["verdict"], &of["blame"]),
        (&"lease_revoked".into(), &"nobody".into()),
        "{of:#}"
    );
    has(&of, "did", &["an operator asked"]);
    assert_eq!(asked.await.unwrap().status, 200, "the request goes on");
    let gone = cluster.run(&["rooms", "evict", &room, &right]).await;
    assert!(
        String::from_utf8_lossy(&gone.stderr).contains("no live room"),
        "{gone:?}"
    );
    // The key is in no process's arguments, and in nobody's log.
    for node in cluster.ps().await {
        let cmdline = std::fs::read(format!("/proc/{}/cmdline", node["pid"])).unwrap();
        assert!(!String::from_utf8_lossy(&cmdline).contains(KEY), "{node}");
    }
    assert!(!cluster.log("up").contains(KEY));
}

/// While it is stopped its workers say what they saw; afterwards it names itself.
async fn a_stopped_router(cluster: &Cluster) {
    let asked = cluster.submit(&completion("mock", "decode", 300));
    let room = leased(cluster).await;
    let worker = cluster.node_of(&room.decode).await;
    let router = cluster.stop("router").await;
    until(SILENT + STARVED, "the part ends without its router", || async {
        let http = worker["http"].as_str().unwrap();
        let record = cluster
            .ask(http, &format!("/innkeeper/v1/record/{}", room.room))
            .await?;
        if record.body["ended_ms"].is_u64() {
            Ok(())
        } else {
            Err(record.body)
        }
    })
    .await;
    let without = explain(cluster, &room.room).await.unwrap();
    assert_eq!(without["blame"], Value::Null, "only the router knows: {without:#}");
    assert_eq!(part(&without, "router")["answered"], false, "{without:#}");
    assert_eq!(part(&without, "decode")["answered"], true, "{without:#}");
    router.cont();
    let answer = within(SOON, "the answer", asked).await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    let of = explained(cluster, &room.room, SOON).await;
    assert_eq!(of["blame"], "nobody", "{of:#}");
    has(&of, "evidence", &["the router itself had been stopped for"]);
}

/// SIGKILL, and other processes with the same names.
async fn everybody_is_started_again(cluster: &Cluster, room: &str, victim: &str) {
    let before = explain(cluster, room).await.unwrap();
    let old = cluster.node("router").await;
    for name in [victim, "router"] {
        cluster.kill(name).await;
    }
    until(SOON, "a new router serves", || async {
        let nodes = cluster.try_ps().await?;
        let new = nodes
            .iter()
            .find(|node| node["role"] == "router" && node["incarnation"] != old["incarnation"]);
        new.map(drop).ok_or(format!("{nodes:?}"))
    })
    .await;
    cluster.wait_whole().await;
    let after = explain(cluster, room).await.unwrap();
    for field in [
        "verdict",
        "blame",
        "blame_name",
        "owed",
        "headline",
        "client",
        "next_room",
    ] {
        assert_eq!(after[field], before[field], "{field}: {after:#}");
    }
    // It was continued, ended its part and wrote that down before it was killed.
    assert_eq!(part(&after, "decode")["answered"], true, "{after:#}");
    assert_eq!(
        part(&after, "decode")["incarnation"],
        part(&before, "decode")["incarnation"]
    );
    let listed = cluster.run(&["rooms", "ls", "--ended", "--json"]).await;
    let rows: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
    let row = rows
        .iter()
        .find(|row| row["room"] == room)
        .unwrap_or_else(|| panic!("{rows:#?}"));
    assert_eq!((&row["blame"], &row["verdict"]), (&"decode".into(), &after["verdict"]));
    let verdicts: Vec<_> = rows.iter().filter_map(|row| row["verdict"].as_str()).collect();
    assert!(
        verdicts.contains(&"lease_revoked") && verdicts.contains(&"aborted"),
        "{verdicts:?}"
    );
    let unknown = cluster.run(&["rooms", "explain", "1"]).await;
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("no node has a record"),
        "{unknown:?}"
    );
    oracle(cluster).await;
}

#[tokio::test]
async fn a_black_holed_data_link_is_named() {
    let Some(cluster) = Cluster::start_apart(options()).await else {
        return;
    };
    let asked = cluster.submit(&transfer());
    let room = cluster.wait_phase("transferring", SOON).await;
    let names = [
        cluster.name_of(&room.prefill).await,
        cluster.name_of(&room.decode).await,
    ];
    let link = cluster.link(&names[0], &names[1]);
    link.black_hole();
    let struck = unix_ms();
    let of = explained(&cluster, &room.room, SILENT + EXPLAINED + STARVED).await;
    assert_eq!(
        (&of["blame"], &of["blame_node"]),
        (&"link".into(), &Value::Null),
        "{of:#}"
    );
    let headline = of["headline"].as_str().unwrap();
    assert!(names.iter().all(|name| headline.contains(name.as_str())), "{headline}");
    has(&of, "evidence", &[&names[0], "kernel"]);
    near(&of, "ended_ms", struck + 1800, 3000);
    let all_answer = of["parts"]
        .as_array()
        .unwrap()
        .iter()
        .all(|part| part["answered"] == true);
    assert!(all_answer, "{of:#}");
    assert_eq!(within(SOON, "the answer", asked).await.unwrap().status, 200);
    link.heal();
    oracle(&cluster).await;
}
