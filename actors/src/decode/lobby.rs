//! Data connections that have said hello and are not answered yet. Bounded by the data plane, which bounds the connections
//! without an answer; each is answered by one step of the ledger.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use innkeeper_room::ledger::decode::{Event, SessionId};
use innkeeper_room::{HelloReply, Incarnation};
use innkeeper_transfer::{Acceptor, Hello, RecvEvent, RecvSession};
use tokio::sync::mpsc;

/// A hello with its connection.
pub struct Greeting {
    /// P's first word.
    pub hello: Hello,
    /// The connection.
    pub session: Arc<dyn RecvSession>,
    /// What it tells.
    pub events: mpsc::Receiver<RecvEvent>,
}

/// A connection that waits for its answer.
pub struct Visitor {
    /// The connection.
    pub session: Arc<dyn RecvSession>,
    /// What it tells.
    pub events: mpsc::Receiver<RecvEvent>,
}

/// The lobby.
#[derive(Default)]
pub struct Lobby {
    next: AtomicU64,
    visitors: Mutex<BTreeMap<SessionId, Visitor>>,
}

impl Lobby {
    /// Takes a visitor in and names its event.
    pub fn enter(&self, greeting: Greeting) -> Event {
        let session = SessionId(self.next.fetch_add(1, Ordering::Relaxed));
        let Hello {
            room,
            epoch,
            token,
            prefill,
            decode,
            ..
        } = greeting.hello;
        let visitor = Visitor {
            session: greeting.session,
            events: greeting.events,
        };
        let mut visitors = self.visitors.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever was not answered within the handshake's time was sent away by the data plane.
        visitors.retain(|_, waiting| !waiting.events.is_closed());
        visitors.insert(session, visitor);
        drop(visitors);
        Event::Hello {
            room,
            epoch,
            token,
            prefill,
            decode,
            session,
        }
    }

    /// Lets a visitor out, to its answer.
    pub fn take(&self, session: SessionId) -> Option<Visitor> {
        self.visitors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&session)
    }
}

/// The data plane's acceptor: hands every hello to `rooms`, which may not be there yet when it begins to listen.
pub struct Doorman {
    own: Incarnation,
    rooms: OnceLock<Box<dyn Fn(Greeting) -> bool + Send + Sync>>,
}

impl Doorman {
    /// Of the worker with this life. Nobody is there yet: visitors are sent away.
    #[must_use]
    pub fn new(own: Incarnation) -> Arc<Self> {
        Arc::new(Self {
            own,
            rooms: OnceLock::new(),
        })
    }

    /// From now on visitors go here. Once only.
    pub fn lead_to(&self, rooms: impl Fn(Greeting) -> bool + Send + Sync + 'static) {
        // A second call would be a second tree on one listener, which the services do not build.
        drop(self.rooms.set(Box::new(rooms)));
    }
}

impl Acceptor for Doorman {
    fn hello(&self, hello: Hello, session: Arc<dyn RecvSession>, events: mpsc::Receiver<RecvEvent>) {
        if hello.prefill == self.own {
            // The worker itself rings: it wants to know whether anybody answers.
            return session.reply(HelloReply::Unknown, None);
        }
        let refused = Arc::clone(&session);
        let entered = self
            .rooms
            .get()
            .is_some_and(|rooms| rooms(Greeting { hello, session, events }));
        if !entered {
            refused.kill();
        }
    }
}
