//! What a call says is what the HTTP API says.

use innkeeper_integration::rpc::{Told, generate, generate_text};
use innkeeper_integration::{Cluster, Options, oracle};
use innkeeper_proto::inference::generate_request::Input;
use innkeeper_proto::inference::{FinishReason, GenerateRequest, TokenIds};
use serde_json::{Value, json};

use crate::{ask, chat};

fn numbers(value: &Value) -> Vec<u32> {
    let list = value.as_array().unwrap_or_else(|| panic!("no list: {value}"));
    list.iter()
        .map(|id| u32::try_from(id.as_u64().unwrap()).unwrap())
        .collect()
}

/// What the HTTP API answers must be what the call told.
fn assert_same(http: &Value, told: &Told, shared_prompt: bool) {
    let choices = http["choices"].as_array().unwrap();
    assert_eq!(choices.len(), told.texts.len(), "{http} {told:?}");
    for (at, choice) in choices.iter().enumerate() {
        let text = choice["text"].as_str().or(choice["message"]["content"].as_str());
        assert_eq!(text.unwrap(), told.texts[at]);
        assert_eq!(numbers(&choice["token_ids"]), told.ids[at]);
        let finish = match told.finish[at] {
            Some(FinishReason::Stop) => "stop",
            Some(FinishReason::Length) => "length",
            other => panic!("{other:?}"),
        };
        assert_eq!(choice["finish_reason"], finish);
        let prompt = if shared_prompt {
            &http["prompt_token_ids"]
        } else {
            &choice["prompt_token_ids"]
        };
        let usage = told.usage.as_ref().unwrap();
        assert_eq!(numbers(prompt), usage.prompt_token_ids);
        let counted = json!({
            "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        });
        let mut said = http["usage"].clone();
        // Of the same prompt more is found in a cache the second time.
        said.as_object_mut().unwrap().remove("prompt_tokens_details").unwrap();
        assert_eq!(said, counted);
    }
}

#[tokio::test]
async fn a_healthy_stream_says_what_the_http_api_says() {
    let cluster = Cluster::start(Options::mock()).await;
    let base = |body: Value| {
        let mut whole = json!({"model": "mock", "max_tokens": 12, "return_token_ids": true});
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        whole
    };
    let sampled = |request: GenerateRequest| GenerateRequest {
        temperature: Some(1.3),
        top_p: Some(0.9),
        seed: Some(-5),
        n: Some(2),
        ignore_eos: None,
        stop: vec!["e".to_owned(), "zz".to_owned()],
        ..request
    };
    let said = json!({"temperature": 1.3, "top_p": 0.9, "seed": -5, "n": 2, "stop": ["e", "zz"]});
    let merged = |mut one: Value| {
        one.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
        one
    };
    let greedy = |mut one: Value| {
        one["temperature"] = json!(0);
        one["ignore_eos"] = json!(true);
        one
    };
    let prompt = || json!({"prompt": "Grüße an alle"});
    let ids = || json!({"prompt": [72, 101, 108]});
    let messages = || json!({"messages": [{"role": "user", "content": "Hello <|im_end|>"}]});
    let of_ids = || {
        Input::PromptTokenIds(TokenIds {
            ids: vec![72, 101, 108],
        })
    };
    for (path, body, request) in [
        ("completions", greedy(prompt()), generate_text("Grüße an alle", 12)),
        (
            "completions",
            merged(prompt()),
            sampled(generate_text("Grüße an alle", 12)),
        ),
        ("completions", greedy(ids()), generate(of_ids(), 12)),
        ("completions", merged(ids()), sampled(generate(of_ids(), 12))),
        (
            "chat/completions",
            greedy(messages()),
            generate(chat("Hello <|im_end|>"), 12),
        ),
        (
            "chat/completions",
            merged(messages()),
            sampled(generate(chat("Hello <|im_end|>"), 12)),
        ),
    ] {
        let http = cluster.client.post(&format!("/v1/{path}"), &base(body)).await;
        assert_eq!(http.status, 200, "{http:?}");
        let told = ask(&cluster, request).await.unwrap();
        assert_same(&http.body, &told, path.starts_with("chat"));
    }
    let told = ask(&cluster, generate_text("streamed", 12)).await.unwrap();
    assert!(told.messages > 4, "it comes as it is made, and not at once: {told:?}");
    oracle(&cluster).await;
}

#[tokio::test]
async fn logprobs_and_echo_are_those_of_the_http_api() {
    let cluster = Cluster::start(Options::mock()).await;
    let body = json!({
        "model": "mock", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "temperature": 0,
        "ignore_eos": true, "logprobs": true, "top_logprobs": 3,
    });
    let http = cluster.client.post("/v1/chat/completions", &body).await.body;
    let request = GenerateRequest {
        top_logprobs: Some(3),
        ..generate(chat("Hi"), 6)
    };
    let told = ask(&cluster, request).await.unwrap();
    let expected = http["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!((expected.len(), told.logprobs[0].len()), (6, 6), "{http}");
    for (one, other) in expected.iter().zip(&told.logprobs[0]) {
        assert_eq!(one["token"], other.token);
        assert!((one["logprob"].as_f64().unwrap() - f64::from(other.logprob)).abs() < 1e-6);
        let top: Vec<_> = one["top_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| &one["token"])
            .collect();
        let other: Vec<_> = other.top.iter().map(|top| top.token.clone()).collect();
        assert_eq!(
            (top.len(), &top),
            (
                3,
                &other
                    .iter()
                    .map(|token| json!(token))
                    .collect::<Vec<_>>()
                    .iter()
                    .collect()
            )
        );
    }
    let request = GenerateRequest {
        echo: Some(true),
        ..generate_text("echoed ", 4)
    };
    let told = ask(&cluster, request).await.unwrap();
    assert!(
        told.texts[0].starts_with("echoed ") && told.texts[0].len() > 7,
        "{told:?}"
    );
    assert_eq!(told.ids[0].len(), 4, "the prompt's ids are not the answer's");
    oracle(&cluster).await;
}
