//! Scripts to begin with: valid messages of every kind, about rooms that live and rooms that never were.

use std::sync::Arc;

use innkeeper_actors::ports::{OpenRoom, WorkerSays};
use innkeeper_proto::v1;
use innkeeper_room::ledger::router::Load;
use innkeeper_room::{
    Attempt, Counters, Epoch, Evidence, FromWorker, Incarnation, Millis, PartEnd, PartState, Phase, Reason, Refusal,
    RequestKey, RoomId, RoomSpec, Sampling, ToWorker, Token, Verdict, Work,
};
use innkeeper_transfer::fuzz::Writer;
use prost::Message;

use super::ledgers::{DECODE, PREFILL, ROUTER};
use crate::convert::{Asked, Identity, LoadOf, NodeSays, RoomEvidence, RouterSays, Wire};

/// A room that was never begun: the choice of none, and its number.
const NOBODY: [u8; 9] = [255, 9, 9, 0, 0, 0, 0, 0, 0];

fn bytes<T: Wire<Message: Message>>(value: &T) -> Vec<u8> {
    value.to_wire().encode_to_vec()
}

fn open(number: u64, queue_left: u64) -> OpenRoom {
    OpenRoom {
        spec: RoomSpec {
            room: RoomId::from_random(number),
            request: RequestKey(number),
            attempt: Attempt(1),
            router: ROUTER,
            prefill: PREFILL,
            decode: DECODE,
            prompt_tokens: 3,
            max_tokens: 20,
            queue_left: Millis(queue_left),
        },
        work: Arc::new(Work {
            prompt: vec![1, 2, 3].into(),
            start_position: 0,
            sampling: Sampling {
                top_logprobs: 2,
                ..Sampling::default()
            },
            stop_ids: vec![2].into(),
            request_id: "rid".into(),
            traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into(),
            tenant: 0,
        }),
        decode_addr: "127.0.0.1:1".into(),
        token: 77,
    }
}

fn opened(node: u8) -> Writer {
    let open = bytes(&RouterSays::Open(Box::new(open(7, 2000))));
    Writer::default().raw(&[0x80 | node, 0, 0]).slice(&open)
}

fn says(script: Writer, message: ToWorker) -> Writer {
    script.raw(&[0, 0]).slice(&bytes(&message))
}

/// Both workers: 0x80 sends a script to its end, and 0x80 + n is n + 2 of three.
const NODES: [(&str, u8); 2] = [("prefill", 1), ("decode", 2)];
const ROUTER_NODE: u8 = 0x80;

fn add_workers(add: &mut impl FnMut(String, Writer)) {
    let all = [
        ("abort", ToWorker::Abort(Reason::Aborted)),
        ("committed", ToWorker::Committed),
        ("taken", ToWorker::Taken(u32::MAX)),
        ("live", ToWorker::Live),
        ("done", ToWorker::Verdict(Verdict::Done)),
        ("failed", ToWorker::Verdict(Verdict::Failed(Reason::DecodeLost))),
        ("unknown", ToWorker::Unknown),
    ];
    for (name, node) in NODES {
        for (message, says_it) in all {
            let script = says(opened(node), says_it)
                .raw(&[4])
                .raw(&NOBODY)
                .raw(&[0])
                .slice(&bytes(&says_it));
            add(format!("{name}-{message}"), script);
        }
        let second = bytes(&RouterSays::Open(Box::new(open(8, u64::MAX))));
        add(format!("{name}-second-open"), opened(node).raw(&[0, 0]).slice(&second));
        add(
            format!("{name}-long-queue"),
            opened(node).raw(&[0, 1]).slice(&second).raw(&[7, 50]),
        );
        add(
            format!("{name}-garbage"),
            opened(node).raw(&[0, 0]).slice(b"\xff\xff\xff").raw(&[6, 0]),
        );
        let asked = [
            Asked::Hello(ROUTER),
            Asked::Who(PREFILL),
            Asked::Evidence(RoomId::from_random(7)),
        ];
        let script = asked
            .iter()
            .fold(opened(node), |script, asked| script.raw(&[3]).slice(&bytes(asked)));
        add(format!("{name}-asked"), script);
        add(format!("{name}-stopped"), opened(node).raw(&[7, 255, 6, 0, 7, 50]));
    }
    // Hello, Started, Verified, Complete, Made, finished.
    let data = |script: Writer, epoch: u8, value: u8, choice: u8| script.raw(&[4, 0, 1, epoch, value, choice]);
    let ready = data(data(opened(2), 1, 1, 0), 1, 1, 4);
    add(
        "decode-whole".to_owned(),
        data(data(ready, 1, 9, 5), 1, 0, 7).raw(&[5, 0, 0, 3, 5, 0, 2, 4, 0, 1, 1, 0, 10]),
    );
    add(
        "decode-hello-for-nobody".to_owned(),
        opened(2).raw(&[4]).raw(&NOBODY).raw(&[1, 1, 1, 0]),
    );
    let ready = opened(1).raw(&[4, 0, 1, 1, 0]);
    add(
        "prefill-whole".to_owned(),
        ready.raw(&[5, 0, 3, 9, 9, 9, 1, 4, 0, 1, 1, 4, 4, 0, 1, 1, 8]),
    );
}

fn worker_messages() -> Vec<(&'static str, WorkerSays)> {
    let evidence = Evidence {
        waited: Millis(u64::MAX),
        ..Evidence::default()
    };
    let counters = Counters {
        tokens_computed: 3,
        bytes_sealed: 9,
        bytes_sent: 9,
        bytes_verified: 9,
        tokens_made: 1,
    };
    let state = |phase| PartState {
        phase,
        epoch: Epoch(1),
        counters,
    };
    let end = PartEnd::Failed(Reason::TransferStalled);
    let all = vec![
        (
            "admitted",
            FromWorker::Admitted {
                data_addr: "127.0.0.1:1".into(),
                token: 77,
            },
        ),
        ("refused", FromWorker::Refused(Refusal::NoPermit)),
        ("transferring", FromWorker::State(state(Phase::Transferring))),
        ("decoding", FromWorker::State(state(Phase::Decoding))),
        (
            "started",
            FromWorker::Started {
                epoch: Epoch(1),
                reused: 0,
            },
        ),
        ("committed", FromWorker::Committed),
        (
            "ended",
            FromWorker::Ended {
                end,
                evidence,
                relayed: true,
            },
        ),
        ("ask", FromWorker::Ask),
        ("evidence", FromWorker::Evidence(evidence)),
        ("already-ended", FromWorker::AlreadyEnded(PartEnd::Done)),
        ("unknown", FromWorker::Unknown),
    ];
    let plain = |(name, message)| {
        (
            name,
            WorkerSays {
                message,
                tokens: Vec::new(),
            },
        )
    };
    let mut all: Vec<_> = all.into_iter().map(plain).collect();
    for (name, position) in [("tokens", 0), ("tokens-far-away", u32::MAX - 1)] {
        let token = Token {
            id: 5,
            logprob: -0.5,
            top: vec![(5, -0.5), (6, f32::NAN)],
        };
        let message = FromWorker::Tokens { position, count: 1 };
        all.push((
            name,
            WorkerSays {
                message,
                tokens: vec![token],
            },
        ));
    }
    all
}

fn add_router(add: &mut impl FnMut(String, Writer)) {
    let messages = worker_messages();
    let find = |wanted: &str| {
        let found = messages.iter().find(|(name, _)| *name == wanted);
        bytes(&found.expect("a message of this name").1)
    };
    let arrived = || Writer::default().raw(&[ROUTER_NODE, 7, 0, 2, 9]);
    let from = |script: Writer, side: u8, name: &str| script.raw(&[0, 0, side]).slice(&find(name));
    let admitted = || from(from(arrived(), 1, "admitted"), 0, "admitted");
    let decoding = || from(from(admitted(), 0, "started"), 1, "committed");
    for (name, _) in &messages {
        let strange = |script: Writer| script.raw(&[0]).raw(&NOBODY).raw(&[1]).slice(&find(name));
        add(format!("router-{name}"), strange(from(decoding(), 1, name)));
        add(format!("router-early-{name}"), from(arrived(), 0, name));
    }
    add(
        "router-garbage".to_owned(),
        decoding().raw(&[0, 0, 1]).slice(b"\xff\xff\xff\xff"),
    );
    add("router-broken".to_owned(), decoding().raw(&[8, 0, 3, 6, 50]));
    let load = |incarnation, rooms| {
        NodeSays::Load(LoadOf {
            incarnation,
            load: Load {
                engine_progress: u64::MAX,
                engine_owes: Millis(u64::MAX),
                free_pages: u32::MAX,
                rooms,
                serving: true,
            },
        })
    };
    let identity = |incarnation| {
        NodeSays::Identity(Identity {
            incarnation,
            asked: PREFILL,
        })
    };
    let evidence = |room| {
        NodeSays::Evidence(RoomEvidence {
            room: RoomId::from_random(room),
            evidence: Some(Evidence::default()),
        })
    };
    let nodes = [
        ("load", load(PREFILL, u32::MAX)),
        ("load-of-another", load(Incarnation::new(99), 0)),
        ("identity", identity(PREFILL)),
        ("identity-of-another", identity(Incarnation::new(99))),
        ("evidence-of-nobody", evidence(9)),
    ];
    for (name, says) in nodes {
        let script = decoding().raw(&[4, 0]).slice(&bytes(&says)).raw(&[6, 50]);
        add(format!("router-node-{name}"), script);
    }
    for (name, rid) in [
        ("", "rid-0".to_owned()),
        ("-of-nobody", "nobody".to_owned()),
        ("-long", "x".repeat(300)),
    ] {
        let request = v1::AbortRequest { rid }.encode_to_vec();
        add(
            format!("router-abort{name}"),
            decoding().raw(&[5, 0]).slice(&request).raw(&[7, 0, 2, 9]),
        );
    }
}

/// Scripts, by name.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds: Vec<(String, Vec<u8>)> = Vec::new();
    let mut add = |name: String, script: Writer| seeds.push((name, script.0));
    add_workers(&mut add);
    add_router(&mut add);
    seeds
}
