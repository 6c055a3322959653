//! The client of SGLang against the stand-in: what real pairs were seen to do, one test each.

mod kit;

use std::time::Duration;

use innkeeper_remote::sglang::{Answer, Sglang, handed_over_next};
use innkeeper_remote::standin::{Bugs, Config, Fabric, Kind, Standin, oracle};
use innkeeper_remote::ticket::Bootstrap;
use innkeeper_remote::{Failure, Leg, RemoteError, Times, rid};
use kit::{LONG, SHORT, TTL, leg, until};

struct Pair {
    prefill: Standin,
    decode: Standin,
    p: Sglang,
    d: Sglang,
}

async fn pair_with(change: impl Fn(&mut Config)) -> Pair {
    let fabric = Fabric::default();
    let mut started = vec![];
    for kind in [Kind::SglangPrefill, Kind::SglangDecode] {
        let mut config = Config::new(kind);
        change(&mut config);
        started.push(Standin::start(config, fabric.clone()).await.expect("a port"));
    }
    let client = |standin: &Standin| {
        let target = standin.url().parse().expect("an address");
        Sglang::new(target, Times::from_ttl(TTL))
    };
    let (decode, prefill) = (started.pop().expect("two"), started.pop().expect("two"));
    let (p, d) = (client(&prefill), client(&decode));
    Pair { prefill, decode, p, d }
}

async fn pair() -> Pair {
    pair_with(|_| {}).await
}

fn place(leg: &Leg) -> Bootstrap {
    Bootstrap {
        host: "127.0.0.1".to_owned(),
        port: 8998,
        room: leg.prompt.room,
    }
}

async fn all(mut answer: Answer) -> Result<Vec<u32>, RemoteError> {
    let mut ids = vec![];
    while let Some(piece) = answer.next(LONG).await? {
        ids.extend(piece.tokens.iter().map(|token| token.id));
    }
    Ok(ids)
}

#[tokio::test]
async fn an_engine_says_what_it_is() {
    let pair = pair().await;
    let (prefill, decode) = (pair.p.identity().await, pair.d.identity().await);
    let (prefill, decode) = (prefill.expect("an answer"), decode.expect("an answer"));
    assert_eq!((prefill.mode.as_str(), prefill.bootstrap_port), ("prefill", Some(8998)));
    assert_eq!((decode.mode.as_str(), decode.bootstrap_port), ("decode", None));
}

#[tokio::test]
async fn both_legs_at_once_give_what_one_engine_gives() {
    let pair = pair().await;
    for (number, (tokens, most)) in (1u64..).zip([(1, 1), (40, 12), (300, 3)]) {
        let asked = leg(number, tokens, most);
        let place = place(&asked);
        let decoding = async { all(pair.d.decode(&asked, &place, LONG).await?).await };
        let (ids, ended) = tokio::join!(decoding, pair.p.prefill(&asked, &place, LONG));
        assert!(ended.expect("an end").is_good());
        assert_eq!(ids.expect("an answer"), oracle(&asked.prompt.ids, most, &[]));
    }
    until("all pages are back", async || {
        pair.prefill.held() == 0 && pair.decode.held() == 0
    })
    .await;
}

/// The story that this project was founded on.
#[tokio::test]
async fn decode_stopped_after_prefill_has_computed_holds_its_pages_until_an_abort() {
    let pair = pair().await;
    let asked = leg(1, 40, 100);
    let place = place(&asked);
    let answer = pair
        .d
        .decode(&asked, &place, LONG)
        .await
        .expect("a head proves nothing");
    let computing = pair.p.prefill(&asked, &place, LONG);
    let mut computing = std::pin::pin!(computing);
    // The handshake needs decode; computing does not.
    let met = until("prefill computes", async || {
        pair.p
            .look()
            .await
            .is_ok_and(|look| look.load.running + look.load.inflight > 0)
    });
    tokio::select! {
        () = met => {}
        _ = &mut computing => panic!("over already"),
    }
    pair.decode.stop();
    let inflight = until("it is in flight", async || {
        pair.p.look().await.is_ok_and(|look| handed_over_next(1, &look) == 1)
    });
    tokio::select! {
        () = inflight => {}
        ended = &mut computing => {
            // The KV was handed over before the stop: nothing to see this time.
            assert!(ended.expect("an end").is_good());
            return;
        }
    }
    pair.p.canary().await.expect("prefill itself is well");
    let before = pair.p.look().await.expect("a look");
    let error = pair.d.canary().await.expect_err("decode is not");
    assert_eq!(error.failure(), Failure::Silent);
    let after = pair.p.look().await.expect("a look");
    assert_eq!(
        (after.load.inflight, after.load.used),
        (1, before.load.used),
        "for as long as one looks"
    );
    let ended = pair.p.end(&rid(asked.prompt.room), &mut computing, LONG).await;
    let error = ended.expect("it ended").expect_err("by an error");
    assert!(matches!(error, RemoteError::Status { status: 500, .. }), "{error}");
    until("prefill's pages are back", async || pair.prefill.held() == 0).await;
    drop(answer);
    pair.decode.cont();
    until("decode's pages are back", async || pair.decode.held() == 0).await;
}

#[tokio::test]
async fn an_early_abort_is_lost_unless_it_is_said_again() {
    let pair = pair().await;
    let asked = leg(1, 40, 5);
    let place = place(&asked);
    let id = rid(asked.prompt.room);
    // Said once, before the request: 200, and it runs to its end.
    pair.d.abort(&id).await.expect("an answer");
    let decoding = async { all(pair.d.decode(&asked, &place, LONG).await?).await };
    let (ids, _) = tokio::join!(decoding, pair.p.prefill(&asked, &place, LONG));
    assert_eq!(ids.expect("an answer").len(), 5);
    // Said until the leg ends: it ends, whichever came first.
    let asked = leg(2, 40, 5);
    let id = rid(asked.prompt.room);
    let later = async {
        tokio::time::sleep(SHORT).await;
        pair.p.prefill(&asked, &place, LONG).await
    };
    let ended = pair.p.end(&id, later, LONG).await.expect("it ended");
    assert!(ended.is_err(), "{ended:?}");
    until("nothing is left", async || pair.prefill.requests() == 0).await;
}

#[tokio::test]
async fn a_good_engine_remembers_an_early_abort() {
    let pair = pair_with(|config| config.bugs = Bugs::none()).await;
    let asked = leg(1, 40, 5);
    let place = place(&asked);
    let error = pair.d.abort(&rid(asked.prompt.room)).await.expect_err("404");
    assert!(matches!(error, RemoteError::Status { status: 404, .. }), "{error}");
    let answer = pair.d.decode(&asked, &place, LONG).await.expect("a head");
    assert!(all(answer).await.is_err());
}

#[tokio::test]
async fn leaving_while_it_waits_gives_pages_back() {
    let pair = pair().await;
    let asked = leg(1, 40, 5);
    let place = place(&asked);
    let answer = pair.d.decode(&asked, &place, LONG).await.expect("a head");
    until("decode waits", async || pair.decode.held() > 0).await;
    drop(answer);
    until("decode's pages are back", async || pair.decode.held() == 0).await;
    let left = tokio::time::timeout(SHORT, pair.p.prefill(&asked, &place, LONG)).await;
    assert!(left.is_err(), "nobody meets it");
    until("prefill's pages are back", async || pair.prefill.held() == 0).await;
}

#[tokio::test]
async fn a_transport_that_gives_up_ends_prefills_leg() {
    let pair = pair_with(|config| {
        config.transport_gives_up = Duration::from_millis(500);
        // Long enough to stop decode in the middle.
        config.chunk_time = Duration::from_millis(200);
    })
    .await;
    let asked = leg(1, 120, 100);
    let place = place(&asked);
    let _answer = pair.d.decode(&asked, &place, LONG).await.expect("a head");
    let stops = async {
        until("prefill computes", async || {
            pair.p.look().await.is_ok_and(|look| look.load.running > 0)
        })
        .await;
        pair.decode.stop();
    };
    let (ended, ()) = tokio::join!(pair.p.prefill(&asked, &place, LONG), stops);
    let error = ended.expect_err("given up");
    assert!(error.to_string().contains("gave up"), "{error}");
}

#[tokio::test]
async fn a_killed_decode_ends_prefills_leg_and_a_living_rid_is_refused() {
    let pair = pair_with(|config| config.chunk_time = Duration::from_millis(200)).await;
    let asked = leg(1, 120, 100);
    let place = place(&asked);
    let _answer = pair.d.decode(&asked, &place, LONG).await.expect("a head");
    let twice = pair.d.decode(&asked, &place, LONG).await.expect_err("it lives");
    assert!(twice.to_string().contains("Duplicate"), "{twice}");
    let kills = async {
        until("prefill computes", async || {
            pair.p.look().await.is_ok_and(|look| look.load.running > 0)
        })
        .await;
        pair.decode.kill();
    };
    let (ended, ()) = tokio::join!(pair.p.prefill(&asked, &place, LONG), kills);
    assert!(ended.is_err());
    until("prefill's pages are back", async || pair.prefill.held() == 0).await;
}

#[tokio::test]
async fn a_frozen_scheduler_is_seen_by_its_canary_alone() {
    let pair = pair().await;
    pair.prefill.freeze(true);
    pair.p.look().await.expect("out of memory that stands still");
    let error = pair.p.canary().await.expect_err("no token");
    assert_eq!(error.failure(), Failure::Silent);
    pair.prefill.freeze(false);
    pair.p.canary().await.expect("a token");
}
