//! One connection at a time, made when it is needed and thrown away when it looks dead.
//!
//! etcd-client can balance over several endpoints, but then a dead one gets its share of the calls. Here one endpoint is
//! used until it fails, then the next.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use etcd_client::{Client, Error};
use tokio::time::{Instant, timeout_at};

use super::config::EtcdConfig;
use super::error;
use crate::port::StoreError;

/// Calls in a row without an answer after which the connection counts as dead. One may be etcd's own pause.
const DEAD_AFTER: u32 = 2;

/// The connection of all calls. Each watch has one of its own: a slow reader must not hold up the frames of others.
#[derive(Debug)]
pub(super) struct Connection {
    config: Arc<EtcdConfig>,
    slot: Mutex<Slot>,
    /// One caller connects, the others wait for it.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Slot {
    client: Option<Client>,
    /// Of the client: a late failure of an old one is no news.
    generation: u64,
    endpoint: usize,
    unanswered: u32,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot")
            .field("generation", &self.generation)
            .field("endpoint", &self.endpoint)
            .finish()
    }
}

impl Connection {
    pub(super) fn new(config: Arc<EtcdConfig>) -> Self {
        Self {
            config,
            slot: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        }
    }

    /// When a call that begins now must have its answer.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.config.call_timeout
    }

    /// Connects if needed and does `call`, both within `deadline`.
    pub(super) async fn run<T, F, Fut>(&self, deadline: Instant, call: F) -> Result<T, StoreError>
    where
        F: FnOnce(Client) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        let (generation, client) = match timeout_at(deadline, self.client()).await {
            Ok(Ok(client)) => client,
            Ok(Err(failed)) => {
                self.turn();
                return Err(error::map(&failed));
            }
            Err(_) => {
                self.turn();
                return Err(self.unanswered());
            }
        };
        match timeout_at(deadline, call(client)).await {
            Ok(Ok(answer)) => {
                self.note(generation, 0);
                Ok(answer)
            }
            Ok(Err(failed)) => {
                let mapped = error::map(&failed);
                let dead = matches!(mapped, StoreError::Unreachable(_));
                self.note(generation, if dead { DEAD_AFTER } else { 0 });
                Err(mapped)
            }
            Err(_) => {
                self.note(generation, 1);
                Err(self.unanswered())
            }
        }
    }

    /// A client with a connection of its own, for a watch.
    pub(super) async fn separate(&self) -> Result<Client, Error> {
        let endpoint = self.locked().endpoint;
        self.connect(endpoint).await
    }

    /// Uses the next endpoint from now on; what failed was a connect or a watch.
    pub(super) fn turn(&self) {
        let mut slot = self.locked();
        slot.endpoint = slot.endpoint.wrapping_add(1);
    }

    /// A stream on the connection broke: the next call makes another one.
    pub(super) fn suspect(&self) {
        self.locked().client = None;
    }

    async fn client(&self) -> Result<(u64, Client), Error> {
        if let Some(client) = self.ready() {
            return Ok(client);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(client) = self.ready() {
            return Ok(client);
        }
        let endpoint = self.locked().endpoint;
        let client = self.connect(endpoint).await?;
        let mut slot = self.locked();
        slot.generation += 1;
        slot.unanswered = 0;
        slot.client = Some(client.clone());
        Ok((slot.generation, client))
    }

    fn ready(&self) -> Option<(u64, Client)> {
        let slot = self.locked();
        slot.client.clone().map(|client| (slot.generation, client))
    }

    async fn connect(&self, number: usize) -> Result<Client, Error> {
        let options = self.config.connect_options().await?;
        let Some(endpoint) = self.config.endpoints.get(number % self.config.endpoints.len().max(1)) else {
            return Err(Error::InvalidArgs("no etcd endpoint".to_owned()));
        };
        Client::connect([endpoint], Some(options)).await
    }

    /// Counts calls without an answer; an answer (0) starts again, and too many throw the connection away.
    fn note(&self, generation: u64, unanswered: u32) {
        let mut slot = self.locked();
        if slot.generation != generation {
            return;
        }
        slot.unanswered = if unanswered == 0 {
            0
        } else {
            slot.unanswered + unanswered
        };
        if slot.unanswered >= DEAD_AFTER && slot.client.take().is_some() {
            slot.endpoint = slot.endpoint.wrapping_add(1);
        }
    }

    fn unanswered(&self) -> StoreError {
        StoreError::Unreachable(format!("no answer within {} ms", self.config.call_timeout.as_millis()))
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
