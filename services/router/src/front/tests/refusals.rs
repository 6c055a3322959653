use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use serde_json::{Value, json};

use super::harness::*;

async fn refused(path: &str, body: Value, param: &str, code: &str) {
    let router = healthy();
    let got = ask(&router, path, body.clone()).await;
    let error = got.json()["error"].clone();
    assert_eq!(got.status, StatusCode::BAD_REQUEST, "{body}: {error}");
    assert_eq!(
        (&error["param"], &error["code"]),
        (&json!(param), &json!(code)),
        "{body}: {error}"
    );
    assert_eq!(error["type"], "invalid_request_error");
    assert!(
        error["message"].as_str().is_some_and(|text| text.contains(param)),
        "{error}"
    );
    assert_eq!(got.headers["x-request-id"], "rid-1");
    assert!(lock(&router.submitted).is_empty());
    assert_eq!(router.outcomes(), ["refused"]);
}

#[tokio::test]
async fn what_a_chat_may_not_say_is_refused_by_its_name() {
    for (extra, param, code) in [
        (
            json!({"frequency_penalty": 0.5}),
            "frequency_penalty",
            "unsupported_parameter",
        ),
        (
            json!({"presence_penalty": 1}),
            "presence_penalty",
            "unsupported_parameter",
        ),
        (json!({"logit_bias": {"5": 1}}), "logit_bias", "unsupported_parameter"),
        (
            json!({"tools": [{"type": "function"}]}),
            "tools",
            "unsupported_parameter",
        ),
        (
            json!({"tool_choice": "required"}),
            "tool_choice",
            "unsupported_parameter",
        ),
        (
            json!({"response_format": {"type": "json_object"}}),
            "response_format",
            "unsupported_parameter",
        ),
        (json!({"min_tokens": 1}), "min_tokens", "unsupported_parameter"),
        (json!({"store": true}), "store", "unsupported_parameter"),
        (json!({"top_k": 40}), "top_k", "unsupported_parameter"),
        (json!({"service_tier": "vip"}), "service_tier", "invalid_value"),
        (json!({"service_tier": 1}), "service_tier", "invalid_type"),
        (json!({"priority": 1}), "priority", "unsupported_parameter"),
        (
            json!({"kv_transfer_params": {}}),
            "kv_transfer_params",
            "unsupported_parameter",
        ),
        (json!({"nonsense": null}), "nonsense", "unknown_parameter"),
        (json!({"prompt": "x"}), "prompt", "unknown_parameter"),
        (
            json!({"stream_options": {"include_usage": true}}),
            "stream_options",
            "invalid_value",
        ),
        (
            json!({"stream": true, "stream_options": {"what": 1}}),
            "stream_options.what",
            "unknown_parameter",
        ),
        (json!({"stream": "yes"}), "stream", "invalid_type"),
        (json!({"max_tokens": 0}), "max_tokens", "integer_below_min_value"),
        (json!({"max_tokens": -1}), "max_tokens", "integer_below_min_value"),
        (
            json!({"max_completion_tokens": -5}),
            "max_completion_tokens",
            "integer_below_min_value",
        ),
        (json!({"max_tokens": 1.5}), "max_tokens", "invalid_type"),
        (json!({"max_tokens": u64::MAX}), "max_tokens", "integer_above_max_value"),
        (json!({"temperature": 2.1}), "temperature", "decimal_above_max_value"),
        (json!({"temperature": -0.1}), "temperature", "decimal_below_min_value"),
        (json!({"temperature": "hot"}), "temperature", "invalid_type"),
        (json!({"top_p": 1.5}), "top_p", "decimal_above_max_value"),
        (json!({"seed": 0.5}), "seed", "invalid_type"),
        (json!({"n": 0}), "n", "integer_below_min_value"),
        (json!({"n": 9}), "n", "integer_above_max_value"),
        (json!({"stop": ""}), "stop", "invalid_value"),
        (
            json!({"stop": ["a", "b", "c", "d", "e"]}),
            "stop",
            "array_above_max_length",
        ),
        (json!({"stop": [1]}), "stop", "invalid_type"),
        (json!({"stop": "x".repeat(1025)}), "stop", "string_above_max_length"),
        (json!({"stop_token_ids": [260]}), "stop_token_ids[0]", "invalid_value"),
        (json!({"top_logprobs": 2}), "top_logprobs", "invalid_value"),
        (
            json!({"logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
            "integer_above_max_value",
        ),
        (json!({"logprobs": 2}), "logprobs", "invalid_type"),
        (json!({"model": null}), "model", "missing_required_parameter"),
        (json!({"model": 4}), "model", "invalid_type"),
        (json!({"messages": []}), "messages", "empty_array"),
        (json!({"messages": null}), "messages", "missing_required_parameter"),
        (json!({"messages": "hi"}), "messages", "invalid_type"),
        (json!({"messages": ["hi"]}), "messages[0]", "invalid_type"),
        (
            json!({"messages": [{"role": "user"}]}),
            "messages[0].content",
            "missing_required_parameter",
        ),
        (
            json!({"messages": [{"role": "tool", "content": "x"}]}),
            "messages[0].role",
            "invalid_value",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x", "name": "bob"}]}),
            "messages[0].name",
            "unsupported_parameter",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x", "mood": 1}]}),
            "messages[0].mood",
            "unknown_parameter",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0].type",
            "unsupported_parameter",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x".repeat(600)}]}),
            "messages",
            "context_length_exceeded",
        ),
        (json!({"max_tokens": 512}), "messages", "context_length_exceeded"),
    ] {
        let context = code == "context_length_exceeded";
        if context {
            let got = ask(&healthy(), "/v1/chat/completions", chat(extra)).await;
            let error = got.json()["error"].clone();
            assert_eq!(
                (got.status, &error["code"], &error["param"]),
                (StatusCode::BAD_REQUEST, &json!(code), &json!(param))
            );
            assert!(
                error["message"]
                    .as_str()
                    .is_some_and(|text| text.contains("512 tokens")),
                "{error}"
            );
        } else {
            refused("/v1/chat/completions", chat(extra), param, code).await;
        }
    }
}

#[tokio::test]
async fn what_a_completion_may_not_say_is_refused_by_its_name() {
    for (extra, param, code) in [
        (json!({"prompt": ""}), "prompt", "invalid_value"),
        (json!({"prompt": []}), "prompt", "invalid_value"),
        (json!({"prompt": [[]]}), "prompt", "invalid_value"),
        (json!({"prompt": null}), "prompt", "missing_required_parameter"),
        (json!({"prompt": 7}), "prompt", "invalid_type"),
        (json!({"prompt": [true]}), "prompt[0]", "invalid_type"),
        (json!({"prompt": [1, 260]}), "prompt[1]", "invalid_value"),
        (json!({"prompt": [[1], [-1]]}), "prompt[1][0]", "invalid_value"),
        (json!({"prompt": [1, "a"]}), "prompt[1]", "invalid_value"),
        (json!({"prompt": vec!["a"; 65]}), "prompt", "array_above_max_length"),
        (
            json!({"prompt": vec!["a"; 33], "n": 2}),
            "prompt",
            "array_above_max_length",
        ),
        (json!({"logprobs": 6}), "logprobs", "integer_above_max_value"),
        (
            json!({"logprobs": 1, "echo": true}),
            "logprobs",
            "unsupported_parameter",
        ),
        (json!({"best_of": 2}), "best_of", "unsupported_parameter"),
        (json!({"suffix": "x"}), "suffix", "unsupported_parameter"),
        (json!({"messages": []}), "messages", "unknown_parameter"),
        (json!({"max_tokens": -3}), "max_tokens", "integer_below_min_value"),
    ] {
        refused("/v1/completions", completion(extra), param, code).await;
    }
}

#[tokio::test]
async fn whatever_is_wrong_outside_of_fields_is_said_in_the_same_shape() {
    let request = |method: Method, path: &str, body: String| {
        Request::builder()
            .method(method)
            .uri(path)
            .body(Body::from(body))
            .unwrap()
    };
    let chats = "/v1/chat/completions";
    for (sent, status, code) in [
        (request(Method::POST, chats, "{".to_owned()), 400, "invalid_json"),
        (request(Method::POST, chats, "[1]".to_owned()), 400, "invalid_json"),
        (request(Method::POST, chats, String::new()), 400, "invalid_json"),
        (request(Method::POST, chats, "x".repeat(5000)), 413, "body_too_large"),
        (
            request(Method::POST, chats, chat(json!({"model": "gpt"})).to_string()),
            404,
            "model_not_found",
        ),
        (request(Method::GET, chats, String::new()), 405, "method_not_allowed"),
        (
            request(Method::POST, "/v1/models", String::new()),
            405,
            "method_not_allowed",
        ),
        (request(Method::GET, "/v1/nothing", String::new()), 404, "unknown_path"),
    ] {
        let got = read(send(&healthy(), sent).await).await;
        let error = got.json()["error"].clone();
        assert_eq!((got.status.as_u16(), &error["code"]), (status, &json!(code)), "{error}");
        assert!(
            error["message"].is_string() && error["type"].is_string() && error.get("param").is_some(),
            "{error}"
        );
        assert!(got.headers.contains_key("x-request-id"));
        assert_eq!(got.headers.contains_key("allow"), status == 405);
    }
}

#[tokio::test]
async fn a_long_unknown_name_is_not_sent_back_whole() {
    let name = "k".repeat(3000);
    let extra = serde_json::Map::from_iter([(name.clone(), json!(1))]);
    let got = ask(&healthy(), "/v1/chat/completions", chat(extra.into())).await;
    let shown = got.json()["error"]["param"]
        .as_str()
        .map(str::to_owned)
        .unwrap_or_default();
    assert_eq!(
        (got.status, shown),
        (StatusCode::BAD_REQUEST, format!("{}…", &name[..64]))
    );
    assert!(
        got.body.len() < 1000,
        "{} bytes for {} of them",
        got.body.len(),
        name.len()
    );
}

#[tokio::test]
async fn an_unusable_request_id_is_refused_by_name() {
    let mut sent = post("/v1/chat/completions", chat(json!({})));
    sent.headers_mut().insert("x-request-id", "a b".parse().unwrap());
    let got = read(send(&healthy(), sent).await).await;
    assert_eq!(
        (got.status, &got.json()["error"]["param"]),
        (StatusCode::BAD_REQUEST, &json!("x-request-id"))
    );
    assert!(got.headers.contains_key("x-request-id"));
}
