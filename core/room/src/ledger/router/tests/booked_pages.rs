//! What is booked at workers: rooms are opened where their pages are, bookings end with the parts and never before.

use super::*;
use crate::request::Stage;

/// A request of so many tokens in all.
fn asks(key: u64, prompt_tokens: u32, max_tokens: u32) -> Event {
    Event::Arrive(Arrival {
        prompt_tokens,
        max_tokens,
        ..arrival(key)
    })
}

fn booked(bench: &Bench, node: Incarnation) -> (u64, u64) {
    bench.ledger.members[&node].books.booked()
}

impl Bench {
    /// The room of a request that has begun and been committed.
    fn decoding_of(&mut self, asks: Event) -> RoomId {
        let room = begun(&self.on(asks)).room;
        self.admit(room);
        self.say(
            room,
            Side::Prefill,
            FromWorker::Started {
                epoch: Epoch(1),
                reused: 0,
            },
        );
        self.say(room, Side::Decode, FromWorker::Committed);
        room
    }
}

fn reports(bench: &mut Bench, node: Incarnation, free_pages: u32) -> Vec<Effect> {
    bench.on(Event::Load {
        incarnation: node,
        load: Load { free_pages, ..load(0) },
    })
}

#[test]
fn what_does_not_fit_waits_here_and_follows_when_pages_come_back() {
    // 100 pages of 16 tokens, and contexts of 1000.
    let mut bench = Bench::pair();
    let first = begun(&bench.on(asks(1, 500, 400)));
    assert_eq!(booked(&bench, D1), (57, 0));
    assert_eq!(booked(&bench, P1), (32, 500));
    assert!(!begins(&bench.on(asks(2, 500, 400))), "57 more are not there");
    assert!(
        !begins(&bench.on(asks(3, 20, 5))),
        "who comes later does not overtake it"
    );
    assert_eq!(bench.ledger.gauges(bench.now).waiting, [0, 2, 0]);
    bench.admit(first.room);
    let effects = bench.fail_part(first.room, Side::Decode, Reason::EngineFailed, false);
    // The failed one has its next attempt beside those that waited.
    let spec = effects.iter().find_map(|effect| match effect {
        Effect::Begin { spec, .. } if spec.request == RequestKey(2) => Some(spec.clone()),
        _ => None,
    });
    assert!(spec.is_some(), "{effects:?}");
}

#[test]
fn an_overbooking_lets_rooms_wait_at_the_worker() {
    for (percent, opens) in [(100, false), (120, true), (0, true)] {
        let settings = Settings {
            page_booking_percent: percent,
            ..Settings::default()
        };
        let mut bench = Bench::with(settings, &[P1], &[D1]);
        begun(&bench.on(asks(1, 500, 400)));
        assert_eq!(begins(&bench.on(asks(2, 500, 400))), opens, "{percent} percent");
    }
}

#[test]
fn a_booking_ends_with_the_part_and_never_before() {
    let mut bench = Bench::pair();
    let spec = bench.started(1);
    let all = (2, 20);
    assert_eq!(booked(&bench, P1), all);
    // Neither time nor reports end it.
    bench.pass(3000);
    reports(&mut bench, P1, 100);
    reports(&mut bench, D1, 100);
    assert_eq!((booked(&bench, P1), booked(&bench, D1)), (all, (2, 0)));
    let sealed = Counters {
        tokens_computed: 20,
        bytes_sealed: 10,
        ..Counters::default()
    };
    bench.state(spec.room, Side::Prefill, Phase::Transferring, 1, sealed);
    assert_eq!(booked(&bench, P1), (2, 0), "its prompt is computed, its pages are held");
    bench.say(spec.room, Side::Decode, FromWorker::Committed);
    assert_eq!(booked(&bench, P1), (2, 0));
    bench.say(
        spec.room,
        Side::Prefill,
        FromWorker::Ended {
            end: PartEnd::HandedOver,
            evidence: Evidence::default(),
            relayed: false,
        },
    );
    assert_eq!((booked(&bench, P1), booked(&bench, D1)), ((0, 0), (2, 0)));
    bench.tokens(spec.room, 0, 5);
    assert_eq!(booked(&bench, D1), (0, 0));
}

#[test]
fn every_end_gives_the_booking_back() {
    type End = fn(&mut Bench, RoomId);
    let ends: [End; 6] = [
        |bench, _| drop(bench.on(Event::ClientGone { request: RequestKey(1) })),
        |bench, room| drop(bench.on(Event::Evict { room })),
        |bench, room| drop(bench.on(Event::ActorDied { room })),
        |bench, _| drop(bench.on(Event::NodeDown { incarnation: D1 })),
        |bench, _| drop(bench.on(Event::DrainOver)),
        |bench, _| {
            bench.loads = false;
            bench.pass(20_000);
        },
    ];
    for (which, end) in ends.into_iter().enumerate() {
        let mut bench = Bench::pair();
        let spec = bench.open(1);
        end(&mut bench, spec.room);
        // What had no fault of its own has its next attempt, which is booked for itself.
        let mut rooms = bench.ledger.rooms.iter();
        assert!(
            rooms.all(|(id, room)| *id != spec.room || !room.is_live()),
            "end {which}"
        );
        let live = bench.ledger.rooms.values().filter(|room| room.is_live()).count() as u64;
        let now = [P1, D1].map(|node| {
            bench
                .ledger
                .members
                .get(&node)
                .map_or((0, 0), |member| member.books.booked())
        });
        assert_eq!(now, [(2 * live, 20 * live), (2 * live, 0)], "end {which}");
        bench.on(Event::ClientGone { request: RequestKey(1) });
        let now = [P1, D1].map(|node| {
            bench
                .ledger
                .members
                .get(&node)
                .map_or((0, 0), |member| member.books.booked())
        });
        assert_eq!(now, [(0, 0); 2], "end {which}");
    }
}

#[test]
fn what_others_take_of_a_worker_is_not_there() {
    let mut bench = Bench::pair();
    // Another router's rooms hold 90 pages.
    reports(&mut bench, D1, 10);
    assert!(!begins(&bench.on(asks(1, 200, 40))));
    assert!(
        begins(&reports(&mut bench, D1, 20)),
        "five more are free: 15 are wanted"
    );
    // Its own pages are in the next report, and are not counted twice.
    reports(&mut bench, D1, 5);
    assert!(!begins(&bench.on(asks(2, 80, 16))), "6 are wanted, 5 are left");
    assert!(
        begins(&bench.on(Event::ClientGone { request: RequestKey(1) })),
        "its own come back at once"
    );
    // A report that was on its way still counts them.
    reports(&mut bench, D1, 4);
    assert!(begins(&bench.on(asks(3, 80, 16))));
}

#[test]
fn what_others_hold_is_asked_for_at_the_worker_after_a_progress_ttl() {
    let mut bench = Bench::pair();
    bench.loads = false;
    reports(&mut bench, D1, 2);
    assert!(!begins(&bench.on(asks(1, 200, 40))));
    let ttl = Settings::default().progress_ttl.0;
    let mut began = None;
    for _ in 0..40 {
        // Another router takes back whatever it gives back.
        let told = [
            bench.pass(250),
            reports(&mut bench, P1, 100),
            reports(&mut bench, D1, 2),
        ]
        .concat();
        if begins(&told) {
            began = Some(bench.now.since(Moment(1000)).0);
            break;
        }
    }
    assert!(began.is_some_and(|at| at >= ttl && at <= ttl + 1000), "{began:?}");
}

/// The first request whose room began in these steps, and when; the running room makes progress meanwhile.
fn first_to_begin(bench: &mut Bench, room: RoomId, steps: u32) -> Option<(u64, u64)> {
    (0..steps).find_map(|position| {
        bench.tokens(room, position, 1);
        let effects = bench.pass(250);
        let began = effects.iter().find_map(|effect| match effect {
            Effect::Begin { spec, .. } => Some(spec.request.0),
            _ => None,
        });
        began.map(|request| (request, bench.now.since(Moment(1000)).0))
    })
}

#[test]
fn many_that_ask_for_much_stop_the_fleet_no_longer_than_one() {
    let mut bench = Bench::pair();
    let room = bench.decoding_of(asks(1, 500, 400));
    for key in 2..=5 {
        assert!(!begins(&bench.on(asks(key, 700, 200))));
    }
    assert!(!begins(&bench.on(asks(6, 20, 5))));
    let ttl = Settings::default().progress_ttl.0;
    let (request, at) = first_to_begin(&mut bench, room, 30).expect("somebody goes on");
    assert_eq!(request, 6);
    assert!(at <= ttl + 500, "{at}");
}

#[test]
fn a_moment_without_places_does_not_begin_the_patience_anew() {
    let mut bench = Bench::pair();
    let room = bench.decoding_of(asks(1, 500, 400));
    assert!(!begins(&bench.on(asks(2, 700, 200))));
    assert!(!begins(&bench.on(asks(3, 20, 5))));
    assert_eq!(first_to_begin(&mut bench, room, 12), None);
    let until = bench.now + Millis(100);
    bench.ledger.members.get_mut(&D1).expect("it is there").full_until = Some(until);
    assert!(!begins(&bench.on(asks(4, 20, 5))), "nobody has a place");
    let ttl = Settings::default().progress_ttl.0;
    let began = (12..40).find_map(|position| {
        bench.tokens(room, position, 1);
        begins(&bench.pass(250)).then(|| bench.now.since(Moment(1000)).0)
    });
    assert!(began.is_some_and(|at| at <= ttl + 500), "{began:?}");
}

#[test]
fn a_second_attempt_has_the_pages_that_come_back_before_those_that_wait() {
    let mut bench = Bench::with(Settings::default(), &[P1, P2], &[D1, D2]);
    // Each decode worker has one room that fills it, and more of the same wait.
    let lost = bench.decoding_of(asks(1, 500, 400));
    let other = bench.decoding_of(asks(2, 500, 400));
    for key in 3..=8 {
        assert!(!begins(&bench.on(asks(key, 500, 400))), "{key}");
    }
    bench.tokens(lost, 0, 3);
    let down = bench.ledger.rooms[&lost].spec.decode;
    bench.on(Event::NodeDown { incarnation: down });
    for _ in 0..4 {
        bench.tokens(other, 0, 1);
        bench.pass(100);
    }
    assert_eq!(bench.ledger.requests[&RequestKey(1)].stage, Stage::Waiting);
    let effects = bench.on(Event::ClientGone { request: RequestKey(2) });
    let began: Vec<u64> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Begin { spec, .. } => Some(spec.request.0),
            _ => None,
        })
        .collect();
    assert_eq!(began, [1], "{effects:?}");
}

#[test]
fn prompts_wait_while_prefill_has_enough_to_compute() {
    let settings = Settings {
        prefill_booking_tokens: 600,
        ..Settings::default()
    };
    let mut bench = Bench::with(settings, &[P1], &[D1]);
    let first = begun(&bench.on(asks(1, 900, 4)));
    assert!(
        !begins(&bench.on(asks(2, 30, 4))),
        "one that is larger than the bound has it for itself"
    );
    bench.admit(first.room);
    bench.say(
        first.room,
        Side::Prefill,
        FromWorker::Started {
            epoch: Epoch(1),
            reused: 0,
        },
    );
    let sealed = Counters {
        tokens_computed: 900,
        bytes_sealed: 10,
        ..Counters::default()
    };
    let effects = bench.state(first.room, Side::Prefill, Phase::Transferring, 1, sealed);
    assert!(begins(&effects), "its prompt is computed");
}

#[test]
fn one_that_asks_for_much_stops_the_fleet_for_a_progress_ttl_at_most() {
    let mut bench = Bench::pair();
    let room = begun(&bench.on(asks(1, 500, 400))).room;
    bench.admit(room);
    bench.say(
        room,
        Side::Prefill,
        FromWorker::Started {
            epoch: Epoch(1),
            reused: 0,
        },
    );
    bench.say(room, Side::Decode, FromWorker::Committed);
    assert!(!begins(&bench.on(asks(2, 700, 200))));
    assert!(!begins(&bench.on(asks(3, 20, 5))));
    let ttl = Settings::default().progress_ttl.0;
    // The running room makes progress meanwhile.
    let mut began = vec![];
    for position in 0..30 {
        bench.tokens(room, position, 1);
        for effect in bench.pass(250) {
            if let Effect::Begin { spec, .. } = effect {
                began.push((spec.request.0, bench.now));
            }
        }
        if !began.is_empty() {
            break;
        }
    }
    assert_eq!(began.len(), 1, "{began:?}");
    let (request, at) = began[0];
    assert_eq!(request, 3, "the small one goes on");
    assert!(at.since(Moment(1000)).0 <= ttl + 500, "{at:?}");
    assert_eq!(
        bench.ledger.requests[&RequestKey(2)].stage,
        Stage::Waiting,
        "the large one waits on"
    );
    // Passed over it still hears what happens: without workers it has its answer at once.
    let told = answers(&bench.on(Event::NodeDown { incarnation: P1 }));
    let none = |(request, outcome): &(RequestKey, Outcome)| {
        *request == RequestKey(2)
            && matches!(
                outcome,
                Outcome::Failed {
                    reason: Reason::NoPrefillWorker,
                    ..
                }
            )
    };
    assert!(told.iter().any(none), "{told:?}");
}
