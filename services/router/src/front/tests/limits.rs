//! How urgent a request is, and how much its tenant may ask for.

use std::sync::Arc;

use axum::http::StatusCode;
use innkeeper_node::config::{Limit, Limits};
use innkeeper_room::{Class, Reason};
use serde_json::json;

use super::harness::*;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// The front door calls who has neither key nor address so.
const NOBODY: &str = "unknown";

/// A number among the headers.
fn told(got: &Got, name: &str) -> u32 {
    let value = got
        .headers
        .get(name)
        .unwrap_or_else(|| panic!("no {name}: {:?}", got.headers));
    value.to_str().unwrap().parse().unwrap()
}

fn limit(requests: u32, tokens: u32) -> Limits {
    Limits::of(Limit {
        requests,
        tokens,
        ..Limit::default()
    })
}

#[tokio::test]
async fn the_service_tier_is_the_class_and_a_tenant_gets_at_most_its_highest() {
    for (extra, class) in [
        (json!({}), Class::Normal),
        (json!({"service_tier": null}), Class::Normal),
        (json!({"service_tier": "auto"}), Class::Normal),
        (json!({"service_tier": "default"}), Class::Normal),
        (json!({"service_tier": "priority"}), Class::High),
        (json!({"service_tier": "flex"}), Class::Low),
    ] {
        let router = healthy();
        assert_eq!(
            ask(&router, CHAT, chat(extra.clone())).await.status,
            StatusCode::OK,
            "{extra}"
        );
        assert_eq!(
            ask(&router, COMPLETIONS, completion(extra.clone())).await.status,
            StatusCode::OK
        );
        let classes: Vec<Class> = lock(&router.submitted).iter().map(|request| request.class).collect();
        assert_eq!(classes, [class; 2], "{extra}");
    }
    let router = healthy();
    let text = format!("[tenants.{NOBODY}]\nhighest-class = 'normal'\n");
    router.rates.set(Limits::parse(&text, Limit::default()).unwrap());
    for tier in ["priority", "flex"] {
        ask(&router, CHAT, chat(json!({"service_tier": tier}))).await;
    }
    let classes: Vec<Class> = lock(&router.submitted).iter().map(|request| request.class).collect();
    assert_eq!(
        classes,
        [Class::Normal, Class::Low],
        "less urgent than it may be is its own choice"
    );
}

#[tokio::test]
async fn one_request_too_many_is_refused_before_its_body_is_looked_at() {
    let router = healthy();
    router.rates.set(limit(1, 0));
    let first = ask(&router, CHAT, chat(json!({}))).await;
    assert_eq!(first.status, StatusCode::OK);
    assert_eq!(told(&first, "x-ratelimit-limit-requests"), 1);
    assert_eq!(told(&first, "x-ratelimit-remaining-requests"), 0);
    assert!(!first.headers.contains_key("x-ratelimit-limit-tokens"));
    let second = ask(&router, CHAT, json!("this is no request at all")).await;
    assert_eq!(second.status, StatusCode::TOO_MANY_REQUESTS);
    let error = second.json()["error"].clone();
    assert_eq!(
        (&error["code"], &error["type"]),
        (&json!("rate_limit_exceeded"), &json!("rate_limit_error"))
    );
    assert_eq!(second.headers["x-ratelimit-remaining-requests"], "0");
    let wait: u64 = second.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((59..=60).contains(&wait), "{wait}");
    assert_eq!(lock(&router.submitted).len(), 1);
    assert_eq!(router.outcomes(), ["done", "refused"]);
}

#[tokio::test]
async fn tokens_are_those_of_all_prompts_and_all_answers() {
    let router = healthy();
    // Two prompts of two tokens each, three answers to each, of ten tokens at most.
    let all = json!({"prompt": ["Hi", "Ho"], "n": 3, "max_tokens": 10, "best_of": 3});
    router.rates.set(limit(0, 100));
    let got = ask(&router, COMPLETIONS, completion(all.clone())).await;
    assert_eq!(got.status, StatusCode::OK);
    // Some come back meanwhile, where the machine is slow.
    let remaining = told(&got, "x-ratelimit-remaining-tokens");
    assert!((36..46).contains(&remaining), "{remaining}");
    let got = ask(&router, COMPLETIONS, completion(all)).await;
    assert_eq!(got.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(told(&got, "x-ratelimit-remaining-tokens") >= remaining);
    let message = got.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("100 tokens in a minute"), "{message}");
}

#[tokio::test]
async fn what_no_worker_could_take_is_not_counted() {
    for (reason, room, least) in [(Reason::Overloaded, false, 540), (Reason::DecodeLost, true, 140)] {
        let router = Arc::new(FakeRouter::new(move |request| {
            if request.max_tokens == 398 {
                return vec![if room {
                    failed(reason, None)
                } else {
                    never_had_a_room(reason)
                }];
            }
            vec![text("Hello"), eos(), done()]
        }));
        router.rates.set(limit(0, 600));
        let asks = |tokens: u32| completion(json!({"max_tokens": tokens}));
        assert_ne!(ask(&router, COMPLETIONS, asks(398)).await.status, StatusCode::OK);
        let got = ask(&router, COMPLETIONS, asks(58)).await;
        let remaining = told(&got, "x-ratelimit-remaining-tokens");
        assert!((least..least + 200).contains(&remaining), "{reason}: {remaining}");
    }
}

#[tokio::test]
async fn what_one_choice_could_not_take_gives_back_its_own_part() {
    let router = Arc::new(FakeRouter::new(|request| {
        match (request.max_tokens, request.work.sampling.seed) {
            (98, 1) => vec![never_had_a_room(Reason::Overloaded)],
            (98, _) => vec![text("Hello")],
            _ => vec![text("Hello"), eos(), done()],
        }
    }));
    router.rates.set(limit(0, 600));
    // Two tokens of prompt and twice 98: half of that comes back.
    let two = completion(json!({"n": 2, "best_of": 2, "seed": 0, "max_tokens": 98}));
    assert_ne!(ask(&router, COMPLETIONS, two).await.status, StatusCode::OK);
    let got = ask(&router, COMPLETIONS, completion(json!({"max_tokens": 58}))).await;
    let remaining = told(&got, "x-ratelimit-remaining-tokens");
    assert!((441..500).contains(&remaining), "{remaining}");
}
