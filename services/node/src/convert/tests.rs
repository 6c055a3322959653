use std::sync::Arc;

use innkeeper_actors::ports::{OpenRoom, WorkerSays};
use innkeeper_proto::v1;
use innkeeper_room::ledger::router::Load;
use innkeeper_room::{
    Attempt, Counters, Epoch, Evidence, FromWorker, Incarnation, Millis, Owes, PartEnd, PartState, Phase, Reason,
    Refusal, RequestKey, RoomId, RoomSpec, Sampling, ToWorker, Token, Verdict, Work,
};
use proptest::prelude::*;
use prost::Message;

use super::*;

fn open(attempt: u8, prompt: Vec<u32>, seed: u64) -> OpenRoom {
    OpenRoom {
        spec: RoomSpec {
            room: RoomId::from_random(seed),
            request: RequestKey(seed ^ 5),
            attempt: Attempt(attempt),
            router: Incarnation::new(1),
            prefill: Incarnation::new(u64::MAX),
            decode: Incarnation::new(3),
            prompt_tokens: u32::try_from(prompt.len()).unwrap(),
            max_tokens: 7,
            queue_left: Millis(30_000),
        },
        work: Arc::new(Work {
            prompt: prompt.into(),
            start_position: 4,
            sampling: Sampling {
                temperature: 0.7,
                top_p: 0.9,
                seed,
                top_logprobs: 20,
            },
            stop_ids: vec![1, 2].into(),
            request_id: "é".into(),
            traceparent: "00-1-2-01".into(),
            tenant: u128::from(seed) << 64 | 9,
        }),
        decode_addr: "h:1".into(),
        token: seed,
    }
}

fn evidence(n: u64) -> Evidence {
    Evidence {
        waited_for: [Owes::Nobody, Owes::Prefill, Owes::Decode, Owes::Router][usize::try_from(n % 4).unwrap()],
        waited: Millis(n),
        counters: counters(n),
        unacked: n.is_multiple_of(2),
        data_link_broken: n.is_multiple_of(3),
        engine_owes: Millis(n / 2),
        was_stopped: n.is_multiple_of(5),
    }
}

fn counters(n: u64) -> Counters {
    let small = u32::try_from(n % 1000).unwrap();
    Counters {
        tokens_computed: small,
        bytes_sealed: n,
        bytes_sent: n / 2,
        bytes_verified: n / 3,
        tokens_made: small / 2,
    }
}

/// Through the bytes, as on the wire.
fn there_and_back<T: Wire<Message: Message + Default>>(value: &T) -> Result<T, WireError> {
    T::from_wire(T::Message::decode(value.to_wire().encode_to_vec().as_slice()).unwrap())
}

#[test]
fn every_router_message_comes_back() {
    let mut all = vec![
        ToWorker::Committed,
        ToWorker::Taken(9),
        ToWorker::Live,
        ToWorker::Unknown,
    ];
    all.push(ToWorker::Verdict(Verdict::Done));
    for reason in Reason::ALL {
        all.push(ToWorker::Abort(*reason));
        all.push(ToWorker::Verdict(Verdict::Failed(*reason)));
    }
    for message in all {
        assert_eq!(there_and_back(&message), Ok(message));
    }
}

#[test]
fn every_worker_message_comes_back() {
    let mut all = vec![
        FromWorker::Admitted {
            data_addr: "h:2".into(),
            token: u64::MAX,
        },
        FromWorker::Started {
            epoch: Epoch(3),
            reused: 32,
        },
        FromWorker::Committed,
        FromWorker::Ask,
        FromWorker::Unknown,
    ];
    let refusals = [
        Refusal::NoPermit,
        Refusal::PeerShare,
        Refusal::Draining,
        Refusal::WrongIncarnation,
        Refusal::Exists,
        Refusal::TooLarge,
    ];
    all.extend(refusals.map(FromWorker::Refused));
    for phase in Phase::ALL {
        all.push(FromWorker::State(PartState {
            phase,
            epoch: Epoch(2),
            counters: counters(77),
        }));
    }
    let ends = Reason::ALL
        .iter()
        .map(|reason| PartEnd::Failed(*reason))
        .chain([PartEnd::HandedOver, PartEnd::Done]);
    for (n, end) in ends.enumerate() {
        all.push(FromWorker::Ended {
            end,
            evidence: evidence(n as u64),
            relayed: n % 2 == 1,
        });
        all.push(FromWorker::AlreadyEnded(end));
        all.push(FromWorker::Evidence(evidence(n as u64)));
    }
    for message in all {
        let says = WorkerSays {
            message,
            tokens: Vec::new(),
        };
        assert_eq!(there_and_back(&says), Ok(says));
    }
    let tokens = vec![
        Token {
            id: 1,
            logprob: -0.5,
            top: vec![(1, -0.5), (2, -1.5)],
        },
        Token::default(),
    ];
    let says = WorkerSays {
        message: FromWorker::Tokens { position: 5, count: 2 },
        tokens,
    };
    assert_eq!(there_and_back(&says), Ok(says));
}

#[test]
fn every_node_message_comes_back() {
    let room = RoomId::from_random(9);
    for asked in [
        Asked::Hello(Incarnation::new(1)),
        Asked::Who(Incarnation::new(2)),
        Asked::Evidence(room),
    ] {
        assert_eq!(there_and_back(&asked), Ok(asked));
    }
    let load = Load {
        engine_progress: 5,
        engine_owes: Millis(6),
        free_pages: 7,
        rooms: 8,
        serving: true,
    };
    let all = [
        NodeSays::Load(LoadOf {
            incarnation: Incarnation::new(4),
            load,
        }),
        NodeSays::Identity(Identity {
            incarnation: Incarnation::new(4),
            asked: Incarnation::new(5),
        }),
        NodeSays::Evidence(RoomEvidence { room, evidence: None }),
        NodeSays::Evidence(RoomEvidence {
            room,
            evidence: Some(evidence(13)),
        }),
    ];
    for says in all {
        assert_eq!(there_and_back(&says), Ok(says));
    }
}

type Damage = fn(&mut v1::Open);

#[test]
fn what_is_wrong_is_named() {
    let good = open(1, vec![1], 1).to_wire();
    let broken: [(&str, Damage); 13] = [
        ("open.room", |open| open.room = 0),
        ("open.room", |open| open.room = u64::MAX),
        ("open.router", |open| open.router = 0),
        ("open.attempt", |open| open.attempt = 256),
        ("open.prompt", |open| open.prompt.clear()),
        ("open.max_tokens", |open| open.max_tokens = 0),
        ("open.sampling", |open| open.sampling = None),
        ("sampling.temperature", |open| {
            open.sampling.as_mut().unwrap().temperature = f32::NAN
        }),
        ("sampling.top_p", |open| open.sampling.as_mut().unwrap().top_p = 0.0),
        ("open.request_id", |open| open.request_id = "x".repeat(257)),
        ("open.traceparent", |open| open.traceparent = "x".repeat(513)),
        ("open.decode_addr", |open| open.decode_addr = "x".repeat(513)),
        ("open.stop_ids", |open| open.stop_ids = vec![1; 4097]),
    ];
    for (field, damage) in broken {
        let mut message = good.clone();
        damage(&mut message);
        let error = OpenRoom::from_wire(message).unwrap_err();
        assert!(error.to_string().contains(field), "{error}");
    }
    assert_eq!(
        ToWorker::from_wire(v1::RouterMessage::default()),
        Err(WireError::Missing("message"))
    );
    let second = RouterSays::Open(Box::new(open(1, vec![1], 1))).to_wire();
    assert!(ToWorker::from_wire(second).is_err());
}

/// What a message keeps with a room is bounded, or a few rooms would hold all memory.
#[test]
fn what_is_too_long_to_be_kept_is_refused() {
    let admitted = FromWorker::Admitted {
        data_addr: "x".repeat(513),
        token: 1,
    };
    let token = Token {
        top: vec![(1, -0.5); 21],
        ..Token::default()
    };
    for (message, tokens, field) in [
        (admitted, vec![], "admitted.data_addr"),
        (FromWorker::Tokens { position: 0, count: 1 }, vec![token], "token.top"),
    ] {
        let error = there_and_back(&WorkerSays { message, tokens }).unwrap_err();
        assert!(error.to_string().contains(field), "{error}");
    }
    for rid in [String::new(), "x".repeat(257)] {
        let error = rid_to_abort(v1::AbortRequest { rid }).unwrap_err();
        assert!(error.to_string().contains("rid"), "{error}");
        assert!(error.to_string().len() < 256, "{error}");
    }
    let longest = "x".repeat(256);
    assert_eq!(rid_to_abort(v1::AbortRequest { rid: longest.clone() }), Ok(longest));
}

/// A part's backstop follows from it: one that never comes is none.
#[test]
fn a_queue_time_without_an_end_is_cut() {
    let mut sent = open(1, vec![1], 1);
    sent.spec.queue_left = Millis(u64::MAX);
    assert_eq!(
        there_and_back(&sent).unwrap().spec.queue_left,
        Millis::from_secs(24 * 3600)
    );
}

proptest! {
    #[test]
    fn an_open_comes_back(attempt in 1u8.., prompt in prop::collection::vec(any::<u32>(), 1..50), seed: u64) {
        let sent = open(attempt, prompt, seed);
        let came = there_and_back(&sent).unwrap();
        prop_assert_eq!(&came.spec, &sent.spec);
        prop_assert_eq!(&came.work, &sent.work);
        prop_assert_eq!((came.decode_addr, came.token), (sent.decode_addr, sent.token));
    }

    #[test]
    fn any_bytes_are_understood_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(message) = v1::RouterMessage::decode(bytes.as_slice()) { let _ = RouterSays::from_wire(message); }
        if let Ok(message) = v1::WorkerMessage::decode(bytes.as_slice()) { let _ = WorkerSays::from_wire(message); }
        if let Ok(message) = v1::NodeQuestion::decode(bytes.as_slice()) { let _ = Asked::from_wire(message); }
        if let Ok(message) = v1::NodeAnswer::decode(bytes.as_slice()) { let _ = NodeSays::from_wire(message); }
    }
}
