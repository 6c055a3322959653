//! What only a real etcd can do to us: stop, die, come back empty, compact, start late.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::time::{Duration, Instant};

use common::{DECODE, LONG, ROUTER, doors, etcd_store, listed, member, next, relisted, room, until};
use etcd_client::{Client, PutOptions};
use innkeeper_leases::testing::EtcdServer;
use innkeeper_leases::{EtcdConfig, EtcdStore, Store, StoreError, WatchEvent};

/// The default deadline of a call, and what a busy machine may add.
const CALL: Duration = Duration::from_millis(2000);
const SLACK: Duration = Duration::from_millis(1500);

fn unreachable<T: std::fmt::Debug>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Unreachable(_)))
}

#[tokio::test]
async fn a_stopped_etcd_holds_up_nobody_and_is_noticed() {
    let server = EtcdServer::start();
    let store = etcd_store(&server);
    store.open_room(&doors(1), LONG).await.unwrap();
    store.renew_room(room(1)).await.unwrap();
    let (mut watch, ..) = listed(&*store, ROUTER).await;
    server.stop();
    let stopped = Instant::now();
    let lease = innkeeper_leases::MemberLease {
        id: 5,
        incarnation: DECODE,
    };
    let (opened, new_doors, new_member) = (Instant::now(), doors(2), member(DECODE));
    let (open, renew, register, renew_member, revoke, keys) = tokio::join!(
        store.open_room(&new_doors, LONG),
        store.renew_room(room(1)),
        store.register(&new_member, LONG),
        store.renew_member(lease),
        store.revoke_room(room(9)),
        store.keys(),
    );
    assert!(opened.elapsed() < CALL + SLACK, "{:?}", opened.elapsed());
    assert!(
        unreachable(&open) && unreachable(&renew) && unreachable(&register),
        "{open:?} {renew:?} {register:?}"
    );
    assert!(unreachable(&renew_member) && unreachable(&revoke) && unreachable(&keys));
    let (before, _) = until(&mut watch, |event| matches!(event, WatchEvent::Lost(_))).await;
    assert_eq!(before, []);
    assert!(
        stopped.elapsed() < Duration::from_secs(4) + SLACK,
        "{:?}",
        stopped.elapsed()
    );
    server.cont();
    let (_, rooms) = relisted(&mut watch).await;
    assert!(rooms.contains(&room(1)), "its lease was long enough");
    store.renew_room(room(1)).await.unwrap();
}

#[tokio::test]
async fn an_etcd_that_comes_back_empty_is_seen_as_empty_and_used_again() {
    let mut server = EtcdServer::start();
    let store = etcd_store(&server);
    for number in 1..=5 {
        store.open_room(&doors(number), LONG).await.unwrap();
    }
    let lease = store.register(&member(DECODE), LONG).await.unwrap();
    let (mut watch, members, rooms) = listed(&*store, ROUTER).await;
    assert_eq!((members.len(), rooms.len()), (1, 5));
    server.restart_empty();
    let (before, lost) = until(&mut watch, |event| !matches!(event, WatchEvent::DoorSeen(_))).await;
    assert_eq!(before, []);
    assert!(
        matches!(lost, WatchEvent::Lost(_)),
        "absence is no DELETE, but {lost:?}"
    );
    assert_eq!(
        next(&mut watch).await,
        WatchEvent::Listed {
            members: vec![],
            doors: vec![]
        }
    );
    assert_eq!(store.renew_room(room(1)).await, Err(StoreError::NotFound));
    assert_eq!(store.renew_member(lease).await, Err(StoreError::NotFound));
    store.register(&member(DECODE), LONG).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::MemberUp(Box::new(member(DECODE))));
    store.open_room(&doors(1), LONG).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::DoorSeen(room(1)));
}

#[tokio::test]
async fn a_restarted_etcd_that_kept_its_data_lists_it() {
    let mut server = EtcdServer::start();
    let store = etcd_store(&server);
    store.open_room(&doors(1), LONG).await.unwrap();
    let (mut watch, ..) = listed(&*store, ROUTER).await;
    server.kill();
    assert!(unreachable(&store.renew_room(room(1)).await));
    server.up();
    let (members, rooms) = relisted(&mut watch).await;
    assert_eq!((members.len(), rooms), (0, vec![room(1)]));
    store.renew_room(room(1)).await.unwrap();
}

#[tokio::test]
async fn a_store_made_before_etcd_works_soon_after_it_is_there() {
    let mut server = EtcdServer::down();
    let store = etcd_store(&server);
    let mut watch = store.watch(ROUTER);
    assert!(matches!(next(&mut watch).await, WatchEvent::Lost(_)));
    let asked = Instant::now();
    assert!(unreachable(&store.register(&member(DECODE), LONG).await));
    assert!(asked.elapsed() < CALL + SLACK);
    server.up();
    let started = Instant::now();
    let (members, rooms) = relisted(&mut watch).await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!((members.len(), rooms.len()), (0, 0));
    store.register(&member(DECODE), LONG).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::MemberUp(Box::new(member(DECODE))));
}

#[tokio::test]
async fn a_compaction_loses_nothing_without_saying_so() {
    let server = EtcdServer::start();
    // A slow reader: one event ahead, so that etcd compacts what was not read yet or the watch has it already. Either
    // way the reader ends up knowing every door.
    let store = EtcdStore::new(EtcdConfig {
        channel: 1,
        ..EtcdConfig::new([server.endpoint()])
    })
    .unwrap();
    let (mut watch, ..) = listed(&store, ROUTER).await;
    let mut raw = Client::connect([server.endpoint()], None).await.unwrap();
    for number in 1..=200 {
        store.open_room(&doors(number), LONG).await.unwrap();
    }
    let last = raw.get("x", None).await.unwrap().header().unwrap().revision();
    raw.compact(last, None).await.unwrap();
    let mut known = std::collections::BTreeSet::new();
    while known.len() < 200 {
        match next(&mut watch).await {
            WatchEvent::DoorSeen(room) => drop(known.insert(room)),
            WatchEvent::Listed { doors, .. } => known = doors.into_iter().collect(),
            WatchEvent::Lost(_) => {}
            other => panic!("{other:?}"),
        }
    }
    store.revoke_room(room(7)).await.unwrap();
    let (_, gone) = until(&mut watch, |event| matches!(event, WatchEvent::DoorGone(_))).await;
    assert_eq!(gone, WatchEvent::DoorGone(room(7)), "the watch goes on");
}

#[tokio::test]
async fn unreadable_records_are_skipped_and_counted() {
    let server = EtcdServer::start();
    let store = etcd_store(&server);
    let mut raw = Client::connect([server.endpoint()], None).await.unwrap();
    raw.put("/innkeeper/v1/members/00000000000000ff", "{", None)
        .await
        .unwrap();
    raw.put("/innkeeper/v1/members/not-an-id", "{}", None).await.unwrap();
    let (mut watch, members, _) = listed(&*store, ROUTER).await;
    assert_eq!((members.len(), store.malformed()), (0, 2));
    let other = serde_json::to_vec(&member(DECODE)).unwrap();
    raw.put("/innkeeper/v1/members/00000000000000ee", other, None)
        .await
        .unwrap();
    raw.put("/innkeeper/v1/doors/000000000000000a/zz", "", None)
        .await
        .unwrap();
    store.register(&member(DECODE), LONG).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::MemberUp(Box::new(member(DECODE))));
    // The two keys are on two watches of one stream, which etcd may tell in any order.
    let deadline = Instant::now() + common::LIMIT;
    while store.malformed() < 4 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(store.malformed(), 4);
}

#[tokio::test]
async fn a_door_under_another_lease_refuses_the_room_and_leaves_no_lease() {
    let server = EtcdServer::start();
    let store = etcd_store(&server);
    let mut raw = Client::connect([server.endpoint()], None).await.unwrap();
    let other = raw.lease_grant(60, None).await.unwrap().id();
    let key = innkeeper_leases::keys::Key::Door(DECODE, room(1)).to_string();
    raw.put(key.as_str(), "", Some(PutOptions::new().with_lease(other)))
        .await
        .unwrap();
    assert!(matches!(
        store.open_room(&doors(1), LONG).await,
        Err(StoreError::Refused(_))
    ));
    assert_eq!(store.keys().await.unwrap(), [(key, other)]);
    let deadline = Instant::now() + common::LIMIT;
    while raw.leases().await.unwrap().leases().len() > 1 {
        assert!(Instant::now() < deadline, "the room's lease is revoked");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_dead_endpoint_is_left_for_the_next() {
    let (server, dead) = (EtcdServer::start(), EtcdServer::down());
    let store = EtcdStore::new(EtcdConfig::new([dead.endpoint(), server.endpoint()])).unwrap();
    let mut watch = store.watch(ROUTER);
    relisted(&mut watch).await;
    let deadline = Instant::now() + common::LIMIT;
    while store.register(&member(DECODE), LONG).await.is_err() {
        assert!(Instant::now() < deadline, "the other endpoint is used");
    }
    assert_eq!(next(&mut watch).await, WatchEvent::MemberUp(Box::new(member(DECODE))));
}

#[tokio::test]
async fn an_idle_watch_is_not_lost() {
    let server = EtcdServer::start();
    let config = EtcdConfig {
        progress_every: Duration::from_millis(100),
        silence: Duration::from_secs(2),
        ..EtcdConfig::new([server.endpoint()])
    };
    let store = EtcdStore::new(config).unwrap();
    let (mut watch, ..) = listed(&store, ROUTER).await;
    tokio::time::sleep(Duration::from_millis(3500)).await;
    assert!(watch.try_recv().is_err(), "progress answers are a sign of life");
    store.open_room(&doors(1), LONG).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::DoorSeen(room(1)));
}
