use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::app::{Act, App, Snapshot};
use super::draw::draw;

const NOW: u64 = 1_000_000;

fn node(role: &str, name: &str, incarnation: &str, state: &str) -> Value {
    let mut node = json!({ "role": role, "name": name, "incarnation": incarnation, "state": state });
    if role != "router" {
        node["rooms"] = json!(2);
        node["pages"] = json!(4096);
        node["free_pages"] = json!(1024);
        node["engine_owes_ms"] = json!(20);
        node["breaker"] = json!("closed");
        node["avoided_peers"] = json!([]);
    }
    node
}

fn room(id: &str, phase: &str, age: u64, left: u64, owes: &str) -> Value {
    json!({
        "room": id, "phase": phase, "age_ms": age, "phase_age_ms": age / 2, "deadline_ms": left,
        "budget_ms": 4_500, "prefill": "p0",
        "decode": "d0", "owner": "r", "owes": owes, "attempt": 1,
    })
}

fn over(id: &str, verdict: &str, blame: &str, name: Option<&str>, ago: u64) -> Value {
    json!({
        "room": id, "verdict": verdict, "blame": blame, "blame_name": name, "ended_ms": NOW - ago,
        "headline": format!("what became of {id}"),
    })
}

fn snapshot() -> Snapshot {
    Snapshot {
        nodes: vec![
            node("router", "router", "r", "serving"),
            node("prefill", "prefill-0", "p0", "serving"),
            node("prefill", "prefill-1", "p1", "serving"),
            node("decode", "decode-0", "d0", "unreachable"),
            node("decode", "decode-1", "d1", "serving"),
        ],
        rooms: vec![
            room("00000000000000aa", "decoding", 1_200, 4_500, "decode"),
            room("00000000000000bb", "transferring", 45_000, 400, "prefill"),
            room("00000000000000cc", "transferring", 2_000, 4_000, "prefill"),
        ],
        ended: vec![
            over("00000000000000dd", "done", "nobody", None, 900),
            over("00000000000000ee", "decode_lost", "decode", Some("decode-0"), 61_000),
        ],
        now_ms: NOW,
        ..Snapshot::default()
    }
}

fn app() -> App {
    let mut app = App::new("http://r:1".to_owned());
    app.looked(Ok(snapshot()), Duration::from_secs(3));
    app
}

/// The screen as lines.
fn screen(app: &App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let shown = app.shown(Duration::from_millis(3_400));
    terminal.draw(|frame| draw(frame, &shown)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

fn press(app: &mut App, code: KeyCode) -> Act {
    app.press(KeyEvent::new(code, KeyModifiers::NONE))
}

fn line<'a>(lines: &'a [String], has: &str) -> &'a str {
    let found = lines.iter().find(|line| line.contains(has));
    found.unwrap_or_else(|| panic!("`{has}` is not in\n{}", lines.join("\n")))
}

/// All parts are in one line, in this order.
fn has(lines: &[String], parts: &[&str]) {
    let mut rest = line(lines, parts[0]);
    for part in parts {
        let at = rest.find(part);
        rest = &rest[at.unwrap_or_else(|| panic!("no `{part}` after others in\n{}", lines.join("\n")))..];
    }
}

#[test]
fn a_small_terminal_shows_all_four_tables() {
    let lines = screen(&app(), 80, 24);
    eprintln!("{}", lines.join("\n"));
    assert_eq!(
        lines[0],
        "innkeeper top · http://r:1 · 4 of 5 nodes serve · 3 rooms · seen 400 ms ago"
    );
    has(
        &lines,
        &[
            "role",
            "name",
            "state",
            "rooms",
            "free pages",
            "load",
            "engine",
            "breaker",
        ],
    );
    has(
        &lines,
        &["decode-0", "unreachable", "2", "1024", "75 %", "20 ms", "closed"],
    );
    has(
        &lines,
        &[
            "queued",
            "bootstrapping",
            "waiting_for_input",
            "transferring",
            "decoding",
        ],
    );
    has(&lines, &["oldest", "-", "22 s", "600 ms"]);
    has(&lines, &["live rooms, the oldest first (3)"]);
    has(
        &lines,
        &[
            "00000000000000bb",
            "transferring",
            "45 s",
            "22 s",
            "400 ms",
            "91 %",
            "prefill-0",
        ],
    );
    has(&lines, &["ended, the newest first (2)"]);
    has(
        &lines,
        &[
            "61 s",
            "00000000000000ee",
            "decode_lost",
            "decode-0",
            "what became of 0000",
        ],
    );
    assert!(lines[23].starts_with("q quit"), "{}", lines[23]);
}

#[test]
fn a_large_terminal_shows_nodes_and_phases_side_by_side_and_the_pair() {
    let lines = screen(&app(), 200, 50);
    eprintln!("{}", lines.join("\n"));
    assert!(
        lines[1].starts_with("nodes─") && lines[1].contains("rooms by phase, and by how much"),
        "{}",
        lines[1]
    );
    has(&lines, &["00000000000000bb", "prefill-0 → decode-0"]);
    has(&lines, &["00000000000000ee", "what became of 00000000000000ee"]);
}

#[test]
fn what_does_not_serve_comes_first() {
    let lines = screen(&app(), 80, 24);
    let at = |name: &str| lines.iter().position(|line| line.contains(name)).unwrap();
    assert!(at("decode-0") < at("router  router"), "{}", lines.join("\n"));
}

#[test]
fn the_oldest_room_is_first_and_its_used_share_is_of_its_own_budget() {
    let app = app();
    let shown = app.shown(Duration::from_secs(3));
    let used: Vec<_> = shown.rooms.lines.iter().map(|line| line.cells[5].as_str()).collect();
    assert_eq!(used, ["91 %", "11 %", "0 %"]);
    let late: Vec<_> = shown.phases.iter().map(|line| line.cells[4].as_str()).collect();
    assert_eq!(late, ["2", "1", "1", "22 s"]);
}

#[test]
fn nothing_is_known_yet() {
    let lines = screen(&App::new("http://r:1".to_owned()), 80, 24);
    assert!(
        lines[0].ends_with("0 of 0 nodes serve · 0 rooms · seen not yet"),
        "{}",
        lines[0]
    );
}

#[test]
fn a_router_that_is_away_is_shown_above_what_was_seen_last() {
    let mut app = app();
    app.looked(Err("no answer from http://r:1".to_owned()), Duration::from_secs(4));
    let lines = screen(&app, 80, 24);
    assert_eq!(lines[1], "no answer from http://r:1");
    has(&lines, &["00000000000000bb"]);
    let away = Snapshot {
        away: Some("the router does not answer; asking the nodes".to_owned()),
        silent: vec!["decode decode-0 does not answer".to_owned()],
        ..snapshot()
    };
    app.looked(Ok(away), Duration::from_secs(5));
    let lines = screen(&app, 80, 24);
    assert_eq!(lines[1], "the router does not answer; asking the nodes");
    assert_eq!(lines[2], "decode decode-0 does not answer");
    app.looked(Ok(snapshot()), Duration::from_secs(6));
    assert!(!screen(&app, 80, 24)[1].contains("answer"));
}

#[test]
fn no_size_is_too_small_and_none_too_large() {
    let mut app = app();
    for (width, height) in [(1, 1), (10, 3), (40, 10), (79, 23), (129, 24), (130, 7), (400, 120)] {
        screen(&app, width, height);
        press(&mut app, KeyCode::Down);
        press(&mut app, KeyCode::Enter);
        screen(&app, width, height);
        press(&mut app, KeyCode::Esc);
    }
}

#[test]
fn keys_select_through_both_lists_and_the_selection_stays_with_its_room() {
    let mut app = app();
    press(&mut app, KeyCode::Char('j'));
    assert_eq!(app.selected.as_deref(), Some("00000000000000bb"));
    for _ in 0..3 {
        press(&mut app, KeyCode::Down);
    }
    assert_eq!(app.selected.as_deref(), Some("00000000000000dd"));
    press(&mut app, KeyCode::Char('k'));
    assert_eq!(app.selected.as_deref(), Some("00000000000000aa"));
    let mut next = snapshot();
    next.rooms
        .insert(0, room("00000000000000ff", "queued", 99_000, 1_000, "nobody"));
    app.looked(Ok(next), Duration::from_secs(4));
    assert_eq!(app.selected.as_deref(), Some("00000000000000aa"));
    assert_eq!(app.shown(Duration::from_secs(4)).rooms.selected, Some(3));
    press(&mut app, KeyCode::End);
    assert_eq!(app.selected.as_deref(), Some("00000000000000ee"));
    press(&mut app, KeyCode::Down);
    assert_eq!(
        app.selected.as_deref(),
        Some("00000000000000ee"),
        "the last one is the last"
    );
    press(&mut app, KeyCode::Home);
    press(&mut app, KeyCode::Up);
    assert_eq!(
        app.selected.as_deref(),
        Some("00000000000000ff"),
        "the first one is the first"
    );
}

#[test]
fn a_selected_line_below_the_screen_is_scrolled_to() {
    let mut app = app();
    let mut many = snapshot();
    many.rooms = (0..100_u64)
        .map(|at| room(&format!("{at:016x}"), "decoding", 100_000 - at, 1_000, "decode"))
        .collect();
    app.looked(Ok(many), Duration::from_secs(4));
    for _ in 0..=60 {
        press(&mut app, KeyCode::Down);
    }
    has(&screen(&app, 80, 24), &[&format!("{:016x}", 60), "decoding"]);
}

#[test]
fn enter_explains_the_selected_room_and_escape_goes_back() {
    let mut app = app();
    assert_eq!(press(&mut app, KeyCode::Enter), Act::Nothing, "nothing is selected");
    press(&mut app, KeyCode::End);
    let room = "00000000000000ee".parse().unwrap();
    assert_eq!(press(&mut app, KeyCode::Enter), Act::Explain(room));
    has(&screen(&app, 80, 24), &["room 00000000000000ee"]);
    has(&screen(&app, 80, 24), &["asking the room's nodes"]);
    app.explained("1".parse().unwrap(), "of another room".to_owned());
    let text: String = (0..40).map(|at| format!("line {at}\n")).collect();
    app.explained(room, text);
    let lines = screen(&app, 80, 24);
    has(&lines, &["line 0"]);
    assert!(
        !lines
            .iter()
            .any(|line| line.contains("of another room") || line.contains("line 30"))
    );
    press(&mut app, KeyCode::PageDown);
    press(&mut app, KeyCode::Char('j'));
    let lines = screen(&app, 80, 24);
    has(&lines, &["line 30"]);
    assert!(!lines.iter().any(|line| line == "line 10"), "{}", lines.join("\n"));
    press(&mut app, KeyCode::Esc);
    has(&screen(&app, 80, 24), &["live rooms"]);
}

#[test]
fn those_that_ended_well_can_be_left_out() {
    let mut app = app();
    press(&mut app, KeyCode::Char('f'));
    let lines = screen(&app, 80, 24);
    has(&lines, &["ended badly, the newest first (1)"]);
    assert!(!lines.iter().any(|line| line.contains("00000000000000dd")));
}

#[test]
fn q_and_control_c_quit_from_everywhere() {
    let mut app = app();
    assert_eq!(press(&mut app, KeyCode::Char('c')), Act::Nothing);
    assert_eq!(
        app.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)),
        Act::Quit
    );
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Enter);
    assert_eq!(press(&mut app, KeyCode::Char('q')), Act::Quit);
}
