//! The in-process store's own knobs. Time is paused: seconds cost nothing.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::time::Duration;

use common::{DECODE, LONG, ROUTER, doors, listed, member, next, relisted, room};
use innkeeper_leases::{MemoryConfig, MemoryStore, Store, StoreError, WatchEvent};
use tokio::time::Instant;

const SHORT: Duration = Duration::from_secs(2);

#[tokio::test(start_paused = true)]
async fn a_paused_store_answers_nobody_and_its_leases_go_on_ending() {
    let store = MemoryStore::default();
    store.open_room(&doors(1), SHORT).await.unwrap();
    store.open_room(&doors(2), LONG).await.unwrap();
    let (mut watch, ..) = listed(&store, ROUTER).await;
    store.pause();
    let paused = Instant::now();
    assert!(matches!(
        store.renew_room(room(1)).await,
        Err(StoreError::Unreachable(_))
    ));
    assert_eq!(paused.elapsed(), Duration::from_secs(2));
    assert!(matches!(next(&mut watch).await, WatchEvent::Lost(_)));
    assert_eq!(paused.elapsed().as_secs(), 3);
    store.resume();
    assert_eq!(
        next(&mut watch).await,
        WatchEvent::Listed {
            members: vec![],
            doors: vec![room(2)]
        }
    );
    assert_eq!(store.renew_room(room(1)).await, Err(StoreError::NotFound));
}

#[tokio::test(start_paused = true)]
async fn a_short_pause_breaks_no_history() {
    let store = MemoryStore::default();
    store.open_room(&doors(1), SHORT).await.unwrap();
    let (mut watch, ..) = listed(&store, ROUTER).await;
    store.pause();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(watch.try_recv().is_err(), "silent");
    store.resume();
    assert_eq!(next(&mut watch).await, WatchEvent::DoorGone(room(1)));
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_a_paused_store_says_so_once() {
    let store = MemoryStore::default();
    store.pause();
    let mut watch = store.watch(ROUTER);
    assert!(matches!(next(&mut watch).await, WatchEvent::Lost(_)));
    tokio::time::sleep(LONG).await;
    assert!(watch.try_recv().is_err());
    store.resume();
    assert!(matches!(next(&mut watch).await, WatchEvent::Listed { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_wiped_store_deletes_nothing() {
    let store = MemoryStore::default();
    store.open_room(&doors(1), LONG).await.unwrap();
    let lease = store.register(&member(DECODE), LONG).await.unwrap();
    let (mut watch, ..) = listed(&store, ROUTER).await;
    store.wipe();
    assert!(matches!(next(&mut watch).await, WatchEvent::Lost(_)));
    assert_eq!(
        next(&mut watch).await,
        WatchEvent::Listed {
            members: vec![],
            doors: vec![]
        }
    );
    assert_eq!(store.renew_room(room(1)).await, Err(StoreError::NotFound));
    assert_eq!(store.renew_member(lease).await, Err(StoreError::NotFound));
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_delays_only_itself_and_is_told_of_its_gap() {
    let store = MemoryStore::new(MemoryConfig {
        history: 64,
        channel: 1,
        ..MemoryConfig::default()
    });
    let (mut slow, ..) = listed(&store, ROUTER).await;
    let (mut quick, ..) = listed(&store, ROUTER).await;
    for number in 1..=300 {
        store.open_room(&doors(number), LONG).await.unwrap();
        assert_eq!(next(&mut quick).await, WatchEvent::DoorSeen(room(number)));
    }
    let (_, rooms) = relisted(&mut slow).await;
    assert_eq!(rooms.len(), 300);
    store.revoke_room(room(1)).await.unwrap();
    assert_eq!(next(&mut slow).await, WatchEvent::DoorGone(room(1)));
}

#[tokio::test(start_paused = true)]
async fn a_compaction_is_a_gap_only_for_who_has_not_read() {
    let store = MemoryStore::default();
    let (mut watch, ..) = listed(&store, ROUTER).await;
    store.open_room(&doors(1), LONG).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::DoorSeen(room(1)));
    store.compact();
    store.open_room(&doors(2), LONG).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::DoorSeen(room(2)), "it had read all");
    store.pause();
    tokio::task::yield_now().await;
    assert!(store.revoke_by_hand(room(1).lease_id()));
    store.compact();
    store.resume();
    assert!(matches!(next(&mut watch).await, WatchEvent::Lost(_)));
    assert_eq!(
        next(&mut watch).await,
        WatchEvent::Listed {
            members: vec![],
            doors: vec![room(2)]
        }
    );
    assert!(!store.revoke_by_hand(room(1).lease_id()));
}

#[tokio::test(start_paused = true)]
async fn a_delayed_grant_stands_before_its_answer() {
    let store = MemoryStore::default();
    store.delay_grants(Duration::from_secs(5));
    let (mut watch, ..) = listed(&store, ROUTER).await;
    let given_up = tokio::time::timeout(Duration::from_secs(1), store.open_room(&doors(1), LONG)).await;
    assert!(given_up.is_err());
    assert_eq!(next(&mut watch).await, WatchEvent::DoorSeen(room(1)));
    let asked = Instant::now();
    store.open_room(&doors(2), LONG).await.unwrap();
    assert_eq!(asked.elapsed(), Duration::from_secs(5));
}
