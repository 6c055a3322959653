//! Jaeger's query API, version 3: OTLP as JSON.

use std::collections::BTreeMap;

use serde_json::Value;

use super::tree::{Span, Trace};

pub(super) fn read(body: &Value) -> Result<Trace, String> {
    let resources = body["result"]["resourceSpans"].as_array();
    let resources = resources.ok_or_else(|| format!("no trace of API version 3: {body}"))?;
    let mut spans = vec![];
    for resource in resources {
        let about = attributes(&resource["resource"]["attributes"]);
        let of = |name: &str| about.get(name).cloned().unwrap_or_default();
        for scope in list(&resource["scopeSpans"]) {
            for span in list(&scope["spans"]) {
                spans.push(Span {
                    service: of("service.name"),
                    instance: of("service.instance.id"),
                    resource: about.clone(),
                    ..read_span(span)
                });
            }
        }
    }
    spans.sort_by_key(|span| span.start);
    Ok(Trace { spans })
}

fn read_span(span: &Value) -> Span {
    let events = list(&span["events"]).iter();
    let links = list(&span["links"]).iter();
    let status = &span["status"];
    // 2 is ERROR.
    let failed = status["code"] == 2 || status["code"] == "STATUS_CODE_ERROR";
    Span {
        id: text(&span["spanId"]),
        parent: text(&span["parentSpanId"]),
        name: text(&span["name"]),
        start: nanos(&span["startTimeUnixNano"]),
        end: nanos(&span["endTimeUnixNano"]),
        attributes: attributes(&span["attributes"]),
        events: events
            .map(|event| (text(&event["name"]), attributes(&event["attributes"])))
            .collect(),
        links: links.map(|link| text(&link["spanId"])).collect(),
        error: failed.then(|| text(&status["message"])),
        ..Span::default()
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Numbers of 64 bits are text in this JSON.
fn nanos(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

fn attributes(pairs: &Value) -> BTreeMap<String, String> {
    let plain = |value: &Value| {
        let value = value.as_object().and_then(|value| value.values().next());
        value.map_or_else(String::new, |value| {
            value.as_str().map_or_else(|| value.to_string(), str::to_owned)
        })
    };
    list(pairs)
        .iter()
        .map(|pair| (text(&pair["key"]), plain(&pair["value"])))
        .collect()
}
