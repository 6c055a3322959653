//! The trees of a cluster in front of engines of others: real ledgers, actors and drivers, real HTTP, engines that stand in. No wrong
//! token reaches anybody, whatever becomes of an engine; what was theirs is back.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

#[path = "../direct/mod.rs"]
mod direct;
mod pair;

use std::time::Duration;

use direct::{ASK, LIMIT, answer};
use innkeeper_actors::ports::RouterPort;
use innkeeper_engine::Tickets;
use innkeeper_remote::standin::oracle;
use innkeeper_room::Reason;
use innkeeper_room::ledger::router::{AbortAnswer, Outcome};
use pair::{Pair, TTL, prompt, until, work};

fn reason(outcome: &Outcome) -> Reason {
    match outcome {
        Outcome::Failed { reason, .. } => *reason,
        Outcome::Done => panic!("it was answered"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_requests_get_what_one_engine_would_answer_and_leave_nothing() {
    let pair = Pair::start(|_| {}).await;
    let asked: Vec<_> = (1..=50u32)
        .map(|number| (number, 1 + number * 37 % 400, 1 + number % 9))
        .collect();
    for few in asked.chunks(10) {
        let streams: Vec<_> = few
            .iter()
            .map(|(number, tokens, most)| pair.submit(&format!("request {number}"), work(*number, *tokens), *most))
            .collect();
        for ((number, tokens, most), stream) in few.iter().zip(streams) {
            let right = oracle(&prompt(*number, *tokens), *most, &[]);
            assert_eq!(answer(stream).await, (right, Outcome::Done, 1), "request {number}");
        }
    }
    pair.clean().await;
    let read: u64 = asked.iter().map(|(_, tokens, _)| u64::from(*tokens)).sum();
    let external = pair.decode_engine.watcher().last().unwrap().external_tokens;
    assert!(
        external > 0 && external <= read,
        "{external} of {read} prompt tokens came from the other engine"
    );
}

/// In each phase, by closing the stream and by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_takes_its_room_with_it_in_every_phase() {
    for phase in ["prefill", "pull", "decode"] {
        let pair = Pair::start(|config| {
            config.chunk_time = Duration::from_millis(40);
            config.step_time = Duration::from_millis(20);
            config.pull_time = Duration::from_millis(300);
        })
        .await;
        let stream = pair.submit("leaving", work(1, 600), 400);
        until(phase, async || match phase {
            "prefill" => pair.prefill_standin.held() > 0,
            "pull" => pair.decode_standin.requests() > 0 && pair.prefill_standin.kept() > 0,
            _ => pair.decode_engine_tokens() > 2,
        })
        .await;
        if phase == "pull" {
            drop(stream);
        } else {
            let aborted = pair.direct.router.abort("leaving".to_owned(), "test".to_owned()).await;
            assert_eq!(aborted, Some(AbortAnswer::Aborted), "{phase}");
            assert_eq!(reason(&answer(stream).await.1), Reason::Aborted, "{phase}");
        }
        pair.clean().await;
    }
}

/// The first contact of the pair takes most of the lease, so nobody can say whether what was read was still there. The second
/// attempt reads in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_may_have_come_too_late_is_not_believed() {
    let pair = Pair::start(|config| {
        config.lease = Duration::from_secs(1);
        config.wire_up = Duration::from_millis(850);
    })
    .await;
    let (ids, outcome, attempts) = answer(pair.submit("late", work(1, 64), 6)).await;
    assert_eq!((outcome, attempts), (Outcome::Done, 2));
    assert_eq!(ids, oracle(&prompt(1, 64), 6, &[]));
    pair.clean().await;
}

/// The read ends late, and other requests had prefill's pages meanwhile: what came would be wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_bytes_reach_nobody() {
    let pair = Pair::start(|config| {
        config.lease = Duration::from_millis(600);
        config.pull_time = Duration::from_millis(900);
    })
    .await;
    let stream = pair.submit("foreign", work(1, 64), 6);
    until("the prompt is kept", async || pair.prefill_standin.kept() > 0).await;
    until("its lease ends", async || pair.prefill_standin.kept() == 0).await;
    pair.prefill_standin.reuse_free_pages();
    let (ids, outcome, _) = answer(stream).await;
    assert_eq!(ids, Vec::<u32>::new(), "not one token of it");
    let reason = reason(&outcome);
    assert!(
        matches!(reason, Reason::KvUnproven | Reason::TransferStalled),
        "{reason}: the read's own deadline may come first"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_whose_core_stands_still_is_found_whoever_waits_for_it() {
    for (which, phase) in [("prefill", "prefill"), ("decode", "pull"), ("decode", "decode")] {
        let pair = Pair::start(|config| {
            config.chunk_time = Duration::from_millis(20);
            config.step_time = Duration::from_millis(20);
            config.pull_time = Duration::from_millis(200);
        })
        .await;
        let stream = pair.submit("frozen", work(1, 600), 400);
        until(phase, async || match phase {
            "prefill" => pair.prefill_standin.held() > 0,
            "pull" => pair.decode_standin.requests() > 0,
            _ => pair.decode_engine_tokens() > 2,
        })
        .await;
        let standin = if which == "prefill" {
            &pair.prefill_standin
        } else {
            &pair.decode_standin
        };
        let began = tokio::time::Instant::now();
        standin.freeze(true);
        let reason = reason(&answer(stream).await.1);
        let took = began.elapsed();
        assert!(
            matches!(
                reason,
                Reason::EngineWedged
                    | Reason::EngineStalled
                    | Reason::PrefillStalled
                    | Reason::DecodeStalled
                    | Reason::TransferStalled
            ),
            "{which} in {phase}: {reason}"
        );
        // Two attempts, each within a TTL and a second; and room for a slow machine.
        assert!(
            took < 2 * (TTL + Duration::from_secs(1)) + Duration::from_secs(4),
            "{which} in {phase}: {took:?}"
        );
        standin.freeze(false);
        pair.clean().await;
    }
}

/// Pages of a read that was given up stay with decode's engine until prefill's runs: their places stay in quarantine so long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_engine_keeps_stays_in_quarantine_until_it_gives_it_back() {
    let pair = Pair::start(|config| config.pull_time = Duration::from_millis(400)).await;
    let stream = pair.submit("stopped", work(1, 600), 8);
    until("it reads", async || pair.decode_standin.requests() > 0).await;
    pair.prefill_standin.stop();
    reason(&answer(stream).await.1);
    until("the client's answer did not wait for pages", async || {
        pair.direct.decode.gauges(ASK).await.unwrap().0.pages.quarantined > 0 || pair.decode_standin.held() == 0
    })
    .await;
    if pair.decode_standin.held() > 0 {
        tokio::time::sleep(2 * TTL).await;
        let (gauges, _) = pair.direct.decode.gauges(ASK).await.unwrap();
        let seen = pair.decode_engine.seen();
        let held = pair.decode_standin.held();
        assert!(
            gauges.pages.quarantined > 0,
            "the engine has {held} pages still, and nobody may count on them: {gauges:?} {seen:?}"
        );
    }
    pair.prefill_standin.cont();
    pair.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_dies_costs_its_rooms_and_no_more() {
    for which in ["prefill", "decode"] {
        let pair = Pair::start(|config| config.step_time = Duration::from_millis(20)).await;
        let stream = pair.submit("dying", work(1, 600), 400);
        until("it speaks", async || pair.decode_engine_tokens() > 2).await;
        let standin = if which == "prefill" {
            &pair.prefill_standin
        } else {
            &pair.decode_standin
        };
        standin.kill();
        if which == "decode" {
            let reason = reason(&answer(stream).await.1);
            assert!(
                matches!(
                    reason,
                    Reason::EngineError | Reason::EngineRestarted | Reason::EngineWedged
                ),
                "{reason}"
            );
            standin.restart().await.unwrap();
        } else {
            // Its prompt was read: nobody needs it any more.
            let (ids, outcome, attempts) = answer(stream).await;
            assert_eq!((ids.len(), outcome, attempts), (400, Outcome::Done, 1));
            standin.restart().await.unwrap();
        }
        pair.clean().await;
        let right = oracle(&prompt(2, 64), 5, &[]);
        let again = async {
            loop {
                let (ids, outcome, _) = answer(pair.submit("again", work(2, 64), 5)).await;
                if outcome == Outcome::Done {
                    return ids;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        assert_eq!(tokio::time::timeout(LIMIT, again).await.unwrap(), right, "{which}");
        pair.clean().await;
    }
}

/// What cannot be computed is refused with words, and costs the engine nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_ids_and_lengths_are_the_engines_to_keep() {
    let pair = Pair::start(|_| {}).await;
    let whole = oracle(&prompt(3, 40), 30, &[]);
    let stop = whole[11];
    let mut asked = work(3, 40);
    asked.stop_ids = [stop].into();
    let (ids, outcome, _) = answer(pair.submit("stop", asked, 30)).await;
    assert_eq!((ids, outcome), (oracle(&prompt(3, 40), 30, &[stop]), Outcome::Done));
    pair.clean().await;
}
