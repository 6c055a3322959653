use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use futures::StreamExt;
use innkeeper_room::Reason;
use serde_json::json;
use tokio::time::Instant;

use super::harness::*;

const CHAT: &str = "/v1/chat/completions";

fn silent() -> Arc<FakeRouter> {
    Arc::new(FakeRouter::new(|_| Vec::new()))
}

/// Waits, without sleeping, until the log says so.
async fn until(router: &FakeRouter, entry: &str) {
    let wait = async {
        while !router.log().iter().any(|seen| seen == entry) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .unwrap_or_else(|_| panic!("never {entry}: {:?}", router.log()));
}

fn spawn_ask(router: &Arc<FakeRouter>, stream: bool) -> tokio::task::JoinHandle<Response> {
    let router = Arc::clone(router);
    tokio::spawn(async move { send(&router, post(CHAT, chat(json!({"stream": stream})))).await })
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_token_aborts_both_kinds() {
    for stream in [false, true] {
        let router = silent();
        let asked = spawn_ask(&router, stream);
        while lock(&router.submitted).is_empty() {
            tokio::task::yield_now().await;
        }
        // What the server does when the connection closes.
        asked.abort();
        until(&router, "dropped 0").await;
        assert_eq!(router.log(), ["dropped 0"], "an abort, not a good end");
        assert_eq!(router.outcomes(), [Reason::Aborted.code()]);
    }
}

#[tokio::test]
async fn the_status_is_held_back_until_the_first_token() {
    let router = silent();
    let asked = spawn_ask(&router, true);
    while lock(&router.submitted).is_empty() {
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!asked.is_finished());
    router.say(0, text("a"));
    assert_eq!(asked.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_aborts_it() {
    let router = silent();
    let asked = spawn_ask(&router, true);
    while lock(&router.submitted).is_empty() {
        tokio::task::yield_now().await;
    }
    router.say(0, text("a"));
    let mut body = asked.await.unwrap().into_body().into_data_stream();
    assert!(body.next().await.is_some());
    drop(body);
    until(&router, "dropped 0").await;
    assert_eq!(router.log(), ["dropped 0"]);
    assert_eq!(router.outcomes(), [Reason::Aborted.code()]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_client_holds_up_no_token_and_gets_them_all() {
    let router = silent();
    let asked = spawn_ask(&router, true);
    while lock(&router.submitted).is_empty() {
        tokio::task::yield_now().await;
    }
    router.say(0, text("a"));
    let response = asked.await.unwrap();
    for _ in 0..50 {
        router.say(0, text("b"));
    }
    // Nobody reads the body, and still the channel empties.
    let channel = lock(&router.live)[0].clone();
    while channel.capacity() < channel.max_capacity() {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_secs(29)).await;
    router.say(0, done());
    let got = read(response).await;
    let text: String = got
        .events()
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(text, format!("a{}", "b".repeat(50)));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_is_given_up_after_its_time() {
    let router = silent();
    let asked = spawn_ask(&router, true);
    while lock(&router.submitted).is_empty() {
        tokio::task::yield_now().await;
    }
    router.say(0, text("a"));
    let response = asked.await.unwrap();
    // The first block has its place; the second waits.
    tokio::time::sleep(Duration::from_secs(1)).await;
    router.say(0, text("b"));
    let begun = Instant::now();
    while !router.log().iter().any(|entry| entry == "stalled 0") {
        assert!(begun.elapsed() < Duration::from_secs(31), "never given up");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(begun.elapsed() >= Duration::from_secs(29), "given up too early");
    assert_eq!(router.log(), ["stalled 0", "dropped 0"]);
    assert_eq!(router.outcomes(), [Reason::ClientStalled.code()]);
    let mut body = response.into_body().into_data_stream();
    assert!(body.next().await.is_some_and(|block| block.is_ok()));
    assert!(
        body.next().await.is_some_and(|block| block.is_err()),
        "a cut, not a good end"
    );
}

#[tokio::test(start_paused = true)]
async fn keep_alives_are_sent_only_while_tokens_come() {
    let router = silent();
    let sent = {
        let router = Arc::clone(&router);
        tokio::spawn(async move { send(&router, post(CHAT, chat(json!({"stream": true, "stop": "bbbbbbbb"})))).await })
    };
    while lock(&router.submitted).is_empty() {
        tokio::task::yield_now().await;
    }
    router.say(0, text("a"));
    let mut body = sent.await.unwrap().into_body().into_data_stream();
    let mut next = async |limit| {
        tokio::time::timeout(Duration::from_secs(limit), body.next())
            .await
            .ok()
            .flatten()
    };
    assert!(next(1).await.is_some());
    // No token, no comment.
    assert!(next(20).await.is_none());
    // Tokens whose text is held back: a comment.
    router.say(0, text("b"));
    let block = next(11).await.unwrap().unwrap();
    assert_eq!(&*block, b": keep-alive\n\n");
    assert!(next(20).await.is_none(), "and silence again");
}
