//! D's side before a session: connections that have not said hello (or not finished their TLS handshake), and how a hello becomes
//! a session.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::frame::{Body, FrameReader, Header, HelloBody, Kind, ReadError};
use crate::link::{Link, ReadHalf};
use crate::outbox::Outbox;
use crate::port::{Acceptor, Hello, RecvSession};
use crate::recv::{RecvShared, RecvTask};
use crate::stats::Stats;

/// What the connections of one listener share.
pub(crate) struct Door {
    pub(crate) acceptor: Arc<dyn Acceptor>,
    pub(crate) config: Arc<Config>,
    pub(crate) stats: Arc<Stats>,
    /// Ends the listener and all its sessions.
    pub(crate) stop: CancellationToken,
    mute: Mutex<Mute>,
}

/// Connections that have not said hello, the oldest first.
#[derive(Default)]
struct Mute {
    next: u64,
    waiting: VecDeque<(u64, CancellationToken)>,
}

impl Door {
    pub(crate) fn new(
        acceptor: Arc<dyn Acceptor>,
        config: Arc<Config>,
        stats: Arc<Stats>,
        stop: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            acceptor,
            config,
            stats,
            stop,
            mute: Mutex::default(),
        })
    }

    fn mute(&self) -> MutexGuard<'_, Mute> {
        self.mute.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place among the mute; if there is none, the oldest loses its. An honest peer says hello within a round trip or two,
    /// so under a flood of mute connections it is the flood that is evicted.
    fn enter(self: &Arc<Self>) -> Place {
        let evict = self.stop.child_token();
        let mut mute = self.mute();
        let id = mute.next;
        mute.next += 1;
        if mute.waiting.len() >= self.config.max_pending_hellos.max(1)
            && let Some((_, oldest)) = mute.waiting.pop_front()
        {
            oldest.cancel();
        }
        mute.waiting.push_back((id, evict.clone()));
        drop(mute);
        Place {
            door: Arc::clone(self),
            id,
            evict,
        }
    }

    /// Whether one more connection is too many.
    pub(crate) fn full(&self) -> bool {
        Stats::get(&self.stats.connections_in) >= self.config.max_connections as u64
    }

    /// Runs one connection from its first byte to its end. `opening` is what comes before any frame: a TLS handshake, or nothing.
    /// Handshake and hello together have one deadline, and one place among the mute.
    pub(crate) async fn serve<E: Display>(
        self: Arc<Self>,
        opening: impl Future<Output = Result<Link, E>>,
        peer: String,
    ) {
        let place = self.enter();
        let by = Instant::now() + self.config.hello_timeout;
        let Some(link) = place.within(by, opening, &peer).await else {
            return;
        };
        let Link {
            read,
            write,
            socket,
            open,
        } = link;
        let mut reader = FrameReader::new(read, Arc::clone(&self.stats));
        let muted = Instant::now();
        self.config.sabotage.let_speak().await;
        let Some((header, body)) = place.within(by + muted.elapsed(), hello(&mut reader), &peer).await else {
            return;
        };
        drop(place);
        let shared = Arc::new(RecvShared::new(self.stop.child_token(), self.config.sabotage.clone()));
        shared.signals.probe.attach(socket);
        let (outbox, events) = Outbox::new();
        let task = RecvTask {
            room: header.room,
            epoch: header.epoch,
            shared: Arc::clone(&shared),
            outbox,
            config: Arc::clone(&self.config),
            stats: Arc::clone(&self.stats),
        };
        let hello = Hello {
            room: header.room,
            epoch: header.epoch,
            token: body.token,
            prefill: body.prefill,
            decode: body.decode,
            peer,
        };
        let running = task.run(reader, write);
        self.acceptor.hello(hello, shared as Arc<dyn RecvSession>, events);
        running.await;
        drop(open);
    }
}

/// A place among the mute connections.
struct Place {
    door: Arc<Door>,
    id: u64,
    evict: CancellationToken,
}

impl Place {
    /// What comes of it, unless it fails, its time is over, or the place is lost: that is counted.
    async fn within<T, E: Display>(
        &self,
        by: Instant,
        what: impl Future<Output = Result<T, E>>,
        peer: &str,
    ) -> Option<T> {
        let came = tokio::select! {
            biased;
            () = self.evict.cancelled() => None,
            came = tokio::time::timeout_at(by, what) => came.ok(),
        };
        if let Some(Err(error)) = &came {
            // Strangers cause it as often as they like; the count is what is looked at.
            tracing::debug!(%peer, %error, "a data connection came to no hello");
        }
        let came = came.and_then(Result::ok);
        if came.is_none() {
            Stats::add(&self.door.stats.refused_connections, 1);
        }
        came
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.door.mute().waiting.retain(|(id, _)| *id != self.id);
    }
}

async fn hello(reader: &mut FrameReader<ReadHalf>) -> Result<(Header, HelloBody), ReadError> {
    let mut gate = |header: &Header| match header.kind {
        Kind::Hello => Ok(()),
        kind => Err(ReadError::Refused(format!("a {kind:?} frame before the hello"))),
    };
    let Some((header, payload)) = reader.next(&mut gate).await? else {
        return Err(ReadError::Cut);
    };
    match Body::decode(header.kind, payload)? {
        Body::Hello(hello) => Ok((header, hello)),
        other => Err(ReadError::Refused(format!(
            "a {:?} frame before the hello",
            other.kind()
        ))),
    }
}
