mod disk;

use std::sync::Arc;

use innkeeper_actors::hooks::Broke;
use innkeeper_actors::ports::{NewRequest, OpenRoom};
use innkeeper_room::ledger::router::{Chosen, Effect, Event, OnFailure, Outcome, RoomEnd, Side};
use innkeeper_room::{
    Attempt, Blame, Counters, Epoch, Evidence, FromWorker, Layout, Millis, Owes, PartEnd, PartState, Phase, Reason,
    RequestKey, RoomSpec, ToWorker, Verdict, Work,
};

use super::*;
use crate::config::{NodeArgs, RecorderArgs, RecorderConfig};

fn config(recorder: RecorderConfig) -> NodeConfig {
    let mut config = NodeArgs::default().resolve(Role::Decode).unwrap();
    config.run.recorder = recorder;
    config
}

fn nowhere() -> NodeConfig {
    config(RecorderArgs::nowhere().resolve())
}

fn me(role: Role, life: u64) -> Me {
    Me {
        role,
        name: "node-0".to_owned(),
        incarnation: Incarnation::new(life),
        layout: (role != Role::Router).then(|| Layout {
            model: "m".to_owned(),
            page_tokens: 16,
            groups: 2,
            group_token_bytes: 32,
        }),
    }
}

fn spec(number: u64) -> RoomSpec {
    RoomSpec {
        room: RoomId::from_random(number),
        request: RequestKey(number),
        attempt: Attempt(1),
        router: Incarnation::new(3),
        prefill: Incarnation::new(1),
        decode: Incarnation::new(2),
        prompt_tokens: 40,
        max_tokens: 10,
        queue_left: Millis(1000),
    }
}

fn open(number: u64) -> OpenRoom {
    OpenRoom {
        spec: spec(number),
        work: Arc::new(Work {
            request_id: "rid-1".into(),
            traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned(),
            ..Work::default()
        }),
        decode_addr: String::new(),
        token: 0,
    }
}

fn state(phase: Phase, verified: u64) -> FromWorker {
    FromWorker::State(PartState {
        phase,
        epoch: Epoch(1),
        counters: Counters {
            bytes_verified: verified,
            ..Counters::default()
        },
    })
}

fn ended(end: PartEnd) -> FromWorker {
    FromWorker::Ended {
        end,
        evidence: Evidence {
            waited_for: Owes::Prefill,
            waited: Millis(1500),
            ..Evidence::default()
        },
        relayed: false,
    }
}

const LOST: PartEnd = PartEnd::Failed(Reason::TransferStalled);

/// A part from its beginning to this end.
fn part(recorder: &Recorder, number: u64, end: PartEnd) {
    let room = RoomId::from_random(number);
    recorder.opened(&open(number));
    recorder.says(room, &state(Phase::Bootstrapping, 0));
    recorder.says(room, &state(Phase::WaitingForInput, 100));
    recorder.says(room, &ended(end));
}

#[test]
fn a_worker_keeps_what_it_and_its_router_said() {
    let recorder = Recorder::in_memory(&nowhere(), me(Role::Decode, 2));
    let room = RoomId::from_random(7);
    recorder.opened(&open(7));
    let live = recorder.record(room).unwrap();
    assert_eq!(
        (live.ended_unix_ms, live.pages, live.bytes_expected),
        (None, 4, Some(2560))
    );
    recorder.says(room, &state(Phase::WaitingForInput, 100));
    let broke = Broke {
        epoch: Epoch(1),
        unacked: false,
        refused: false,
    };
    recorder.broke(room, &broke);
    for position in 0..50 {
        recorder.says(room, &FromWorker::Tokens { position, count: 1 });
        recorder.hears(room, &ToWorker::Taken(position));
    }
    recorder.hears(room, &ToWorker::Abort(Reason::DecodeLost));
    recorder.says(room, &ended(LOST));
    let record = recorder.record(room).unwrap();
    assert_eq!(record.end.as_deref(), Some("transfer_stalled"));
    assert_eq!(record.verdict.as_deref(), Some("decode_lost"));
    assert_eq!(
        (record.tokens.count, record.tokens.messages, record.tokens.taken),
        (50, 50, 49)
    );
    assert_eq!(record.counters.bytes_verified, 100);
    assert_eq!(record.broke.unwrap().times, 1);
    assert_eq!(record.evidence.decode.unwrap().waited, Millis(1500));
    assert_eq!(record.trace_id.as_deref(), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
    let told: Vec<_> = record.entries.iter().map(|entry| entry.what).collect();
    use What::{Abort, Began, ConnectionBroke, FirstToken, PartEnded};
    assert_eq!(
        told,
        [Began, What::Phase, ConnectionBroke, FirstToken, Abort, PartEnded]
    );
    assert!(
        record.phases.iter().all(|span| span.to_ms.is_some()),
        "{:?}",
        record.phases
    );
    assert!(recorder.table().live.is_empty());
    assert_eq!(recorder.ended(10)[0].verdict.as_deref(), Some("transfer_stalled"));
}

#[test]
fn a_timeline_keeps_its_first_and_its_last_entries() {
    let recorder = Recorder::in_memory(&nowhere(), me(Role::Decode, 2));
    let room = RoomId::from_random(7);
    recorder.opened(&open(7));
    for _ in 0..500 {
        recorder.says(room, &FromWorker::Committed);
        recorder.says(room, &state(Phase::Queued, 0));
        recorder.says(room, &state(Phase::Bootstrapping, 0));
    }
    let record = recorder.record(room).unwrap();
    assert_eq!(record.entries.len(), 64);
    assert_eq!(record.entries[0].what, What::Began);
    assert!(record.dropped > 400, "{}", record.dropped);
    assert!(record.phases.len() <= 33, "{}", record.phases.len());
    assert!(record.weight() < 20_000, "{}", record.weight());
}

/// A router's room that fails and is tried again, which then is done.
fn request(recorder: &Recorder, number: u64) {
    let key = RequestKey(number);
    arrives(recorder, key);
    let first = spec(number);
    let second = RoomSpec {
        room: RoomId::from_random(number + (1 << 40)),
        attempt: Attempt(2),
        ..first.clone()
    };
    begins(recorder, &first);
    recorder.told(&Event::StreamEnded {
        room: first.room,
        side: Side::Decode,
        broken: true,
    });
    recorder.ordered(&ends(&first, Verdict::Failed(Reason::DecodeLost)));
    begins(recorder, &second);
    passes(recorder, &second);
    recorder.ordered(&answer(key, Outcome::Done));
    recorder.ordered(&ends(&second, Verdict::Done));
}

fn arrives(recorder: &Recorder, key: RequestKey) {
    let request = NewRequest {
        rid: format!("rid-{}", key.0),
        client: "c".to_owned(),
        model: None,
        work: Work::default(),
        blocks: innkeeper_room::prefix::Blocks::default(),
        max_tokens: 10,
        class: innkeeper_room::Class::Normal,
        on_failure: OnFailure::Migrate,
    };
    recorder.arrived(key, &request);
}

fn begins(recorder: &Recorder, spec: &RoomSpec) {
    recorder.ordered(&Effect::Begin {
        spec: spec.clone(),
        passed: 0,
        chosen: Chosen::default(),
    });
}

fn passes(recorder: &Recorder, spec: &RoomSpec) {
    recorder.told(&Event::FromWorker {
        room: spec.room,
        side: Side::Decode,
        message: FromWorker::Tokens { position: 0, count: 2 },
    });
    recorder.ordered(&Effect::Pass {
        request: spec.request,
        room: spec.room,
        skip: 0,
        count: 2,
    });
}

fn answer(request: RequestKey, outcome: Outcome) -> Effect {
    Effect::Answer { request, outcome }
}

fn ends(spec: &RoomSpec, verdict: Verdict) -> Effect {
    Effect::Ended(Box::new(RoomEnd {
        room: spec.room,
        request: spec.request,
        attempt: spec.attempt,
        verdict,
        blame: match verdict {
            Verdict::Done => Blame::Nobody,
            Verdict::Failed(_) => Blame::Decode(spec.decode),
        },
        prefill: None,
        decode: None,
    }))
}

#[test]
fn a_router_keeps_what_ended_a_room_and_what_its_client_got() {
    let recorder = Recorder::in_memory(&nowhere(), me(Role::Router, 3));
    request(&recorder, 5);
    let failed = recorder.record(RoomId::from_random(5)).unwrap();
    assert_eq!(failed.verdict.as_deref(), Some("decode_lost"));
    assert_eq!(failed.cause, Some(Cause::Connection(Role::Decode)));
    assert_eq!(failed.blame, Some(Blame::Decode(Incarnation::new(2))));
    assert!(
        matches!(failed.client, Client::NextAttempt { attempt: 2, .. }),
        "{:?}",
        failed.client
    );
    let done = recorder.record(RoomId::from_random(5 + (1 << 40))).unwrap();
    assert_eq!((done.verdict.as_deref(), &done.client), (Some("done"), &Client::Done));
    assert_eq!((done.tokens.count, done.rid.as_str()), (2, "rid-5"));
    let rows = recorder.ended(10);
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.headline.is_some()));
    assert_eq!(recorder.table().requests.len(), 0);
}

#[test]
fn a_room_whose_request_waits_says_so_until_it_is_known_what_follows() {
    let recorder = Recorder::in_memory(&nowhere(), me(Role::Router, 3));
    arrives(&recorder, RequestKey(5));
    begins(&recorder, &spec(5));
    recorder.told(&Event::Tick);
    recorder.ordered(&ends(&spec(5), Verdict::Failed(Reason::DecodeStalled)));
    recorder.told(&Event::Tick);
    let room = RoomId::from_random(5);
    let waits = recorder.record(room).unwrap();
    assert_eq!((&waits.client, waits.cause), (&Client::Waits, Some(Cause::Timer)));
    let outcome = Outcome::Failed {
        reason: Reason::QueueTimeout,
        blame: Blame::Nobody,
        retry_after: None,
    };
    recorder.ordered(&answer(RequestKey(5), outcome));
    let failed = recorder.record(room).unwrap();
    let expected = Client::Failed {
        code: "queue_timeout".to_owned(),
        status: 503,
        after_tokens: false,
    };
    assert_eq!(failed.client, expected);
    assert_eq!(recorder.ended(10).len(), 1, "one row, not two");
}

#[test]
fn many_rooms_leave_no_more_than_few() {
    let router = Recorder::in_memory(&nowhere(), me(Role::Router, 3));
    let worker = Recorder::in_memory(&nowhere(), me(Role::Decode, 2));
    let run = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            request(&router, number);
            let end = if number % 2 == 0 { LOST } else { PartEnd::Done };
            part(&worker, number, end);
        }
    };
    run(1..5_000);
    let shelves = [shelf(&router), shelf(&worker)];
    run(5_000..20_000);
    assert_eq!([shelf(&router).0, shelf(&worker).0], [2000, 2000]);
    for (now, before) in [shelf(&router), shelf(&worker)].iter().zip(shelves) {
        assert!(now.1 < before.1 + before.1 / 4, "{now:?}, was {before:?}");
    }
    assert_eq!(router.table().live.len(), 0);
    assert_eq!(router.table().requests.len(), 0);
    assert!(worker.table().live.is_empty());
}

/// How many records, and their bytes.
fn shelf(recorder: &Recorder) -> (usize, usize) {
    recorder.settle();
    recorder.table().shelf.weight()
}

#[test]
fn a_router_that_was_stopped_says_so_in_its_rooms() {
    let recorder = Recorder::in_memory(&nowhere(), me(Role::Router, 3));
    arrives(&recorder, RequestKey(5));
    recorder.told(&Event::Tick);
    begins(&recorder, &spec(5));
    let now = recorder.now();
    let _ = recorder.table().requests.pause.observe(now);
    // As if the last look had been ten seconds ago.
    recorder.table().requests.pause = innkeeper_room::pause::PauseDetector::for_settings(&nowhere().settings);
    let _ = recorder.table().requests.pause.observe(now - Millis(10_000));
    recorder.told(&Event::Tick);
    let record = recorder.record(RoomId::from_random(5)).unwrap();
    assert!(
        record.stopped_ms.is_some_and(|ms| ms >= 10_000),
        "{:?}",
        record.stopped_ms
    );
}

#[test]
fn what_later_versions_write_is_read() {
    let what: What = serde_json::from_str("\"something_new\"").unwrap();
    assert_eq!(what, What::Other);
    let cause: Cause = serde_json::from_str("{\"by\":\"something_new\"}").unwrap();
    assert_eq!(cause, Cause::Other);
}

/// What a token costs: a look-up and a count. Printed, and held to a bound that only a mistake breaks.
#[test]
fn a_token_costs_next_to_nothing() {
    let recorder = Recorder::in_memory(&nowhere(), me(Role::Router, 3));
    arrives(&recorder, RequestKey(5));
    begins(&recorder, &spec(5));
    let began = std::time::Instant::now();
    let entries = recorder.record(RoomId::from_random(5)).unwrap().entries.len();
    for _ in 0..100_000 {
        passes(&recorder, &spec(5));
        recorder.room_phase(RoomId::from_random(5), Phase::Queued);
    }
    let each = began.elapsed() / 100_000;
    println!("a message of tokens costs {each:?} in this build");
    assert!(each < Duration::from_micros(100), "{each:?}");
    let after = recorder.record(RoomId::from_random(5)).unwrap();
    assert_eq!(after.entries.len(), entries + 1, "the first token");
    assert_eq!(after.tokens.messages, 100_000);
}
