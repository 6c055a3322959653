//! An explanation as a terminal shows it.

use std::fmt::Write as _;

use super::{Explanation, words};

/// The explanation as text of several lines.
#[must_use]
pub fn print(of: &Explanation) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut text, of);
    text
}

fn write(text: &mut String, of: &Explanation) -> std::fmt::Result {
    writeln!(text, "room {} · attempt {} of request {}", of.room, of.attempt, of.rid)?;
    let blame = of.blame.as_deref().unwrap_or("not known");
    let name = of.blame_name.as_deref().unwrap_or_default();
    match &of.verdict {
        Some(verdict) => writeln!(text, "verdict {verdict} · blame {blame} {name}")?,
        None => writeln!(text, "it lives")?,
    }
    writeln!(text, "\n{}\n", of.headline)?;
    let owes = if of.live { "owes" } else { "owed" };
    match of.since_ms {
        Some(since) => {
            let until = of.ended_ms.map_or_else(String::new, |end| {
                format!(", {} before the end", words::time(end.saturating_sub(since)))
            });
            let after = of.began_ms.map_or(0, |began| since.saturating_sub(began));
            writeln!(
                text,
                "{owes}:  {} {owes} the next step, {}, since {} after the beginning{until}",
                of.owed,
                of.owes_what,
                words::time(after)
            )?;
        }
        None => writeln!(text, "{owes}:  nobody")?,
    }
    section(text, "evidence", &of.evidence)?;
    section(text, "what was done", &of.did)?;
    writeln!(text, "client: {}", of.client)?;
    if let Some(trace) = &of.trace_id {
        writeln!(text, "trace:  {trace}")?;
    }
    for part in of.parts.iter().filter(|part| !part.answered) {
        let why = part.why.as_deref().unwrap_or_default();
        writeln!(text, "missing: {} {}: {why}", words::kind(part.role), part.name)?;
    }
    writeln!(
        text,
        "\nwhat happened, in seconds since the room began, by each node's own clock:"
    )?;
    let width = of.story.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
    for line in &of.story {
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let after = line.after_ms as f64 / 1e3;
        let colon = if line.detail.is_empty() { "" } else { ": " };
        writeln!(
            text,
            "{after:>+9.3}  {:width$}  {}{colon}{}",
            line.name, line.what, line.detail
        )?;
    }
    Ok(())
}

fn section(text: &mut String, name: &str, lines: &[String]) -> std::fmt::Result {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(text, "{name}:")?;
    lines.iter().try_for_each(|line| writeln!(text, "  - {line}"))
}
