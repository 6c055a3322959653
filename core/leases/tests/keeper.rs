//! The keeper, on the in-process store with paused time, and once on a real etcd.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{DECODE, LIMIT, ROUTER, listed, member, next, relisted, until};
use innkeeper_leases::testing::EtcdServer;
use innkeeper_leases::{KeeperStatus, Member, MemberKeeper, MemberState, MemoryStore, Store, WatchEvent};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

const TTL: Duration = Duration::from_secs(7);

fn up() -> WatchEvent {
    WatchEvent::MemberUp(Box::new(member(DECODE)))
}

fn keep(store: &Arc<MemoryStore>) -> MemberKeeper {
    MemberKeeper::start(
        Arc::clone(store) as Arc<dyn Store>,
        member(DECODE),
        TTL,
        &CancellationToken::new(),
    )
}

async fn status(keeper: &MemberKeeper, wanted: impl FnMut(&KeeperStatus) -> bool) -> KeeperStatus {
    let mut status: watch::Receiver<KeeperStatus> = keeper.status();
    timeout(LIMIT, status.wait_for(wanted))
        .await
        .expect("in time")
        .expect("alive")
        .clone()
}

#[tokio::test(start_paused = true)]
async fn it_keeps_the_record_and_takes_it_out_at_the_end() {
    let store = Arc::new(MemoryStore::default());
    let (mut watch, ..) = listed(&*store, ROUTER).await;
    let keeper = keep(&store);
    assert_eq!(next(&mut watch).await, up());
    tokio::time::sleep(TTL * 100).await;
    assert!(watch.try_recv().is_err(), "it is there all the time");
    let now = status(&keeper, |status| status.registered).await;
    assert!(now.degraded.is_none() && now.last_ok_age().unwrap() <= TTL / 3);
    assert!(keeper.stop(LIMIT).await);
    assert_eq!(next(&mut watch).await, WatchEvent::MemberGone(DECODE));
}

#[tokio::test(start_paused = true)]
async fn it_registers_again_after_its_lease_was_revoked() {
    let store = Arc::new(MemoryStore::default());
    let (mut watch, ..) = listed(&*store, ROUTER).await;
    let keeper = keep(&store);
    assert_eq!(next(&mut watch).await, up());
    let lease = status(&keeper, |status| status.registered).await.lease.unwrap();
    let revoked = Instant::now();
    assert!(store.revoke_by_hand(lease.id));
    assert_eq!(next(&mut watch).await, WatchEvent::MemberGone(DECODE));
    assert_eq!(next(&mut watch).await, up());
    // Timers are rounded up to a millisecond.
    assert!(
        revoked.elapsed() <= TTL / 3 + Duration::from_millis(1),
        "at the next renewal"
    );
}

#[tokio::test(start_paused = true)]
async fn it_registers_again_at_once_when_asked() {
    let store = Arc::new(MemoryStore::default());
    let (mut watch, ..) = listed(&*store, ROUTER).await;
    let keeper = keep(&store);
    assert_eq!(next(&mut watch).await, up());
    let asked = Instant::now();
    store.wipe();
    keeper.reregister();
    let (members, _) = relisted(&mut watch).await;
    if members.is_empty() {
        assert_eq!(next(&mut watch).await, up());
    }
    assert!(asked.elapsed() < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn an_absent_store_is_a_state_that_passes() {
    let store = Arc::new(MemoryStore::default());
    store.pause();
    let keeper = keep(&store);
    let away = status(&keeper, |status| status.degraded.is_some()).await;
    assert!(!away.registered && away.last_ok.is_none());
    tokio::time::sleep(TTL * 50).await;
    store.resume();
    let back = Instant::now();
    status(&keeper, |status| status.registered && status.degraded.is_none()).await;
    assert!(back.elapsed() <= Duration::from_secs(2));
    store.pause();
    let degraded = status(&keeper, |status| status.degraded.is_some()).await;
    assert!(degraded.registered, "its lease still runs");
    status(&keeper, |status| !status.registered).await;
    store.resume();
    status(&keeper, |status| status.registered && status.degraded.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn draining_is_said_without_the_record_going() {
    let store = Arc::new(MemoryStore::default());
    let (mut watch, ..) = listed(&*store, ROUTER).await;
    let keeper = keep(&store);
    assert_eq!(next(&mut watch).await, up());
    keeper.set_state(MemberState::Draining);
    let draining = Member {
        state: MemberState::Draining,
        ..member(DECODE)
    };
    assert_eq!(next(&mut watch).await, WatchEvent::MemberUp(Box::new(draining.clone())));
    tokio::time::sleep(TTL * 3).await;
    assert!(watch.try_recv().is_err());
    store.wipe();
    let (_, again) = until(&mut watch, |event| matches!(event, WatchEvent::MemberUp(_))).await;
    assert_eq!(again, WatchEvent::MemberUp(Box::new(draining)), "it still drains");
}

#[tokio::test(start_paused = true)]
async fn a_stop_without_a_store_has_its_limit() {
    let store = Arc::new(MemoryStore::default());
    let keeper = keep(&store);
    status(&keeper, |status| status.registered).await;
    store.pause();
    let stopping = Instant::now();
    assert!(!keeper.stop(Duration::from_secs(1)).await, "nobody confirmed it");
    assert_eq!(stopping.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_keeper_leaves_its_key_to_the_ttl() {
    let store = Arc::new(MemoryStore::default());
    let (mut watch, ..) = listed(&*store, ROUTER).await;
    let cancel = CancellationToken::new();
    let keeper = MemberKeeper::start(Arc::clone(&store) as Arc<dyn Store>, member(DECODE), TTL, &cancel);
    assert_eq!(next(&mut watch).await, up());
    cancel.cancel();
    let cancelled = Instant::now();
    assert_eq!(next(&mut watch).await, WatchEvent::MemberGone(DECODE));
    assert!(cancelled.elapsed() >= TTL / 2);
    drop(keeper);
}

#[tokio::test]
async fn an_etcd_that_comes_back_empty_has_the_member_again() {
    let mut server = EtcdServer::start();
    let store = common::etcd_store(&server);
    let (mut watch, ..) = listed(&*store, ROUTER).await;
    let keeper = MemberKeeper::start(store.clone(), member(DECODE), TTL, &CancellationToken::new());
    assert_eq!(next(&mut watch).await, up());
    server.restart_empty();
    let (members, _) = relisted(&mut watch).await;
    if members.is_empty() {
        assert_eq!(next(&mut watch).await, up());
    }
    assert!(keeper.stop(LIMIT).await);
}
