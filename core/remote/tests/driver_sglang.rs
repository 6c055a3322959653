//! The driver of SGLang against the stand-in: both legs of a room end in every phase, whoever leaves or dies, and pages come back.

mod kit;
#[path = "kit/sglang_pair.rs"]
mod sglang_pair;
#[path = "kit/watched.rs"]
mod watched;

use std::time::{Duration, Instant};

use innkeeper_remote::driver::sglang::Counts;
use innkeeper_remote::http::HttpError;
use innkeeper_remote::standin::{Config, oracle};
use innkeeper_remote::{Failure, RemoteError, rid};
use innkeeper_room::Millis;
use kit::{LONG, SHORT, TTL, leg, until};
use sglang_pair::{Pair, rest};
use tokio::sync::oneshot;

/// A long prompt, computed slowly.
fn slow_prefill(config: &mut Config) {
    config.chunk_time = Duration::from_millis(300);
}

/// KV that is on its way for as long as anybody looks.
fn slow_transfer(config: &mut Config) {
    config.pull_time = LONG;
}

#[tokio::test]
async fn fifty_requests_give_the_right_tokens_and_leave_nothing() {
    let pair = Pair::start(|_| {}).await;
    for round in 0..10u64 {
        let rooms = (1..=5).map(async |nth| {
            let number = round * 5 + nth;
            let tokens = 1 + (number as usize * 37) % 200;
            let asked = leg(number, tokens, 1 + (number % 9) as u32);
            let (kept, landed) = pair.legs(&asked, LONG).await;
            kept.expect("computed").committed();
            let right = oracle(&asked.prompt.ids, asked.max_tokens, &[]);
            assert_eq!(rest(landed.expect("landed")).await, right, "room {number}");
        });
        let mut rooms = rooms.map(Box::pin).collect::<Vec<_>>().into_iter();
        let mut next = || rooms.next().expect("five");
        tokio::join!(next(), next(), next(), next(), next());
    }
    pair.is_clean().await;
    assert_eq!(pair.p.driver.counts(), Counts::default());
    assert_eq!(pair.d.driver.counts(), Counts::default());
}

/// The engine only counts what is computed: the rooms are told in the order in which it computes, and none too early.
#[tokio::test]
async fn rooms_are_kept_one_by_one_as_they_are_computed() {
    let pair = Pair::start(|config| {
        slow_prefill(config);
        slow_transfer(config);
    })
    .await;
    let (short, long) = (leg(1, 40, 4), leg(2, 300, 4));
    let places = (pair.place(&short), pair.place(&long));
    let pulling = async {
        tokio::join!(
            pair.d.driver.pull(&short, &places.0, 3 * LONG, || {}),
            pair.d.driver.pull(&long, &places.1, 3 * LONG, || {}),
        )
    };
    let keeping = async {
        let first = pair.p.driver.prefill(&short, &places.0, LONG).await.expect("computed");
        let second = pair.p.driver.prefill(&long, &places.1, LONG).await.expect("computed");
        let seen = pair.p.engine().look().await.expect("a look").load.inflight;
        drop((first, second));
        seen
    };
    tokio::select! {
        biased;
        seen = keeping => assert_eq!(seen, 2, "the first alone says nothing of the second"),
        _ = pulling => panic!("nothing is handed over here"),
    }
    pair.is_clean().await;
}

#[tokio::test]
async fn a_client_that_leaves_in_prefill_leaves_nothing() {
    let pair = Pair::start(slow_prefill).await;
    let asked = leg(1, 300, 4);
    let computing = until("it is computed", async || {
        pair.p.engine().look().await.is_ok_and(|look| look.load.running > 0)
    });
    tokio::select! {
        _ = pair.legs(&asked, LONG) => panic!("this takes longer"),
        () = computing => {}
    }
    assert!(pair.p.standin.held() > 0 && pair.d.standin.held() > 0);
    for side in [&pair.p, &pair.d] {
        let owed = side.driver.watcher().status().in_hand.is_some();
        assert!(owed, "until it has ended");
    }
    let left = Instant::now();
    pair.is_clean().await;
    assert!(left.elapsed() < TTL, "{:?}", left.elapsed());
    for side in [&pair.p, &pair.d] {
        let counts = side.driver.counts();
        assert_eq!((counts.aborted, counts.unended), (1, 0));
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_transfer_leaves_nothing() {
    let pair = Pair::start(slow_transfer).await;
    let asked = leg(1, 100, 4);
    let kept = pair.computed_and_left(&asked).await;
    // Decode's leg has been dropped. Prefill's is known to have ended when its abort says so.
    assert!(kept.abort().await);
    pair.is_clean().await;
}

#[tokio::test]
async fn a_client_that_leaves_in_decode_leaves_nothing() {
    let pair = Pair::start(|config| config.step_time = Duration::from_millis(20)).await;
    for number in 1..=2 {
        let asked = leg(number, 40, 1000);
        let (kept, landed) = pair.legs(&asked, LONG).await;
        kept.expect("computed").committed();
        let mut landed = landed.expect("landed");
        landed.next(LONG).await.expect("tokens").expect("more");
        let left = Instant::now();
        if number == 1 {
            assert!(landed.abort().await);
            assert_eq!(pair.d.standin.requests(), 0);
        } else {
            // A silence ends nothing: the engine goes on, and has to be told.
            until("it is silent", async || {
                landed.next(Duration::from_millis(1)).await.is_err()
            })
            .await;
            drop(landed);
        }
        pair.is_clean().await;
        assert!(left.elapsed() < TTL, "{:?}", left.elapsed());
    }
    assert_eq!(pair.p.driver.counts(), Counts::default(), "it had ended by itself");
    assert_eq!(pair.d.driver.counts().aborted, 2);
}

/// An abort that comes before its request is answered 200, and lost.
#[tokio::test]
async fn an_abort_that_overtakes_its_leg_ends_it_all_the_same() {
    let pair = Pair::start(|config| config.arrival = SHORT).await;
    // Of two rooms: what is not aborted waits for ever.
    let (here, there) = (leg(1, 40, 4), leg(2, 40, 4));
    let (place_here, place_there) = (pair.place(&here), pair.place(&there));
    let began = Instant::now();
    tokio::select! {
        biased;
        _ = pair.p.driver.prefill(&here, &place_here, LONG) => panic!("nobody meets it"),
        _ = pair.d.driver.pull(&there, &place_there, LONG, || {}) => panic!("nobody meets it"),
        () = tokio::time::sleep(SHORT / 10) => {}
    }
    assert_eq!(
        pair.p.standin.requests() + pair.d.standin.requests(),
        0,
        "not there yet"
    );
    pair.is_clean().await;
    for side in [&pair.p, &pair.d] {
        let counts = side.driver.counts();
        assert_eq!((counts.aborted, counts.unended), (1, 0));
    }
    assert!(began.elapsed() > SHORT, "both arrived");
    assert!(began.elapsed() < TTL + SHORT, "{:?}", began.elapsed());
}

/// The story that this project was founded on.
#[tokio::test]
async fn decode_stopped_after_prefill_has_computed_costs_prefill_nothing() {
    let pair = Pair::start(slow_transfer).await;
    let asked = leg(1, 100, 4);
    let place = pair.place(&asked);
    let (posted, told) = oneshot::channel();
    let pulling = pair
        .d
        .driver
        .pull(&asked, &place, TTL, || posted.send(()).expect("waited for"));
    let story = async {
        told.await.expect("posted");
        let kept = pair.p.driver.prefill(&asked, &place, LONG).await.expect("computed");
        pair.d.standin.stop();
        kept
    };
    let (landed, kept) = tokio::join!(pulling, story);
    let error = landed.map(drop).expect_err("no token");
    assert!(matches!(error, RemoteError::Http(HttpError::Silent { .. })), "{error}");
    assert_eq!(error.failure(), Failure::Silent);
    assert!(pair.p.standin.held() > 0, "it waits for a reader");
    // It owes, and canaries say that it is well.
    let age = pair.p.driver.watcher().status().in_hand.expect("owed");
    assert!(age < Millis(2000), "{age:?}");
    let left = Instant::now();
    drop(kept);
    until("prefill is clean", async || pair.p.is_clean()).await;
    assert!(left.elapsed() < TTL, "{:?}", left.elapsed());
    assert!(pair.d.standin.held() > 0 && pair.d.driver.counts().tasks == 1);
    pair.d.standin.cont();
    pair.is_clean().await;
}

#[tokio::test]
async fn prefill_that_dies_is_gone_and_decode_waits_no_longer_than_it_may() {
    let pair = Pair::start(slow_prefill).await;
    let asked = leg(1, 300, 4);
    let kills = async {
        until("it is computed", async || {
            pair.p.engine().look().await.is_ok_and(|look| look.load.running > 0)
        })
        .await;
        pair.p.standin.kill();
    };
    let ((kept, landed), ()) = tokio::join!(pair.legs(&asked, TTL), kills);
    assert_eq!(kept.map(drop).expect_err("dead").failure(), Failure::Gone);
    assert_eq!(landed.map(drop).expect_err("no KV").failure(), Failure::Silent);
    until("decode is clean", async || pair.d.is_clean()).await;
    assert_eq!(
        pair.p.driver.counts(),
        Counts::default(),
        "nothing is left to be aborted"
    );
}

#[tokio::test]
async fn both_sides_say_what_it_was_when_decode_dies() {
    let pair = Pair::start(slow_transfer).await;
    let asked = leg(1, 100, 4);
    let place = pair.place(&asked);
    let story = async {
        let mut kept = pair.p.driver.prefill(&asked, &place, LONG).await.expect("computed");
        pair.d.standin.kill();
        kept.ended().await
    };
    let (landed, ended) = tokio::join!(pair.d.driver.pull(&asked, &place, LONG, || {}), story);
    assert_eq!(landed.map(drop).expect_err("dead").failure(), Failure::Gone);
    let error = ended.expect_err("nobody took it");
    assert!(matches!(error, RemoteError::Status { status: 500, .. }), "{error}");
    assert_eq!(error.failure(), Failure::Error);
    until("prefill is clean", async || pair.p.is_clean()).await;

    let pair = Pair::start(|config| config.step_time = Duration::from_millis(20)).await;
    let asked = leg(2, 40, 1000);
    let (kept, landed) = pair.legs(&asked, LONG).await;
    let (mut kept, mut landed) = (kept.expect("computed"), landed.expect("landed"));
    assert!(kept.ended().await.expect("handed over").is_good());
    assert!(kept.ended().await.expect("asked again").is_good());
    pair.d.standin.kill();
    let error = loop {
        match landed.next(LONG).await {
            Ok(piece) => assert!(piece.is_some_and(|piece| piece.finish.is_none())),
            Err(error) => break error,
        }
    };
    assert_eq!(error.failure(), Failure::Gone);
    assert!(landed.next(LONG).await.is_err(), "what broke is not whole");
    drop(landed);
    assert_eq!(pair.d.driver.counts(), Counts::default());
}

#[tokio::test]
async fn what_an_engine_refuses_is_an_error_and_hurts_no_other_room() {
    let pair = Pair::start(|_| {}).await;
    let asked = leg(1, 40, 100);
    let other = pair.place(&leg(2, 40, 4));
    let wrong = pair.d.driver.pull(&asked, &other, LONG, || {}).await.map(drop);
    assert_eq!(wrong.expect_err("another room's").failure(), Failure::Error);
    let wrong = pair.p.driver.prefill(&asked, &other, LONG).await.map(drop);
    assert_eq!(wrong.expect_err("another room's").failure(), Failure::Error);
    assert!(pair.p.is_clean() && pair.d.is_clean(), "nothing was posted");

    // A living id is refused; that refusal aborts nothing, for the living one has the same id.
    let place = pair.place(&asked);
    let story = async {
        until("it waits", async || pair.d.standin.requests() == 1).await;
        let twice = pair.d.driver.pull(&asked, &place, LONG, || {}).await.map(drop);
        assert_eq!(twice.expect_err("it lives").failure(), Failure::Error);
        pair.p.driver.prefill(&asked, &place, LONG).await
    };
    let (landed, kept) = tokio::join!(pair.d.driver.pull(&asked, &place, LONG, || {}), story);
    kept.expect("computed").committed();
    assert_eq!(rest(landed.expect("landed")).await, oracle(&asked.prompt.ids, 100, &[]));

    // What somebody else aborts ends with an error in the middle of its stream.
    let asked = leg(3, 40, 1000);
    let (kept, landed) = pair.legs(&asked, LONG).await;
    kept.expect("computed").committed();
    let mut landed = landed.expect("landed");
    pair.d.engine().abort(&rid(asked.prompt.room)).await.expect("taken");
    let error = loop {
        match landed.next(LONG).await {
            Ok(piece) => assert!(piece.is_some(), "it ended well"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, RemoteError::Said { .. }), "{error}");
    assert_eq!(error.failure(), Failure::Error);
    drop(landed);
    pair.is_clean().await;
    assert_eq!(pair.d.driver.counts(), Counts::default(), "there was nothing to abort");
}

#[tokio::test]
async fn prefills_leg_ends_a_ttl_after_the_commit_whatever_the_engine_thinks() {
    let pair = Pair::start(|config| config.bugs.keeps_handed_over = true).await;
    let asked = leg(1, 40, 4);
    let (kept, landed) = pair.legs(&asked, LONG).await;
    let committed = Instant::now();
    kept.expect("computed").committed();
    assert_eq!(rest(landed.expect("landed")).await, oracle(&asked.prompt.ids, 4, &[]));
    assert!(pair.p.standin.held() > 0);
    until("it is overdue", async || pair.p.driver.counts().overdue == 1).await;
    let after = committed.elapsed();
    assert!(after >= TTL && after < TTL + TTL / 2, "{after:?}");
    pair.is_clean().await;
    let counts = pair.p.driver.counts();
    assert_eq!((counts.aborted, counts.unended), (1, 0));
}

#[tokio::test]
async fn a_leg_that_nobody_meets_has_a_deadline_and_is_taken_back() {
    let pair = Pair::start(|_| {}).await;
    let asked = leg(1, 40, 4);
    let place = pair.place(&asked);
    let error = pair.p.driver.prefill(&asked, &place, SHORT).await.map(drop);
    assert_eq!(error.expect_err("nobody").failure(), Failure::Silent);
    assert_eq!(pair.p.driver.counts().tasks, 1, "it is being aborted");
    pair.is_clean().await;
    assert_eq!(pair.p.driver.counts().unended, 0);
}

#[tokio::test]
async fn aborting_has_a_deadline_too_and_says_that_it_passed() {
    let pair = Pair::start(slow_transfer).await;
    let asked = leg(1, 100, 4);
    let kept = pair.computed_and_left(&asked).await;
    pair.p.standin.stop();
    let began = Instant::now();
    assert!(!kept.abort().await, "it cannot have ended");
    assert!(
        began.elapsed() >= 2 * TTL && began.elapsed() < 3 * TTL,
        "{:?}",
        began.elapsed()
    );
    assert_eq!(pair.p.driver.counts().unended, 1);
    // Its connection is closed, which it finds when it runs again.
    pair.p.standin.cont();
    pair.is_clean().await;
}

/// The deadline of a leg must not pass for its end.
#[tokio::test]
async fn a_leg_that_was_late_and_did_not_end_is_counted() {
    let pair = Pair::start(|_| {}).await;
    let asked = leg(1, 40, 4);
    let place = pair.place(&asked);
    let sides = [&pair.p, &pair.d];
    sides.iter().for_each(|side| side.standin.stop());
    let (kept, landed) = tokio::join!(
        pair.p.driver.prefill(&asked, &place, SHORT),
        pair.d.driver.pull(&asked, &place, SHORT, || panic!("it is not taken")),
    );
    assert_eq!(kept.map(drop).expect_err("stopped").failure(), Failure::Silent);
    assert_eq!(landed.map(drop).expect_err("stopped").failure(), Failure::Silent);
    for side in sides {
        until("it is given up", async || side.driver.counts().tasks == 0).await;
        let counts = side.driver.counts();
        assert_eq!((counts.aborted, counts.unended), (1, 1));
    }
    sides.iter().for_each(|side| side.standin.cont());
    pair.is_clean().await;
}

#[tokio::test]
async fn a_driver_that_stops_takes_its_legs_along() {
    for drops in [false, true] {
        let Pair { p, d } = Pair::start(slow_transfer).await;
        let asked = leg(1, 100, 4);
        let place = p.driver.ticket(asked.prompt.room).expect("prefill's");
        let mut pulling = std::pin::pin!(d.driver.pull(&asked, &place, LONG, || {}));
        let mut kept = tokio::select! {
            biased;
            _ = &mut pulling => panic!("nothing is handed over here"),
            kept = p.driver.prefill(&asked, &place, LONG) => kept.expect("computed"),
        };
        let began = Instant::now();
        if drops {
            drop(p.driver);
        } else {
            p.driver.shutdown().await;
            assert_eq!(p.standin.requests(), 0);
        }
        assert!(kept.ended().await.is_err());
        until("prefill's pages are back", async || p.standin.held() == 0).await;
        assert!(began.elapsed() < TTL, "{:?}", began.elapsed());
    }
}
