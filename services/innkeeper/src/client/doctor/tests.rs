use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::asked::{Cluster, Gone, Metrics, Node, Pulse, Refused, Said, Silent};
use super::report::{Level, Report};
use super::{checks, engines, pairs, store, versions};

const NOW: u64 = 1_800_000_000_000;
const DAY: u64 = 24 * 60 * 60 * 1000;
const QUIET: &str = "# HELP x y\ninnkeeper_ledger_answers 1\ninnkeeper_stuck_rooms 0\ninnkeeper_zombies 0\n\
                     innkeeper_quarantined_bytes 0\ninnkeeper_degraded 0\n";

fn node(role: &str, name: &str) -> Node {
    let row = json!({
        "role": role, "name": name, "pid": 7, "incarnation": format!("{name}-life"), "state": "serving",
        "http": "h:1", "control": "h:2", "data": "h:3", "revision": "1", "breaker": "closed", "avoided_peers": [],
    });
    let mut body = row.clone();
    body["version"] = json!(env!("CARGO_PKG_VERSION"));
    body["time_ms"] = json!(NOW + 5);
    Node {
        said: Ok(Said {
            body,
            asked_ms: NOW,
            answered_ms: NOW + 10,
        }),
        metrics: Ok(Metrics::parse(QUIET)),
        data: (role == "decode").then_some(Ok(())),
        row,
    }
}

fn cluster() -> Cluster {
    Cluster {
        router: "http://r:1".to_owned(),
        away: None,
        nodes: vec![
            node("router", "router"),
            node("prefill", "prefill-0"),
            node("decode", "decode-0"),
            node("decode", "decode-1"),
        ],
        gone: vec![],
        ended: vec![],
        now_ms: NOW,
    }
}

fn judged(cluster: &Cluster) -> Report {
    let mut report = Report::new(cluster.router.clone());
    checks::router(cluster, &mut report);
    checks::nodes(cluster, &mut report);
    checks::gone(cluster, &mut report);
    engines::engines(cluster, &mut report);
    versions::versions(cluster, &mut report);
    pairs::data_ports(cluster, &mut report);
    pairs::pairs(cluster, &mut report);
    report
}

/// The cluster with this done to its `decode-0`.
fn with(change: impl FnOnce(&mut Node)) -> Report {
    let mut cluster = cluster();
    change(&mut cluster.nodes[2]);
    judged(&cluster)
}

/// The only finding that is not well.
fn only(report: &Report) -> (Level, &str, &str, String) {
    let bad: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.level != Level::Ok)
        .collect();
    assert_eq!(bad.len(), 1, "{}", report.text());
    let advice = bad[0].advice.as_ref().expect("what to do");
    (
        bad[0].level,
        bad[0].check,
        &bad[0].subject,
        format!("{} → {advice}", bad[0].found),
    )
}

fn silent(gone: bool) -> Silent {
    Silent {
        why: "no answer".to_owned(),
        gone,
    }
}

fn said_of(node: &mut Node) -> &mut Value {
    &mut node.said.as_mut().unwrap().body
}

#[test]
fn a_healthy_cluster_is_well() {
    let report = judged(&cluster());
    assert!(
        report.findings.iter().all(|finding| finding.level == Level::Ok),
        "{}",
        report.text()
    );
    assert!(!report.failed());
    let text = report.text();
    for line in [
        "ok    router       http://r:1: answers, version",
        "ok    node         decode-1: the decode worker answers and serves",
        "ok    clock        prefill-0: within 10 ms of this machine's",
        "ok    pair         prefill-0 → decode-1: not avoided; nothing has passed it that the router remembers",
        "note  from outside only a data port can be tried",
        " 0 warn, 0 FAIL\n",
    ] {
        assert!(text.contains(line), "`{line}` is not in\n{text}");
    }
}

#[test]
fn a_router_that_is_away_fails_and_its_last_nodes_are_still_looked_at() {
    let away = Cluster {
        away: Some("no answer".to_owned()),
        ..cluster()
    };
    let report = judged(&away);
    let (level, check, subject, text) = only(&report);
    assert_eq!((level, check, subject), (Level::Fail, "router", "http://r:1"));
    assert!(text.contains("no answer") && text.contains("--router"), "{text}");
    assert!(report.failed() && report.text().contains("decode-0: the decode worker answers"));
}

#[test]
fn a_silent_node_is_named_with_its_process() {
    let report = with(|node| {
        node.said = Err(silent(false));
        node.metrics = Err("none".to_owned());
        node.row["state"] = json!("unreachable");
    });
    let (level, check, subject, text) = only(&report);
    assert_eq!((level, check, subject), (Level::Fail, "node", "decode-0"));
    assert!(text.contains("kill -CONT 7") && text.contains("unreachable"), "{text}");
    let gone = with(|node| node.said = Err(silent(true)));
    assert!(only(&gone).3.contains("its process is gone"), "{}", gone.text());
}

#[test]
fn a_node_that_the_router_gave_up_is_not_forgotten() {
    for (now, level, words) in [
        (Pulse::Answers, Level::Fail, "the lease store"),
        (Pulse::Mute, Level::Fail, "kill -CONT 7"),
        (Pulse::Nothing, Level::Warn, "nothing, if somebody took it away"),
    ] {
        let row = node("decode", "decode-9").row;
        let since_ms = NOW - 90_000;
        let mut cluster = cluster();
        cluster.gone.push(Gone { row, since_ms, now });
        let report = judged(&cluster);
        let (found, check, subject, text) = only(&report);
        assert_eq!((found, check, subject), (level, "node", "decode-9"), "{now:?}");
        assert!(text.contains(words) && text.contains("for 90 s"), "{now:?}: {text}");
    }
}

#[test]
fn states_of_nodes_that_answer() {
    for (own, seen, level, advice) in [
        ("draining", "draining", Level::Warn, "nothing, if somebody stopped it"),
        (
            "serving",
            "unreachable",
            Level::Fail,
            "the network from the router to h:2",
        ),
        ("serving", "lost", Level::Fail, "the network from the router to h:2"),
        ("serving", "not_serving", Level::Fail, "it can reach h:3 itself"),
        ("failed", "serving", Level::Fail, "look at its log"),
    ] {
        let report = with(|node| {
            node.row["state"] = json!(seen);
            said_of(node)["state"] = json!(own);
        });
        let (found, check, subject, text) = only(&report);
        assert_eq!((found, check, subject), (level, "node", "decode-0"), "{own} {seen}");
        assert!(text.contains(advice), "{own} {seen}: {text}");
    }
    let hangs = with(|node| {
        node.row["state"] = json!("not_serving");
        node.row["engine_owes_ms"] = json!(9_000);
    });
    assert!(
        only(&hangs)
            .3
            .contains("has not finished its step for 9.0 s → look at its log, and restart it")
    );
    let report = with(|node| said_of(node)["incarnation"] = json!("another-life"));
    assert!(only(&report).3.contains("another node answers"), "{}", report.text());
}

#[test]
fn a_role_that_nobody_serves_fails() {
    let mut cluster = cluster();
    cluster.nodes.truncate(2);
    let report = judged(&cluster);
    let text = report.text();
    assert!(
        text.contains("FAIL  router       http://r:1: has no decode worker that serves"),
        "{text}"
    );
}

#[test]
fn a_clock_is_judged_with_the_round_trip() {
    let of = |time: u64, took: u64| {
        with(|node| {
            let said = node.said.as_mut().unwrap();
            said.body["time_ms"] = json!(time);
            said.answered_ms = said.asked_ms + took;
        })
    };
    assert!(
        of(NOW + 990, 10)
            .findings
            .iter()
            .all(|finding| finding.level == Level::Ok)
    );
    assert!(
        of(NOW + 2_000, 900)
            .findings
            .iter()
            .all(|finding| finding.level == Level::Ok)
    );
    let (level, check, subject, text) = (Level::Warn, "clock", "decode-0", "2.495 s ahead of");
    let late = of(NOW + 2_500, 10);
    let found = only(&late);
    assert_eq!((found.0, found.1, found.2), (level, check, subject));
    assert!(found.3.contains(text) && found.3.contains("NTP"), "{}", found.3);
    assert!(only(&of(NOW - 3_000, 10)).3.contains("3.005 s behind"));
}

#[test]
fn gauges_that_are_not_zero() {
    for (metric, level, words) in [
        ("innkeeper_stuck_rooms", Level::Fail, "this is a bug"),
        ("innkeeper_zombies", Level::Warn, "exits by itself"),
        ("innkeeper_quarantined_bytes", Level::Warn, "quarantine"),
        ("innkeeper_degraded", Level::Warn, "look at etcd"),
        ("innkeeper_unleased_rooms", Level::Warn, "look at etcd"),
    ] {
        let page = format!("innkeeper_ledger_answers 1\n{metric} 3\n");
        let report = with(|node| node.metrics = Ok(Metrics::parse(&page)));
        let (found, check, subject, text) = only(&report);
        assert_eq!((found, check, subject), (level, "rooms", "decode-0"), "{metric}");
        assert!(text.contains(words), "{metric}: {text}");
    }
    let hung = with(|node| node.metrics = Ok(Metrics::parse("innkeeper_ledger_answers 0\n")));
    assert_eq!(only(&hung).0, Level::Fail);
    let mute = with(|node| node.metrics = Err("500".to_owned()));
    assert!(only(&mute).3.contains("metrics cannot be read"));
}

#[test]
fn versions_and_revisions() {
    let report = with(|node| said_of(node)["version"] = json!("0.0.9"));
    let (level, check, _, text) = only(&report);
    assert_eq!((level, check), (Level::Warn, "version"));
    assert!(text.contains("decode-0 0.0.9"), "{text}");
    let report = with(|node| node.row["revision"] = json!("2"));
    let text = report.text();
    assert!(
        text.contains("warn  version      all workers: different revisions: prefill-0 1, decode-0 2"),
        "{text}"
    );
    assert!(
        text.contains("FAIL  version      decode-0: no prefill worker has its revision 2"),
        "{text}"
    );
    assert!(
        !text.contains("pair         prefill-0 → decode-0"),
        "they are no pair: {text}"
    );
    let mut other = cluster();
    said_of(&mut other.nodes[0])["version"] = json!("9.9.9");
    assert!(
        judged(&other)
            .text()
            .contains("warn  router       http://r:1: answers, version 9.9.9")
    );
}

#[test]
fn a_data_port_that_is_closed_fails_and_one_that_is_far_away_may_not() {
    let closed = with(|node| node.data = Some(Err(Refused::Closed("refused".to_owned()))));
    let (level, check, subject, text) = only(&closed);
    assert_eq!((level, check, subject), (Level::Fail, "data", "decode-0"));
    assert!(text.contains("nothing listens at its data address h:3"), "{text}");
    let far = with(|node| node.data = Some(Err(Refused::Unreached("no route".to_owned()))));
    assert_eq!(only(&far).0, Level::Warn);
}

#[test]
fn avoided_workers_and_links_fail_the_pairs_that_need_them() {
    let worker = with(|node| node.row["breaker"] = json!("open"));
    let (level, check, subject, text) = only(&worker);
    assert_eq!((level, check, subject), (Level::Fail, "pair", "prefill-0 → decode-0"));
    assert!(text.contains("decode-0 was blamed for several rooms"), "{text}");
    let link = with(|node| node.row["avoided_peers"] = json!(["prefill-0-life"]));
    let (level, check, subject, text) = only(&link);
    assert_eq!((level, check, subject), (Level::Fail, "pair", "prefill-0 → decode-0"));
    assert!(
        text.contains("the link between them") && text.contains("(h:3)"),
        "{text}"
    );
}

#[test]
fn what_passed_a_pair_last_is_said() {
    let mut cluster = cluster();
    let over = |verdict: &str, canary: bool, ago: u64| {
        json!({
            "verdict": verdict, "canary": canary, "ended_ms": NOW - ago, "prefill": "prefill-0-life",
            "decode": "decode-0-life",
        })
    };
    cluster.ended = vec![
        over("transfer_lost", false, 1_000),
        over("done", false, 90_000),
        over("done", true, 5_000),
    ];
    let page = format!(
        "{QUIET}innkeeper_canaries_total{{outcome=\"done\"}} 4\ninnkeeper_canaries_total{{outcome=\"aborted\"}} 1\n"
    );
    cluster.nodes[0].metrics = Ok(Metrics::parse(&page));
    let text = judged(&cluster).text();
    assert!(
        text.contains("prefill-0 → decode-0: not avoided; a canary passed it 5.0 s ago"),
        "{text}"
    );
    assert!(text.contains("so far 5, of which 4 came through"), "{text}");
}

#[test]
fn many_pairs_are_one_line_but_for_those_that_are_avoided() {
    let mut cluster = cluster();
    cluster
        .nodes
        .extend((2..30).map(|at| node("decode", &format!("decode-{at}"))));
    cluster.nodes[5].row["avoided_peers"] = json!(["prefill-0-life"]);
    let report = judged(&cluster);
    let pairs: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.check == "pair")
        .collect();
    assert_eq!(pairs.len(), 2, "{}", report.text());
    assert_eq!(pairs[0].level, Level::Fail);
    assert_eq!(pairs[1].found, "29 pairs are not avoided");
}

/// CN=doctor-test, good in January 2024.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----
MIIBFDCBugIBATAKBggqhkjOPQQDAjAWMRQwEgYDVQQDDAtkb2N0b3ItdGVzdDAe
Fw0yNDAxMDEwMDAwMDBaFw0yNDAyMDEwMDAwMDBaMBYxFDASBgNVBAMMC2RvY3Rv
ci10ZXN0MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEMl6KW+mcIFDKSwjGr7ck
ysTenYzI19pz20MNGHdQ3X3puvXkQRCVWXLralo8im8Gytoc0AHYlMzTHP8qzvoc
LjAKBggqhkjOPQQDAgNJADBGAiEAsny3BqKke1uH0te9rSLgPn/WBwJiotZHQKGh
7iETlZICIQDrSqfinXGgbtYhiepbNlLFfX7ZLLpKTuRfrOERriqY5A==
-----END CERTIFICATE-----\n";

#[test]
fn certificates_are_read_whatever_else_is_in_the_file() {
    let path = std::env::temp_dir().join(format!("innkeeper-doctor-{}.pem", std::process::id()));
    let read = |text: String| {
        std::fs::write(&path, text).unwrap();
        let read = store::read(&path);
        std::fs::remove_file(&path).unwrap();
        read
    };
    let two = read(format!(
        "Certificate:\n    Data:\n{CERTIFICATE}\nanother:\n{CERTIFICATE}"
    ))
    .unwrap();
    let dates: Vec<_> = two
        .iter()
        .map(|one| (one.subject.as_str(), one.from_ms, one.to_ms))
        .collect();
    assert_eq!(dates, [("CN=doctor-test", 1_704_067_200_000, 1_706_745_600_000); 2]);
    assert!(read("a key".to_owned()).unwrap_err().contains("holds no certificate"));
    let broken = CERTIFICATE.replace("MIIB", "MIIC");
    assert!(read(broken).unwrap_err().contains("is no certificate"));
    assert!(store::read(&path).unwrap_err().contains("cannot be read"));
}

#[test]
fn certificates_by_their_dates() {
    let of = |from_ms: u64, to_ms: u64| {
        let mut report = Report::new(String::new());
        let dates = store::Dates {
            subject: "CN=node".to_owned(),
            from_ms,
            to_ms,
        };
        store::judge("--etcd-cert node.pem", &dates, NOW, &mut report);
        report
    };
    assert!(of(NOW - DAY, NOW + 31 * DAY).text().contains("is good for 31 days"));
    assert!(only(&of(NOW - DAY, NOW + 29 * DAY)).3.contains("expires in 29 days"));
    let expired = of(NOW - 9 * DAY, NOW - 2 * DAY);
    assert_eq!(only(&expired).0, Level::Fail);
    assert!(only(&expired).3.contains("expired 2 days ago"));
    assert!(only(&of(NOW + DAY, NOW + 9 * DAY)).3.contains("not good yet"));
}

#[test]
fn a_node_that_is_not_registered_is_named() {
    let lives = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|name| format!("{name}-life")).collect() };
    let mut report = Report::new(String::new());
    let all = lives(&["router", "prefill-0", "decode-0", "decode-1"]);
    store::registered("http://e:1", &all, 9, &cluster(), &mut report);
    assert_eq!(
        report.findings[0].found,
        "answers; 4 nodes are registered, 9 keys in all"
    );
    let mut report = Report::new(String::new());
    store::registered(
        "http://e:1",
        &lives(&["router", "prefill-0"]),
        2,
        &cluster(),
        &mut report,
    );
    assert!(only(&report).3.contains("decode-0, decode-1"));
}

#[test]
fn json_has_what_scripts_need() {
    let report = with(|node| node.said = Err(silent(false)));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["failures"], 1);
    let failed = json["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|finding| finding["level"] == "fail");
    let failed = failed.unwrap();
    assert_eq!(
        (&failed["check"], &failed["subject"]),
        (&json!("node"), &json!("decode-0"))
    );
    assert!(failed["do"].as_str().unwrap().contains("kill -CONT"));
}

#[test]
fn a_metric_is_found_by_its_whole_name() {
    let metrics = Metrics::parse("a_b 2\na{k=\"x\"} 3\na{k=\"y\"} 4\n");
    assert_eq!(metrics.sum("a", ""), Some(7.0));
    assert_eq!(metrics.sum("a", "k=\"x\""), Some(3.0));
    assert_eq!(metrics.sum("a", "k=\"z\""), Some(0.0));
    assert_eq!(metrics.sum("c", ""), None);
}

/// A cluster whose workers have engines next door, of which the one of `decode-0` is changed.
fn next_door(change: impl Fn(&mut Value)) -> Report {
    let mut cluster = cluster();
    for node in cluster.nodes.iter_mut().skip(1) {
        let mut engine = json!({
            "engine": "vllm-0.32.0", "url": "http://127.0.0.1:8200", "model": "m", "pages": 1000, "used_pages": 3, "lease_ms": 30_000,
            "restart": "probe", "transport": "NIXL", "partial": ["no checksum"], "kept": 4, "reads": 4, "external_tokens": 512,
            "unproven": 0, "step_age_ms": 20, "given_up": false,
        });
        if node.row["name"] == "decode-0" {
            change(&mut engine);
        }
        if let Ok(said) = &mut node.said {
            said.body["engine"] = engine;
        }
    }
    judged(&cluster)
}

#[test]
fn engines_next_door_are_shown_with_what_they_do_not_let_hold() {
    let report = next_door(|_| {});
    assert!(
        report.findings.iter().all(|finding| finding.level == Level::Ok),
        "{}",
        report.text()
    );
    let text = report.text();
    for shown in [
        "vllm-0.32.0 at http://127.0.0.1:8200",
        "lease 30 s",
        "has kept 4 prompts",
        "has read 4 prompts",
        "no checksum",
    ] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    assert_eq!(text.matches("no checksum").count(), 1, "said once: {text}");
}

#[test]
fn an_engine_that_computes_again_hangs_or_has_another_lease_is_said_to() {
    let changes: [(&str, Value, Level, &str); 6] = [
        ("external_tokens", json!(0), Level::Fail, "computes them again"),
        ("reads", json!(0), Level::Warn, "not proven"),
        ("given_up", json!(true), Level::Fail, "given up"),
        ("restart", json!("none"), Level::Warn, "nobody starts it anew"),
        ("unproven", json!(2), Level::Warn, "2 reads"),
        ("lease_ms", json!(6_000), Level::Fail, "different leases"),
    ];
    for (name, value, level, said) in changes {
        let report = next_door(|engine| engine[name] = value.clone());
        let (found, check, _, text) = only(&report);
        assert_eq!((found, check), (level, "engine"), "{name}");
        assert!(report.text().contains(said), "{name}: {text}");
    }
}
