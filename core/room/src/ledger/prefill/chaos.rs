//! Random events in any order, stale epochs, duplicates, lost messages: always terminal by the bound, one end, nothing lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::{Config, Effect, Event, Ledger};
use crate::cache::BlockHash;
use crate::evidence::Evidence;
use crate::ids::{Attempt, Epoch, Incarnation, RequestKey, RoomId};
use crate::ledger::{EngineKind, EngineView};
use crate::message::{Counters, FromWorker, HelloReply, ToWorker};
use crate::reason::{Reason, Verdict};
use crate::settings::Settings;
use crate::spec::RoomSpec;
use crate::time::{Millis, Moment};

const PAGES: u32 = 12;

fn spec(number: u64, prompt_tokens: u32) -> RoomSpec {
    RoomSpec {
        room: RoomId::from_random(number),
        request: RequestKey(number),
        attempt: Attempt(1),
        router: Incarnation::new(1),
        prefill: Incarnation::new(2),
        decode: Incarnation::new(3),
        prompt_tokens,
        max_tokens: 5,
        queue_left: Millis(2000),
    }
}

/// Prompts begin alike, but for every third, and one tenant's KV is never kept.
fn blocks(number: u64, prompt: u32) -> Arc<[BlockHash]> {
    let whole = if number == 5 { 0 } else { prompt / 10 };
    let name = |at: u32| BlockHash(u128::from(number % 3 / 2 * 100) + u128::from(at));
    (0..whole).map(name).collect()
}

fn event() -> impl Strategy<Value = Event> {
    let room = || (1_u64..6).prop_map(RoomId::from_random);
    let epoch = || (0_u32..6).prop_map(Epoch);
    let counters = (0_u64..200, 0_u64..200, 0_u64..200).prop_map(|(sealed, sent, verified)| Counters {
        bytes_sealed: sealed,
        bytes_sent: sent,
        bytes_verified: verified,
        ..Counters::default()
    });
    let reply = prop_oneof![
        6 => Just(HelloReply::Ready),
        2 => Just(HelloReply::Wait),
        1 => Just(HelloReply::Committed),
        1 => Just(HelloReply::Ended(Reason::Aborted)),
        1 => Just(HelloReply::Unknown),
        1 => Just(HelloReply::Stale),
    ];
    let message = prop_oneof![
        Just(ToWorker::Abort(Reason::Aborted)),
        Just(ToWorker::Committed),
        Just(ToWorker::Taken(3)),
        Just(ToWorker::Live),
        Just(ToWorker::Verdict(Verdict::Done)),
        Just(ToWorker::Unknown),
    ];
    let view = (0_u64..50, proptest::option::of(0_u64..2000), prop::bool::weighted(0.9));
    prop_oneof![
        8 => (1_u64..6, 1_u32..60).prop_map(|(number, prompt)| Event::Open {
            spec: spec(number, prompt), decode_addr: String::new(), token: 0, blocks: blocks(number, prompt) }),
        2 => (room(), message).prop_map(|(room, message)| Event::FromRouter { room, message }),
        1 => room().prop_map(|room| Event::StreamEnded { room }),
        12 => (room(), epoch(), reply).prop_map(|(room, epoch, reply)| Event::Reply { room, epoch, reply }),
        1 => (room(), epoch()).prop_map(|(room, epoch)| Event::Committed { room, epoch }),
        1 => (room(), epoch()).prop_map(|(room, epoch)| Event::PeerFailed {
            room, epoch, reason: Reason::KvCorrupt, evidence: Evidence::default() }),
        5 => (room(), epoch(), prop::bool::weighted(0.1)).prop_map(|(room, epoch, refused)| Event::Broken {
            room, epoch, unacked: false, refused }),
        3 => (room(), epoch()).prop_map(|(room, epoch)| Event::Quiesced { room, epoch }),
        8 => (room(), counters).prop_map(|(room, counters)| Event::Sample { room, counters, unacked: false }),
        4 => (room(), 0_u64..200).prop_map(|(room, bytes)| Event::Sealed { room, bytes }),
        3 => (room(), 0_u64..2000).prop_map(|(room, within)| Event::Kept { room, read_within: Millis(within) }),
        1 => room().prop_map(|room| Event::EngineEnded { room, reason: Reason::EngineError }),
        1 => Just(Event::EngineRestarted),
        1 => room().prop_map(|room| Event::EngineFailed { room }),
        1 => room().prop_map(|room| Event::EngineStopped { room }),
        6 => view.prop_map(|(progress, in_hand, alive)| {
            Event::Engine(EngineView { progress, in_hand: in_hand.map(Millis), alive })
        }),
        1 => room().prop_map(|room| Event::DoorGone { room }),
        1 => (1_u64..4).prop_map(|number| Event::MemberGone { incarnation: Incarnation::new(number) }),
        1 => room().prop_map(|room| Event::ActorDied { room }),
        10 => Just(Event::Tick),
    ]
}

/// Begins and ends by room; pages that were ordered back.
#[derive(Default)]
struct Books {
    begun: BTreeMap<RoomId, u32>,
    ended: BTreeMap<RoomId, u32>,
    exits: u32,
}

impl Books {
    fn enter(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Begin { room } => *self.begun.entry(*room).or_default() += 1,
                Effect::Tell {
                    room,
                    message: FromWorker::Ended { .. },
                } => {
                    *self.ended.entry(*room).or_default() += 1;
                }
                Effect::Exit { .. } => self.exits += 1,
                _ => {}
            }
        }
    }
}

/// What becomes of the permits that are out when all rooms are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    AllGiveBack,
    ConnectionsDoAndTheEngineIsAnotherOne,
    NobodyDoes,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn always_terminal_by_the_bound(
        steps in proptest::collection::vec((event(), prop_oneof![9 => 0_u64..60, 1 => 300_u64..3000]), 1..120),
        engine in prop_oneof![Just(EngineKind::Own), Just(EngineKind::Remote)],
        after_all in prop_oneof![
            Just(After::AllGiveBack), Just(After::ConnectionsDoAndTheEngineIsAnotherOne), Just(After::NobodyDoes),
        ],
    ) {
        let settings = Settings {
            prefill_concurrency: 2, hello_window: 2, permits: 4, remembered_rooms: 3,
            ..Settings::from_ttl(Millis(1000))
        };
        let config = Config {
            settings, incarnation: Incarnation::new(2), total_pages: PAGES, page_tokens: 10, context: 100, engine,
        };
        let mut now = Moment(50_000);
        let mut ledger = Ledger::new(config, now);
        let mut books = Books::default();
        for (event, after) in steps {
            now = now + Millis(after);
            let reborn = engine == EngineKind::Remote && event == Event::EngineRestarted;
            let effects = ledger.step(event, now);
            if reborn {
                let began = effects.iter().filter(|effect| matches!(effect, Effect::Compute { .. })).count();
                prop_assert_eq!(ledger.gauges(now).engine_permits as usize, began, "of an engine that is gone");
            }
            prop_assert!(ledger.violations().is_empty(), "{:?}", ledger.violations());
            books.enter(&effects);
        }
        // Nobody says anything any more. The longest chain: the backstop (2 s + 2 TTL), then computing
        // (60 tokens at 20/s + 2 TTL), then the transfer (2 TTL), then the ask time, and a grace after the last stop.
        let bound = now + Millis(4000 + 5000 + 2000 + 1000);
        while now < bound && !ledger.rows(now).is_empty() {
            let next = ledger.next_deadline();
            prop_assert!(next.is_some(), "a room lives and nothing is armed");
            now = next.unwrap_or(bound).max(now + Millis(1));
            books.enter(&ledger.step(Event::Tick, now));
        }
        prop_assert_eq!(ledger.rows(now), vec![]);
        for (room, begun) in &books.begun {
            prop_assert_eq!(books.ended.get(room), Some(begun), "{} began and ended", room);
        }
        prop_assert_eq!(books.ended.len(), books.begun.len());
        // And what is clean is clean: all permits come back, or the process is given up, once.
        if after_all != After::NobodyDoes {
            let another = after_all == After::ConnectionsDoAndTheEngineIsAnotherOne && engine == EngineKind::Remote;
            if another {
                let _ = ledger.step(Event::EngineRestarted, now);
            }
            for number in 1..6 {
                let room = RoomId::from_random(number);
                if !another {
                    let _ = ledger.step(Event::EngineStopped { room }, now);
                }
                for epoch in u32::from(another)..200 {
                    let _ = ledger.step(Event::Quiesced { room, epoch: Epoch(epoch) }, now);
                }
            }
            let pages = ledger.gauges(now).pages;
            prop_assert_eq!((pages.available(), pages.total()), (PAGES, PAGES));
            prop_assert_eq!(ledger.gauges(now).engine_permits + ledger.gauges(now).session_permits, 0);
        } else {
            let leaks = ledger.table.closing.values().any(|closing| closing.ends_with_process(engine));
            let late = now + Millis(61_000);
            while now < late {
                now = now + Millis(50);
                books.enter(&ledger.step(Event::Tick, now));
            }
            prop_assert_eq!(books.exits, u32::from(leaks || books.exits > 0));
        }
    }
}
