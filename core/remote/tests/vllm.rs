//! The client of vLLM against the stand-in: what real pairs were seen to do, one test each.

mod kit;

use std::time::Duration;

use innkeeper_remote::standin::{Bugs, Config, Fabric, Kind, Standin, oracle};
use innkeeper_remote::vllm::{Answer, Vllm};
use innkeeper_remote::{Failure, RemoteError, Times};
use kit::{LONG, SHORT, TTL, leg, until};

struct Pair {
    prefill: Standin,
    decode: Standin,
    p: Vllm,
    d: Vllm,
}

async fn pair_of(prefill: Config, decode: Config) -> Pair {
    let fabric = Fabric::default();
    let prefill = Standin::start(prefill, fabric.clone()).await.expect("a port");
    let decode = Standin::start(decode, fabric).await.expect("a port");
    let client = |standin: &Standin| {
        let target = standin.url().parse().expect("an address");
        Vllm::new(target, "tiny".to_owned(), Times::from_ttl(TTL))
    };
    let (p, d) = (client(&prefill), client(&decode));
    Pair { prefill, decode, p, d }
}

async fn pair() -> Pair {
    pair_of(Config::new(Kind::Vllm), Config::new(Kind::Vllm)).await
}

async fn all(mut answer: Answer) -> Result<Vec<u32>, RemoteError> {
    let mut ids = vec![];
    while let Some(piece) = answer.next(LONG).await? {
        ids.extend(piece.tokens.iter().map(|token| token.id));
    }
    Ok(ids)
}

impl Pair {
    /// One request through both legs.
    async fn both(&self, number: u64, tokens: usize, most: u32) -> Result<Vec<u32>, RemoteError> {
        let leg = leg(number, tokens, most);
        let computed = self.p.prefill(&leg.prompt, LONG).await?;
        all(self.d.decode(&leg, Some(&computed.ticket), LONG).await?).await
    }
}

#[tokio::test]
async fn an_engine_says_what_it_is() {
    let pair = pair().await;
    let target = pair.prefill.url().parse().expect("an address");
    let identity = Vllm::identity(&target, &Times::from_ttl(TTL)).await.expect("an answer");
    assert_eq!((identity.model.as_str(), identity.context), ("tiny", Some(8192)));
    assert_eq!(identity.pool.map(|pool| (pool.pages, pool.page_tokens)), Some((96, 16)));
    assert!(identity.started.is_some() && identity.version.starts_with("0.32"));
    let first = identity.started;
    pair.prefill.restart().await.expect("the port");
    let second = Vllm::identity(&target, &Times::from_ttl(TTL)).await.expect("an answer");
    assert_ne!(first, second.started, "another life");
}

#[tokio::test]
async fn both_legs_give_what_one_engine_gives_and_the_kv_was_read() {
    let pair = pair().await;
    let mut external = 0;
    for (number, (tokens, most)) in (1u64..).zip([(1, 1), (40, 12), (300, 3), (16, 5)]) {
        let asked = leg(number, tokens, most);
        let ids = pair.both(number, tokens, most).await.expect("an answer");
        assert_eq!(ids, oracle(&asked.prompt.ids, most, &[]));
        until("the read is counted", async || {
            let look = pair.d.look().await.expect("a look");
            look.external_tokens == external + tokens as u64
        })
        .await;
        external += tokens as u64;
    }
    until("all pages are back", async || {
        pair.prefill.held() == 0 && pair.decode.held() == 0
    })
    .await;
}

#[tokio::test]
async fn stop_ids_end_an_answer_and_are_its_last() {
    let pair = pair().await;
    let mut asked = leg(1, 20, 30);
    let whole = oracle(&asked.prompt.ids, 30, &[]);
    asked.stop_ids = [whole[4]].into();
    let computed = pair.p.prefill(&asked.prompt, LONG).await.expect("a ticket");
    let answer = pair
        .d
        .decode(&asked, Some(&computed.ticket), LONG)
        .await
        .expect("a head");
    assert_eq!(
        all(answer).await.expect("an answer"),
        oracle(&asked.prompt.ids, 30, &asked.stop_ids)
    );
}

#[tokio::test]
async fn greedy_answers_are_carried_on_and_seeded_ones_are_not() {
    let pair = pair().await;
    let mut asked = leg(1, 30, 16);
    for (seeded, same) in [(false, true), (true, false)] {
        asked.sampling.temperature = if seeded { 1.0 } else { 0.0 };
        asked.sampling.seed = 5;
        let whole = all(pair.d.decode(&asked, None, LONG).await.expect("a head"))
            .await
            .expect("whole");
        let mut rest = asked.clone();
        rest.prompt.ids = asked.prompt.ids.iter().chain(&whole[..8]).copied().collect();
        rest.max_tokens = 8;
        let rest = all(pair.d.decode(&rest, None, LONG).await.expect("a head"))
            .await
            .expect("the rest");
        assert_eq!(rest == whole[8..], same, "seeded: {seeded}");
    }
}

#[tokio::test]
async fn leaving_prefill_and_decode_gives_pages_back() {
    let slow = Config {
        chunk_time: Duration::from_millis(300),
        step_time: Duration::from_millis(50),
        ..Config::new(Kind::Vllm)
    };
    let pair = pair_of(slow.clone(), slow).await;
    let asked = leg(1, 600, 500);
    let left = tokio::time::timeout(SHORT, pair.p.prefill(&asked.prompt, LONG)).await;
    assert!(left.is_err(), "a prompt of ten chunks is not computed yet");
    until("prefill's pages are back", async || pair.prefill.held() == 0).await;
    let short = leg(2, 40, 500);
    let mut answer = pair.d.decode(&short, None, LONG).await.expect("a head");
    answer.next(LONG).await.expect("a token");
    assert!(pair.decode.held() > 0);
    drop(answer);
    until("decode's pages are back", async || pair.decode.held() == 0).await;
}

#[tokio::test]
async fn an_abort_by_id_ends_the_stream_and_an_unknown_one_is_answered_alike() {
    let pair = pair().await;
    let asked = leg(1, 40, 1000);
    let mut answer = pair.d.decode(&asked, None, LONG).await.expect("a head");
    answer.next(LONG).await.expect("a token");
    let id = innkeeper_remote::request_id(asked.prompt.room, asked.prompt.attempt);
    assert!(pair.d.abort(&[&id]).await.expect("an answer"));
    let error = all(answer).await.expect_err("aborted");
    assert!(
        matches!(&error, RemoteError::Ended { reason, .. } if reason == "abort"),
        "{error}"
    );
    assert!(
        pair.d.abort(&["never-heard-of"]).await.expect("an answer"),
        "200, and nothing was there"
    );
    assert!(pair.d.abort(&[]).await.expect("nothing is asked"));
}

#[tokio::test]
async fn a_ticket_is_given_back_at_once_on_a_warm_pair_and_after_a_canary_on_a_cold_one() {
    let pair = pair().await;
    let computed = pair.p.prefill(&leg(1, 40, 4).prompt, LONG).await.expect("a ticket");
    assert_eq!(pair.prefill.kept(), 1);
    pair.d.release(&computed.ticket).await.expect("a refusal");
    tokio::time::sleep(SHORT).await;
    assert_eq!(pair.prefill.kept(), 1, "the notice waits for a step that nobody makes");
    pair.d.canary().await.expect("a token");
    until("the cold ticket is back", async || pair.prefill.kept() == 0).await;
    let computed = pair.p.prefill(&leg(2, 40, 4).prompt, LONG).await.expect("a ticket");
    pair.d.release(&computed.ticket).await.expect("a refusal");
    until("the warm ticket is back", async || pair.prefill.held() == 0).await;
    // Twice is once.
    pair.d.release(&computed.ticket).await.expect("a refusal");
}

#[tokio::test]
async fn a_lost_notice_and_a_closed_leg_leave_only_the_lease() {
    let lost = Config {
        bugs: Bugs {
            notice_lost: true,
            ..Bugs::as_measured()
        },
        ..Config::new(Kind::Vllm)
    };
    let leased = Config {
        lease: Duration::from_millis(700),
        ..Config::new(Kind::Vllm)
    };
    let pair = pair_of(leased, lost).await;
    let asked = leg(1, 40, 4);
    let computed = pair.p.prefill(&asked.prompt, LONG).await.expect("a ticket");
    pair.d.release(&computed.ticket).await.expect("a refusal");
    pair.d.canary().await.expect("a token");
    let id = innkeeper_remote::request_id(asked.prompt.room, asked.prompt.attempt);
    pair.p.abort(&[&id]).await.expect("an answer");
    assert_eq!(pair.prefill.kept(), 1, "neither helps");
    until("the lease ends", async || pair.prefill.held() == 0).await;
    pair.p.canary().await.expect("a step, so that it is published");
    assert_eq!(pair.p.look().await.expect("a look").expired, 1);
}

#[tokio::test]
async fn a_late_read_answers_200_with_wrong_tokens() {
    let pair = pair().await;
    let asked = leg(1, 64, 8);
    let right = oracle(&asked.prompt.ids, 8, &[]);
    for reused in [false, true] {
        let computed = pair.p.prefill(&asked.prompt, LONG).await.expect("a ticket");
        pair.prefill.expire();
        until("the lease ends", async || pair.prefill.kept() == 0).await;
        if reused {
            pair.prefill.reuse_free_pages();
        }
        let answer = pair
            .d
            .decode(&asked, Some(&computed.ticket), LONG)
            .await
            .expect("a head");
        let ids = all(answer).await.expect("no error at all");
        assert_eq!(ids == right, !reused, "this is what the lease proof is for");
    }
}

#[tokio::test]
async fn a_good_engine_says_that_a_read_is_late() {
    let good = Config {
        bugs: Bugs::none(),
        ..Config::new(Kind::Vllm)
    };
    let pair = pair_of(good.clone(), good).await;
    let asked = leg(1, 64, 8);
    let computed = pair.p.prefill(&asked.prompt, LONG).await.expect("a ticket");
    pair.prefill.expire();
    until("the lease ends", async || pair.prefill.kept() == 0).await;
    let answer = pair
        .d
        .decode(&asked, Some(&computed.ticket), LONG)
        .await
        .expect("a head");
    let error = all(answer).await.expect_err("late");
    assert!(matches!(error, RemoteError::Said { .. }), "{error}");
    assert_eq!(error.failure(), Failure::Error);
}

#[tokio::test]
async fn a_stopped_prefill_pins_decodes_pages_until_it_runs_or_dies() {
    for dies in [false, true] {
        let pair = pair().await;
        pair.both(1, 40, 2).await.expect("a warm pair");
        let asked = leg(2, 40, 8);
        let computed = pair.p.prefill(&asked.prompt, LONG).await.expect("a ticket");
        pair.prefill.stop();
        let mut answer = pair
            .d
            .decode(&asked, Some(&computed.ticket), LONG)
            .await
            .expect("a head proves nothing");
        let silence = answer.next(SHORT).await.expect_err("no token");
        assert_eq!(silence.failure(), Failure::Silent);
        // Who is it? Decode's engine answers its canary, prefill's does not.
        pair.d.canary().await.expect("decode moves");
        let error = pair.p.canary().await.expect_err("prefill does not");
        assert_eq!(error.failure(), Failure::Silent);
        drop(answer);
        tokio::time::sleep(SHORT).await;
        assert!(pair.decode.held() > 0, "closing the leg gives nothing back");
        if dies {
            pair.prefill.kill();
        } else {
            pair.prefill.cont();
        }
        until("decode's pages are back", async || pair.decode.held() == 0).await;
    }
}

#[tokio::test]
async fn a_killed_prefill_is_an_error_of_decodes_stream() {
    let slow = Config {
        pull_time: Duration::from_millis(300),
        ..Config::new(Kind::Vllm)
    };
    let pair = pair_of(Config::new(Kind::Vllm), slow).await;
    pair.both(1, 40, 2).await.expect("a warm pair");
    let asked = leg(2, 40, 8);
    let computed = pair.p.prefill(&asked.prompt, LONG).await.expect("a ticket");
    let answer = pair
        .d
        .decode(&asked, Some(&computed.ticket), LONG)
        .await
        .expect("a head");
    pair.prefill.kill();
    let error = all(answer).await.expect_err("no KV");
    assert!(matches!(error, RemoteError::Said { .. }), "{error}");
    let error = pair.p.canary().await.expect_err("nobody");
    assert_eq!(error.failure(), Failure::Gone);
    pair.prefill.restart().await.expect("the port");
    pair.p.canary().await.expect("a new life");
    let error = pair
        .d
        .decode(&asked, Some(&computed.ticket), LONG)
        .await
        .expect("a head");
    assert!(all(error).await.is_err(), "a ticket of a former life");
}

#[tokio::test]
async fn health_is_fine_while_the_core_stands_and_only_a_canary_tells() {
    let pair = pair().await;
    let asked = leg(1, 40, 1000);
    let mut answer = pair.d.decode(&asked, None, LONG).await.expect("a head");
    answer.next(LONG).await.expect("a token");
    pair.decode.freeze(true);
    until("the stream is silent", async || answer.next(SHORT).await.is_err()).await;
    pair.d.health().await.expect("it lies");
    let before = pair.d.look().await.expect("a look");
    let error = pair.d.canary().await.expect_err("no step");
    assert_eq!(error.failure(), Failure::Silent);
    let after = pair.d.look().await.expect("a look");
    assert!(!after.has_moved(&before, true), "{before:?} {after:?}");
    pair.decode.freeze(false);
    answer.next(LONG).await.expect("it goes on as if nothing had been");
    let moved = pair.d.look().await.expect("a look");
    assert!(moved.has_moved(&before, true));
}

#[tokio::test]
async fn a_good_engine_says_that_it_is_unhealthy() {
    let good = Config {
        bugs: Bugs::none(),
        ..Config::new(Kind::Vllm)
    };
    let pair = pair_of(good.clone(), good).await;
    pair.decode.freeze(true);
    let error = pair.d.health().await.expect_err("503");
    assert_eq!(error.failure(), Failure::Gone);
}

#[tokio::test]
async fn while_kv_is_read_nothing_moves_and_an_idle_engine_shows_old_values() {
    let slow = Config {
        pull_time: Duration::from_secs(1),
        ..Config::new(Kind::Vllm)
    };
    let pair = pair_of(Config::new(Kind::Vllm), slow).await;
    let asked = leg(1, 40, 2);
    let computed = pair.p.prefill(&asked.prompt, LONG).await.expect("a ticket");
    let answer = pair
        .d
        .decode(&asked, Some(&computed.ticket), LONG)
        .await
        .expect("a head");
    until("the read is seen", async || {
        pair.d.look().await.expect("a look").load.deferred == 1
    })
    .await;
    let before = pair.d.look().await.expect("a look");
    tokio::time::sleep(SHORT).await;
    assert!(!pair.d.look().await.expect("a look").has_moved(&before, false));
    all(answer).await.expect("an answer");
}

#[tokio::test]
async fn an_engine_that_computes_again_is_seen_by_its_counter() {
    let again = Config {
        bugs: Bugs {
            recomputes: true,
            ..Bugs::as_measured()
        },
        ..Config::new(Kind::Vllm)
    };
    let pair = pair_of(Config::new(Kind::Vllm), again).await;
    let asked = leg(1, 40, 6);
    assert_eq!(
        pair.both(1, 40, 6).await.expect("right"),
        oracle(&asked.prompt.ids, 6, &[])
    );
    assert_eq!(
        pair.d.look().await.expect("a look").external_tokens,
        0,
        "and yet no KV was read"
    );
}

#[tokio::test]
async fn what_the_engine_refuses_is_said() {
    let pair = pair().await;
    let mut asked = leg(1, 3, 4);
    asked.prompt.ids = [5000].into();
    let error = pair.p.prefill(&asked.prompt, LONG).await.expect_err("refused");
    assert!(matches!(error, RemoteError::Status { status: 400, .. }), "{error}");
    let error = pair.d.decode(&asked, None, LONG).await.expect_err("refused");
    assert!(matches!(error, RemoteError::Status { status: 400, .. }), "{error}");
    let unknown = Vllm::new(pair.d.target().clone(), "other".to_owned(), Times::from_ttl(TTL));
    assert!(unknown.canary().await.is_err());
}
