//! A pair of stand-ins for SGLang, each with its driver.

use std::time::Duration;

use innkeeper_remote::driver::sglang::{Kept, Landed};
use innkeeper_remote::driver::{Meeting, SglangDriver};
use innkeeper_remote::http::Target;
use innkeeper_remote::sglang::Sglang;
use innkeeper_remote::standin::{Config, Fabric, Kind, Standin};
use innkeeper_remote::ticket::Bootstrap;
use innkeeper_remote::{Leg, RemoteError, Times};
use tokio::sync::oneshot;
use tokio_util::sync::DropGuard;

use crate::kit::{LONG, TTL, until};
use crate::watched::watched;

/// One engine with its driver.
pub struct Side {
    /// The engine.
    pub standin: Standin,
    /// What drives it.
    pub driver: SglangDriver,
    _watching: DropGuard,
}

impl Side {
    /// Its client.
    pub fn engine(&self) -> &Sglang {
        self.driver.watcher().engine()
    }

    /// Nothing is left: no page, no request, no task, no debt.
    pub fn is_clean(&self) -> bool {
        self.standin.held() == 0
            && self.standin.requests() == 0
            && self.driver.counts().tasks == 0
            && self.driver.watcher().status().in_hand.is_none()
    }
}

/// Prefill's and decode's.
pub struct Pair {
    /// Prefill's.
    pub p: Side,
    /// Decode's.
    pub d: Side,
}

impl Pair {
    /// Starts both, each with a changed configuration.
    pub async fn start(change: impl Fn(&mut Config)) -> Self {
        let fabric = Fabric::default();
        let side = async |kind| {
            let mut config = Config::new(kind);
            change(&mut config);
            let standin = Standin::start(config, fabric.clone()).await.expect("a port");
            let target: Target = standin.url().parse().expect("an address");
            let engine = Sglang::new(target.clone(), Times::from_ttl(TTL));
            let identity = engine.identity().await.expect("an answer");
            let meeting = Meeting::new(&target, &identity, None).ok();
            let (watcher, watching) = watched(engine);
            Side {
                standin,
                driver: SglangDriver::new(watcher, meeting),
                _watching: watching,
            }
        };
        Self {
            p: side(Kind::SglangPrefill).await,
            d: side(Kind::SglangDecode).await,
        }
    }

    /// The ticket of a room.
    pub fn place(&self, asked: &Leg) -> Bootstrap {
        self.p.driver.ticket(asked.prompt.room).expect("it is prefill's")
    }

    /// Both legs: decode's first, prefill's once that is posted.
    pub async fn legs(
        &self,
        asked: &Leg,
        budget: Duration,
    ) -> (Result<Kept, RemoteError>, Result<Landed, RemoteError>) {
        let place = self.place(asked);
        let (posted, told) = oneshot::channel();
        let computing = async {
            told.await.expect("decode's leg is posted");
            self.p.driver.prefill(asked, &place, LONG).await
        };
        let pulling = self
            .d
            .driver
            .pull(asked, &place, budget, || posted.send(()).expect("it is waited for"));
        tokio::join!(computing, pulling)
    }

    /// A room whose prompt is computed, and whose leg at decode has just been given up. KV must be slow on its way.
    pub async fn computed_and_left(&self, asked: &Leg) -> Kept {
        let place = self.place(asked);
        tokio::select! {
            biased;
            _ = self.d.driver.pull(asked, &place, LONG, || {}) => panic!("nothing is handed over here"),
            kept = self.p.driver.prefill(asked, &place, LONG) => kept.expect("computed"),
        }
    }

    /// Returns once nothing is left on either side.
    pub async fn is_clean(&self) {
        until("nothing is left", async || self.p.is_clean() && self.d.is_clean()).await;
    }
}

/// All its tokens.
pub async fn rest(mut landed: Landed) -> Vec<u32> {
    let mut ids: Vec<_> = landed.first.tokens.iter().map(|token| token.id).collect();
    while let Some(piece) = landed.next(LONG).await.expect("tokens") {
        ids.extend(piece.tokens.iter().map(|token| token.id));
    }
    ids
}
