//! The driver against the stand-in: no wrong token passes, silence is found in a TTL, tickets come back.

mod kit;
#[path = "kit/watched.rs"]
mod watched;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use innkeeper_remote::driver::{Care, Condition, Keeper, Landed, Pinned, VllmDriver};
use innkeeper_remote::fence::{Accused, Budget, Cause};
use innkeeper_remote::hook::Hook;
use innkeeper_remote::http::HttpError;
use innkeeper_remote::lease::Lease;
use innkeeper_remote::standin::{Config, Fabric, Kind, Standin, oracle};
use innkeeper_remote::vllm::Vllm;
use innkeeper_remote::{Failure, RemoteError, Times};
use innkeeper_room::Millis;
use kit::{LONG, SHORT, TTL, leg, until};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use watched::{PERIOD, watched};

struct Side {
    standin: Standin,
    driver: VllmDriver,
    _watching: DropGuard,
}

async fn side(config: Config, fabric: &Fabric, lease: Lease) -> Side {
    let standin = Standin::start(config, fabric.clone()).await.expect("a port");
    let target = standin.url().parse().expect("an address");
    let engine = Vllm::new(target, "tiny".to_owned(), Times::from_ttl(TTL));
    let (watcher, watching) = watched(engine);
    Side {
        standin,
        driver: VllmDriver::new(watcher, lease),
        _watching: watching,
    }
}

async fn pair(lease: Duration, change: impl Fn(&mut Config)) -> (Side, Side) {
    let fabric = Fabric::default();
    let mut config = Config::new(Kind::Vllm);
    config.lease = lease;
    change(&mut config);
    let told = Lease(Millis(u64::try_from(lease.as_millis()).expect("short")));
    (
        side(config.clone(), &fabric, told).await,
        side(config, &fabric, told).await,
    )
}

async fn rest(mut landed: Landed) -> Vec<u32> {
    let mut ids: Vec<_> = landed.first.tokens.iter().map(|token| token.id).collect();
    while let Some(piece) = landed.next(LONG).await.expect("tokens") {
        ids.extend(piece.tokens.iter().map(|token| token.id));
    }
    ids
}

async fn nobody() -> Option<Millis> {
    None
}

#[tokio::test]
async fn fifty_requests_give_the_right_tokens_and_leave_nothing() {
    let (p, d) = pair(LONG, |_| {}).await;
    for number in 1..=50u64 {
        let tokens = 1 + (number as usize * 37) % 400;
        let asked = leg(number, tokens, 1 + (number % 9) as u32);
        let ready = d.driver.ready();
        let kept = p.driver.prefill(&asked.prompt, LONG).await.expect("a ticket");
        let landed = d
            .driver
            .pull(&asked, &kept.ticket, &ready, LONG, nobody)
            .await
            .expect("landed");
        assert_eq!(rest(landed).await, oracle(&asked.prompt.ids, asked.max_tokens, &[]));
    }
    until("all pages are back", async || {
        p.standin.held() == 0 && d.standin.held() == 0
    })
    .await;
    until("nothing is owed", async || {
        p.driver.watcher().status().in_hand.is_none() && d.driver.watcher().status().in_hand.is_none()
    })
    .await;
}

/// Held back past the lease, and prefill's pages used by others: the engine answers 200 with wrong tokens. None passes.
#[tokio::test]
async fn a_late_read_is_unproven_and_the_next_attempt_is_right() {
    let (p, d) = pair(LONG, |_| {}).await;
    let asked = leg(1, 64, 6);
    let ready = d.driver.ready();
    let kept = p.driver.prefill(&asked.prompt, LONG).await.expect("a ticket");
    p.standin.expire();
    until("the lease ends", async || p.standin.kept() == 0).await;
    p.standin.reuse_free_pages();
    // Decode's clock says that it is fine, because this lease was ended by hand: what the engine answers is wrong indeed.
    let landed = d
        .driver
        .pull(&asked, &kept.ticket, &ready, LONG, nobody)
        .await
        .expect("landed");
    assert_ne!(rest(landed).await, oracle(&asked.prompt.ids, 6, &[]));
    drop(kept);

    let (p, d) = pair(Duration::from_millis(1000), |config| {
        config.pull_time = Duration::from_millis(600)
    })
    .await;
    let ready = d.driver.ready();
    let kept = p.driver.prefill(&asked.prompt, LONG).await.expect("a ticket");
    tokio::time::sleep(Duration::from_millis(400)).await;
    // The read begins in time and ends after the lease: prefill's worker is asked, and cannot vouch for it either.
    let ask = || std::future::ready(Some(kept.lease_age()));
    let error = d
        .driver
        .pull(&asked, &kept.ticket, &ready, LONG, ask)
        .await
        .map(drop)
        .expect_err("late");
    assert!(matches!(error, RemoteError::Unproven { .. }), "{error}");
    assert_eq!(error.failure(), Failure::Unproven);
    // Too late to begin: nothing is asked of the engine at all.
    let before = d.standin.requests();
    let error = d
        .driver
        .pull(&asked, &kept.ticket, &ready, LONG, nobody)
        .await
        .map(drop)
        .expect_err("late");
    assert!(matches!(error, RemoteError::Unproven { .. }), "{error}");
    assert!(d.standin.requests() <= before);
    until("decode's pages are back", async || d.standin.held() == 0).await;
}

/// Decode's own bound is too coarse for a long prompt; prefill's worker knows better.
#[tokio::test]
async fn prefill_vouches_for_a_read_after_a_long_prompt() {
    let (p, d) = pair(Duration::from_secs(6), |config| {
        config.chunk_time = Duration::from_millis(450);
        config.pull_time = Duration::from_millis(3700);
    })
    .await;
    let asked = leg(1, 200, 2);
    // Prefill's worker has seen its engine idle: from then on it knows every request that the engine finishes.
    until("prefill was looked at", async || p.driver.watcher().last().is_some()).await;
    tokio::time::sleep(4 * PERIOD).await;
    let began = Instant::now();
    let ready = d.driver.ready();
    let kept = p.driver.prefill(&asked.prompt, LONG).await.expect("a ticket");
    let asks = Cell::new(0);
    let ask = || {
        asks.set(asks.get() + 1);
        std::future::ready(Some(kept.lease_age()))
    };
    match d.driver.pull(&asked, &kept.ticket, &ready, LONG, ask).await {
        Ok(landed) => {
            assert_eq!(rest(landed).await, oracle(&asked.prompt.ids, 2, &[]));
            assert!(asks.get() > 0, "decode alone could not tell");
        }
        // On a machine so loaded that even this is late, the only right answer is to refuse.
        Err(error) => assert!(began.elapsed() > Duration::from_secs(3), "{error}"),
    }
}

#[tokio::test]
async fn a_frozen_engine_is_a_ttl_silent_and_one_that_only_waits_is_not() {
    let (p, d) = pair(LONG, |config| config.pull_time = 2 * TTL).await;
    let asked = leg(1, 40, 4);
    let ready = d.driver.ready();
    let kept = p.driver.prefill(&asked.prompt, LONG).await.expect("a ticket");
    let pulling = async { d.driver.pull(&asked, &kept.ticket, &ready, LONG, nobody).await };
    let mut worst = Millis(0);
    let watching = async {
        loop {
            for side in [&p, &d] {
                worst = worst.max(side.driver.watcher().status().in_hand.unwrap_or_default());
            }
            tokio::time::sleep(PERIOD).await;
        }
    };
    // Nothing moves in either engine while KV is read, and both owe: their canaries keep them well.
    tokio::select! {
        landed = pulling => assert_eq!(rest(landed.expect("landed")).await, oracle(&asked.prompt.ids, 4, &[])),
        () = watching => {}
    }
    assert!(worst < Millis(2000), "{worst:?}");
    drop(kept);

    let kept = p.driver.prefill(&leg(2, 40, 4).prompt, LONG).await.expect("a ticket");
    p.standin.freeze(true);
    let began = Instant::now();
    until("silent for a TTL", async || {
        p.driver
            .watcher()
            .status()
            .in_hand
            .is_some_and(|age| age >= Millis(2000))
    })
    .await;
    assert!(began.elapsed() < TTL + TTL / 2, "{:?}", began.elapsed());
    assert!(
        d.driver.watcher().status().in_hand.is_none(),
        "the other one owes nothing"
    );
    p.standin.freeze(false);
    until("its canary is back", async || {
        p.driver.watcher().status().in_hand.is_none_or(|age| age < Millis(1000))
    })
    .await;
    drop(kept);
}

#[tokio::test]
async fn another_process_is_seen_and_owes_nothing() {
    let (p, _d) = pair(LONG, |_| {}).await;
    let mut lives = p.driver.watcher().lives();
    let _kept = p.driver.prefill(&leg(1, 40, 4).prompt, LONG).await.expect("a ticket");
    until("it was looked at", async || p.driver.watcher().last().is_some()).await;
    p.standin.restart().await.expect("the port");
    tokio::time::timeout(LONG, lives.changed())
        .await
        .expect("in time")
        .expect("the watcher lives");
    assert_eq!(p.driver.watcher().status().in_hand, None);
}

#[tokio::test]
async fn tickets_come_back_on_cold_and_warm_pairs() {
    let (p, d) = pair(LONG, |_| {}).await;
    for number in 1..=3 {
        let asked = leg(number, 40, 4);
        let kept = p.driver.prefill(&asked.prompt, LONG).await.expect("a ticket");
        assert_eq!(d.driver.is_warm(kept.ticket.engine_id()), number == 3);
        d.driver.release(&kept.ticket).await.expect("given back");
        until("the ticket is back", async || p.standin.held() == 0).await;
        if number == 2 {
            let ready = d.driver.ready();
            let kept = p.driver.prefill(&asked.prompt, LONG).await.expect("a ticket");
            rest(
                d.driver
                    .pull(&asked, &kept.ticket, &ready, LONG, nobody)
                    .await
                    .expect("landed"),
            )
            .await;
        }
    }
}

#[tokio::test]
async fn a_read_has_a_deadline_and_leaves_no_request() {
    let (p, d) = pair(LONG, |_| {}).await;
    let asked = leg(1, 40, 4);
    let ready = d.driver.ready();
    let kept = p.driver.prefill(&asked.prompt, LONG).await.expect("a ticket");
    p.standin.stop();
    let error = d
        .driver
        .pull(&asked, &kept.ticket, &ready, SHORT, nobody)
        .await
        .map(drop)
        .expect_err("no token");
    assert!(matches!(error, RemoteError::Http(HttpError::Silent { .. })), "{error}");
    p.standin.cont();
    until("decode's pages are back", async || d.standin.held() == 0).await;
}

fn care(hook: Hook, command: &[&str], url: String) -> Care {
    Care {
        hook,
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        url,
        ttl: Millis(u64::try_from(TTL.as_millis()).expect("short")),
        budget: Budget::default(),
        limit: LONG,
    }
}

struct Kept {
    condition: watch::Receiver<Condition>,
    pinned: watch::Sender<Pinned>,
    _keeping: DropGuard,
}

fn keep(side: &Side, hook: Hook, command: &[&str]) -> Kept {
    let (pinned, told) = watch::channel(None);
    let care = care(hook, command, side.standin.url());
    let keeper = Keeper::new(care, Arc::clone(side.driver.watcher()), told);
    let condition = keeper.condition();
    let stop = CancellationToken::new();
    tokio::spawn(keeper.run(stop.clone()));
    Kept {
        condition,
        pinned,
        _keeping: stop.drop_guard(),
    }
}

async fn wait_for(kept: &mut Kept, what: &str, is: impl Fn(&Condition) -> bool) {
    let waiting = kept.condition.wait_for(is);
    let seen = tokio::time::timeout(LONG, waiting).await;
    assert!(seen.is_ok_and(|seen| seen.is_ok()), "never: {what}");
}

#[tokio::test]
async fn a_wedged_engine_is_restarted_by_its_hook_once_and_is_well_again() {
    let (p, _d) = pair(LONG, |_| {}).await;
    let mut kept = keep(&p, Hook::Exec("test -n \"$INNKEEPER_ENGINE_URL\"".to_owned()), &[]);
    let ticket = p.driver.prefill(&leg(1, 40, 4).prompt, LONG).await.expect("a ticket");
    p.standin.stop();
    let began = Instant::now();
    wait_for(&mut kept, "restarted", |condition| {
        condition.ending == Some(Cause::Wedged)
    })
    .await;
    assert!(began.elapsed() >= TTL, "not before it is wedged");
    assert!(began.elapsed() < 3 * TTL, "{:?}", began.elapsed());
    p.standin.restart().await.expect("the port");
    wait_for(&mut kept, "well again", |condition| condition.ending.is_none()).await;
    drop(ticket);
    tokio::time::sleep(SHORT).await;
    assert_eq!(kept.condition.borrow().restarts, 1);
}

#[tokio::test]
async fn without_a_hook_a_wedged_engine_is_given_up_until_somebody_comes() {
    let (p, _d) = pair(LONG, |_| {}).await;
    let mut kept = keep(&p, Hook::None, &[]);
    let ticket = p.driver.prefill(&leg(1, 40, 4).prompt, LONG).await.expect("a ticket");
    p.standin.freeze(true);
    wait_for(&mut kept, "given up", |condition| condition.given_up).await;
    assert_eq!(kept.condition.borrow().restarts, 0);
    drop(ticket);
    p.standin.restart().await.expect("the port");
    wait_for(&mut kept, "back", |condition| !condition.given_up).await;
}

#[tokio::test]
async fn pages_that_stay_out_are_a_reason_too() {
    let (_p, d) = pair(LONG, |_| {}).await;
    let mut kept = keep(&d, Hook::Probe, &[]);
    kept.pinned.send_replace(Some((d.driver.watcher().now(), Accused::Own)));
    let began = Instant::now();
    wait_for(&mut kept, "to be ended", |condition| {
        condition.ending == Some(Cause::Pinned)
    })
    .await;
    assert!(began.elapsed() >= 2 * TTL - PERIOD);
}

#[tokio::test]
async fn a_child_that_ends_is_started_again_and_ends_with_its_keeper() {
    let (p, _d) = pair(LONG, |_| {}).await;
    let folder = std::env::temp_dir().join(format!("innkeeper-remote-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let log = folder.join("starts");
    // The first life ends at once, the second stays.
    let script = format!(
        "echo $$ >> {0}; test $(wc -l < {0}) -gt 1 && exec sleep 600",
        log.display()
    );
    let kept = keep(&p, Hook::Child, &["sh", "-c", &script]);
    let starts = || std::fs::read_to_string(&log).unwrap_or_default();
    until("started twice", async || starts().lines().count() == 2).await;
    let second = starts().lines().last().expect("two").to_owned();
    let lives =
        |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    until("the second lives", async || lives(&second)).await;
    drop(kept);
    until("it ends with its keeper", async || !lives(&second)).await;
    std::fs::remove_dir_all(&folder).expect("the folder");
}
