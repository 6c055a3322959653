use std::sync::Arc;

use axum::http::StatusCode;
use innkeeper_room::Reason;
use innkeeper_room::ledger::router::AbortAnswer;
use serde_json::json;

use super::harness::*;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_failure_before_the_first_token_is_a_real_status() {
    for stream in [false, true] {
        for (reason, status, wait, header) in [
            (Reason::DecodeLost, 502, None, None),
            (Reason::TransferStalled, 504, None, None),
            (Reason::NoPrefillWorker, 503, None, Some("1")),
            (Reason::RetryBudgetSpent, 503, Some(2500), Some("3")),
            (Reason::Overloaded, 503, Some(10), Some("1")),
            (Reason::DecodeLost, 502, Some(7000), Some("7")),
            (Reason::Aborted, 499, None, None),
        ] {
            let router = Arc::new(FakeRouter::new(move |_| vec![failed(reason, wait)]));
            let got = ask(&router, CHAT, chat(json!({"stream": stream}))).await;
            let error = got.json()["error"].clone();
            assert_eq!((got.status.as_u16(), &error["code"]), (status, &json!(reason.code())));
            assert_eq!(
                got.headers.get("retry-after").map(|value| value.to_str().unwrap()),
                header,
                "{reason}"
            );
            let message = error["message"].as_str().unwrap();
            assert!(
                message.contains(reason.explanation()) && message.contains("attempts: 2"),
                "{message}"
            );
            assert_eq!(router.outcomes(), [reason.code()]);
        }
    }
}

#[tokio::test]
async fn a_failure_after_the_first_token_is_an_event_and_then_done() {
    let router = Arc::new(FakeRouter::new(|_| vec![text("He"), failed(Reason::DecodeLost, None)]));
    let got = ask(&router, CHAT, chat(json!({"stream": true}))).await;
    assert_eq!(got.status, StatusCode::OK);
    let events = got.events();
    let error = &events.last().unwrap()["error"];
    assert_eq!(
        (&error["code"], &error["type"], &error["param"]),
        (&json!("decode_lost"), &json!("server_error"), &json!(null))
    );
    assert_eq!(events[1]["choices"][0]["delta"]["content"], "He");
    assert_eq!(router.outcomes(), ["decode_lost"]);
}

#[tokio::test]
async fn a_whole_answer_that_fails_late_is_a_status_without_text() {
    let router = Arc::new(FakeRouter::new(|_| {
        vec![text("He"), failed(Reason::DecodeStalled, None)]
    }));
    let got = ask(&router, CHAT, chat(json!({}))).await;
    assert_eq!(
        (got.status, &got.json()["error"]["code"]),
        (StatusCode::GATEWAY_TIMEOUT, &json!("decode_stalled"))
    );
}

#[tokio::test]
async fn one_failed_choice_gives_up_the_others() {
    let router = Arc::new(FakeRouter::new(|request| {
        if request.work.sampling.seed == 1 {
            vec![failed(Reason::PrefillLost, None)]
        } else {
            vec![text("a")]
        }
    }));
    let got = ask(&router, CHAT, chat(json!({"n": 2, "seed": 0}))).await;
    assert_eq!(
        (got.status, &got.json()["error"]["code"]),
        (StatusCode::BAD_GATEWAY, &json!("prefill_lost"))
    );
    assert_eq!(router.log(), ["dropped 0", "dropped 1"]);
}

#[tokio::test]
async fn an_answer_without_tokens_is_an_empty_answer_and_not_a_hang() {
    for stream in [false, true] {
        let router = Arc::new(FakeRouter::new(|_| vec![done()]));
        let got = ask(&router, CHAT, chat(json!({"stream": stream}))).await;
        assert_eq!(got.status, StatusCode::OK);
        if stream {
            let events = got.events();
            assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
            assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "stop");
        } else {
            assert_eq!(got.json()["choices"][0]["message"]["content"], "");
        }
    }
}

#[tokio::test]
async fn a_router_that_forgets_a_request_is_an_internal_error() {
    let router = Arc::new(FakeRouter::new(|_| Vec::new()));
    let asked = tokio::spawn({
        let router = Arc::clone(&router);
        async move { ask(&router, CHAT, chat(json!({}))).await }
    });
    while lock(&router.submitted).is_empty() {
        tokio::task::yield_now().await;
    }
    lock(&router.live).clear();
    let got = asked.await.unwrap();
    assert_eq!(
        (got.status, &got.json()["error"]["code"]),
        (StatusCode::INTERNAL_SERVER_ERROR, &json!("internal_error"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_router_that_never_answers_is_given_up_at_the_deadline() {
    let router = Arc::new(FakeRouter::new(|_| Vec::new()));
    let got = ask(&router, CHAT, chat(json!({}))).await;
    assert_eq!(got.json()["error"]["code"], "internal_error");
    assert_eq!(router.log(), ["dropped 0"]);
}

#[tokio::test]
async fn aborts_are_answered_as_the_ledger_says() {
    for (answer, status, text) in [
        (Some(AbortAnswer::Accepted), 200, "accepted"),
        (Some(AbortAnswer::Aborted), 200, "aborted"),
        (Some(AbortAnswer::AlreadyEnded), 200, "already ended"),
        (Some(AbortAnswer::Refused), 429, "abort_refused"),
        (None, 503, "abort_unconfirmed"),
    ] {
        let mut router = FakeRouter::new(|_| Vec::new());
        router.abort_answer = answer;
        let router = Arc::new(router);
        let got = ask(&router, "/abort_request", json!({"rid": "that"})).await;
        assert_eq!(got.status.as_u16(), status);
        if status == 200 {
            assert_eq!(got.json(), json!({"status": text, "rid": "that"}));
        } else {
            assert_eq!(got.json()["error"]["code"], text);
            assert_eq!(got.headers["retry-after"], "1");
        }
        assert_eq!(*lock(&router.aborts), [("that".to_owned(), "unknown".to_owned())]);
    }
}

#[tokio::test]
async fn an_abort_without_an_id_is_refused() {
    for body in [
        json!({}),
        json!({"rid": ""}),
        json!({"rid": 5}),
        json!({"rid": "x", "abort_all": true}),
        json!({"rid": "x", "y": 1}),
    ] {
        let router = healthy();
        let got = ask(&router, "/abort_request", body).await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST);
        assert!(lock(&router.aborts).is_empty());
    }
}

#[tokio::test]
async fn a_key_that_nobody_asked_for_makes_nobody_another_client() {
    let router = healthy();
    for key in ["Bearer secret-a", "Bearer secret-b"] {
        let mut request = post(CHAT, chat(json!({})));
        request.headers_mut().insert("authorization", key.parse().unwrap());
        read(send(&router, request).await).await;
    }
    let submitted = lock(&router.submitted);
    assert_eq!(submitted[0].client, submitted[1].client);
    assert!(!submitted[0].client.contains("secret"));
}
