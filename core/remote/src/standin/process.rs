//! The process: a front end that answers HTTP, a core that steps, and what can be done to both from outside.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::core::{Core, Reach};
use super::fabric::Fabric;
use super::{Config, surface};

/// Between two looks of a core that has nothing to do.
const IDLE: Duration = Duration::from_millis(2);

/// What front end and core share.
pub(super) struct Shared {
    core: Mutex<Core>,
    pub(super) fabric: Fabric,
    /// Whether the whole process runs, or was stopped.
    runs: watch::Sender<bool>,
    /// Whether its core moves.
    frozen: AtomicBool,
    pub(super) started: f64,
}

impl Shared {
    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Relaxed)
    }

    /// Whether anybody can read its memory or write to it.
    pub(super) fn moves(&self) -> bool {
        *self.runs.borrow() && !self.is_frozen()
    }

    /// Returns once the process runs.
    pub(super) async fn running(&self) {
        // The sender is ours: it is not gone.
        drop(self.runs.subscribe().wait_for(|runs| *runs).await);
    }

    async fn run(self: Arc<Self>) {
        loop {
            self.running().await;
            let pause = if self.is_frozen() { IDLE } else { self.step() };
            tokio::time::sleep(pause).await;
        }
    }

    fn step(self: &Arc<Self>) -> Duration {
        let now = Instant::now();
        let (reach, pause) = {
            let mut core = self.core();
            let mut reach = core.tick(now);
            let busy = core.has_work();
            if busy {
                reach.extend(core.step(now));
            }
            (reach, if busy { core.pause() } else { IDLE })
        };
        for reach in reach {
            self.reach(reach, now);
        }
        pause
    }

    /// Touches another engine. No two cores are ever locked at once.
    pub(super) fn reach(self: &Arc<Self>, reach: Reach, now: Instant) {
        match reach {
            Reach::Notice { engine, request } => {
                if let Some(peer) = self.fabric.engine(&engine) {
                    peer.core().hear(request);
                }
            }
            Reach::Read { key, ticket } => {
                let read = match self.fabric.engine(&ticket.engine) {
                    Some(peer) if !peer.moves() => return,
                    Some(peer) => peer.core().read(&ticket),
                    None => Err("the other engine is gone".to_owned()),
                };
                let after = self.core().read_done(key, read);
                if let Some(after) = after {
                    self.reach(after, now);
                }
            }
            Reach::Meet { key, room } => {
                let there = self.fabric.in_room(room).filter(|peer| peer.moves());
                if there.is_some_and(|peer| peer.core().waits_in(room)) {
                    self.core().met(key);
                }
            }
            Reach::HandOver { key, room, since } => self.hand_over(key, room, since, now),
        }
    }

    fn hand_over(&self, key: u64, room: u64, since: Instant, now: Instant) {
        let peer = self.fabric.in_room(room);
        let (content, gives_up, takes) = {
            let core = self.core();
            let config = &core.config;
            (core.in_flight(key), config.transport_gives_up, config.pull_time)
        };
        let taken = match &peer {
            Some(peer) if !peer.moves() || now.duration_since(since) < takes => None,
            Some(peer) => Some(peer.core().take_in(room, content)),
            None => Some(false),
        };
        match taken {
            Some(true) => self.core().handed_over(key, Ok(())),
            Some(false) => self.core().handed_over(key, Err("Decode transfer failed".to_owned())),
            None if now.duration_since(since) >= gives_up => {
                let why = "KVTransferError: the transport gave up".to_owned();
                self.core().handed_over(key, Err(why));
            }
            None => {}
        }
    }
}

/// A stand-in that serves. Dropping it kills the process.
pub struct Standin {
    address: SocketAddr,
    config: Config,
    fabric: Fabric,
    life: Mutex<Option<Life>>,
}

struct Life {
    shared: Arc<Shared>,
    _end: DropGuard,
}

impl Standin {
    /// Starts one on a free port.
    ///
    /// # Errors
    /// No port is to be had.
    pub async fn start(config: Config, fabric: Fabric) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let standin = Self {
            address: listener.local_addr()?,
            config,
            fabric,
            life: Mutex::new(None),
        };
        standin.live(listener);
        Ok(standin)
    }

    fn live(&self, listener: TcpListener) {
        static LIVES: AtomicU64 = AtomicU64::new(1);
        let number = LIVES.fetch_add(1, Ordering::Relaxed);
        let id = format!("engine-{number}");
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(self.config.clone(), id.clone())),
            fabric: self.fabric.clone(),
            runs: watch::Sender::new(true),
            frozen: AtomicBool::new(false),
            started: 1.7e9 + number as f64,
        });
        self.fabric.enter(id, &shared);
        let end = CancellationToken::new();
        tokio::spawn(end.clone().run_until_cancelled_owned(Arc::clone(&shared).run()));
        tokio::spawn(
            end.clone()
                .run_until_cancelled_owned(serve(listener, Arc::clone(&shared))),
        );
        *self.life() = Some(Life {
            shared,
            _end: end.drop_guard(),
        });
    }

    fn life(&self) -> MutexGuard<'_, Option<Life>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, does: impl FnOnce(&Shared) -> T) -> Option<T> {
        self.life().as_ref().map(|life| does(&life.shared))
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops the whole process: connections are accepted by the kernel and nothing answers.
    pub fn stop(&self) {
        self.with(|shared| shared.runs.send_replace(false));
    }

    /// Continues it.
    pub fn cont(&self) {
        self.with(|shared| {
            if !shared.core().config.bugs.finishes_after_cont {
                shared.core().abort_all();
            }
            shared.runs.send_replace(true)
        });
    }

    /// Stops its core, or lets it go on. The front end answers all the while.
    pub fn freeze(&self, frozen: bool) {
        self.with(|shared| shared.frozen.store(frozen, Ordering::Relaxed));
    }

    /// Kills the process: all connections break, its memory is gone.
    pub fn kill(&self) {
        if let Some(life) = self.life().take() {
            let id = life.shared.core().engine_id.clone();
            self.fabric.leave(&id);
        }
    }

    /// Starts it again at its address, with nothing of what was.
    ///
    /// # Errors
    /// The port has been taken meanwhile.
    pub async fn restart(&self) -> io::Result<()> {
        self.kill();
        // The sockets of the former life are closed by its tasks, which end a moment after they are told to.
        let mut tries = 0;
        let listener = loop {
            match TcpListener::bind(self.address).await {
                Ok(listener) => break listener,
                Err(error) if tries >= 200 => return Err(error),
                Err(_) => tries += 1,
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        self.live(listener);
        Ok(())
    }

    /// Pages in use, as they are and not as they are shown.
    #[must_use]
    pub fn held(&self) -> usize {
        self.with(|shared| shared.core().held()).unwrap_or(0)
    }

    /// Prompts that are kept for a reader.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.with(|shared| shared.core().kept()).unwrap_or(0)
    }

    /// Requests in hand.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.with(|shared| shared.core().requests()).unwrap_or(0)
    }

    /// Ends all leases now.
    pub fn expire(&self) {
        self.with(|shared| shared.core().expire(Instant::now()));
    }

    /// Other requests use every free page.
    pub fn reuse_free_pages(&self) {
        self.with(|shared| shared.core().reuse_free_pages());
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((stream, _)) = accepted else { continue };
        drop(stream.set_nodelay(true));
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = service_fn(move |request| surface::answer(Arc::clone(&shared), request));
            // A client that goes away in the middle is what much of this is for.
            drop(
                http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await,
            );
        });
    }
}
