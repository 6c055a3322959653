//! What is known, in the words of the screen.

use std::time::Duration;

use innkeeper_room::{Phase, RoomId};
use serde_json::Value;

use super::app::{App, Snapshot};
use crate::client::rooms::cell;

/// From so much of its budget on a room is worth a look.
const LATE: u64 = 50;
const VERY_LATE: u64 = 90;
/// How much of its budget a room has used, in percent.
fn used(row: &Value) -> u64 {
    let (left, budget) = (row["deadline_ms"].as_u64(), row["budget_ms"].as_u64());
    match (left, budget) {
        (Some(left), Some(budget)) if budget > 0 => 100 - (left.min(budget) * 100).div_ceil(budget),
        // A node that does not say, or a room that ends now.
        (Some(_) | None, Some(_) | None) => 0,
    }
}

/// A room's phases while it lives.
pub(crate) const LIVE: [Phase; 5] = [
    Phase::Queued,
    Phase::Bootstrapping,
    Phase::WaitingForInput,
    Phase::Transferring,
    Phase::Decoding,
];

/// How much a line stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Warn,
    Bad,
}

/// A line of a table.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) cells: Vec<String>,
    pub(crate) tone: Tone,
}

/// A table with its lines; one may be selected.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    pub(crate) lines: Vec<Line>,
    pub(crate) selected: Option<usize>,
}

/// Everything that the screen shows.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) head: String,
    /// What is wrong: the router, or nodes, that do not answer.
    pub(crate) notes: Vec<String>,
    pub(crate) nodes: Vec<Line>,
    /// One line per question, one column per phase.
    pub(crate) phases: Vec<Line>,
    pub(crate) rooms: List,
    pub(crate) verdicts: List,
    pub(crate) only_bad: bool,
    pub(crate) detail: Option<(RoomId, Vec<String>, usize)>,
}

impl App {
    /// What the screen shows at `now`.
    pub(crate) fn shown(&self, now: Duration) -> Shown {
        let empty = Snapshot::default();
        let snapshot = self.last.as_ref().map_or(&empty, |(snapshot, _)| snapshot);
        let (live, over) = (self.live(), self.over());
        let selected = |rows: &[&Value]| {
            let own = self.selected.as_deref()?;
            rows.iter().position(|row| row["room"] == own)
        };
        let rooms = List {
            selected: selected(&live),
            lines: live.iter().map(|row| room(row, &snapshot.nodes)).collect(),
        };
        Shown {
            head: self.head(snapshot, now),
            notes: self.notes(snapshot),
            nodes: nodes(snapshot),
            phases: phases(&live),
            verdicts: List {
                // One that just ended is still listed above.
                selected: selected(&over).filter(|_| rooms.selected.is_none()),
                lines: over.iter().map(|row| verdict(row, snapshot.now_ms)).collect(),
            },
            rooms,
            only_bad: self.only_bad,
            detail: self.detail.as_ref().map(|detail| {
                let waiting = || "asking the room's nodes …".to_owned();
                let text = detail.text.clone().unwrap_or_else(waiting);
                (detail.room, text.lines().map(str::to_owned).collect(), detail.scroll)
            }),
        }
    }

    fn head(&self, snapshot: &Snapshot, now: Duration) -> String {
        let age = match &self.last {
            Some((_, at)) => format!("{} ago", time(millis(now.saturating_sub(*at)))),
            None => "not yet".to_owned(),
        };
        let serving = snapshot.nodes.iter().filter(|node| node["state"] == "serving").count();
        format!(
            "innkeeper top · {} · {serving} of {} nodes serve · {} rooms · seen {age}",
            self.router,
            snapshot.nodes.len(),
            snapshot.rooms.len()
        )
    }

    fn notes(&self, snapshot: &Snapshot) -> Vec<String> {
        let mut notes: Vec<String> = self.failed.iter().chain(&snapshot.away).cloned().collect();
        if self.failed.is_none() {
            notes.extend(snapshot.silent.iter().cloned());
        }
        notes
    }
}

fn phases(live: &[&Value]) -> Vec<Line> {
    let of = |phase: Phase| live.iter().filter(move |row| row["phase"] == phase.name());
    let late = |phase: Phase, share: u64| of(phase).filter(|row| used(row) >= share).count();
    let oldest = |phase: Phase| of(phase).filter_map(|row| row["phase_age_ms"].as_u64()).max();
    let line = |name: &str, tone: Tone, cell: &dyn Fn(Phase) -> String| Line {
        cells: std::iter::once(name.to_owned()).chain(LIVE.map(cell)).collect(),
        tone,
    };
    let any = |share: u64, tone: Tone| {
        let found = LIVE.iter().any(|phase| late(*phase, share) > 0);
        if found { tone } else { Tone::Plain }
    };
    vec![
        line("rooms", Tone::Plain, &|phase| of(phase).count().to_string()),
        line(&format!("{LATE} % used"), any(LATE, Tone::Warn), &|phase| {
            late(phase, LATE).to_string()
        }),
        line(&format!("{VERY_LATE} % used"), any(VERY_LATE, Tone::Bad), &|phase| {
            late(phase, VERY_LATE).to_string()
        }),
        line("oldest", Tone::Plain, &|phase| {
            oldest(phase).map_or_else(|| "-".to_owned(), time)
        }),
    ]
}

fn room(row: &Value, nodes: &[Value]) -> Line {
    let used = used(row);
    let name = |field: &str| name_of(&row[field], nodes);
    let owes = match row["owes"].as_str() {
        Some("prefill") => name("prefill"),
        Some("decode") => name("decode"),
        Some("router") => name("owner"),
        _ => cell(&row["owes"]),
    };
    let ms = |field: &str| time(row[field].as_u64().unwrap_or(0));
    Line {
        cells: vec![
            cell(&row["room"]),
            cell(&row["phase"]),
            ms("age_ms"),
            ms("phase_age_ms"),
            ms("deadline_ms"),
            format!("{used} %"),
            owes,
            format!("{} → {}", name("prefill"), name("decode")),
        ],
        tone: match used {
            VERY_LATE.. => Tone::Bad,
            LATE.. => Tone::Warn,
            _ => Tone::Plain,
        },
    }
}

/// The nodes; those that do not serve first.
fn nodes(snapshot: &Snapshot) -> Vec<Line> {
    let mut lines: Vec<Line> = snapshot.nodes.iter().map(|row| node(row, snapshot)).collect();
    lines.sort_by_key(|line| line.tone == Tone::Plain);
    lines
}

fn node(row: &Value, snapshot: &Snapshot) -> Line {
    let number = |field: &str| row[field].as_u64();
    let own = |room: &&Value| room["owner"] == row["incarnation"];
    let rooms = match row["role"].as_str() {
        Some("router") => Some(snapshot.rooms.iter().filter(own).count() as u64),
        _ => number("rooms"),
    };
    let or_dash = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let avoided = row["avoided_peers"].as_array().map_or(0, Vec::len);
    let breaker = match (cell(&row["breaker"]), avoided) {
        (label, 0) => label,
        (label, links) => format!("{label}, {links} links avoided"),
    };
    let load = number("pages").zip(number("free_pages"));
    let load = load.and_then(|(all, free)| (all.saturating_sub(free) * 100).checked_div(all));
    let serves = row["state"] == "serving";
    let used = row["breaker"].is_null() || row["breaker"] == "closed";
    Line {
        tone: match (serves, used && avoided == 0) {
            (false, _) => Tone::Bad,
            (true, false) => Tone::Warn,
            (true, true) => Tone::Plain,
        },
        cells: vec![
            cell(&row["role"]),
            cell(&row["name"]),
            cell(&row["state"]),
            or_dash(rooms),
            or_dash(number("free_pages")),
            load.map_or_else(|| "-".to_owned(), |load| format!("{load} %")),
            number("engine_owes_ms").map_or_else(|| "-".to_owned(), time),
            breaker,
        ],
    }
}

fn verdict(row: &Value, now_ms: u64) -> Line {
    let ago = now_ms.saturating_sub(row["ended_ms"].as_u64().unwrap_or(now_ms));
    let blame = match (cell(&row["blame"]), row["blame_name"].as_str()) {
        (_, Some(name)) => name.to_owned(),
        (label, None) => label,
    };
    Line {
        cells: vec![
            time(ago),
            cell(&row["room"]),
            cell(&row["verdict"]),
            blame,
            cell(&row["headline"]),
        ],
        tone: match row["verdict"].as_str() {
            Some("done" | "aborted") => Tone::Plain,
            _ => Tone::Warn,
        },
    }
}

fn name_of(incarnation: &Value, nodes: &[Value]) -> String {
    let found = nodes.iter().find(|node| node["incarnation"] == *incarnation);
    found.map_or_else(|| cell(incarnation), |node| cell(&node["name"]))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A time for people, never wider than seven columns.
pub(crate) fn time(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..10_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        10_000..600_000 => format!("{} s", ms / 1000),
        600_000..36_000_000 => format!("{} min", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}
