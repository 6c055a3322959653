//! What every store must do, run against the in-process store (paused clock) and a real etcd.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{DECODE, LIMIT, LONG, PREFILL, ROUTER, STRANGER, doors, listed, member, next, room, until};
use innkeeper_leases::keys::Key;
use innkeeper_leases::testing::EtcdServer;
use innkeeper_leases::{Member, MemberState, MemoryStore, Store, StoreError, WatchEvent};
use tokio::time::Instant;

/// A lease whose end a test waits for.
const SHORT: Duration = Duration::from_secs(2);

async fn three_doors_stand_under_the_rooms_lease(store: Arc<dyn Store>) {
    store.open_room(&doors(1), LONG).await.unwrap();
    let keys = store.keys().await.unwrap();
    let expected: Vec<(String, i64)> = [ROUTER, PREFILL, DECODE]
        .map(|node| (Key::Door(node, room(1)).to_string(), room(1).lease_id()))
        .to_vec();
    assert_eq!(keys, expected);
}

async fn a_taken_id_is_refused_and_harms_nobody(store: Arc<dyn Store>) {
    store.open_room(&doors(1), LONG).await.unwrap();
    assert_eq!(store.open_room(&doors(1), LONG).await, Err(StoreError::Exists));
    store.renew_room(room(1)).await.unwrap();
    assert_eq!(store.keys().await.unwrap().len(), 3);
}

async fn renewals_keep_a_room_and_silence_ends_it(store: Arc<dyn Store>) {
    let mut watches = Vec::new();
    for node in [ROUTER, PREFILL, DECODE] {
        watches.push(listed(&*store, node).await.0);
    }
    store.open_room(&doors(1), SHORT).await.unwrap();
    for watch in &mut watches {
        assert_eq!(next(watch).await, WatchEvent::DoorSeen(room(1)));
    }
    let mut renewed = Instant::now();
    for _ in 0..8 {
        tokio::time::sleep(SHORT / 5).await;
        renewed = Instant::now();
        store.renew_room(room(1)).await.unwrap();
    }
    for watch in &mut watches {
        assert!(watch.try_recv().is_err(), "nothing ends while it is renewed");
    }
    for watch in &mut watches {
        assert_eq!(next(watch).await, WatchEvent::DoorGone(room(1)));
    }
    assert!(renewed.elapsed() >= SHORT, "not before its time");
    assert_eq!(store.renew_room(room(1)).await, Err(StoreError::NotFound));
    assert_eq!(store.keys().await.unwrap(), []);
}

async fn a_revoke_shows_at_every_door(store: Arc<dyn Store>) {
    let mut watches = Vec::new();
    for node in [ROUTER, PREFILL, DECODE] {
        watches.push(listed(&*store, node).await.0);
    }
    store.open_room(&doors(1), LONG).await.unwrap();
    store.revoke_room(room(1)).await.unwrap();
    let revoked = Instant::now();
    for watch in &mut watches {
        assert_eq!(next(watch).await, WatchEvent::DoorSeen(room(1)));
        assert_eq!(next(watch).await, WatchEvent::DoorGone(room(1)));
    }
    assert!(revoked.elapsed() < LONG / 10, "by the revoke, not by its time");
    assert_eq!(store.renew_room(room(1)).await, Err(StoreError::NotFound));
    assert_eq!(store.revoke_room(room(1)).await, Ok(()), "gone is what was wanted");
}

async fn a_foreign_door_is_nobodys_business(store: Arc<dyn Store>) {
    let mut watch = listed(&*store, STRANGER).await.0;
    store.open_room(&doors(1), LONG).await.unwrap();
    store.revoke_room(room(1)).await.unwrap();
    store.register(&member(DECODE), LONG).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::MemberUp(Box::new(member(DECODE))));
}

async fn a_watch_begins_with_what_is_there(store: Arc<dyn Store>) {
    store.open_room(&doors(1), LONG).await.unwrap();
    store.open_room(&doors(2), LONG).await.unwrap();
    store.register(&member(DECODE), LONG).await.unwrap();
    store.register(&member(PREFILL), LONG).await.unwrap();
    let (_, members, rooms) = listed(&*store, DECODE).await;
    assert_eq!(members, [member(PREFILL), member(DECODE)]);
    assert_eq!(rooms, [room(1), room(2)]);
    let (_, members, rooms) = listed(&*store, STRANGER).await;
    assert_eq!((members.len(), rooms.len()), (2, 0));
}

async fn a_member_comes_and_goes(store: Arc<dyn Store>) {
    let mut watch = listed(&*store, ROUTER).await.0;
    let lease = store.register(&member(DECODE), LONG).await.unwrap();
    assert_eq!(lease.incarnation, DECODE);
    assert_eq!(next(&mut watch).await, WatchEvent::MemberUp(Box::new(member(DECODE))));
    assert_eq!(
        store.keys().await.unwrap(),
        [(Key::Member(DECODE).to_string(), lease.id)]
    );
    store.renew_member(lease).await.unwrap();
    store.deregister(lease).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::MemberGone(DECODE));
    assert_eq!(store.renew_member(lease).await, Err(StoreError::NotFound));
    store.deregister(lease).await.unwrap();
}

async fn a_member_that_is_not_renewed_goes(store: Arc<dyn Store>) {
    let mut watch = listed(&*store, ROUTER).await.0;
    let registered = Instant::now();
    let lease = store.register(&member(DECODE), SHORT).await.unwrap();
    let (_, gone) = until(&mut watch, |event| !matches!(event, WatchEvent::MemberUp(_))).await;
    assert_eq!(gone, WatchEvent::MemberGone(DECODE));
    assert!(registered.elapsed() >= SHORT);
    assert_eq!(store.renew_member(lease).await, Err(StoreError::NotFound));
}

async fn registering_again_replaces_the_record(store: Arc<dyn Store>) {
    let mut watch = listed(&*store, ROUTER).await.0;
    let first = store.register(&member(DECODE), LONG).await.unwrap();
    let draining = Member {
        state: MemberState::Draining,
        ..member(DECODE)
    };
    let second = store.register(&draining, LONG).await.unwrap();
    assert_ne!(first, second);
    store.deregister(first).await.unwrap();
    store.register(&member(STRANGER), LONG).await.unwrap();
    let (before, _) = until(&mut watch, |event| {
        *event == WatchEvent::MemberUp(Box::new(member(STRANGER)))
    })
    .await;
    let ups = [
        WatchEvent::MemberUp(Box::new(member(DECODE))),
        WatchEvent::MemberUp(Box::new(draining)),
    ];
    assert_eq!(before, ups, "the old lease takes nothing with it");
    store.deregister(second).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::MemberGone(DECODE));
}

async fn a_gone_member_may_come_back_as_itself(store: Arc<dyn Store>) {
    let lease = store.register(&member(DECODE), LONG).await.unwrap();
    store.deregister(lease).await.unwrap();
    let mut watch = listed(&*store, ROUTER).await.0;
    store.register(&member(DECODE), LONG).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::MemberUp(Box::new(member(DECODE))));
}

async fn many_rooms_at_once(store: Arc<dyn Store>) {
    let rooms = (1..=300_u64).map(|number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            store.open_room(&doors(number), LONG).await.unwrap();
            for _ in 0..5 {
                store.renew_room(room(number)).await.unwrap();
            }
            if number % 2 == 0 {
                store.revoke_room(room(number)).await.unwrap();
                assert_eq!(store.renew_room(room(number)).await, Err(StoreError::NotFound));
            }
        })
    });
    for task in rooms.collect::<Vec<_>>() {
        tokio::time::timeout(LIMIT, task).await.unwrap().unwrap();
    }
    let keys = store.keys().await.unwrap();
    assert_eq!(keys.len(), 450);
    assert!(keys.iter().all(|(_, lease)| lease % 2 == 1));
}

async fn keys_are_listed_beyond_one_page(store: Arc<dyn Store>) {
    for number in 1..=400 {
        store.open_room(&doors(number), LONG).await.unwrap();
    }
    let keys = store.keys().await.unwrap();
    assert_eq!(keys.len(), 1200);
    assert!(keys.is_sorted(), "each once, in order");
}

async fn a_watch_ends_with_its_store(store: Arc<dyn Store>) {
    let mut watch = listed(&*store, ROUTER).await.0;
    drop(store);
    assert_eq!(tokio::time::timeout(LIMIT, watch.recv()).await, Ok(None));
}

macro_rules! conformance {
    ($($case:ident,)+) => {
        mod memory {
            use super::*;
            $(#[tokio::test(start_paused = true)]
            async fn $case() {
                super::$case(Arc::new(MemoryStore::default())).await;
            })+
        }

        mod etcd {
            use super::*;
            $(#[tokio::test]
            async fn $case() {
                let server = EtcdServer::start();
                super::$case(common::etcd_store(&server)).await;
            })+
        }
    };
}

conformance! {
    three_doors_stand_under_the_rooms_lease,
    a_taken_id_is_refused_and_harms_nobody,
    renewals_keep_a_room_and_silence_ends_it,
    a_revoke_shows_at_every_door,
    a_foreign_door_is_nobodys_business,
    a_watch_begins_with_what_is_there,
    a_member_comes_and_goes,
    a_member_that_is_not_renewed_goes,
    registering_again_replaces_the_record,
    a_gone_member_may_come_back_as_itself,
    many_rooms_at_once,
    keys_are_listed_beyond_one_page,
    a_watch_ends_with_its_store,
}
