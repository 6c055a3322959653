//! Each node's part, and everything in the order of time.

use innkeeper_room::Role;

use super::{Facts, Happened, Line, Part, Span, words};
use crate::recorder::record::{Entry, Record, What};

impl Facts<'_> {
    /// The parts: the router's, P's, D's.
    pub(super) fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<Part> = self.case.records.iter().map(part).collect();
        parts.extend(self.case.missing.iter().map(|missing| Part {
            role: missing.role,
            name: missing.name.clone().unwrap_or_default(),
            incarnation: missing.incarnation,
            answered: false,
            why: Some(missing.why.clone()),
            end: None,
            phases: vec![],
            entries: vec![],
        }));
        parts.sort_by_key(|part| part.role);
        parts
    }

    /// What happened on all nodes.
    pub(super) fn story(&self) -> Vec<Line> {
        let began = i64::try_from(self.any.began_unix_ms).unwrap_or(i64::MAX);
        let of = |record: &Record| {
            let lines = record.entries.iter().map(|entry| Line {
                at_ms: entry.at_ms,
                after_ms: i64::try_from(entry.at_ms).unwrap_or(i64::MAX) - began,
                role: record.role,
                name: record.name.clone(),
                what: said(entry, record.role),
                detail: detail(entry, record),
            });
            lines.collect::<Vec<_>>()
        };
        let mut all: Vec<Line> = self.case.records.iter().flat_map(of).collect();
        // The router first where the clocks say the same.
        all.sort_by_key(|line| (line.at_ms, line.role));
        all
    }
}

fn part(record: &Record) -> Part {
    let unix = |since: u64| record.began_unix_ms + since;
    let phases = record.phases.iter().map(|span| Span {
        phase: span.phase.name().to_owned(),
        from_ms: unix(span.from_ms),
        to_ms: span.to_ms.map(unix),
    });
    let entries = record.entries.iter().map(|entry| Happened {
        at_ms: entry.at_ms,
        what: said(entry, record.role),
        detail: detail(entry, record),
    });
    Part {
        role: record.role,
        name: record.name.clone(),
        incarnation: record.incarnation,
        answered: true,
        why: None,
        end: record.end.clone(),
        phases: phases.collect(),
        entries: entries.collect(),
    }
}

fn said(entry: &Entry, on: Role) -> String {
    words::what(entry.what, on).to_owned()
}

/// Where something is missing between the first and the last entries, the first of the last says so.
fn detail(entry: &Entry, record: &Record) -> String {
    match (entry.what, record.role) {
        (What::Began, Role::Router) => {
            let name = |name: &Option<String>, node: innkeeper_room::Incarnation| {
                name.clone().unwrap_or_else(|| node.to_string())
            };
            let (prefill, decode) = (
                name(&record.prefill_name, record.prefill),
                name(&record.decode_name, record.decode),
            );
            format!("attempt {} on {prefill} and {decode}", record.attempt)
        }
        _ => entry.detail.clone(),
    }
}
