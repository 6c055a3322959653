//! Faults that tests have a node make: see [`crate::config::Fault`]. A node without `--test-faults` has none of this but an
//! empty list.
//!
//! ```text
//! mod       what is asked for, and who executes it
//! messages  messages of rooms' streams that are lost, doubled or late
//! store     a lease store whose ends are not seen
//! ```

mod messages;
mod store;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use innkeeper_engine::MockEngine;
use innkeeper_leases::Store;
use innkeeper_room::{Millis, Settings};
use innkeeper_transfer::Sabotage;

use crate::config::{Fault, MessageFault, NodeConfig, Wish};
pub(crate) use messages::{kind_from, kind_to};
use store::Blind;

/// Longer than any test, and what the kernel takes for a third of a keepalive.
const NEVER: Millis = Millis(24 * 3_600_000);

/// What tests have asked this node for.
#[derive(Default)]
pub struct Faults {
    on: bool,
    layers: Vec<Fault>,
    messages: Mutex<Vec<MessageFault>>,
    mock: OnceLock<Arc<MockEngine>>,
    sabotage: Sabotage,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faults")
            .field("layers", &self.layers)
            .finish_non_exhaustive()
    }
}

impl Faults {
    /// What the configuration asks this node for.
    #[must_use]
    pub fn of(config: &NodeConfig) -> Arc<Self> {
        let wishes = &config.run.faults;
        let own: Vec<_> = wishes
            .iter()
            .filter(|wish| wish.is_for(config.role, &config.name))
            .map(|wish| wish.fault.clone())
            .collect();
        let faults = Self {
            on: !wishes.is_empty(),
            layers: own.clone(),
            ..Self::default()
        };
        if faults.on {
            tracing::warn!(?own, "this node makes faults: it is for tests alone");
        }
        own.iter().for_each(|fault| {
            faults.order(fault);
        });
        Arc::new(faults)
    }

    /// None at all.
    #[must_use]
    pub fn none() -> Arc<Self> {
        Arc::default()
    }

    /// What is done to data connections.
    #[must_use]
    pub fn sabotage(&self) -> Sabotage {
        self.sabotage.clone()
    }

    /// The bounds without the layers that are switched off.
    #[must_use]
    pub fn settings(&self, settings: Settings) -> Settings {
        self.layers.iter().fold(settings, |settings, layer| match layer {
            Fault::NoPings => Settings {
                ping_interval: NEVER,
                ping_timeout: NEVER,
                ..settings
            },
            Fault::NoUserTimeout => Settings {
                tcp_user_timeout: NEVER,
                ..settings
            },
            Fault::NoProgressTimers => Settings {
                progress_ttl: NEVER,
                handshake_ttl: NEVER,
                ..settings
            },
            _ => settings,
        })
    }

    /// The lease store, whose ends are not seen if that was asked for.
    #[must_use]
    pub fn store(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let (doors, members) = (
            self.layers.contains(&Fault::NoDoors),
            self.layers.contains(&Fault::NoMembers),
        );
        if doors || members {
            Arc::new(Blind { store, doors, members })
        } else {
            store
        }
    }

    /// The engine that is to be stalled.
    pub(crate) fn mock(&self, engine: &Arc<MockEngine>) {
        // Set once: a node has one engine.
        drop(self.mock.set(Arc::clone(engine)));
        // Those of the engine could not be carried out before there was one.
        let of_engine = |fault: &&Fault| matches!(fault, Fault::StallEngine | Fault::FailEngine);
        self.layers.iter().filter(of_engine).for_each(|fault| {
            self.order(fault);
        });
    }

    /// Where tests ask for more while the node runs: `POST /innkeeper/test/faults`, faults with commas between them.
    pub fn routes(self: &Arc<Self>) -> Router {
        if !self.on {
            return Router::new();
        }
        let faults = Arc::clone(self);
        let handler = move |body: String| {
            let read: Result<Vec<Wish>, _> = body.split(',').map(str::parse).collect();
            let answer = match read {
                Ok(wishes) => match wishes.iter().find(|wish| !faults.order(&wish.fault)) {
                    None => (StatusCode::OK, "ordered\n".to_owned()),
                    Some(wish) => {
                        let fault = &wish.fault;
                        let why =
                            format!("{fault:?}: layers are switched off at the start, and only workers have engines\n");
                        (StatusCode::CONFLICT, why)
                    }
                },
                Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")),
            };
            std::future::ready(answer)
        };
        Router::new().route("/innkeeper/test/faults", post(handler))
    }

    /// Whether it could be done now.
    fn order(&self, fault: &Fault) -> bool {
        let mock = self.mock.get();
        match (fault, mock) {
            (Fault::StallEngine, Some(mock)) => mock.stall(),
            (Fault::ResumeEngine, Some(mock)) => mock.resume(),
            (Fault::FailEngine, Some(mock)) => mock.fail_next(),
            (Fault::FailWrite(nth), _) => self.sabotage.fail_write(*nth),
            (Fault::HoldSessions, _) => self.sabotage.hold(true),
            (Fault::ReleaseSessions, _) => self.sabotage.hold(false),
            (Fault::DeafSessions, _) => self.sabotage.deafen(true),
            (Fault::HearingSessions, _) => self.sabotage.deafen(false),
            (Fault::MuteData, _) => self.sabotage.mute(true),
            (Fault::SpeakData, _) => self.sabotage.mute(false),
            (Fault::Message(message), _) => self
                .messages
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(message.clone()),
            (Fault::On, _) => {}
            // Layers are switched off at the start; a router has no engine.
            _ => return false,
        }
        true
    }
}
