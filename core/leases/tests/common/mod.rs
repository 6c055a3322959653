//! What the store tests share.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

use std::sync::Arc;
use std::time::Duration;

use innkeeper_leases::testing::EtcdServer;
use innkeeper_leases::{Doors, EtcdConfig, EtcdStore, Member, MemberState, Store, WatchEvent};
use innkeeper_room::{Incarnation, Layout, Role, RoomId};
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

/// Longest wait for what must come: far above every bound, so that only a missing event meets it.
pub const LIMIT: Duration = Duration::from_secs(20);
/// A lease that nobody waits for the end of.
pub const LONG: Duration = Duration::from_secs(60);

pub const ROUTER: Incarnation = Incarnation::new(0xa);
pub const PREFILL: Incarnation = Incarnation::new(0xb);
pub const DECODE: Incarnation = Incarnation::new(0xc);
pub const STRANGER: Incarnation = Incarnation::new(0xd);

pub fn room(number: u64) -> RoomId {
    RoomId::from_random(number)
}

pub fn doors(number: u64) -> Doors {
    Doors {
        room: room(number),
        router: ROUTER,
        prefill: PREFILL,
        decode: DECODE,
    }
}

pub fn member(incarnation: Incarnation) -> Member {
    let layout = r#"{"model":"tiny/f32","page_tokens":16,"groups":2,"group_token_bytes":64}"#;
    let layout: Layout = serde_json::from_str(layout).unwrap_or_else(|error| panic!("layout: {error}"));
    Member {
        incarnation,
        role: Role::Decode,
        name: format!("node-{incarnation}"),
        pid: 7,
        http: "127.0.0.1:1".to_owned(),
        control: "127.0.0.1:2".to_owned(),
        data: "127.0.0.1:3".to_owned(),
        model: "tiny".to_owned(),
        layout,
        revision: "r1".to_owned(),
        pages: 64,
        context: 4096,
        permits: 16,
        state: MemberState::Serving,
    }
}

pub fn etcd_store(server: &EtcdServer) -> Arc<EtcdStore> {
    Arc::new(EtcdStore::new(EtcdConfig::new([server.endpoint()])).expect("a good configuration"))
}

/// The next event.
pub async fn next(watch: &mut Receiver<WatchEvent>) -> WatchEvent {
    timeout(LIMIT, watch.recv())
        .await
        .expect("an event in time")
        .expect("the watch goes on")
}

/// The next event that `wanted` accepts; answers those before it too.
pub async fn until(
    watch: &mut Receiver<WatchEvent>,
    wanted: impl Fn(&WatchEvent) -> bool,
) -> (Vec<WatchEvent>, WatchEvent) {
    let mut before = Vec::new();
    loop {
        let event = next(watch).await;
        if wanted(&event) {
            return (before, event);
        }
        before.push(event);
    }
}

/// A watch that has told its first list.
pub async fn listed(store: &dyn Store, own: Incarnation) -> (Receiver<WatchEvent>, Vec<Member>, Vec<RoomId>) {
    let mut watch = store.watch(own);
    match next(&mut watch).await {
        WatchEvent::Listed { members, doors } => (watch, members, doors),
        other => panic!("the first event is {other:?}, not a list"),
    }
}

/// The next list, over any gaps.
pub async fn relisted(watch: &mut Receiver<WatchEvent>) -> (Vec<Member>, Vec<RoomId>) {
    match until(watch, |event| matches!(event, WatchEvent::Listed { .. })).await {
        (_, WatchEvent::Listed { members, doors }) => (members, doors),
        (_, other) => panic!("{other:?}"),
    }
}
