//! `innkeeper top`: the cluster on a terminal, looked at again and again.
//!
//! ```text
//! mod     the loop: keys, signals, looks, and a terminal that is left as it was found
//! app     what is known, and what keys do with it; pure
//! shown   what is known, in the words of the screen; pure
//! draw    those words on a screen of any size; pure
//! ```

mod app;
mod draw;
mod shown;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Context;
use crossterm::event::{Event, EventStream, KeyEventKind};
use futures::StreamExt;
use innkeeper_node::recorder::explain::print;
use innkeeper_room::RoomId;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::RouterArgs;
use super::explain::{ended, look_up};
use super::look::{look, merged};
use app::{Act, App, Snapshot};
pub(crate) use shown::time;

/// The last so many rooms that are over are looked at.
const ENDED_ROWS: u32 = 200;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    router: RouterArgs,
    /// From one look to the next, in milliseconds.
    #[arg(long, default_value_t = 1000, value_name = "MS", value_parser = clap::value_parser!(u64).range(100..=3_600_000))]
    every_ms: u64,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!(
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal(),
        "top needs a terminal; into a pipe go `innkeeper ps` and `innkeeper rooms ls --watch`"
    );
    // Before the screen is taken: from here on a signal is an ordinary end.
    let mut signals = Signals::listen()?;
    let mut screen = Screen::take()?;
    live(args, &mut screen, &mut signals).await
}

/// The terminal while it is ours. Dropping it gives it back; a panic does too, before it says anything.
struct Screen(ratatui::DefaultTerminal);

impl Screen {
    fn take() -> anyhow::Result<Self> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self(terminal)),
            Err(error) => {
                // It may be half taken.
                ratatui::restore();
                Err(error).context("this terminal cannot be used")
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The panic's own message is on the terminal already: leaving the screen twice would put the cursor above it.
        if !std::thread::panicking() {
            // Where the terminal is gone nobody is left to tell.
            let _ = ratatui::try_restore();
        }
    }
}

/// What ends a program from outside. In raw mode Ctrl-C is a key, not a signal.
struct Signals([Signal; 4]);

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self([
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::quit())?,
        ]))
    }

    async fn any(&mut self) {
        let each = self.0.iter_mut().map(|signal| Box::pin(signal.recv()));
        futures::future::select_all(each).await;
    }
}

/// What a look or a question brought.
enum Told {
    Looked(anyhow::Result<Snapshot>),
    Explained(RoomId, anyhow::Result<String>),
}

async fn live(args: &Args, screen: &mut Screen, signals: &mut Signals) -> anyhow::Result<()> {
    let router = args.router.clone();
    let began = Instant::now();
    let mut app = App::new(super::http::base(&router.router));
    let mut keys = EventStream::new();
    // Ages go on between two looks.
    let mut ticks = interval(Duration::from_millis(args.every_ms));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looking = false;
    let mut tasks = JoinSet::new();
    loop {
        let shown = app.shown(began.elapsed());
        screen.0.draw(|frame| draw::draw(frame, &shown))?;
        tokio::select! {
            biased;
            () = signals.any() => return Ok(()),
            event = keys.next() => match pressed(&mut app, event)? {
                Act::Quit => return Ok(()),
                Act::Explain(room) => {
                    tasks.spawn(explained(router.clone(), room));
                }
                Act::Nothing => {}
            },
            Some(told) = tasks.join_next() => match told? {
                Told::Looked(snapshot) => {
                    looking = false;
                    app.looked(snapshot.map_err(|error| format!("{error:#}")), began.elapsed());
                }
                Told::Explained(room, text) => {
                    app.explained(room, text.unwrap_or_else(|error| format!("{error:#}")));
                }
            },
            _ = ticks.tick() => if !looking {
                looking = true;
                tasks.spawn(looked(router.clone()));
            },
        }
    }
}

fn pressed(app: &mut App, event: Option<std::io::Result<Event>>) -> anyhow::Result<Act> {
    match event {
        Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => Ok(app.press(key)),
        // Another size, a mouse: drawn again.
        Some(Ok(_)) => Ok(Act::Nothing),
        Some(Err(error)) => Err(error).context("the terminal is gone"),
        None => Ok(Act::Quit),
    }
}

async fn looked(router: RouterArgs) -> Told {
    Told::Looked(snapshot(&router).await)
}

/// One look at everything.
async fn snapshot(router: &RouterArgs) -> anyhow::Result<Snapshot> {
    let (look, ended) = tokio::join!(look(router), ended(router, ENDED_ROWS));
    let look = look?;
    let rooms = merged(&look.seen);
    Ok(Snapshot {
        nodes: look.nodes,
        rooms,
        ended: ended.unwrap_or_default(),
        away: look.away,
        silent: look.silent,
        now_ms: innkeeper_node::recorder::unix_ms(),
    })
}

async fn explained(router: RouterArgs, room: RoomId) -> Told {
    let explanation = look_up(&router, room).await;
    let text = explanation.map(|(of, away)| {
        let away = away.map(|away| format!("{away}\n\n")).unwrap_or_default();
        format!("{away}{}", print(&of))
    });
    Told::Explained(room, text)
}
