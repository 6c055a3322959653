//! Random orders of everything, stale rooms, duplicates, early aborts and lost messages included. Whatever happens: each
//! arrival is answered once and by its bound, each room has one verdict, only one room speaks, and with nothing but time
//! everything ends.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::message::Refusal;

/// One thing that happens; the numbers choose among what there is.
#[derive(Clone, Debug)]
enum Act {
    Arrive {
        rid: u8,
        max_tokens: u32,
    },
    Abort {
        rid: u8,
    },
    Client {
        which: u8,
        how: u8,
    },
    Say {
        which: u8,
        side: bool,
        what: u8,
        number: u32,
    },
    Forward {
        which: u8,
        steps: u8,
    },
    Stream {
        which: u8,
        side: bool,
        broken: bool,
    },
    Lease {
        which: u8,
        what: u8,
    },
    Member {
        node: u8,
        what: u8,
    },
    Report {
        node: u8,
        free_pages: u32,
    },
    Pass {
        ms: u64,
        loads: bool,
    },
    Stop {
        ms: u64,
    },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0u8..4, 0u32..6).prop_map(|(rid, max_tokens)| Act::Arrive { rid, max_tokens }),
        1 => (0u8..5).prop_map(|rid| Act::Abort { rid }),
        1 => (any::<u8>(), 0u8..3).prop_map(|(which, how)| Act::Client { which, how }),
        5 => (any::<u8>(), any::<bool>(), 0u8..12, 0u32..6)
            .prop_map(|(which, side, what, number)| Act::Say { which, side, what, number }),
        8 => (0u8..3, 1u8..6).prop_map(|(which, steps)| Act::Forward { which, steps }),
        1 => (any::<u8>(), any::<bool>(), any::<bool>())
            .prop_map(|(which, side, broken)| Act::Stream { which, side, broken }),
        2 => (any::<u8>(), 0u8..8).prop_map(|(which, what)| Act::Lease { which, what }),
        2 => (0u8..4, 0u8..7).prop_map(|(node, what)| Act::Member { node, what }),
        1 => (0u8..4, 0u32..=100).prop_map(|(node, free_pages)| Act::Report { node, free_pages }),
        3 => (1u64..3000, any::<bool>()).prop_map(|(ms, loads)| Act::Pass { ms, loads }),
        1 => (1000u64..9000).prop_map(|ms| Act::Stop { ms }),
    ]
}

/// What was seen of a request.
#[derive(Default)]
struct Seen {
    arrived: Moment,
    answers: u32,
    passed: u32,
    max_tokens: u32,
    room: Option<RoomId>,
}

/// A bench that watches what the ledger orders.
struct World {
    bench: Bench,
    requests: BTreeMap<u64, Seen>,
    rooms: Vec<RoomSpec>,
    verdicts: BTreeMap<RoomId, Verdict>,
    tickets: BTreeMap<u64, u32>,
    looked_at: usize,
    /// Canaries that were ordered and have not arrived.
    canaries: Vec<(Incarnation, Incarnation)>,
}

impl World {
    fn new() -> Self {
        let settings = Settings {
            request_timeout: Millis(60_000),
            queue_timeout: Millis(10_000),
            max_requests: 12,
            max_queued: 4,
            prefill_booking_tokens: 900,
            remembered_rooms: 8,
            max_tombstones: 3,
            tombstones_per_client: 2,
            ..Settings::default()
        };
        Self {
            bench: Bench::with(settings, &[P1, P2], &[D1, D2]),
            requests: BTreeMap::new(),
            rooms: Vec::new(),
            verdicts: BTreeMap::new(),
            tickets: BTreeMap::new(),
            looked_at: 0,
            canaries: Vec::new(),
        }
    }

    fn on(&mut self, event: Event) {
        self.bench.on(event);
        self.look();
    }

    fn look(&mut self) {
        let fresh = self.bench.out.split_off(self.looked_at);
        for effect in fresh {
            self.see(effect);
        }
        self.bench.out.clear();
        self.looked_at = 0;
        assert_eq!(self.bench.ledger.violations(), vec![]);
        while let Some(pair) = self.canaries.pop() {
            self.arrive_as("canary".into(), 1, Some(pair));
        }
    }

    fn see(&mut self, effect: Effect) {
        match effect {
            Effect::Answer { request, outcome } => {
                let seen = self.requests.get_mut(&request.0).expect("it arrived");
                seen.answers += 1;
                assert_eq!(seen.answers, 1, "one answer");
                if let Outcome::Failed {
                    reason: Reason::RequestTimeout,
                    ..
                } = outcome
                {
                    assert!(self.bench.now.since(seen.arrived) >= Millis(60_000));
                }
            }
            Effect::Pass {
                request, room, count, ..
            } => {
                let seen = self.requests.get_mut(&request.0).expect("it arrived");
                assert_eq!(seen.answers, 0, "no token after the answer");
                assert_eq!(seen.room, Some(room), "one speaker");
                seen.passed += count;
                assert!(
                    seen.passed <= seen.max_tokens,
                    "I10: more tokens passed than were asked for"
                );
            }
            Effect::Begin { spec, passed, .. } => {
                let seen = self.requests.get_mut(&spec.request.0).expect("it arrived");
                assert_eq!((seen.answers, seen.passed), (0, passed));
                assert!(
                    seen.room.is_none_or(|old| self.verdicts.contains_key(&old)),
                    "the old room is over"
                );
                seen.room = Some(spec.room);
                self.rooms.push(spec);
            }
            Effect::Ended(end) => {
                assert_eq!(self.verdicts.insert(end.room, end.verdict), None, "one verdict");
            }
            Effect::Canary { prefill, decode, .. } => self.canaries.push((prefill, decode)),
            Effect::AnswerAbort { ticket, .. } => *self.tickets.entry(ticket).or_default() += 1,
            Effect::Open { .. }
            | Effect::Tell { .. }
            | Effect::AskEvidence { .. }
            | Effect::CloseStream { .. }
            | Effect::Who { .. }
            | Effect::Grant { .. }
            | Effect::Renew { .. }
            | Effect::Revoke { .. }
            | Effect::End { .. }
            | Effect::Drop { .. } => {}
        }
    }

    fn room(&self, which: u8) -> RoomId {
        // Lately begun rooms mostly, ended ones too, and now and then one that never was.
        let back = usize::from(which % 6);
        let found = self
            .rooms
            .len()
            .checked_sub(back + 1)
            .and_then(|index| self.rooms.get(index));
        found.map_or(RoomId::from_random(u64::from(which)), |spec| spec.room)
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Arrive { rid, max_tokens } => self.arrive(rid, max_tokens),
            Act::Abort { rid } => {
                let ticket = self.tickets.len() as u64;
                self.tickets.insert(ticket, 0);
                self.on(Event::Abort {
                    rid: format!("rid-{rid}"),
                    client: "c".into(),
                    ticket,
                });
                assert_eq!(self.tickets[&ticket], 1, "every abort is answered");
            }
            Act::Client { which, how } => {
                let request = RequestKey((self.requests.len() as u64).saturating_sub(u64::from(which % 4)));
                self.on(match how {
                    0 => Event::ClientGone { request },
                    1 => Event::ClientStalled { request },
                    _ => Event::Satisfied { request },
                });
            }
            Act::Say {
                which,
                side,
                what,
                number,
            } => {
                let side = if side { Side::Prefill } else { Side::Decode };
                self.on(Event::FromWorker {
                    room: self.room(which),
                    side,
                    message: message(what, number),
                });
            }
            Act::Forward { which, steps } => {
                let room = self.room(which);
                (0..steps).for_each(|_| self.forward(room));
            }
            Act::Stream { which, side, broken } => {
                let side = if side { Side::Prefill } else { Side::Decode };
                self.on(Event::StreamEnded {
                    room: self.room(which),
                    side,
                    broken,
                });
            }
            Act::Lease { which, what } => self.lease(self.room(which), what),
            Act::Member { node, what } => self.member(node, what),
            Act::Report { node, free_pages } => self.on(Event::Load {
                incarnation: [P1, P2, D1, D2][usize::from(node)],
                load: Load { free_pages, ..load(0) },
            }),
            Act::Pass { ms, loads } => self.pass(ms, loads),
            Act::Stop { ms } => {
                self.bench.now = self.bench.now + Millis(ms);
                self.on(Event::Tick);
            }
        }
    }

    fn arrive(&mut self, rid: u8, max_tokens: u32) {
        self.arrive_as(format!("rid-{rid}"), max_tokens, None);
    }

    fn arrive_as(&mut self, rid: String, max_tokens: u32, pair: Option<(Incarnation, Incarnation)>) {
        let key = self.requests.len() as u64 + 1;
        self.requests.insert(
            key,
            Seen {
                arrived: self.bench.now,
                max_tokens,
                ..Seen::default()
            },
        );
        self.on(Event::Arrive(Arrival {
            rid,
            client: format!("client-{}", key % 2),
            class: Class::ALL[usize::try_from(key % 3).unwrap()],
            // Two of the large ones fill a decode worker, one of them its prefill worker.
            prompt_tokens: if key.is_multiple_of(4) { 800 } else { 20 },
            max_tokens,
            pair,
            ..arrival(key)
        }));
    }

    /// What healthy workers would say next.
    fn forward(&mut self, room: RoomId) {
        let say = |side, message| Event::FromWorker { room, side, message };
        let Some(found) = self.bench.ledger.rooms.get(&room) else {
            return;
        };
        let (opening, started, taken) = (found.opening.clone(), found.started, found.taken);
        self.on(match opening {
            crate::room::Opening::AskingDecode => say(Side::Decode, admitted("d:1", 7)),
            crate::room::Opening::AskingPrefill => say(Side::Prefill, admitted("", 0)),
            crate::room::Opening::Admitted { .. } => Event::Tick,
            crate::room::Opening::Open if !started => say(
                Side::Prefill,
                FromWorker::Started {
                    epoch: Epoch(1),
                    reused: 0,
                },
            ),
            crate::room::Opening::Open => say(
                Side::Decode,
                FromWorker::Tokens {
                    position: taken,
                    count: 1,
                },
            ),
        });
    }

    fn lease(&mut self, room: RoomId, what: u8) {
        let sent = self.bench.now - Millis(u64::from(what));
        self.on(match what {
            0 => Event::LeaseGranted { room, sent },
            1 => Event::LeaseFailed { room, exists: false },
            2 => Event::LeaseRenewed { room, sent },
            3 => Event::RenewFailed { room, not_found: true },
            4 => Event::DoorGone { room },
            5 => Event::DoorAbsent { room },
            6 => Event::Evict { room },
            _ => Event::ActorDied { room },
        });
    }

    fn member(&mut self, node: u8, what: u8) {
        let (incarnation, role) = [
            (P1, Role::Prefill),
            (P2, Role::Prefill),
            (D1, Role::Decode),
            (D2, Role::Decode),
        ][usize::from(node)];
        self.on(match what {
            0 => Event::NodeDown { incarnation },
            1 | 2 => Event::NodeUp { incarnation },
            3 | 4 => Event::MemberUp(member(incarnation, role)),
            5 => Event::MemberGone { incarnation },
            _ => Event::WhoAnswered {
                asked: incarnation,
                answered: incarnation,
            },
        });
    }

    fn pass(&mut self, ms: u64, loads: bool) {
        self.bench.loads = loads;
        let end = self.bench.now + Millis(ms);
        while self.bench.now < end {
            let left = end.since(self.bench.now).0;
            self.bench.pass(left.min(50));
            self.look();
        }
    }

    /// Nobody says anything any more, or only that it is there: just timers. Everything ends by the requests' deadline.
    fn silence(&mut self, loads: bool) {
        let limit = self.bench.now + Millis(60_500);
        let mut steps = 0;
        while self.bench.now < limit && !self.over() {
            let due = self.bench.ledger.next_deadline().expect("always one");
            self.bench.now = due.max(self.bench.now + Millis(1));
            for incarnation in [P1, P2, D1, D2].into_iter().filter(|_| loads) {
                self.on(Event::Load {
                    incarnation,
                    load: load(0),
                });
            }
            self.on(Event::Tick);
            steps += 1;
        }
        assert!(self.over(), "{:?}", self.bench.ledger.gauges(self.bench.now));
        assert!(steps < 600, "the closure takes {steps} steps");
    }

    fn over(&self) -> bool {
        self.bench.ledger.requests.is_empty() && self.bench.ledger.rooms.is_empty()
    }
}

fn message(what: u8, number: u32) -> FromWorker {
    let phase = Phase::ALL[number as usize % Phase::ALL.len()];
    let counters = Counters {
        bytes_sealed: u64::from(number),
        tokens_made: number,
        ..Counters::default()
    };
    let reason = Reason::ALL[(number as usize * 7) % Reason::ALL.len()];
    match what {
        0 => admitted("d:1", 7),
        1 => FromWorker::Refused(if number.is_multiple_of(2) {
            Refusal::NoPermit
        } else {
            Refusal::TooLarge
        }),
        2 | 3 => FromWorker::State(PartState {
            phase,
            epoch: Epoch(number),
            counters,
        }),
        4 => FromWorker::Started {
            epoch: Epoch(number),
            reused: 0,
        },
        5 => FromWorker::Committed,
        6 => FromWorker::Tokens {
            position: number,
            count: 2,
        },
        7 => FromWorker::Ended {
            end: PartEnd::Failed(reason),
            evidence: Evidence::default(),
            relayed: number.is_multiple_of(2),
        },
        8 => FromWorker::Ended {
            end: if number.is_multiple_of(2) {
                PartEnd::HandedOver
            } else {
                PartEnd::Done
            },
            evidence: Evidence::default(),
            relayed: false,
        },
        9 => FromWorker::Ask,
        10 => FromWorker::Evidence(Evidence {
            was_stopped: number.is_multiple_of(2),
            ..Evidence::default()
        }),
        _ => FromWorker::Unknown,
    }
}

proptest! {
    // 256 cases, or PROPTEST_CASES.
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn whatever_happens_everything_ends_once(acts in proptest::collection::vec(act(), 1..80), loads in any::<bool>()) {
        let mut world = World::new();
        for act in acts {
            world.act(act);
        }
        world.silence(loads);
        prop_assert!(world.requests.values().all(|seen| seen.answers == 1));
        prop_assert_eq!(world.rooms.len(), world.verdicts.len());
        let mut members = world.bench.ledger.members.values();
        prop_assert!(members.all(|member| member.rooms.is_empty() && member.books.booked() == (0, 0)));
        prop_assert_eq!(world.bench.ledger.queue.len(), 0);
    }
}

#[test]
fn healthy_workers_alone_end_every_request_well() {
    let mut world = World::new();
    for rid in 0..4 {
        world.act(Act::Arrive { rid, max_tokens: 5 });
    }
    for which in 0..4 {
        world.act(Act::Forward { which, steps: 8 });
    }
    assert!(world.over());
    assert!(
        world
            .requests
            .values()
            .all(|seen| seen.answers == 1 && seen.passed == 5)
    );
    assert!(world.verdicts.values().all(|verdict| *verdict == Verdict::Done));
}
