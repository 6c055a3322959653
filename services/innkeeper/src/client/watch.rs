//! `rooms ls --watch`: the same list, again and again. A terminal is redrawn in place; a pipe gets one table after the other.
//! A router that goes away is said, once, and so is that it came back.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use super::http::base;
use super::rooms::Listing;

/// Looks every so often until Ctrl-C, or until nobody reads any more.
pub(crate) async fn run<F, A>(router: &str, every: Duration, json: bool, mut take: F) -> anyhow::Result<()>
where
    F: FnMut() -> A,
    A: Future<Output = anyhow::Result<Listing>>,
{
    let on_terminal = std::io::stdout().is_terminal() && !json;
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut news = News::default();
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        let taken = async {
            ticks.tick().await;
            take().await
        };
        let taken = tokio::select! {
            done = &mut interrupted => return Ok(done?),
            taken = taken => taken,
        };
        let shown = if on_terminal {
            let size = crossterm::terminal::size().unwrap_or((80, 24));
            write(&screen(&page(router, every, &taken), size))
        } else {
            for line in news.of(router, &taken) {
                eprintln!("{line}");
            }
            match &taken {
                Ok(listing) if json => write(&format!("{}\n", listing.json()?)),
                Ok(listing) => write(&format!("{}\n", listing.table())),
                Err(_) => Ok(()),
            }
        };
        match shown {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn write(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// What was wrong at the look before.
#[derive(Default)]
struct News {
    away: bool,
    silent: Vec<String>,
}

impl News {
    /// What has changed since the look before, in a line each.
    fn of(&mut self, router: &str, taken: &anyhow::Result<Listing>) -> Vec<String> {
        let away = taken.as_ref().map_or(true, |listing| listing.away.is_some());
        let changed = std::mem::replace(&mut self.away, away) != away;
        let mut lines = vec![];
        match taken {
            Ok(listing) => {
                if changed {
                    let back = || format!("the router at {} answers again", base(router));
                    lines.push(listing.away.clone().unwrap_or_else(back));
                }
                let fresh = listing.silent.iter().filter(|line| !self.silent.contains(line));
                lines.extend(fresh.cloned());
                self.silent.clone_from(&listing.silent);
            }
            Err(error) if changed => lines.push(format!("{error:#}; looking again")),
            Err(_) => {}
        }
        lines
    }
}

/// What a terminal shows: a line about it all, what is to be said, and the table.
fn page(router: &str, every: Duration, taken: &anyhow::Result<Listing>) -> String {
    let head = |what: String| {
        format!(
            "{what} · {} · every {} ms · Ctrl-C ends",
            base(router),
            every.as_millis()
        )
    };
    match taken {
        Ok(listing) => {
            let rooms = listing.len();
            let notes = listing
                .away
                .iter()
                .chain(&listing.silent)
                .map(|note| format!("! {note}\n"));
            let notes: String = notes.collect();
            let head = head(format!("{rooms} room{}", if rooms == 1 { "" } else { "s" }));
            format!("{head}\n{notes}\n{}", listing.table())
        }
        Err(error) => format!("{}\n! {error:#}\n", head("no answer".to_owned())),
    }
}

/// The page drawn over the one before: cut to the terminal, so that nothing scrolls, and each line cleared to its end.
fn screen(page: &str, (width, height): (u16, u16)) -> String {
    const HOME: &str = "\x1b[H";
    const CLEAR_LINE: &str = "\x1b[K";
    const CLEAR_BELOW: &str = "\x1b[J";
    let (width, height) = (usize::from(width.max(1)), usize::from(height.max(2)));
    let all: Vec<&str> = page.lines().collect();
    // The last line stays free for the cursor.
    let room = height - 1;
    let fits = if all.len() > room { room - 1 } else { all.len() };
    let mut lines: Vec<String> = all[..fits]
        .iter()
        .map(|line| line.chars().take(width).collect())
        .collect();
    if fits < all.len() {
        lines.push(format!("… and {} more lines", all.len() - fits));
    }
    let lines: String = lines.iter().map(|line| format!("{line}{CLEAR_LINE}\r\n")).collect();
    format!("{HOME}{lines}{CLEAR_BELOW}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_too_long_or_too_wide_is_cut_and_says_so() {
        let page: String = (0..10)
            .map(|line| format!("line {line} {}\n", "x".repeat(30)))
            .collect();
        let drawn = screen(&page, (20, 6));
        let lines: Vec<_> = drawn.trim_start_matches("\x1b[H").lines().collect();
        assert_eq!(lines.len(), 6, "five lines, and what clears the rest: {drawn:?}");
        assert!(lines[0].starts_with("line 0 xxxxxxxxxxxxx\x1b[K"), "{drawn:?}");
        assert!(lines[4].starts_with("… and 6 more lines"), "{drawn:?}");
        assert_eq!(lines[5], "\x1b[J");
    }

    #[test]
    fn a_page_that_fits_is_whole() {
        assert_eq!(screen("a\nb\n", (20, 6)), "\x1b[Ha\x1b[K\r\nb\x1b[K\r\n\x1b[J");
    }

    #[test]
    fn what_is_wrong_and_that_it_is_well_again_is_said_once_each() {
        let listing = |away: bool, silent: &[&str]| {
            let away = away.then(|| "the router at r does not answer".to_owned());
            Ok(Listing::of_rows(
                vec![],
                away,
                silent.iter().map(|line| (*line).to_owned()).collect(),
            ))
        };
        let mut news = News::default();
        let mut said = |taken| news.of("r", &taken);
        let none: [&str; 0] = [];
        assert_eq!(said(listing(false, &[])), none);
        assert_eq!(said(listing(true, &["d"])), ["the router at r does not answer", "d"]);
        assert_eq!(said(Err(anyhow::anyhow!("still"))), none);
        assert_eq!(said(listing(true, &["d", "p"])), ["p"]);
        assert_eq!(said(listing(false, &[])), ["the router at http://r answers again"]);
        assert_eq!(said(listing(false, &["d"])), ["d"]);
        assert_eq!(said(Err(anyhow::anyhow!("gone"))), ["gone; looking again"]);
    }

    #[test]
    fn the_page_says_what_is_wrong_beside_the_rooms() {
        let note = "the router at r does not answer".to_owned();
        let taken = Ok(Listing::of_rows(
            vec![serde_json::json!({ "room": "ab", "phase": "decoding" })],
            Some(note),
            vec![],
        ));
        let page = page("r", Duration::from_secs(1), &taken);
        assert!(page.starts_with("1 room · http://r · every 1000 ms"), "{page}");
        assert!(
            page.contains("! the router at r does not answer") && page.contains("decoding"),
            "{page}"
        );
    }
}
