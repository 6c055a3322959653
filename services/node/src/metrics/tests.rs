use innkeeper_room::Reason;
use innkeeper_room::ledger::Gauges;
use innkeeper_room::pages::PageCounts;

use super::*;
use crate::view::fake::FakeNode;

async fn lines(metrics: &NodeMetrics) -> Vec<String> {
    metrics.scrape().await.unwrap().lines().map(str::to_owned).collect()
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
        requests: 10,
        unleased: 11,
        fenced: 12,
        avoided_links: 2,
        ..Gauges::default()
    };
    let metrics = NodeMetrics::new(Role::Router, Arc::new(FakeNode::answering(gauges)));
    metrics.room_ended(Verdict::Failed(Reason::DecodeLost), Blame::Nobody);
    metrics.room_ended(Verdict::Done, Blame::Nobody);
    metrics.room_ended(Verdict::Done, Blame::Nobody);
    metrics.request(Outcome::Done);
    metrics.canary(Outcome::Done);
    metrics.migrated();
    metrics.first_token(Duration::from_millis(3));
    let page = lines(&metrics).await;
    for line in [
        "innkeeper_rooms{role=\"router\",phase=\"queued\"} 1",
        "innkeeper_rooms{role=\"router\",phase=\"transferring\"} 2",
        "innkeeper_pages{state=\"free\"} 5",
        "innkeeper_pages{state=\"quarantined\"} 3",
        "# TYPE innkeeper_pages_total gauge",
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
        "innkeeper_unleased_rooms 11",
        "innkeeper_fenced_total 12",
        "innkeeper_migrations_total 1",
        "innkeeper_avoided{party=\"link\"} 2",
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
