//! Random events in any order, stale epochs, duplicates, lost messages: always terminal by the bound, one end, nothing lost.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Config, Effect, Event, Ledger, SessionId};
use crate::evidence::Evidence;
use crate::ids::{Attempt, Epoch, Incarnation, RequestKey, RoomId};
use crate::ledger::{EngineKind, EngineView};
use crate::message::{FromWorker, HelloReply, ToWorker};
use crate::pages::PageCounts;
use crate::reason::{Reason, Verdict};
use crate::settings::Settings;
use crate::spec::RoomSpec;
use crate::time::{Millis, Moment};

const PAGES: u32 = 12;
const DECODE: Incarnation = Incarnation::new(4);

fn spec(number: u64, prefill: u64, prompt_tokens: u32) -> RoomSpec {
    RoomSpec {
        room: RoomId::from_random(number),
        request: RequestKey(number),
        attempt: Attempt(1),
        router: Incarnation::new(1),
        prefill: Incarnation::new(prefill),
        decode: DECODE,
        prompt_tokens,
        max_tokens: 5,
        queue_left: Millis(2000),
    }
}

fn event() -> impl Strategy<Value = Event> {
    let room = || (1_u64..6).prop_map(RoomId::from_random);
    let epoch = || (0_u32..6).prop_map(Epoch);
    let message = prop_oneof![
        Just(ToWorker::Abort(Reason::Aborted)),
        Just(ToWorker::Committed),
        (0_u32..6).prop_map(ToWorker::Taken),
        Just(ToWorker::Live),
        Just(ToWorker::Verdict(Verdict::Done)),
        Just(ToWorker::Unknown),
    ];
    let hello = (room(), epoch(), 2_u64..4, prop::bool::weighted(0.95), any::<u64>());
    let view = (0_u64..50, proptest::option::of(0_u64..2000), prop::bool::weighted(0.9));
    prop_oneof![
        8 => (1_u64..6, 2_u64..4, 1_u32..60).prop_map(|(number, prefill, prompt)| Event::Open {
            spec: spec(number, prefill, prompt), token: 7 }),
        2 => (room(), message).prop_map(|(room, message)| Event::FromRouter { room, message }),
        1 => room().prop_map(|room| Event::StreamEnded { room }),
        16 => hello.prop_map(|(room, epoch, prefill, right, session)| Event::Hello {
            room, epoch, token: if right { 7 } else { 8 }, prefill: Incarnation::new(prefill), decode: DECODE,
            session: SessionId(session) }),
        6 => (room(), epoch()).prop_map(|(room, epoch)| Event::Started { room, epoch }),
        6 => (room(), epoch(), 0_u64..500).prop_map(|(room, epoch, bytes)| Event::Verified { room, epoch, bytes }),
        3 => (room(), epoch(), 0_u64..9).prop_map(|(room, epoch, progress)| Event::PeerProgress { room, epoch, progress }),
        5 => (room(), epoch()).prop_map(|(room, epoch)| Event::Complete { room, epoch }),
        4 => (room(), epoch(), 0_u64..2000).prop_map(|(room, epoch, within)| Event::Ticket {
            room, epoch, read_within: Millis(within) }),
        4 => room().prop_map(|room| Event::Pulled { room }),
        1 => room().prop_map(|room| Event::EngineEnded { room, reason: Reason::KvUnproven }),
        1 => (room(), epoch()).prop_map(|(room, epoch)| Event::Corrupt { room, epoch }),
        1 => (room(), epoch()).prop_map(|(room, epoch)| Event::PeerFailed {
            room, epoch, reason: Reason::EngineFailed, evidence: Evidence::default() }),
        4 => (room(), epoch()).prop_map(|(room, epoch)| Event::Broken { room, epoch }),
        4 => (room(), epoch()).prop_map(|(room, epoch)| Event::Quiesced { room, epoch }),
        6 => (room(), 0_u32..6).prop_map(|(room, tokens)| Event::Made { room, tokens }),
        2 => room().prop_map(|room| Event::EngineFinished { room }),
        1 => Just(Event::EngineRestarted),
        1 => room().prop_map(|room| Event::EngineFailed { room }),
        1 => room().prop_map(|room| Event::EngineStopped { room }),
        6 => view.prop_map(|(progress, in_hand, alive)| {
            Event::Engine(EngineView { progress, in_hand: in_hand.map(Millis), alive })
        }),
        1 => room().prop_map(|room| Event::DoorGone { room }),
        1 => (1_u64..5).prop_map(|number| Event::MemberGone { incarnation: Incarnation::new(number) }),
        1 => room().prop_map(|room| Event::ActorDied { room }),
        10 => Just(Event::Tick),
    ]
}

#[derive(Default)]
struct Books {
    begun: BTreeMap<RoomId, u32>,
    ended: BTreeMap<RoomId, u32>,
    /// The epochs that may write now, by room.
    writers: BTreeMap<RoomId, Vec<Epoch>>,
    exits: u32,
}

impl Books {
    fn hear(&mut self, event: &Event) {
        if let Event::Quiesced { room, epoch } = event {
            self.writers.entry(*room).or_default().retain(|writer| writer != epoch);
        }
    }

    fn enter(&mut self, effects: &[Effect]) -> Result<(), TestCaseError> {
        for effect in effects {
            match effect {
                Effect::Begin { room } => *self.begun.entry(*room).or_default() += 1,
                Effect::Tell {
                    room,
                    message: FromWorker::Ended { .. },
                } => {
                    *self.ended.entry(*room).or_default() += 1;
                }
                Effect::Tell {
                    room,
                    message: FromWorker::Tokens { .. },
                } => {
                    prop_assert_ne!(
                        self.ended.get(room),
                        self.begun.get(room),
                        "{} speaks after its end",
                        room
                    );
                }
                Effect::Reply {
                    room,
                    epoch,
                    reply: HelloReply::Ready,
                    ..
                } => {
                    let writers = self.writers.entry(*room).or_default();
                    prop_assert!(writers.is_empty(), "{} has two writers", room);
                    writers.push(*epoch);
                }
                Effect::ClosePages { room } => {
                    prop_assert!(
                        self.writers.get(room).is_none_or(Vec::is_empty),
                        "{} is still written",
                        room
                    );
                }
                Effect::Exit { .. } => self.exits += 1,
                _ => {}
            }
        }
        Ok(())
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
        let settings = Settings { permits: 4, remembered_rooms: 3, ..Settings::from_ttl(Millis(1000)) };
        let config = Config {
            settings, incarnation: DECODE, total_pages: PAGES, page_tokens: 10, context: 100, engine,
        };
        let mut now = Moment(50_000);
        let mut ledger = Ledger::new(config, now);
        let mut books = Books::default();
        for (event, after) in steps {
            now = now + Millis(after);
            books.hear(&event);
            let reborn = engine == EngineKind::Remote && event == Event::EngineRestarted;
            let effects = ledger.step(event, now);
            if reborn {
                prop_assert_eq!(ledger.gauges(now).engine_permits, 0, "of an engine that is gone");
            }
            prop_assert!(ledger.violations().is_empty(), "{:?}", ledger.violations());
            books.enter(&effects)?;
        }
        // Nobody says anything any more. The longest chain: the backstop (2 s + 2 TTL), then input (60 tokens at 20/s + 4 TTL),
        // then decoding (5 tokens at 1/s + 2 TTL), and a grace after the last stop.
        let bound = now + Millis(4000 + 7000 + 7000 + 1000);
        while now < bound && !ledger.rows(now).is_empty() {
            let next = ledger.next_deadline();
            prop_assert!(next.is_some(), "a room lives and nothing is armed");
            now = next.unwrap_or(bound).max(now + Millis(1));
            books.enter(&ledger.step(Event::Tick, now))?;
        }
        prop_assert_eq!(ledger.rows(now), vec![]);
        prop_assert_eq!(&books.ended, &books.begun);
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
                for epoch in 0..6 {
                    let _ = ledger.step(Event::Quiesced { room, epoch: Epoch(epoch) }, now);
                }
            }
            prop_assert_eq!(ledger.gauges(now).pages, PageCounts::all_free(PAGES));
            prop_assert_eq!(ledger.gauges(now).engine_permits + ledger.gauges(now).session_permits, 0);
        } else {
            let leaks = ledger.table.closing.values().any(|closing| closing.ends_with_process(engine));
            let late = now + Millis(61_000);
            while now < late {
                now = now + Millis(50);
                books.enter(&ledger.step(Event::Tick, now))?;
            }
            prop_assert_eq!(books.exits, u32::from(leaks || books.exits > 0));
        }
    }
}
