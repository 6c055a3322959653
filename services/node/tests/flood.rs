//! Messages for rooms that never come, as bytes: each is answered or counted, and none leaves anything behind.

#![allow(
    clippy::unwrap_used,
    reason = "a test; clippy exempts only what is inside of the test functions"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use innkeeper_actors::ports::{OpenRoom, WorkerSays};
use innkeeper_node::convert::{RouterSays, Wire, rid_to_abort};
use innkeeper_proto::v1;
use innkeeper_room::ledger::router::{AbortAnswer, Side};
use innkeeper_room::ledger::{decode, prefill, router};
use innkeeper_room::{
    Attempt, Counters, Epoch, Evidence, FromWorker, Incarnation, Millis, Moment, PartEnd, PartState, Phase, Reason,
    Refusal, RequestKey, RoomId, RoomSpec, Settings, ToWorker, Token, Verdict, Work,
};
use prost::Message;

/// Counts the bytes that live in memory which this thread allocated: each test here is one thread.
struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: usize, sign: isize) {
    let bytes = isize::try_from(bytes).unwrap_or(isize::MAX);
    LIVE.with(|live| live.set(live.get() + sign * bytes));
}

#[allow(
    unsafe_code,
    reason = "the trait is unsafe; everything is handed on to the system's allocator"
)]
// SAFETY: as the system's allocator, which does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MESSAGES: u64 = 1_000_000;
/// What has to grow to its bound has grown after these.
const FIRST: u64 = 20_000;
/// What the others may add: the nodes of a tree at its bound are not always equally full.
const SLACK: isize = 64 * 1024;

const NOW: Moment = Moment(1_000_000);
const ROUTER: Incarnation = Incarnation::new(1);
const PREFILL: Incarnation = Incarnation::new(2);
const DECODE: Incarnation = Incarnation::new(3);

/// Sends all messages; memory must not follow their number.
fn flood(mut send: impl FnMut(u64)) {
    (0..FIRST).for_each(&mut send);
    let before = LIVE.get();
    (FIRST..MESSAGES).for_each(&mut send);
    let grown = LIVE.get() - before;
    assert!(grown < SLACK, "{grown} bytes stay behind {} messages", MESSAGES - FIRST);
}

fn room(number: u64) -> RoomId {
    RoomId::from_random(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn config(incarnation: Incarnation) -> prefill::Config {
    prefill::Config {
        settings: Settings::default(),
        incarnation,
        total_pages: 100,
        page_tokens: 16,
        context: 512,
        engine: innkeeper_room::ledger::EngineKind::Own,
    }
}

/// What a router may say about a room, and whether that is answered.
fn router_messages() -> Vec<(Vec<u8>, bool)> {
    let all = [
        (ToWorker::Abort(Reason::Aborted), true),
        (ToWorker::Committed, true),
        (ToWorker::Taken(7), true),
        (ToWorker::Live, true),
        (ToWorker::Verdict(Verdict::Done), false),
        (ToWorker::Unknown, false),
    ];
    all.map(|(message, answered)| (message.to_wire().encode_to_vec(), answered))
        .to_vec()
}

/// Which message is the `number`th.
fn nth<T>(all: &[T], number: u64) -> &T {
    &all[usize::try_from(number).unwrap() % all.len()]
}

fn said(bytes: &[u8]) -> ToWorker {
    ToWorker::from_wire(v1::RouterMessage::decode(bytes).unwrap()).unwrap()
}

#[test]
fn a_prefill_worker_answers_a_million_messages_for_rooms_that_never_come() {
    let mut ledger = prefill::Ledger::new(config(PREFILL), NOW);
    let messages = router_messages();
    flood(|number| {
        let (bytes, answered) = nth(&messages, number);
        let (room, message) = (room(number), said(bytes));
        let effects = ledger.step(prefill::Event::FromRouter { room, message }, NOW);
        let answer = prefill::Effect::Tell {
            room,
            message: FromWorker::Unknown,
        };
        assert_eq!(effects, vec![answer; usize::from(*answered)]);
        assert_eq!(ledger.evidence(room, NOW), None);
    });
    assert_eq!((ledger.rows(NOW).len(), ledger.gauges(NOW).fenced), (0, MESSAGES));
}

#[test]
fn a_decode_worker_answers_a_million_messages_for_rooms_that_never_come() {
    let mut ledger = decode::Ledger::new(config(DECODE), NOW);
    let messages = router_messages();
    flood(|number| {
        let (bytes, answered) = nth(&messages, number);
        let (room, message) = (room(number), said(bytes));
        let effects = ledger.step(decode::Event::FromRouter { room, message }, NOW);
        let answer = decode::Effect::Tell {
            room,
            message: FromWorker::Unknown,
        };
        assert_eq!(effects, vec![answer; usize::from(*answered)]);
        assert_eq!(ledger.evidence(room, NOW), None);
    });
    assert_eq!((ledger.rows(NOW).len(), ledger.gauges(NOW).fenced), (0, MESSAGES));
}

/// The bytes of an Open.
fn open(number: u64, decode: Incarnation, max_tokens: u32) -> Vec<u8> {
    let open = OpenRoom {
        spec: RoomSpec {
            room: room(number),
            request: RequestKey(number),
            attempt: Attempt(1),
            router: ROUTER,
            prefill: Incarnation::new(number + 10),
            decode,
            prompt_tokens: 3,
            max_tokens,
            queue_left: Millis(u64::MAX),
        },
        work: Arc::new(Work {
            prompt: vec![1, 2, 3].into(),
            request_id: "rid".into(),
            ..Work::default()
        }),
        decode_addr: String::new(),
        token: 0,
    };
    RouterSays::Open(Box::new(open)).to_wire().encode_to_vec()
}

#[test]
fn a_decode_worker_refuses_a_million_rooms_that_it_cannot_have() {
    let mut ledger = decode::Ledger::new(config(DECODE), NOW);
    flood(|number| {
        let (meant, max_tokens, refusal) = if number % 2 == 0 {
            (ROUTER, 5, Refusal::WrongIncarnation)
        } else {
            (DECODE, u32::MAX, Refusal::TooLarge)
        };
        let message = v1::RouterMessage::decode(open(number, meant, max_tokens).as_slice()).unwrap();
        let RouterSays::Open(open) = RouterSays::from_wire(message).unwrap() else {
            panic!("an Open is an Open");
        };
        let event = decode::Event::Open {
            spec: open.spec.clone(),
            token: 7,
        };
        let answer = decode::Effect::Tell {
            room: room(number),
            message: FromWorker::Refused(refusal),
        };
        assert_eq!(ledger.step(event, NOW), [answer]);
    });
    assert_eq!(ledger.rows(NOW), []);
}

/// What a worker may say about a room, and whether that is answered.
fn worker_messages() -> Vec<(Vec<u8>, bool)> {
    let evidence = Evidence::default();
    let state = PartState {
        phase: Phase::Decoding,
        epoch: Epoch(1),
        counters: Counters::default(),
    };
    let end = PartEnd::Failed(Reason::DecodeStalled);
    let admitted = FromWorker::Admitted {
        data_addr: "h:1".to_owned(),
        token: 7,
    };
    let all = [
        (admitted, true),
        (FromWorker::Refused(Refusal::NoPermit), true),
        (FromWorker::State(state), true),
        (
            FromWorker::Started {
                epoch: Epoch(1),
                reused: 0,
            },
            true,
        ),
        (FromWorker::Committed, true),
        (FromWorker::Tokens { position: 0, count: 1 }, true),
        (
            FromWorker::Ended {
                end,
                evidence,
                relayed: true,
            },
            true,
        ),
        (FromWorker::Ask, true),
        (FromWorker::Evidence(evidence), false),
        (FromWorker::AlreadyEnded(end), false),
        (FromWorker::Unknown, false),
    ];
    let bytes = |(message, answered)| {
        let tokens = vec![Token::default(); usize::from(matches!(message, FromWorker::Tokens { .. }))];
        (WorkerSays { message, tokens }.to_wire().encode_to_vec(), answered)
    };
    all.map(bytes).to_vec()
}

fn router() -> router::Ledger {
    let config = router::Config {
        settings: Settings::default(),
        incarnation: ROUTER,
        seed: [1, 2],
    };
    router::Ledger::new(config, NOW)
}

#[test]
fn a_router_answers_a_million_messages_for_rooms_that_never_come() {
    let mut ledger = router();
    let messages = worker_messages();
    flood(|number| {
        let (bytes, answered) = nth(&messages, number);
        let says = WorkerSays::from_wire(v1::WorkerMessage::decode(bytes.as_slice()).unwrap()).unwrap();
        let (room, side) = (room(number), Side::BOTH[usize::from(number % 3 == 0)]);
        let event = router::Event::FromWorker {
            room,
            side,
            message: says.message,
        };
        let answer = router::Effect::Tell {
            room,
            side,
            message: ToWorker::Unknown,
        };
        assert_eq!(ledger.step(event, NOW), vec![answer; usize::from(*answered)]);
    });
    assert_eq!((ledger.rows(NOW).len(), ledger.gauges(NOW).fenced), (0, MESSAGES));
}

#[test]
fn a_router_takes_as_many_aborts_for_requests_that_never_come_as_it_may_and_refuses_the_rest() {
    let mut ledger = router();
    let (mut accepted, mut refused) = (0, 0);
    flood(|number| {
        // As long as an id may be.
        let rid = format!("{number:0>256}");
        let call = v1::AbortRequest { rid }.encode_to_vec();
        let rid = rid_to_abort(v1::AbortRequest::decode(call.as_slice()).unwrap()).unwrap();
        let client = format!("client-{}", number % 1000);
        let event = router::Event::Abort {
            rid,
            client,
            ticket: number,
        };
        match ledger.step(event, NOW).as_slice() {
            [router::Effect::AnswerAbort { ticket, answer }] if *ticket == number => match answer {
                AbortAnswer::Accepted => accepted += 1,
                AbortAnswer::Refused => refused += 1,
                other => panic!("nobody lives under that id, but it was {other:?}"),
            },
            other => panic!("an abort has one answer, not {other:?}"),
        }
    });
    let places = u64::from(Settings::default().max_tombstones);
    assert_eq!((accepted, refused), (places, MESSAGES - places));
    assert_eq!(u64::from(ledger.gauges(NOW).tombstones), places);
}
