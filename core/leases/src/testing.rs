//! A real etcd as a child process, for tests. Anything that goes wrong here panics with what to do: it is a test's
//! surroundings, not its subject.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

/// From start to healthy takes 0.7 s on a quiet machine; a starved one may need ten times that.
const START_LIMIT: Duration = Duration::from_secs(20);
/// etcd's own, where nobody else can have it.
const CLIENT_PORT: u16 = 2379;
/// Another process may take the port between choosing and binding it.
const PORT_TRIES: usize = 5;

/// One etcd server on 127.0.0.1, or where it was put. Its data is in memory where the system has `/dev/shm`. It is killed, by its own id,
/// when this is dropped. Calls block the thread for up to a second.
#[derive(Debug)]
pub struct EtcdServer {
    host: IpAddr,
    port: u16,
    /// What goes before the program, such as a namespace to run in.
    launcher: Vec<String>,
    data: TempDir,
    child: Option<Child>,
    extra: Vec<String>,
    secure: bool,
}

impl EtcdServer {
    /// Starts a server on a free port and waits until it is healthy.
    #[must_use]
    pub fn start() -> Self {
        let mut server = Self::down();
        for _ in 1..PORT_TRIES {
            if server.try_up().is_ok() {
                return server;
            }
            server = Self::down();
        }
        server.up();
        server
    }

    /// A server with a port, not started: for what must work before etcd is there.
    #[must_use]
    pub fn down() -> Self {
        Self {
            host: Ipv4Addr::LOCALHOST.into(),
            port: free_port(),
            launcher: vec![],
            data: data_dir(),
            child: None,
            extra: Vec::new(),
            secure: false,
        }
    }

    /// The same, in a network of its own, at this address: `launcher` is what goes before the command there.
    #[must_use]
    pub fn down_at(host: IpAddr, launcher: Vec<String>) -> Self {
        let mut server = Self::down();
        (server.host, server.port, server.launcher) = (host, CLIENT_PORT, launcher);
        server
    }

    /// The same server, asking for TLS with these PEM files; clients must show a certificate of `client_ca`.
    #[must_use]
    pub fn with_tls(mut self, certificate: &Path, key: &Path, client_ca: &Path) -> Self {
        self.secure = true;
        self.extra = vec![
            format!("--cert-file={}", certificate.display()),
            format!("--key-file={}", key.display()),
            format!("--trusted-ca-file={}", client_ca.display()),
            "--client-cert-auth".to_owned(),
        ];
        self
    }

    /// Starts it, with the data that it had.
    pub fn up(&mut self) {
        if let Err(why) = self.try_up() {
            panic!("etcd did not start: {why}");
        }
    }

    /// `http://address:port`, or https.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}", SocketAddr::from((self.host, self.port)))
    }

    /// The process's id; panics if it is down.
    #[must_use]
    pub fn pid(&self) -> u32 {
        let Some(child) = &self.child else {
            panic!("etcd is down: call up() first")
        };
        child.id()
    }

    /// Stops the process (SIGSTOP): it keeps its connections and answers nothing. Returns when it has stopped: on a busy
    /// machine its threads run on for a while.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            match waitpid(Some(self.raw_pid()), WaitOptions::UNTRACED | WaitOptions::NOHANG) {
                Ok(Some((_, status))) if status.stopped() => return,
                Ok(Some((_, status))) => panic!("etcd ended instead of stopping: {status:?}"),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("cannot wait for etcd to stop: {error}"),
            }
        }
        panic!("etcd did not stop within {} s", START_LIMIT.as_secs());
    }

    /// Lets a stopped process go on.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it; its data stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Either fails only if the process is gone, which is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills it and starts it again on the same port with no data. It keeps its cluster id, as a wiped etcd does.
    pub fn restart_empty(&mut self) {
        self.kill();
        self.data = data_dir();
        self.up();
    }

    fn try_up(&mut self) -> Result<(), String> {
        let log_path = self.data.path().join("log");
        let log = File::create(&log_path).map_err(|error| format!("cannot write {}: {error}", log_path.display()))?;
        let copy = log.try_clone().map_err(|error| error.to_string())?;
        let mut command = self.command();
        let child = command.stdin(Stdio::null()).stdout(log).stderr(copy).spawn();
        self.child = Some(child.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                "there is no `etcd` on PATH; run `apt-get install etcd-server` (3.4 or newer)".to_owned()
            }
            _ => format!("cannot run etcd: {error}"),
        })?);
        let healthy = self.wait_until_healthy();
        healthy.map_err(|why| {
            self.kill();
            format!("{why}; its log ends: {}", tail(&log_path))
        })
    }

    fn command(&self) -> Command {
        let client = self.endpoint();
        // Port 0: there are no peers, and any free port does.
        let peer = "http://127.0.0.1:0";
        let mut command = match self.launcher.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg("etcd");
                command
            }
            None => Command::new("etcd"),
        };
        command
            .arg("--data-dir")
            .arg(self.data.path().join("etcd"))
            .args(["--name", "test", "--initial-cluster", &format!("test={peer}")])
            .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            // Short, so that it starts fast and grants leases as short as a second.
            .args([
                "--heartbeat-interval",
                "50",
                "--election-timeout",
                "500",
                "--unsafe-no-fsync",
            ])
            .args(&self.extra);
        command
    }

    fn wait_until_healthy(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            if let Some(child) = &mut self.child
                && let Ok(Some(status)) = child.try_wait()
            {
                return Err(format!("etcd ended with {status}"));
            }
            if self.healthy() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("etcd was not healthy within {} s", START_LIMIT.as_secs()))
    }

    fn healthy(&self) -> bool {
        let address = SocketAddr::from((self.host, self.port));
        let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) else {
            return false;
        };
        if self.secure {
            // It listens only when it is ready to serve; asking more would need TLS here.
            return std::fs::read_to_string(self.data.path().join("log"))
                .is_ok_and(|log| log.contains("ready to serve"));
        }
        let limit = Some(Duration::from_secs(1));
        if stream.set_read_timeout(limit).is_err() || stream.set_write_timeout(limit).is_err() {
            return false;
        }
        let mut answer = String::new();
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && answer.contains("\"health\":\"true\"")
    }

    fn raw_pid(&self) -> Pid {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let Some(pid) = pid else {
            panic!("etcd has no process id")
        };
        pid
    }

    fn signal(&self, signal: Signal) {
        if let Err(error) = kill_process(self.raw_pid(), signal) {
            panic!("cannot signal etcd: {error}");
        }
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    let bound = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    match bound {
        Ok(address) => address.port(),
        Err(error) => panic!("no free port on 127.0.0.1: {error}"),
    }
}

/// In memory where possible: fdatasync on a busy disk has taken longer than a lease.
fn data_dir() -> TempDir {
    let memory = PathBuf::from("/dev/shm");
    let dir = if memory.is_dir() {
        TempDir::new_in(memory)
    } else {
        TempDir::new()
    };
    match dir {
        Ok(dir) => dir,
        Err(error) => panic!("cannot make a directory for etcd's data: {error}"),
    }
}

fn tail(path: &Path) -> String {
    let log = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" | ")
}
