//! Alerts, their runbook, the dashboard and the collector's configuration: read by the tools that will read them, and about
//! metrics that exist.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod collector;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::Value;

/// Prometheus's own, and what the collector makes of spans.
const NOT_OURS: [&str; 3] = ["up", "ALERTS", "innkeeper_spans_calls_total"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

static RULES: LazyLock<String> = LazyLock::new(|| read("deploy/observability/prometheus/rules.yaml"));
static PLAYED: LazyLock<String> = LazyLock::new(|| read("deploy/observability/prometheus/rules_test.yaml"));
static DASHBOARD: LazyLock<Value> = LazyLock::new(|| {
    let text = read("deploy/observability/grafana/innkeeper.json");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("the dashboard is no JSON: {error}"))
});

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// Prometheus's tool, in the folder of the rules; what it said if it did not agree.
fn promtool(args: &[&str]) -> Result<(), String> {
    let output = Command::new("promtool")
        .args(args)
        .current_dir(root().join("deploy/observability/prometheus"))
        .output();
    let output = output.unwrap_or_else(|error| panic!("promtool cannot be run ({error}): apt-get install prometheus"));
    if output.status.success() {
        Ok(())
    } else {
        Err(said(&output))
    }
}

/// What follows `key:` at the beginning of lines, without what stands around it in YAML.
fn values<'t>(text: &'t str, key: &str) -> Vec<&'t str> {
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches("- "));
    let found = lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
    found.map(str::trim).collect()
}

fn alerts() -> Vec<&'static str> {
    values(&RULES, "alert")
}

#[test]
fn prometheus_takes_its_configuration_and_the_rules_fire_as_they_should() {
    for args in [
        &["check", "config", "prometheus.yaml"][..],
        &["check", "rules", "rules.yaml"],
        &["test", "rules", "rules_test.yaml"],
    ] {
        promtool(args).unwrap_or_else(|said| panic!("promtool {args:?}: {said}"));
    }
}

/// Every alert fires somewhere in the cases, so a rule that can never fire is found there.
#[test]
fn every_alert_is_played() {
    let alerts = alerts();
    assert!(alerts.len() > 20, "{alerts:?}");
    for alert in alerts {
        let fires = format!("alertname=\"{alert}\"");
        let line = PLAYED.lines().find(|line| line.contains(&fires));
        assert!(
            line.is_some_and(|line| line.contains("value: 1")),
            "no case of rules_test.yaml makes {alert} fire"
        );
    }
}

#[test]
fn every_alert_has_its_paragraph_and_every_paragraph_its_alert() {
    let alerts = alerts();
    let runbook = read("docs/runbook.md");
    let paragraphs: Vec<_> = runbook.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let set = |names: &[&'static str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let headings: BTreeSet<_> = paragraphs.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(headings, set(&alerts), "headings of docs/runbook.md, and alerts");
    assert_eq!(headings.len(), paragraphs.len(), "a heading stands twice");
    let urls = values(&RULES, "runbook_url");
    let expected: Vec<_> = alerts
        .iter()
        .map(|alert| format!("docs/runbook.md#{}", alert.to_lowercase()))
        .collect();
    assert_eq!(urls, expected);
    for name in paragraphs {
        let text = runbook.split_once(&format!("### {name}\n")).unwrap().1;
        let text = text.split("\n#").next().unwrap().trim();
        let severity = ["*Critical.* ", "*Warning.* ", "*Info.* "];
        let severity = severity.iter().find(|word| text.starts_with(**word));
        let severity = severity.unwrap_or_else(|| panic!("{name} does not say how severe it is"));
        let rule = RULES.split_once(&format!("alert: {name}\n")).unwrap().1;
        let rule = values(rule, "labels")[0].to_lowercase();
        assert!(
            rule.contains(&severity.trim_matches(['*', '.', ' ']).to_lowercase()),
            "{name}: {severity} and {rule}"
        );
        assert!(text.len() > 200, "{name} says nothing: {text}");
    }
}

/// The links between paragraphs.
#[test]
fn links_of_the_runbook_lead_somewhere() {
    let runbook = read("docs/runbook.md");
    let targets: Vec<_> = runbook
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .collect();
    assert!(targets.len() > 3);
    for target in targets {
        match target.strip_prefix('#') {
            Some(anchor) => assert!(
                runbook
                    .lines()
                    .filter_map(|line| line.strip_prefix("### "))
                    .any(|name| name.to_lowercase() == anchor),
                "no heading for #{anchor}"
            ),
            None => assert!(root().join("docs").join(target).is_file(), "no file docs/{target}"),
        }
    }
}

/// Names in the first column of the tables of docs/metrics.md: `name{labels}`.
fn documented() -> BTreeSet<String> {
    let text = read("docs/metrics.md");
    let rows = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(['`', '{']).next());
    rows.map(str::to_owned).collect()
}

/// Words of this text that look like a metric of ours.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':');
    let words = text.split(word).filter(|word| {
        let ours = ["innkeeper_", "sglang:", "vllm:"].iter();
        ours.into_iter().any(|prefix| word.starts_with(prefix))
    });
    words.map(str::to_owned).collect()
}

/// A histogram is three names on the page.
fn is_documented(name: &str, documented: &BTreeSet<String>) -> bool {
    let of_histogram = ["_bucket", "_sum", "_count"]
        .iter()
        .filter_map(|suffix| name.strip_suffix(suffix));
    documented.contains(name) || of_histogram.into_iter().any(|base| documented.contains(base))
}

/// All strings of the JSON under this key.
fn strings<'j>(json: &'j Value, key: &str, into: &mut Vec<&'j str>) {
    match json {
        Value::Array(items) => items.iter().for_each(|item| strings(item, key, into)),
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == key
                    && let Some(text) = value.as_str()
                {
                    into.push(text);
                }
                strings(value, key, into);
            }
        }
        _ => {}
    }
}

fn dashboard_queries() -> Vec<&'static str> {
    let mut all = vec![];
    strings(&DASHBOARD, "expr", &mut all);
    assert!(all.len() > 40, "{}", all.len());
    all
}

#[test]
fn rules_and_dashboard_name_only_metrics_that_exist() {
    let documented = documented();
    let mut definitions = vec![];
    strings(&DASHBOARD, "definition", &mut definitions);
    let places = [
        ("the rules", metrics_in(&RULES)),
        ("their cases", metrics_in(&PLAYED)),
        ("the dashboard", metrics_in(&dashboard_queries().join("\n"))),
        ("the dashboard's variables", metrics_in(&definitions.join("\n"))),
    ];
    for (place, names) in places {
        assert!(!names.is_empty(), "{place}");
        for name in names {
            assert!(
                NOT_OURS.contains(&name.as_str()) || is_documented(&name, &documented),
                "{place}: `{name}` is not in docs/metrics.md"
            );
        }
    }
}

#[test]
fn the_dashboard_is_one_that_grafana_can_show() {
    let panels = DASHBOARD["panels"].as_array().unwrap();
    let ids: Vec<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    let distinct: BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len(), "panel ids: {ids:?}");
    let mut taken = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        let place = |key: &str| {
            panel["gridPos"][key]
                .as_u64()
                .unwrap_or_else(|| panic!("{title}: no {key}"))
        };
        let (x, y, w, h) = (place("x"), place("y"), place("w"), place("h"));
        assert!(x + w <= 24, "{title} is too wide");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{title} lies over another panel");
        }
        if panel["type"] != "row" {
            assert!(!panel["description"].as_str().unwrap().is_empty(), "{title}");
        }
    }
    for key in ["uid", "title", "schemaVersion", "templating"] {
        assert!(!DASHBOARD[key].is_null(), "no {key}");
    }
}

/// A rule file of the dashboard's queries, which Prometheus's own parser reads.
#[test]
fn prometheus_understands_the_queries_of_the_dashboard() {
    use std::fmt::Write as _;

    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (number, query) in dashboard_queries().into_iter().enumerate() {
        let query = query
            .replace("$__rate_interval", "5m")
            .replace("$job", ".*")
            .replace("$instance", ".*");
        assert!(!query.contains('$'), "an unknown variable: {query}");
        let query = Value::from(query);
        write!(rules, "      - record: q{number}\n        expr: {query}\n").unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), rules).unwrap();
    promtool(&["check", "rules", file.path().to_str().unwrap()]).unwrap_or_else(|said| panic!("{said}"));
}
