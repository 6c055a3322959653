//! A decode worker rings its own door: it dials its own data plane as a prefill worker would and waits for the answer to its
//! hello. A listener that accepts and says nothing, or a runtime in which nothing moves, is so found out while nobody needs
//! it; the worker then takes no rooms, and is back by itself once the bell is answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use innkeeper_room::{Epoch, HelloReply, Incarnation, Millis, RoomId, SlabError, SlabId, SlabSource};
use innkeeper_transfer::{Backend, Dial, SendEvent, SendSession};
use tokio::time::Instant;

/// Whether the data plane answers; what the ledger's look at the engine asks for.
pub type Answers = Arc<AtomicBool>;

/// The bell.
pub struct Doorbell {
    /// How KV moves.
    pub backend: Arc<dyn Backend>,
    /// Where the data plane listens on this machine.
    pub listens: SocketAddr,
    /// The worker's life. No prefill worker has it, so the door knows who rings.
    pub own: Incarnation,
    /// A data plane that answers nothing for this long is wedged.
    pub ttl: Millis,
    /// Where what is found out is told.
    pub answers: Answers,
}

impl Doorbell {
    /// Rings four times a TTL, for ever. A machine that stood still has had no time to answer: time counts from the last
    /// ring that went out.
    pub async fn ring(self) {
        let (period, limit) = (self.ttl.scale(1, 4).duration(), self.ttl.duration());
        let mut silent = Duration::ZERO;
        loop {
            let began = Instant::now();
            let answered = tokio::time::timeout(period, self.once()).await.unwrap_or(false);
            let waited = began.elapsed().min(period);
            silent = if answered { Duration::ZERO } else { silent + waited };
            let answers = silent < limit;
            if self.answers.swap(answers, Ordering::Relaxed) != answers {
                if answers {
                    tracing::info!("the data plane answers again: the worker takes rooms");
                } else {
                    let ms = self.ttl.0;
                    tracing::error!(
                        ms,
                        "the data plane has answered nothing: the worker takes no rooms until it does"
                    );
                }
            }
            tokio::time::sleep(period - waited).await;
        }
    }

    async fn once(&self) -> bool {
        let dial = Dial {
            addr: self.listens.to_string(),
            // No room has it: the last bits that an id may have.
            room: RoomId::from_random(u64::MAX),
            epoch: Epoch(1),
            token: 0,
            prefill: self.own,
            decode: self.own,
        };
        let (session, mut events) = self.backend.dial(dial, Arc::new(NoPages));
        // Also when nobody answers in time, which ends this here.
        let _hangs_up = HangsUp(session);
        matches!(events.recv().await, Some(SendEvent::Reply(HelloReply::Unknown)))
    }
}

struct HangsUp(Arc<dyn SendSession>);

impl Drop for HangsUp {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// A bell carries nothing.
struct NoPages;

impl SlabSource for NoPages {
    fn read(&self, _slab: SlabId, _offset: u32, _out: &mut [u8]) -> Result<(), SlabError> {
        Err(SlabError::Closed)
    }
}

/// From where the worker reaches a listener of its own: every address includes this machine's.
#[must_use]
pub fn own_side(listens: SocketAddr) -> SocketAddr {
    let ip = match listens {
        SocketAddr::V4(addr) if addr.ip().is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(addr) if addr.ip().is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        SocketAddr::V4(_) | SocketAddr::V6(_) => listens.ip(),
    };
    SocketAddr::new(ip, listens.port())
}
