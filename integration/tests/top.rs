//! `innkeeper top` in a real terminal, which is tmux's, and `rooms ls --watch` into a pipe, both against a real cluster.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::process::{Command, Stdio};
use std::time::Duration;

use innkeeper_integration::{Cluster, Options, Room, completion, oracle, program, signal, until, within};
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, BufReader};

const SOON: Duration = Duration::from_secs(30);

/// A shell in a terminal of its own, in a tmux server of its own. Dropping it ends both.
struct Terminal {
    server: String,
}

impl Terminal {
    fn start(router: &str) -> Self {
        let terminal = Self {
            server: format!("innkeeper-test-{}", std::process::id()),
        };
        let size = ["-x", "80", "-y", "24"];
        let mut command = terminal.command();
        for (name, _) in
            std::env::vars().filter(|(name, _)| name.starts_with("INNKEEPER_") && name != "INNKEEPER_CACHE")
        {
            command.env_remove(name);
        }
        command
            .env("INNKEEPER_ROUTER", router)
            .env("PS1", "prompt> ")
            .env_remove("TMUX")
            .env("TERM", "xterm-256color");
        command
            .args(["-f", "/dev/null", "new-session", "-d"])
            .args(size)
            .args(["sh", "-i"]);
        let status = command.stdin(Stdio::null()).status();
        let status = status.unwrap_or_else(|error| panic!("cannot run tmux ({error}): apt-get install tmux"));
        assert!(status.success(), "tmux does not start: {status}");
        terminal
    }

    fn command(&self) -> Command {
        let mut command = Command::new("tmux");
        // In UTF-8, whatever the locale is.
        command.args(["-u", "-L", &self.server]);
        command
    }

    fn tmux(&self, args: &[&str]) -> String {
        let output = self.command().args(args).stdin(Stdio::null()).output().unwrap();
        assert!(
            output.status.success(),
            "tmux {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What is on the screen.
    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// A key, by tmux's name.
    fn key(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// A line for the shell.
    fn line(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.key("Enter");
    }

    /// A format of tmux's about the terminal.
    fn says(&self, format: &str) -> String {
        self.tmux(&["display-message", "-p", format]).trim().to_owned()
    }

    async fn wait(&self, what: &str, seen: impl Fn(&str) -> bool) -> String {
        until(SOON, what, || {
            let screen = self.screen();
            let found = seen(&screen);
            async move { if found { Ok(screen) } else { Err(screen) } }
        })
        .await
    }

    /// Starts `top` and waits for its screen.
    async fn top(&self) {
        self.line(&format!("{} top --every-ms=200", program().display()));
        self.wait("top shows the nodes", |screen| screen.contains("decode-1"))
            .await;
        assert_eq!(self.says("#{alternate_on}"), "1", "top has a screen of its own");
    }

    /// The shell has its terminal back as it was: its screen, its cursor, its line editing and its echo.
    async fn is_back(&self) {
        until(SOON, "the terminal is back", || {
            let modes = self.says("#{alternate_on} #{cursor_flag} #{pane_current_command}");
            async move { if modes == "0 1 sh" { Ok(()) } else { Err(modes) } }
        })
        .await;
        self.line("stty -a | grep -c ' echo ' ; stty -a | grep -c ' icanon '; echo all-$((6 * 7))");
        let screen = self.wait("the shell answers", |screen| screen.contains("all-42")).await;
        assert!(screen.contains("\n1\n1\nall-42"), "{screen}");
        assert!(
            screen.contains("echo all-$((6 * 7))"),
            "what is typed is seen: {screen}"
        );
        self.tmux(&["send-keys", "-R", "clear", "Enter"]);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.command().arg("kill-server").stderr(Stdio::null()).status());
    }
}

fn options() -> Options {
    Options::mock()
        .workers(1, 2)
        .etcd()
        .ttl_ms(2000)
        .flag("mock-decode-us-per-token", 20_000)
}

/// A room that decodes for longer than the test looks.
async fn running(cluster: &Cluster, rid: &str) -> (tokio::task::JoinHandle<()>, Room) {
    let (client, rid) = (cluster.client.clone(), rid.to_owned());
    let asked = tokio::spawn(async move {
        client
            .post_as(&rid, "/v1/completions", &completion("mock", "decode", 6_000))
            .await;
    });
    (asked, cluster.wait_phase("decoding", SOON).await)
}

#[tokio::test]
async fn top_and_watch_show_a_cluster_and_leave_the_terminal_as_it_was() {
    let cluster = Cluster::start(options()).await;
    let (asked, room) = running(&cluster, "long").await;
    let terminal = Terminal::start(cluster.client.base());
    terminal
        .wait("the shell is there", |screen| screen.contains("prompt>"))
        .await;
    terminal.top().await;
    an_overview(&terminal, &room).await;
    an_explanation(&terminal, &room).await;
    a_large_terminal(&terminal, &room).await;
    terminal.key("q");
    terminal.is_back().await;
    a_signal_ends_it(&terminal).await;
    a_watch(&cluster, &room).await;
    asked.await.unwrap();
    a_verdict_and_a_stopped_router(&cluster, &terminal, &room).await;
    oracle(&cluster).await;
}

async fn an_overview(terminal: &Terminal, room: &Room) {
    let screen = terminal
        .wait("all nodes and the running room are there", |screen| {
            screen.contains(&room.room) && screen.contains("4 of 4 nodes serve")
        })
        .await;
    eprintln!("{screen}");
    for part in [
        "innkeeper top",
        "router",
        "prefill-0",
        "decode-0",
        "waiting_for_input",
        "q quit",
    ] {
        assert!(screen.contains(part), "no `{part}` in\n{screen}");
    }
    let line = screen.lines().find(|line| line.starts_with(&room.room)).unwrap();
    assert!(
        line.contains("decoding") && line.contains("decode-"),
        "who owes: {line}"
    );
}

async fn an_explanation(terminal: &Terminal, room: &Room) {
    terminal.key("j");
    terminal.key("Enter");
    let of = format!("room {} · attempt 1 of request long", room.room);
    let of = |screen: &str| screen.contains(&of) && screen.contains("it lives");
    terminal.wait("the room is explained", of).await;
    terminal.key("Escape");
    terminal
        .wait("the overview is back", |screen| screen.contains("live rooms"))
        .await;
}

async fn a_large_terminal(terminal: &Terminal, room: &Room) {
    terminal.tmux(&["resize-window", "-x", "200", "-y", "50"]);
    let wide = |screen: &str| {
        let top = screen.lines().nth(1).unwrap_or_default();
        let pair = screen
            .lines()
            .find(|line| line.starts_with(&room.room))
            .unwrap_or_default();
        top.contains("nodes") && top.contains("rooms by phase") && pair.contains("prefill-0 → decode-")
    };
    let screen = terminal.wait("it fills a large terminal", wide).await;
    eprintln!("{screen}");
}

/// SIGTERM is an end like any other.
async fn a_signal_ends_it(terminal: &Terminal) {
    terminal.top().await;
    let shell = format!("PPid:\t{}", terminal.says("#{pane_pid}"));
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let child = all
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .find(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().any(|line| line == shell)
        });
    signal(child.unwrap(), Signal::TERM);
    terminal.is_back().await;
}

/// Into a pipe: one table after the other, and a router that stops and goes on is said.
async fn a_watch(cluster: &Cluster, room: &Room) {
    let mut watch = tokio::process::Command::new(program())
        .args([
            "rooms",
            "ls",
            "--watch",
            "--every-ms=100",
            "--router",
            cluster.client.base(),
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut tables = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut news = BufReader::new(watch.stderr.take().unwrap()).lines();
    for _ in 0..2 {
        let table = async {
            assert!(tables.next_line().await.unwrap().unwrap().starts_with("room "));
            let row = tables.next_line().await.unwrap().unwrap();
            assert!(row.starts_with(&room.room) && row.contains("decoding"), "{row}");
            assert_eq!(tables.next_line().await.unwrap().unwrap(), "");
        };
        within(SOON, "a table", table).await;
    }
    assert_eq!(cluster.client.abort("long").await, "aborted");
    let reading = tokio::spawn(async move { while let Ok(Some(_)) = tables.next_line().await {} });
    let stopped = cluster.stop("router").await;
    let line = within(SOON, "that the router is away", news.next_line()).await;
    let line = line.unwrap().unwrap();
    assert!(line.contains("does not answer"), "{line}");
    stopped.cont();
    let back = async {
        while let Some(line) = news.next_line().await.unwrap() {
            if line.contains("answers again") {
                return;
            }
        }
        panic!("it ended without saying that the router is back");
    };
    within(SOON, "that the router is back", back).await;
    signal(watch.id().unwrap(), Signal::INT);
    let status = within(SOON, "the end of the watch", watch.wait()).await.unwrap();
    assert!(status.success(), "Ctrl-C is its end: {status}");
    reading.await.unwrap();
}

async fn a_verdict_and_a_stopped_router(cluster: &Cluster, terminal: &Terminal, room: &Room) {
    terminal.top().await;
    let over = |screen: &str| {
        screen
            .lines()
            .any(|line| line.contains(&room.room) && line.contains("aborted"))
    };
    terminal.wait("its verdict is there", over).await;
    let stopped = cluster.stop("router").await;
    terminal
        .wait("the router's silence is shown", |screen| {
            screen.contains("does not answer")
        })
        .await;
    stopped.cont();
    terminal
        .wait("and that it is back", |screen| {
            !screen.contains("does not answer") && screen.contains("4 of 4 nodes serve")
        })
        .await;
    terminal.key("C-c");
    terminal.is_back().await;
}
