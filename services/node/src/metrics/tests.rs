use std::collections::{BTreeMap, BTreeSet};

use innkeeper_room::ledger::Gauges;
use innkeeper_room::ledger::router::{Chosen, Effect, Event, Ground, Policies, Policy, RoomEnd, Shed, Side};
use innkeeper_room::pages::PageCounts;
use innkeeper_room::{
    Attempt, Evidence, FromWorker, Incarnation, Millis, Moment, PartState, Phase, Reason, RequestKey, RoomId, RoomSpec,
    ToWorker,
};

use super::*;
use crate::view::fake::FakeNode;

async fn lines(metrics: &NodeMetrics) -> Vec<String> {
    metrics
        .scrape(Form::Prometheus)
        .await
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

fn assert_has(lines: &[String], expected: &str) {
    assert_eq!(
        lines.iter().filter(|line| *line == expected).count(),
        1,
        "`{expected}` in {lines:#?}"
    );
}

#[tokio::test]
async fn the_names_are_those_that_dashboards_use() {
    let gauges = Gauges {
        rooms: [1, 0, 0, 2, 0, 0, 0],
        pages: PageCounts {
            free: 5,
            cached: 1,
            held: 2,
            quarantined: 3,
        },
        room_permits: 4,
        session_permits: 6,
        engine_permits: 7,
        tombstones: 8,
        stuck: 9,
        budget_used: 250,
        requests: 10,
        unleased: 11,
        fenced: 12,
        avoided_links: 2,
        waiting: [1, 2, 3],
        waiting_tokens: [10, 20, 30],
        predicted_wait: [Millis(250), Millis(500), Millis(4000)],
        waiting_tenants: 4,
        shed: Shed {
            queue_full: 5,
            predicted_wait: 6,
            displaced: 7,
        },
        booked_pages: 13,
        booked_prompt_tokens: 14,
        ..Gauges::default()
    };
    let metrics = NodeMetrics::new(Role::Router, Arc::new(FakeNode::answering(gauges)));
    metrics.room_ended(Verdict::Failed(Reason::DecodeLost), Blame::Nobody);
    metrics.room_ended(Verdict::Done, Blame::Nobody);
    metrics.room_ended(Verdict::Done, Blame::Nobody);
    metrics.request(Outcome::Done);
    metrics.rate_limited("tokens", 3);
    metrics.canary(Outcome::Done);
    metrics.first_token(Duration::from_millis(3));
    let page = lines(&metrics).await;
    for line in [
        "innkeeper_rooms{role=\"router\",phase=\"queued\"} 1",
        "innkeeper_rooms{role=\"router\",phase=\"transferring\"} 2",
        "innkeeper_pages{state=\"free\"} 5",
        "innkeeper_pages{state=\"quarantined\"} 3",
        "innkeeper_quarantined_bytes 3072",
        "# TYPE innkeeper_pages_total untyped",
        "innkeeper_pages_total 11",
        "innkeeper_permits{kind=\"room\"} 4",
        "innkeeper_permits{kind=\"session\"} 6",
        "innkeeper_permits{kind=\"engine\"} 7",
        "innkeeper_permits{kind=\"request\"} 10",
        "innkeeper_tasks{kind=\"room\"} 3",
        "innkeeper_connections{kind=\"http\"} 1",
        "innkeeper_tombstones 8",
        "innkeeper_zombies 0",
        "innkeeper_stuck_rooms 9",
        "innkeeper_room_budget_used_ratio_max 0.25",
        "innkeeper_unleased_rooms 11",
        "innkeeper_fenced_total 12",
        "innkeeper_avoided{party=\"link\"} 2",
        "innkeeper_waiting_requests{class=\"high\"} 1",
        "innkeeper_waiting_requests{class=\"low\"} 3",
        "innkeeper_waiting_tokens{class=\"normal\"} 20",
        "innkeeper_predicted_wait_seconds{class=\"high\"} 0.25",
        "innkeeper_waiting_tenants 4",
        "innkeeper_shed_total{reason=\"queue_full\"} 5",
        "innkeeper_shed_total{reason=\"displaced\"} 7",
        "innkeeper_booked_pages 13",
        "innkeeper_booked_prompt_tokens 14",
        "innkeeper_rate_limited_total{limit=\"tokens\"} 1",
        "innkeeper_limited_tenants 3",
        "innkeeper_canaries_total{outcome=\"done\"} 1",
        "innkeeper_ledger_answers 1",
        "innkeeper_rooms_ended_total{reason=\"decode_lost\",blame=\"nobody\"} 1",
        "innkeeper_rooms_ended_total{reason=\"done\",blame=\"nobody\"} 2",
        "innkeeper_requests_total{outcome=\"done\"} 1",
        "innkeeper_time_to_first_token_seconds_count 1",
        "innkeeper_engine_steps_total 4",
        "# TYPE innkeeper_rooms_ended_total counter",
    ] {
        assert_has(&page, line);
    }
    assert!(!page.iter().any(|line| line.contains("_total_total")));
}

fn ended(reason: Reason) -> FromWorker {
    FromWorker::Ended {
        end: PartEnd::Failed(reason),
        evidence: Evidence::default(),
        relayed: false,
    }
}

/// Names by their `# TYPE` lines, of a node of this role that shows all that it ever would.
async fn exported(role: Role) -> BTreeSet<String> {
    let node = FakeNode::answering(Gauges::default());
    if role != Role::Router {
        // With an engine of its own there is less to show.
        *node.next_door.lock().unwrap() = Some(innkeeper_engine::Seen::default());
    }
    let metrics = NodeMetrics::new(role, Arc::new(node));
    metrics.show_spans(&Arc::default());
    metrics.show_recorder(Arc::default());
    // A family without a series is not shown.
    metrics.room_ended(Verdict::Done, Blame::Nobody);
    metrics.request(Outcome::Done);
    metrics.rate_limited("requests", 1);
    metrics.canary(Outcome::Done);
    metrics.reload_works("tls");
    metrics.reloaded("tls", true);
    metrics.unauthenticated("wrong");
    let room = RoomId::from_random(1);
    metrics.part_opened(room, 100);
    metrics.part_says(room, &ended(Reason::DecodeLost));
    metrics.told(&Event::LeaseGranted { room, sent: Moment(0) });
    let eviction = counted::EvictionLabels {
        phase: "queued",
        reason: "decode_lost",
        blame: "nobody",
    };
    metrics.counted.evictions.get_or_create(&eviction).inc();
    if role == Role::Router {
        metrics.placed(&Chosen {
            looked_at: 1,
            ..Chosen::default()
        });
    }
    let lines = lines(&metrics).await;
    let names = lines
        .iter()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    names.map(str::to_owned).collect()
}

/// Names in the first column of the tables, with the roles of the second: `R P D`.
fn documented() -> BTreeMap<String, String> {
    let text = include_str!("../../../../docs/metrics.md");
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let name = cells.next()?.trim_end_matches('`');
        let name = name.split('{').next()?;
        Some((name.to_owned(), cells.next()?.to_owned()))
    });
    rows.collect()
}

#[tokio::test]
async fn every_name_is_in_the_table_and_the_other_way_round() {
    let documented = documented();
    for (role, letter) in [(Role::Router, "R"), (Role::Prefill, "P"), (Role::Decode, "D")] {
        let exported = exported(role).await;
        let unknown: Vec<_> = exported.iter().filter(|name| !documented.contains_key(*name)).collect();
        assert!(unknown.is_empty(), "{role}: not in docs/metrics.md: {unknown:?}");
        let of_role = documented
            .iter()
            .filter(|(_, roles)| roles.split(' ').any(|role| role == letter));
        let missing: Vec<_> = of_role
            .map(|(name, _)| name)
            .filter(|name| !exported.contains(*name))
            .collect();
        assert!(missing.is_empty(), "{role}: only in docs/metrics.md: {missing:?}");
    }
}

#[tokio::test]
async fn openmetrics_ends_as_it_must() {
    let metrics = NodeMetrics::new(Role::Decode, Arc::new(FakeNode::answering(Gauges::default())));
    let page = metrics.scrape(Form::OpenMetrics).await.unwrap();
    assert!(page.ends_with("# EOF\n"), "{page}");
    assert_eq!(page.matches("# EOF").count(), 1);
}

#[tokio::test]
async fn a_part_is_measured_phase_by_phase_and_counted_where_it_failed() {
    let metrics = NodeMetrics::new(Role::Decode, Arc::new(FakeNode::answering(Gauges::default())));
    let state = |phase| {
        FromWorker::State(PartState {
            phase,
            ..PartState::default()
        })
    };
    let failures = [
        (&[][..], Reason::HandshakeTimeout),
        (&[Phase::WaitingForInput][..], Reason::TransferStalled),
        (&[Phase::WaitingForInput, Phase::Decoding][..], Reason::DecodeStalled),
        (&[Phase::WaitingForInput][..], Reason::Aborted),
    ];
    for (number, (phases, reason)) in (1..).zip(failures) {
        let room = RoomId::from_random(number);
        metrics.part_opened(room, 100);
        for phase in phases {
            metrics.part_says(room, &state(*phase));
        }
        metrics.part_says(room, &ended(reason));
        metrics.part_says(room, &ended(reason));
    }
    let page = lines(&metrics).await;
    for line in [
        "innkeeper_phase_seconds_count{phase=\"queued\"} 4",
        "innkeeper_phase_seconds_count{phase=\"waiting_for_input\"} 3",
        "innkeeper_phase_seconds_count{phase=\"decoding\"} 1",
        "sglang:num_bootstrap_failed_reqs_total 1",
        "sglang:num_transfer_failed_reqs_total 1",
        "sglang:num_aborted_requests_total 1",
    ] {
        assert_has(&page, line);
    }
}

#[tokio::test]
async fn a_room_is_measured_from_its_requests_arrival_to_its_last_stream() {
    let metrics = NodeMetrics::new(Role::Router, Arc::new(FakeNode::answering(Gauges::default())));
    let (room, request) = (RoomId::from_random(1), RequestKey(7));
    let spec = RoomSpec {
        room,
        request,
        attempt: Attempt(2),
        router: Incarnation::new(1),
        prefill: Incarnation::new(2),
        decode: Incarnation::new(3),
        prompt_tokens: 1,
        max_tokens: 1,
        queue_left: Millis(1),
    };
    let open = |side| Effect::Open {
        spec: spec.clone(),
        side,
        decode_addr: String::new(),
        token: 0,
        passed: 3,
    };
    let end = RoomEnd {
        room,
        request,
        attempt: Attempt(2),
        verdict: Verdict::Failed(Reason::DecodeLost),
        blame: Blame::Decode(Incarnation::new(3)),
        prefill: None,
        decode: None,
    };
    let stream_ended = |side| Event::StreamEnded {
        room,
        side,
        broken: false,
    };
    let message = ToWorker::Abort(Reason::DecodeLost);
    metrics.arrived(request);
    metrics.ordered(&Effect::Begin {
        spec: spec.clone(),
        passed: 3,
        chosen: Chosen {
            policies: Policies {
                prefill: Policy::CacheAware,
                ..Policies::default()
            },
            prefill: Ground::Prefix,
            looked_at: 64,
            sent_before: 48,
            ..Chosen::default()
        },
    });
    metrics.ordered(&open(Side::Decode));
    metrics.ordered(&open(Side::Prefill));
    metrics.room_phase(room, Phase::Decoding);
    metrics.ordered(&Effect::Renew { room });
    metrics.told(&Event::LeaseRenewed { room, sent: Moment(0) });
    metrics.ordered(&Effect::Tell {
        room,
        side: Side::Prefill,
        message,
    });
    metrics.told(&stream_ended(Side::Decode));
    metrics.ordered(&Effect::Ended(Box::new(end)));
    let before = lines(&metrics).await;
    assert_has(&before, "innkeeper_abort_seconds_count 0");
    metrics.told(&stream_ended(Side::Prefill));
    let page = lines(&metrics).await;
    for line in [
        "innkeeper_abort_seconds_count 1",
        "innkeeper_queue_seconds_count 1",
        "innkeeper_lease_renewal_seconds_count 1",
        "innkeeper_lease_operations_total{operation=\"renew\",outcome=\"ok\"} 1",
        "innkeeper_evictions_total{phase=\"decoding\",reason=\"decode_lost\",blame=\"decode\"} 1",
        "innkeeper_retries_total 1",
        "innkeeper_placements_total{role=\"prefill\",policy=\"cache_aware\",by=\"prefix\"} 1",
        "innkeeper_placements_total{role=\"decode\",policy=\"least_loaded\",by=\"load\"} 1",
        "innkeeper_placed_prompt_tokens_total{sent_before=\"yes\"} 48",
        "innkeeper_placed_prompt_tokens_total{sent_before=\"no\"} 16",
        "innkeeper_prefix_match_ratio_sum{policy=\"cache_aware\"} 0.75",
        "innkeeper_migrations_total 1",
    ] {
        assert_has(&page, line);
    }
}

/// Nobody tells the end of a stream whose actor died: what is remembered of its room is bounded.
#[test]
fn rooms_whose_streams_never_end_are_given_up() {
    let metrics = NodeMetrics::new(Role::Router, Arc::new(FakeNode::answering(Gauges::default())));
    for number in 1..5000 {
        let (room, request) = (RoomId::from_random(number), RequestKey(number));
        let node = Incarnation::new(3);
        let spec = RoomSpec {
            room,
            request,
            attempt: Attempt(1),
            router: node,
            prefill: node,
            decode: node,
            prompt_tokens: 1,
            max_tokens: 1,
            queue_left: Millis(1),
        };
        metrics.arrived(request);
        metrics.ordered(&Effect::Begin {
            spec: spec.clone(),
            passed: 0,
            chosen: Chosen::default(),
        });
        metrics.ordered(&Effect::Open {
            spec,
            side: Side::Decode,
            decode_addr: String::new(),
            token: 0,
            passed: 0,
        });
        let end = RoomEnd {
            room,
            request,
            attempt: Attempt(1),
            verdict: Verdict::Done,
            blame: Blame::Nobody,
            prefill: None,
            decode: None,
        };
        metrics.ordered(&Effect::Ended(Box::new(end)));
    }
    assert!(metrics.live_rooms() <= 1024, "{}", metrics.live_rooms());
}

#[tokio::test(start_paused = true)]
async fn a_hung_ledger_is_said_and_not_waited_for() {
    let metrics = NodeMetrics::new(Role::Decode, Arc::new(FakeNode::hung()));
    metrics.part_ended(PartEnd::HandedOver);
    let began = tokio::time::Instant::now();
    let page = lines(&metrics).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    assert_has(&page, "innkeeper_ledger_answers 0");
    assert_has(&page, "innkeeper_tasks{kind=\"room\"} 3");
    assert_has(
        &page,
        "innkeeper_rooms_ended_total{reason=\"handed_over\",blame=\"nobody\"} 1",
    );
    assert!(!page.iter().any(|line| line.starts_with("innkeeper_pages")));
}
