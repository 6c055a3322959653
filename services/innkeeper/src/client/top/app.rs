//! What is known, and what keys do with it. No clock and no terminal: times are given, as long as the program runs.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use innkeeper_room::RoomId;
use serde_json::Value;

/// Lines that a page key scrolls.
const PAGE: usize = 10;

/// What one look brought.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// As `ps --json` has them.
    pub(crate) nodes: Vec<Value>,
    /// As `rooms ls --json` has them.
    pub(crate) rooms: Vec<Value>,
    /// As `rooms ls --ended --json` has them.
    pub(crate) ended: Vec<Value>,
    /// The router does not answer; in one sentence.
    pub(crate) away: Option<String>,
    /// Nodes that do not answer, in a sentence each.
    pub(crate) silent: Vec<String>,
    /// The time of the look, unix milliseconds.
    pub(crate) now_ms: u64,
}

/// What a key asks for beyond the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Nothing,
    Quit,
    Explain(RoomId),
}

/// A room that is being explained.
#[derive(Clone, Debug)]
pub(crate) struct Detail {
    pub(crate) room: RoomId,
    /// `None` until it is there.
    pub(crate) text: Option<String>,
    /// Lines above the screen.
    pub(crate) scroll: usize,
}

/// The whole state of the screen.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) router: String,
    /// The last look that succeeded, and when it did.
    pub(crate) last: Option<(Snapshot, Duration)>,
    /// Why the last look failed.
    pub(crate) failed: Option<String>,
    /// A room's id: a list that moves under it does not move it.
    pub(crate) selected: Option<String>,
    /// Only rooms that ended badly are listed among those that are over.
    pub(crate) only_bad: bool,
    pub(crate) detail: Option<Detail>,
}

impl App {
    pub(crate) fn new(router: String) -> Self {
        Self {
            router,
            last: None,
            failed: None,
            selected: None,
            only_bad: false,
            detail: None,
        }
    }

    /// A look ended at `now`.
    pub(crate) fn looked(&mut self, snapshot: Result<Snapshot, String>, now: Duration) {
        match snapshot {
            Ok(snapshot) => {
                self.last = Some((snapshot, now));
                self.failed = None;
            }
            Err(why) => self.failed = Some(why),
        }
    }

    /// An explanation came, or why there is none.
    pub(crate) fn explained(&mut self, room: RoomId, text: String) {
        if let Some(detail) = self.detail.as_mut().filter(|detail| detail.room == room) {
            detail.text = Some(text);
        }
    }

    /// A key was pressed.
    pub(crate) fn press(&mut self, key: KeyEvent) -> Act {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('q') => Act::Quit,
            KeyCode::Char('c') if control => Act::Quit,
            code => match &mut self.detail {
                Some(_) if matches!(code, KeyCode::Esc | KeyCode::Enter | KeyCode::Left | KeyCode::Backspace) => {
                    self.detail = None;
                    Act::Nothing
                }
                Some(detail) => {
                    detail.scroll = scrolled(code, detail);
                    Act::Nothing
                }
                None => self.press_in_lists(code),
            },
        }
    }

    fn press_in_lists(&mut self, code: KeyCode) -> Act {
        match code {
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::PageDown => self.select(isize::try_from(PAGE).unwrap_or(1)),
            KeyCode::PageUp => self.select(isize::try_from(PAGE).map_or(-1, |page| -page)),
            KeyCode::Home | KeyCode::Char('g') => self.select(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.select(isize::MAX),
            KeyCode::Esc => self.selected = None,
            KeyCode::Char('f') => self.only_bad = !self.only_bad,
            KeyCode::Enter => return self.explain(),
            _ => {}
        }
        Act::Nothing
    }

    /// Moves the selection through both lists, the live rooms first.
    fn select(&mut self, by: isize) {
        let all: Vec<String> = self.live().into_iter().chain(self.over()).map(id).collect();
        let at = self
            .selected
            .as_ref()
            .and_then(|own| all.iter().position(|id| id == own));
        let to = match at {
            Some(at) => at.saturating_add_signed(by),
            None if by == isize::MAX => usize::MAX,
            None => 0,
        };
        self.selected = all.get(to.min(all.len().saturating_sub(1))).cloned();
    }

    fn explain(&mut self) -> Act {
        let Some(room) = self.selected.as_ref().and_then(|id| id.parse().ok()) else {
            return Act::Nothing;
        };
        self.detail = Some(Detail {
            room,
            text: None,
            scroll: 0,
        });
        Act::Explain(room)
    }

    /// The live rooms, oldest first.
    pub(crate) fn live(&self) -> Vec<&Value> {
        let mut rooms: Vec<&Value> = self.last.iter().flat_map(|(last, _)| &last.rooms).collect();
        rooms.sort_by_key(|room| std::cmp::Reverse(room["age_ms"].as_u64()));
        rooms
    }

    /// The rooms that are over, newest first.
    pub(crate) fn over(&self) -> Vec<&Value> {
        let all = self.last.iter().flat_map(|(last, _)| &last.ended);
        all.filter(|row| !self.only_bad || row["verdict"] != "done").collect()
    }
}

/// A row's room.
fn id(row: &Value) -> String {
    row["room"].as_str().unwrap_or_default().to_owned()
}

fn scrolled(code: KeyCode, detail: &Detail) -> usize {
    let lines = detail.text.as_ref().map_or(0, |text| text.lines().count());
    let to = match code {
        KeyCode::Down | KeyCode::Char('j') => detail.scroll + 1,
        KeyCode::Up | KeyCode::Char('k') => detail.scroll.saturating_sub(1),
        KeyCode::PageDown | KeyCode::Char(' ') => detail.scroll + PAGE,
        KeyCode::PageUp => detail.scroll.saturating_sub(PAGE),
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => lines,
        _ => detail.scroll,
    };
    to.min(lines.saturating_sub(1))
}
