use std::collections::BTreeSet;

use innkeeper_room::{Attempt, Counters, Epoch, Evidence, Millis, Owes, PartEnd, Phase, RequestKey};

use super::*;
use crate::recorder::record::{Cause, Entry, LeaseNote, PhaseSpan, Seen, StreamNote, Tokens, What};

const ROUTER: Incarnation = Incarnation::new(3);
const PREFILL: Incarnation = Incarnation::new(1);
const DECODE: Incarnation = Incarnation::new(2);
const BEGAN: u64 = 1_700_000_000_000;

fn entry(since_ms: u64, what: What, detail: &str) -> Entry {
    Entry {
        at_ms: BEGAN + since_ms,
        since_ms,
        what,
        detail: detail.to_owned(),
    }
}

const fn span(phase: Phase, from_ms: u64, to_ms: u64) -> PhaseSpan {
    PhaseSpan {
        phase,
        from_ms,
        to_ms: Some(to_ms),
    }
}

/// A part that began when the room did, was transferring from its second second on, and ended after the fourth.
fn record(role: Role) -> Record {
    let (name, incarnation) = match role {
        Role::Router => ("router", ROUTER),
        Role::Prefill => ("prefill-1", PREFILL),
        Role::Decode => ("decode-1", DECODE),
    };
    Record {
        room: RoomId::from_random(7),
        request: "0000000000000005".to_owned(),
        rid: "rid-5".to_owned(),
        attempt: 1,
        role,
        name: name.to_owned(),
        incarnation,
        revision: "1".to_owned(),
        router: ROUTER,
        prefill: PREFILL,
        prefill_name: Some("prefill-1".to_owned()).filter(|_| role == Role::Router),
        decode: DECODE,
        decode_name: Some("decode-1".to_owned()).filter(|_| role == Role::Router),
        canary: false,
        trace_id: None,
        began_unix_ms: BEGAN,
        ended_unix_ms: Some(BEGAN + 4000),
        ttl_ms: 2000,
        prompt_tokens: 100,
        max_tokens: 10,
        bytes_expected: Some(800_000),
        pages: if role == Role::Router { 0 } else { 7 },
        phases: vec![
            span(Phase::Queued, 0, 10),
            span(Phase::WaitingForInput, 10, 2000),
            span(Phase::Transferring, 2000, 4000),
        ],
        entries: vec![entry(0, What::Began, "")],
        dropped: 0,
        counters: Counters {
            tokens_computed: 100,
            bytes_sealed: 800_000,
            bytes_sent: 800_000,
            bytes_verified: 380_000,
            tokens_made: 0,
        },
        progress_ms: 1900,
        verified_ms: Some(1800),
        tokens: Tokens::default(),
        lease: None,
        broke: None,
        epochs: 1,
        stream_broke: None,
        stopped_ms: None,
        evidence: Seen::default(),
        end: None,
        relayed: false,
        verdict: None,
        cause: None,
        blame: None,
        refused: false,
        client: Client::Unknown,
    }
}

/// A decode worker that was stopped in the middle of a transfer: it says nothing, and its connection broke.
fn stopped_decode() -> (Vec<Record>, Vec<Missing>) {
    let router = Record {
        verdict: Some("decode_lost".to_owned()),
        cause: Some(Cause::Connection(Role::Decode)),
        blame: Some(Blame::Decode(DECODE)),
        stream_broke: Some(StreamNote {
            side: Role::Decode,
            at_ms: 3990,
            why: "h2 protocol error: stream closed".to_owned(),
            silent_ms: Some(1990),
        }),
        lease: Some(LeaseNote {
            granted_ms: Some(5),
            renewals: 2,
            renewed_ms: Some(1800),
            why: "380000 of 800000 sealed bytes were verified".to_owned(),
            lost: false,
        }),
        client: Client::NextAttempt {
            room: RoomId::from_random(8),
            attempt: 2,
            prefill: PREFILL,
            prefill_name: Some("prefill-1".to_owned()),
            decode: Incarnation::new(22),
            decode_name: Some("decode-0".to_owned()),
        },
        ..record(Role::Router)
    };
    let mut router = router;
    router.entries.push(entry(3990, What::StreamBroke, "decode-1"));
    router.entries.push(entry(3991, What::Abort, "prefill-1: decode_lost"));
    let prefill = Record {
        end: Some("decode_lost".to_owned()),
        ended_unix_ms: Some(BEGAN + 4010),
        evidence: Seen {
            prefill: Some(Evidence {
                waited_for: Owes::Decode,
                waited: Millis(2010),
                unacked: true,
                ..Evidence::default()
            }),
            decode: None,
        },
        ..record(Role::Prefill)
    };
    let missing = Missing {
        role: Role::Decode,
        name: Some("decode-1".to_owned()),
        incarnation: DECODE,
        why: "no answer within 800 ms".to_owned(),
    };
    (vec![prefill, router], vec![missing])
}

fn explained(records: &[Record], missing: &[Missing]) -> Explanation {
    let case = Case {
        room: RoomId::from_random(7),
        records,
        missing,
        row: None,
        now_ms: BEGAN + 9000,
    };
    explain(case).unwrap()
}

fn any_has(lines: &[String], parts: &[&str]) -> bool {
    lines.iter().any(|line| parts.iter().all(|part| line.contains(part)))
}

/// What prefill owed itself when it had handed over, or when it failed.
fn prefill_owed(end: &str) -> Vec<String> {
    let owed = Evidence {
        waited_for: Owes::Prefill,
        waited: Millis(3),
        ..Evidence::default()
    };
    let prefill = Record {
        end: Some(end.to_owned()),
        ended_unix_ms: Some(BEGAN + 2003),
        evidence: Seen {
            prefill: Some(owed),
            decode: None,
        },
        ..record(Role::Prefill)
    };
    let router = Record {
        phases: vec![span(Phase::Queued, 0, 2000), span(Phase::Decoding, 2000, 9000)],
        ..record(Role::Router)
    };
    explained(&[router, prefill], &[]).evidence
}

#[test]
fn one_who_did_its_part_accuses_nobody_and_nobody_waits_for_itself() {
    let good = prefill_owed("handed_over");
    assert!(
        !any_has(&good, &["owed"]) && !any_has(&good, &["had waited"]),
        "{good:?}"
    );
    assert!(
        any_has(&good, &["KV: that of all 100 prompt tokens", "was verified"]),
        "{good:?}"
    );
    let bad = prefill_owed("chunk_stalled");
    assert!(
        any_has(&bad, &["prefill-1", "owed the next step itself, for 3 ms"]),
        "{bad:?}"
    );
}

/// The verdict gives the lease back; a worker that sees this before it hears the verdict asks the router.
#[test]
fn a_worker_that_asked_after_the_verdict_did_not_wait_for_the_router() {
    let (mut records, missing) = stopped_decode();
    let asked = records[0].evidence.prefill.as_mut().unwrap();
    (asked.waited_for, asked.waited) = (Owes::Router, Millis(0));
    let of = explained(&records, &missing);
    assert_eq!(of.owed_role, "decode", "{of:?}");
}

#[test]
fn a_stopped_decode_worker_is_named_with_times_and_evidence() {
    let (records, missing) = stopped_decode();
    let of = explained(&records, &missing);
    assert_eq!(
        (of.verdict.as_deref(), of.blame.as_deref()),
        (Some("decode_lost"), Some("decode"))
    );
    assert_eq!(
        (of.blame_node, of.blame_name.as_deref()),
        (Some(DECODE), Some("decode-1"))
    );
    assert_eq!(
        (of.owed.as_str(), of.owed_role.as_str()),
        ("decode worker decode-1", "decode")
    );
    assert_eq!(of.since_ms, Some(BEGAN + 2000), "prefill had waited that long");
    assert!(
        of.headline.contains("look at decode worker decode-1"),
        "{}",
        of.headline
    );
    assert!(
        any_has(&of.evidence, &["380 kB verified", "of 800 kB"]),
        "{:#?}",
        of.evidence
    );
    assert!(
        any_has(
            &of.evidence,
            &["pings were not answered", "decode-1", "nothing of itself for 2.0 s"]
        ),
        "{:#?}",
        of.evidence
    );
    assert!(
        any_has(
            &of.evidence,
            &["prefill-1", "2.0 s for decode worker decode-1", "kernel"]
        ),
        "{:#?}",
        of.evidence
    );
    assert!(
        any_has(&of.evidence, &["lease was last renewed 2.2 s before the end"]),
        "{:#?}",
        of.evidence
    );
    assert!(
        any_has(&of.evidence, &["decode-1 says nothing now", "800 ms"]),
        "{:#?}",
        of.evidence
    );
    assert!(
        any_has(&of.did, &["connection to decode worker decode-1 break"]),
        "{:#?}",
        of.did
    );
    assert!(
        any_has(&of.did, &["prefill-1", "7 KV pages went to quarantine"]),
        "{:#?}",
        of.did
    );
    assert!(
        any_has(&of.did, &["attempt 2", "prefill-1 and decode-0"]),
        "{:#?}",
        of.did
    );
    assert!(of.client.contains("carried on"), "{}", of.client);
    assert_eq!(of.next_room, Some(RoomId::from_random(8)));
    let parts: Vec<_> = of.parts.iter().map(|part| (part.role, part.answered)).collect();
    assert_eq!(
        parts,
        [(Role::Router, true), (Role::Prefill, true), (Role::Decode, false)]
    );
    assert!(of.story.windows(2).all(|pair| pair[0].at_ms <= pair[1].at_ms));
    let text = print(&of);
    for part in [
        "room 0000000000000007",
        "decode_lost",
        "owed:  decode worker decode-1",
        "+3.990",
        "missing: decode worker",
    ] {
        assert!(text.contains(part), "`{part}` in\n{text}");
    }
}

#[test]
fn without_the_router_the_workers_are_enough_for_the_debt_and_not_for_the_blame() {
    let (mut records, missing) = stopped_decode();
    records.retain(|record| record.role == Role::Prefill);
    let of = explained(&records, &missing);
    assert_eq!(
        (of.verdict.as_deref(), of.blame.as_deref()),
        (Some("decode_lost"), None)
    );
    assert_eq!((of.owed_role.as_str(), of.since_ms), ("decode", Some(BEGAN + 2000)));
    assert!(of.headline.contains("only the router knows"), "{}", of.headline);
    assert!(of.client.contains("only the router"), "{}", of.client);
}

#[test]
fn a_live_room_says_who_owes_and_since_when() {
    let router = Record {
        ended_unix_ms: None,
        progress_ms: 2500,
        ..record(Role::Router)
    };
    let row = RoomRow {
        room: RoomId::from_random(7),
        request: RequestKey(5),
        attempt: Attempt(1),
        phase: Phase::Transferring,
        epoch: Epoch(1),
        age_ms: Millis(3000),
        phase_age_ms: Millis(1000),
        deadline_ms: Millis(1500),
        budget_ms: Millis(2500),
        prefill: PREFILL,
        decode: DECODE,
        owner: ROUTER,
        owes: Owes::Decode,
        leased: true,
    };
    let records = [router];
    let case = Case {
        room: RoomId::from_random(7),
        records: &records,
        missing: &[],
        row: Some(&row),
        now_ms: BEGAN + 3000,
    };
    let of = explain(case).unwrap();
    assert!(of.live && of.verdict.is_none() && of.blame.is_none());
    assert_eq!((of.owed_role.as_str(), of.since_ms), ("decode", Some(BEGAN + 2500)));
    assert!(
        of.headline.contains("decode worker decode-1 owes the next step"),
        "{}",
        of.headline
    );
    assert!(of.headline.contains("500 ms"), "{}", of.headline);
}

#[test]
fn a_room_that_nobody_recorded_is_not_explained() {
    let case = Case {
        room: RoomId::from_random(7),
        records: &[],
        missing: &[],
        row: None,
        now_ms: 0,
    };
    assert_eq!(explain(case), None);
}

fn every_blame() -> [Blame; 6] {
    [
        Blame::Nobody,
        Blame::Router(ROUTER),
        Blame::Prefill(PREFILL),
        Blame::Decode(DECODE),
        Blame::Link {
            prefill: PREFILL,
            decode: DECODE,
        },
        Blame::Client,
    ]
}

#[test]
fn no_reason_and_no_blame_lacks_words() {
    let mut sentences = BTreeSet::new();
    for reason in Reason::ALL {
        for blame in every_blame() {
            let router = Record {
                verdict: Some(reason.code().to_owned()),
                cause: Some(Cause::Timer),
                blame: Some(blame),
                client: Client::Failed {
                    code: reason.code().to_owned(),
                    status: reason.http_status(),
                    after_tokens: false,
                },
                ..record(Role::Router)
            };
            let of = explained(&[router], &[]);
            let named = match blame {
                Blame::Nobody => "nobody is to blame",
                Blame::Router(_) => "look at router router",
                Blame::Prefill(_) => "look at prefill worker prefill-1",
                Blame::Decode(_) => "look at decode worker decode-1",
                Blame::Link { .. } => "network between prefill worker prefill-1 and decode worker decode-1",
                Blame::Client => "its client",
            };
            assert!(of.headline.contains(named), "{reason} {blame:?}: {}", of.headline);
            assert!(
                of.headline.contains(reason.code()) && of.headline.ends_with('.'),
                "{}",
                of.headline
            );
            assert!(!of.did.is_empty() && !of.evidence.is_empty() && !of.client.is_empty());
            assert!(!print(&of).contains("  - \n"));
            sentences.insert(of.headline);
        }
        for end in [PartEnd::Failed(*reason), PartEnd::Done, PartEnd::HandedOver] {
            let worker = Record {
                end: Some(end.code().to_owned()),
                ..record(Role::Decode)
            };
            assert!(!explained(&[worker], &[]).headline.is_empty());
        }
    }
    assert_eq!(sentences.len(), Reason::ALL.len() * 6, "each says something else");
}

#[test]
fn every_cause_is_told() {
    let causes = [
        Cause::Timer,
        Cause::Worker(Role::Prefill),
        Cause::Connection(Role::Decode),
        Cause::Member(Role::Prefill),
        Cause::Lease,
        Cause::Operator,
        Cause::Client,
        Cause::Abort,
        Cause::Satisfied,
        Cause::Drain,
        Cause::Actor,
    ];
    let mut told = BTreeSet::new();
    for cause in causes {
        let router = Record {
            verdict: Some("decode_stalled".to_owned()),
            cause: Some(cause),
            ..record(Role::Router)
        };
        told.insert(explained(&[router], &[]).did[0].clone());
    }
    assert_eq!(told.len(), causes.len(), "{told:#?}");
}

#[test]
fn a_good_end_owes_nothing() {
    let router = Record {
        verdict: Some("done".to_owned()),
        cause: Some(Cause::Worker(Role::Decode)),
        blame: Some(Blame::Nobody),
        client: Client::Done,
        ..record(Role::Router)
    };
    let of = explained(&[router], &[]);
    assert_eq!((of.owed_role.as_str(), of.since_ms), ("nobody", None));
    assert!(of.headline.contains("all that it asked for"), "{}", of.headline);
}
