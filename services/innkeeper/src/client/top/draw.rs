//! The words of the screen on a screen of any size: from 80 columns on everything has its place, from 120 on side by side.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table, TableState, Wrap};

use super::shown::{LIVE, Line, List, Shown, Tone};

/// From so many columns on nodes and phases stand side by side.
const WIDE: u16 = 130;
/// From so many columns on a live room's pair is shown.
const PAIR_WIDTH: u16 = 100;
/// Title, head and four lines.
const PHASES_HEIGHT: u16 = 6;
/// Title and head.
const TABLE_FRAME: u16 = 2;
const MOST_NOTES: u16 = 3;

/// Draws it all.
pub(crate) fn draw(frame: &mut Frame<'_>, shown: &Shown) {
    let notes = u16::try_from(shown.notes.len()).unwrap_or(MOST_NOTES).min(MOST_NOTES);
    let rows = [
        Constraint::Length(1),
        Constraint::Length(notes),
        Constraint::Fill(1),
        Constraint::Length(1),
    ];
    let [head, said, body, foot] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(Paragraph::new(bold(&shown.head)), head);
    let lines: Vec<Text<'_>> = shown.notes.iter().map(|note| coloured(note, Tone::Bad)).collect();
    frame.render_widget(Paragraph::new(lines), said);
    let keys = match &shown.detail {
        Some((room, lines, scroll)) => {
            detail(frame, body, &format!("room {room}"), lines, *scroll);
            "q quit · Esc back · j/k scroll"
        }
        None => {
            overview(frame, body, shown);
            "q quit · j/k or arrows select · Enter explains · f only what ended badly"
        }
    };
    frame.render_widget(
        Paragraph::new(keys).style(Style::new().add_modifier(Modifier::DIM)),
        foot,
    );
}

fn overview(frame: &mut Frame<'_>, area: Rect, shown: &Shown) {
    let wanted = u16::try_from(shown.nodes.len())
        .unwrap_or(u16::MAX)
        .saturating_add(TABLE_FRAME);
    let (top, lists) = if area.width >= WIDE {
        let height = wanted.max(PHASES_HEIGHT).min(area.height / 2);
        let rows = [Constraint::Length(height), Constraint::Fill(1)];
        let [top, lists] = Layout::vertical(rows).areas(area);
        let columns = [Constraint::Fill(1), Constraint::Length(2), Constraint::Length(76)];
        let [left, _, right] = Layout::horizontal(columns).areas(top);
        ([left, right], lists)
    } else {
        let height = wanted.min((area.height / 3).max(TABLE_FRAME + 2));
        let rows = [
            Constraint::Length(height),
            Constraint::Length(PHASES_HEIGHT),
            Constraint::Fill(1),
        ];
        let [nodes, phases, lists] = Layout::vertical(rows).areas(area);
        ([nodes, phases], lists)
    };
    nodes(frame, top[0], &shown.nodes);
    phases(frame, top[1], &shown.phases);
    let [rooms, verdicts] = Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).areas(lists);
    live(frame, rooms, &shown.rooms);
    over(frame, verdicts, &shown.verdicts, shown.only_bad);
}

fn nodes(frame: &mut Frame<'_>, area: Rect, lines: &[Line]) {
    let fit = usize::from(area.height.saturating_sub(TABLE_FRAME));
    let title = if lines.len() > fit {
        format!("nodes, {fit} of {}, those that do not serve first", lines.len())
    } else {
        "nodes".to_owned()
    };
    let head = [
        "role",
        "name",
        "state",
        "rooms",
        "free pages",
        "load",
        "engine",
        "breaker",
    ];
    let widths = [7, 12, 12, 5, 10, 5, 7].map(Constraint::Length);
    let widths = widths.into_iter().chain([Constraint::Fill(1)]);
    table(frame, area, &title, &head, widths, lines, None);
}

fn phases(frame: &mut Frame<'_>, area: Rect, lines: &[Line]) {
    let names = LIVE.map(|phase| phase.name());
    let head: Vec<&str> = std::iter::once("").chain(names).collect();
    let widths: Vec<Constraint> = std::iter::once(9)
        .chain(names.map(|name| u16::try_from(name.len()).unwrap_or(12)))
        .map(Constraint::Length)
        .collect();
    let title = "rooms by phase, and by how much of their time to the next bound is used";
    table(frame, area, title, &head, widths, lines, None);
}

fn live(frame: &mut Frame<'_>, area: Rect, list: &List) {
    let title = format!("live rooms, the oldest first ({})", list.lines.len());
    let head = ["room", "phase", "age", "in phase", "left", "used", "owes", "pair"];
    let widths = [16, 17, 7, 8, 7, 5].map(Constraint::Length);
    let widths = widths.into_iter().chain([Constraint::Fill(1), Constraint::Fill(2)]);
    // Who owes matters more than the pair, where there is no place for both.
    let columns = if area.width < PAIR_WIDTH {
        head.len() - 1
    } else {
        head.len()
    };
    let widths = widths.take(columns);
    table(
        frame,
        area,
        &title,
        &head[..columns],
        widths,
        &list.lines,
        list.selected,
    );
}

fn over(frame: &mut Frame<'_>, area: Rect, list: &List, only_bad: bool) {
    let title = if only_bad { "ended badly" } else { "ended" };
    let title = format!("{title}, the newest first ({})", list.lines.len());
    let head = ["ago", "room", "verdict", "blame", "what happened"];
    let widths = [7, 16, 16, 10].map(Constraint::Length);
    let widths = widths.into_iter().chain([Constraint::Fill(1)]);
    table(frame, area, &title, &head, widths, &list.lines, list.selected);
}

fn table<W>(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    head: &[&str],
    widths: W,
    lines: &[Line],
    selected: Option<usize>,
) where
    W: IntoIterator<Item = Constraint>,
{
    let rows = lines
        .iter()
        .map(|line| Row::new(line.cells.clone()).style(style(line.tone)));
    let head = Row::new(head.iter().map(|cell| (*cell).to_owned())).style(Style::new().add_modifier(Modifier::DIM));
    let table = Table::new(rows, widths)
        .header(head)
        .block(framed(title))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    // Scrolls as far as the selected line needs it.
    let mut state = TableState::new().with_selected(selected);
    frame.render_stateful_widget(table, area, &mut state);
}

fn detail(frame: &mut Frame<'_>, area: Rect, title: &str, lines: &[String], scroll: usize) {
    let text: Vec<Text<'_>> = lines
        .iter()
        .skip(scroll)
        .map(|line| Text::from(line.as_str()))
        .collect();
    let paragraph = Paragraph::new(text)
        .wrap(Wrap { trim: false })
        .alignment(Alignment::Left)
        .block(framed(title));
    frame.render_widget(paragraph, area);
}

fn framed(title: &str) -> Block<'_> {
    Block::new().borders(Borders::TOP).title(bold(title))
}

fn bold(text: &str) -> Text<'_> {
    Text::from(Span::styled(text, Style::new().add_modifier(Modifier::BOLD)))
}

fn coloured(text: &str, tone: Tone) -> Text<'_> {
    Text::from(Span::styled(text, style(tone)))
}

fn style(tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Warn => Style::new().fg(Color::Yellow),
        Tone::Bad => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
    }
}
