//! A hundred thousand rooms leave the memory of a process as it was: all by itself, so that nobody else's is measured.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::sync::Arc;

use innkeeper_actors::ports::{NewRequest, OpenRoom};
use innkeeper_node::config::{NodeArgs, RecorderArgs};
use innkeeper_node::recorder::{Me, Recorder};
use innkeeper_room::ledger::router::{Chosen, Effect, Event, OnFailure, Outcome, RoomEnd, Side};
use innkeeper_room::{
    Attempt, Blame, Counters, Epoch, Evidence, FromWorker, Incarnation, Millis, PartEnd, PartState, Phase, Reason,
    RequestKey, Role, RoomId, RoomSpec, Verdict, Work,
};

fn recorder(role: Role) -> Recorder {
    let mut config = NodeArgs::default().resolve(role).unwrap();
    config.run.recorder = RecorderArgs::nowhere().resolve();
    let me = Me {
        role,
        name: "node-0".to_owned(),
        incarnation: Incarnation::new(3),
        layout: None,
    };
    Recorder::in_memory(&config, me)
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

/// A worker's part that comes as far as its prompt, and fails or not.
fn part(recorder: &Recorder, number: u64) {
    let room = RoomId::from_random(number);
    recorder.opened(&OpenRoom {
        spec: spec(number),
        work: Arc::new(Work::default()),
        decode_addr: String::new(),
        token: 0,
    });
    for phase in [Phase::Bootstrapping, Phase::WaitingForInput] {
        recorder.says(
            room,
            &FromWorker::State(PartState {
                phase,
                epoch: Epoch(1),
                counters: Counters::default(),
            }),
        );
    }
    let end = match number % 2 {
        0 => PartEnd::Failed(Reason::TransferStalled),
        _ => PartEnd::Done,
    };
    recorder.says(
        room,
        &FromWorker::Ended {
            end,
            evidence: Evidence::default(),
            relayed: false,
        },
    );
}

/// A router's request in one room, which fails or not.
fn request(recorder: &Recorder, number: u64) {
    let (key, spec) = (RequestKey(number), spec(number));
    let request = NewRequest {
        rid: format!("rid-{number}"),
        client: "c".to_owned(),
        model: None,
        work: Work::default(),
        blocks: innkeeper_room::prefix::Blocks::default(),
        max_tokens: 10,
        class: innkeeper_room::Class::Normal,
        on_failure: OnFailure::Migrate,
    };
    recorder.arrived(key, &request);
    recorder.ordered(&Effect::Begin {
        spec: spec.clone(),
        passed: 0,
        chosen: Chosen::default(),
    });
    recorder.told(&Event::StreamEnded {
        room: spec.room,
        side: Side::Decode,
        broken: true,
    });
    let reason = Reason::DecodeLost;
    let (verdict, outcome) = match number % 2 {
        0 => {
            let failed = Outcome::Failed {
                reason,
                blame: Blame::Nobody,
                retry_after: None,
            };
            (Verdict::Failed(reason), failed)
        }
        _ => (Verdict::Done, Outcome::Done),
    };
    recorder.ordered(&Effect::Ended(Box::new(RoomEnd {
        room: spec.room,
        request: key,
        attempt: spec.attempt,
        verdict,
        blame: Blame::Nobody,
        prefill: None,
        decode: None,
    })));
    recorder.ordered(&Effect::Answer { request: key, outcome });
}

fn rss_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_hundred_thousand_rooms_leave_memory_flat() {
    let (router, worker) = (recorder(Role::Router), recorder(Role::Decode));
    let run = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            request(&router, number);
            part(&worker, number);
        }
    };
    // The shelves are full of the newest, and the allocator has what it needs.
    run(1..10_000);
    let before = rss_kb();
    run(10_000..110_000);
    let grown = rss_kb().saturating_sub(before);
    println!("{before} kB after 10,000 rooms, {grown} kB more after 110,000");
    assert!(grown < 8 << 10, "{grown} kB more, after {before} kB");
    assert_eq!(router.ended(10_000).len(), 2000);
    assert_eq!(worker.ended(10_000).len(), 2000);
}
