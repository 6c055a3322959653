//! Bookings: a worker's load is what R knows of its own rooms and what the worker reports beyond them. None of it leaks, and
//! none of it runs out under a live request.

use super::*;

impl Bench {
    fn booked(&self, node: Incarnation) -> usize {
        self.ledger.members.get(&node).map_or(0, |member| member.booked())
    }

    fn reports(&mut self, incarnation: Incarnation, rooms: u32) {
        let load = load(rooms);
        self.on(Event::Load { incarnation, load });
    }

    fn hands_over(&mut self, room: RoomId) {
        let (end, evidence) = (PartEnd::HandedOver, Evidence::default());
        let relayed = false;
        self.say(room, Side::Prefill, FromWorker::Ended { end, evidence, relayed });
    }
}

#[test]
fn a_worker_that_reports_fewer_rooms_than_are_booked_has_those_that_are_booked() {
    let mut bench = Bench::pair();
    let specs = [bench.open(1), bench.open(2)];
    bench.reports(D1, 0);
    assert_eq!(bench.booked(D1), 2, "the report is older than the rooms");
    bench.reports(D1, 2);
    assert_eq!(bench.booked(D1), 2);
    bench.on(Event::ClientGone {
        request: specs[0].request,
    });
    assert_eq!(bench.booked(D1), 1, "nothing is waited for: R knows");
}

#[test]
fn rooms_of_other_routers_count_beside_those_of_this_one() {
    let mut bench = Bench::pair();
    bench.reports(D1, 5);
    assert_eq!(bench.booked(D1), 5);
    let specs = [bench.open(1), bench.open(2)];
    assert_eq!(bench.booked(D1), 7, "5 of others, 2 of its own since the report");
    bench.reports(D1, 7);
    assert_eq!(bench.booked(D1), 7, "the report has them all");
    bench.open(3);
    assert_eq!(bench.booked(D1), 8);
    assert!(!begins(&bench.arrive(4)), "eight permits are taken");
    bench.reports(D1, 4);
    assert!(
        bench.booked(D1) == 5,
        "the others' rooms ended, and the one that waited was let in: {}",
        bench.booked(D1)
    );
    for spec in specs {
        bench.on(Event::ClientGone { request: spec.request });
    }
    bench.reports(D1, 1);
    assert_eq!(bench.booked(D1), 2, "its own are in no report yet");
}

/// A full worker's place is taken again as soon as it is free, and not at the worker's next report.
#[test]
fn a_place_that_is_free_is_taken_at_once() {
    let mut bench = Bench::pair();
    let specs: Vec<RoomSpec> = (1..=8).map(|key| bench.open(key)).collect();
    for node in [P1, D1] {
        bench.reports(node, 8);
    }
    assert!(!begins(&bench.arrive(9)), "eight permits are taken");
    let effects = bench.on(Event::ClientGone {
        request: specs[3].request,
    });
    assert_eq!(begun(&effects).request, RequestKey(9));
}

/// What a router had booked dies with it, and the one that comes after it believes the worker, for as long as the worker says so.
#[test]
fn of_a_router_that_was_killed_the_next_one_books_what_the_worker_still_has() {
    let mut killed = Bench::pair();
    for key in 1..=8 {
        killed.open(key);
    }
    assert_eq!((killed.booked(P1), killed.booked(D1)), (8, 8));
    drop(killed);
    let mut next = Bench::pair();
    for node in [P1, D1] {
        next.reports(node, 8);
    }
    assert!(!begins(&next.arrive(1)), "the worker has not ended its parts yet");
    next.reports(P1, 0);
    assert!(begins(&next.on(Event::Load {
        incarnation: D1,
        load: load(7)
    })));
    assert_eq!((next.booked(P1), next.booked(D1)), (1, 8));
    for node in [P1, D1] {
        next.reports(node, 1);
    }
    assert_eq!((next.booked(P1), next.booked(D1)), (1, 1));
}

#[test]
fn a_worker_that_comes_back_has_no_bookings_of_its_former_connection() {
    let mut bench = Bench::with(Settings::default(), &[P1], &[D1, D2]);
    let spec = bench.decoding(1);
    bench.open(2);
    for node in [spec.decode, P1] {
        bench.on(Event::NodeDown { incarnation: node });
        bench.on(Event::NodeUp { incarnation: node });
        bench.reports(node, 0);
    }
    bench.pass(1000);
    bench.on(Event::DrainOver);
    bench.pass(1000);
    for node in [P1, D1, D2] {
        assert_eq!(bench.booked(node), 0);
        assert!(bench.ledger.members[&node].opening.is_empty());
    }
}

/// After the commit a room may go on for long without its prefill worker: that one's place is not held by a stream that broke
/// before it could say that its part is over.
#[test]
fn a_prefill_worker_whose_stream_breaks_after_the_commit_is_not_booked_for_the_rest_of_the_answer() {
    let mut bench = Bench::pair();
    let spec = bench.decoding(1);
    assert_eq!((bench.booked(P1), bench.booked(D1)), (1, 1));
    let effects = bench.on(Event::StreamEnded {
        room: spec.room,
        side: Side::Prefill,
        broken: true,
    });
    assert!(ends(&effects).is_empty(), "the room goes on");
    assert_eq!((bench.booked(P1), bench.booked(D1)), (0, 1));
}

/// Twenty minutes on the ledger's clock, with reports that lag behind: the decode worker's place is booked to the last token,
/// and the prefill worker's only until it has handed over.
#[test]
fn a_long_stream_keeps_its_place() {
    let settings = Settings {
        request_timeout: Millis::from_secs(1800),
        ..Settings::default()
    };
    let mut bench = Bench::with(settings, &[P1], &[D1]);
    for (node, role) in [(P1, Role::Prefill), (D1, Role::Decode)] {
        bench.on(Event::MemberUp(MemberInfo {
            pages: 1000,
            context: 4000,
            ..member(node, role)
        }));
    }
    let arrival = Arrival {
        max_tokens: 1201,
        ..arrival(1)
    };
    let spec = begun(&bench.on(Event::Arrive(arrival)));
    bench.admit(spec.room);
    bench.say(
        spec.room,
        Side::Prefill,
        FromWorker::Started {
            epoch: Epoch(1),
            reused: 0,
        },
    );
    bench.tokens(spec.room, 0, 1);
    assert_eq!((bench.booked(P1), bench.booked(D1)), (1, 1));
    bench.hands_over(spec.room);
    for second in 1..=1199 {
        bench.pass(1000);
        assert!(answers(&bench.tokens(spec.room, second, 1)).is_empty());
        assert_eq!((bench.booked(P1), bench.booked(D1)), (0, 1), "after {second} s");
    }
    bench.pass(1000);
    let effects = bench.tokens(spec.room, 1200, 1);
    assert_eq!(answers(&effects), vec![(RequestKey(1), Outcome::Done)]);
    assert_eq!((bench.booked(P1), bench.booked(D1)), (0, 0));
}
