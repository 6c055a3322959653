//! D's side before a session: connections that have not said hello, and how a hello becomes a session.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

    /// Takes a place among the mute; if there is none, the oldest loses its. An honest peer says hello within a round trip,
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

    /// Runs one connection from its first byte to its end.
    pub(crate) async fn serve(self: Arc<Self>, link: Link, peer: String) {
        let Link {
            read,
            write,
            socket,
            open,
        } = link;
        let mut reader = FrameReader::new(read, Arc::clone(&self.stats));
        self.config.sabotage.let_speak().await;
        let place = self.enter();
        let greeted = tokio::select! {
            biased;
            () = place.evict.cancelled() => None,
            greeted = tokio::time::timeout(self.config.hello_timeout, hello(&mut reader)) => greeted.ok(),
        };
        drop(place);
        let (header, body) = match greeted {
            Some(Ok(greeted)) => greeted,
            Some(Err(error)) => {
                tracing::debug!(%peer, %error, "a data connection said no hello");
                Stats::add(&self.stats.refused_connections, 1);
                return;
            }
            None => {
                Stats::add(&self.stats.refused_connections, 1);
                return;
            }
        };
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
