use axum::body::Body;
use axum::http::{Request, StatusCode};
use innkeeper_room::Reason;
use serde_json::json;

use super::harness::*;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn usage(prompt: u64, completion: u64, cached: u64) -> serde_json::Value {
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": cached },
    })
}

#[tokio::test]
async fn a_chat_is_answered_whole() {
    let router = healthy();
    let got = ask(
        &router,
        CHAT,
        chat(json!({"seed": 5, "temperature": 0, "max_tokens": 9, "max_completion_tokens": 20})),
    )
    .await;
    assert_eq!(got.status, StatusCode::OK);
    assert_eq!(got.headers["x-request-id"], "rid-1");
    let json = got.json();
    assert_eq!(json["object"], "chat.completion");
    assert_eq!(json["id"], "chatcmpl-rid-1");
    assert_eq!(
        json["choices"][0]["message"],
        json!({"role": "assistant", "content": "Hello", "refusal": null})
    );
    assert_eq!(json["choices"][0]["finish_reason"], "stop");
    assert_eq!(json["choices"][0]["logprobs"], json!(null));
    let submitted = lock(&router.submitted);
    let request = &submitted[0];
    let prompt = request.work.prompt.len() as u64;
    assert_eq!(json["usage"], usage(prompt, 6, 0));
    assert_eq!(
        (request.rid.as_str(), request.max_tokens, request.work.sampling.seed),
        ("rid-1", 20, 5)
    );
    assert_eq!(request.work.sampling.temperature, 0.0);
    assert_eq!(*request.work.stop_ids, [256, 258]);
    assert_eq!(router.log(), ["satisfied 0", "dropped 0"]);
    assert_eq!(router.outcomes(), ["done"]);
}

#[tokio::test]
async fn a_chat_is_streamed_with_usage() {
    let router = healthy();
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let got = ask(&router, CHAT, body).await;
    assert_eq!(got.status, StatusCode::OK);
    assert!(
        got.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/event-stream")
    );
    let events = got.events();
    assert_eq!(
        events[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    let (usage, chunks) = events.split_last().unwrap();
    let text: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, "Hello");
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!(last["choices"][0]["delta"], json!({}));
    for chunk in others {
        let choice = chunk["choices"][0].as_object().unwrap();
        assert!(choice["finish_reason"].is_null() && choice.contains_key("finish_reason"));
        assert!(chunk["usage"].is_null() && chunk.as_object().unwrap().contains_key("usage"));
    }
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 6);
    assert_eq!(router.outcomes(), ["done"]);
}

#[tokio::test]
async fn without_include_usage_no_chunk_speaks_of_usage() {
    let got = ask(&healthy(), CHAT, chat(json!({"stream": true}))).await;
    assert!(!got.body.contains("usage"), "{}", got.body);
}

#[tokio::test]
async fn a_stop_string_ends_both_kinds_at_once_even_if_the_room_would_go_on() {
    for stream in [false, true] {
        // No end token and no answer follow: the room would go on.
        let router = std::sync::Arc::new(FakeRouter::new(|_| vec![text("one S"), text("TO"), text("P two")]));
        let got = ask(
            &router,
            COMPLETIONS,
            completion(json!({"stop": "STOP", "stream": stream, "max_tokens": 99})),
        )
        .await;
        assert_eq!(got.status, StatusCode::OK);
        let chunks = if stream { got.events() } else { vec![got.json()] };
        let text: String = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["text"].as_str())
            .collect();
        assert_eq!(text, "one ");
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
        assert_eq!(router.log(), ["satisfied 0", "dropped 0"]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_token_is_enough_whatever_becomes_of_the_room() {
    for last in [None, Some(failed(Reason::DecodeLost, None))] {
        let router = std::sync::Arc::new(FakeRouter::new(move |_| {
            [Some(text("abc")), last.clone()].into_iter().flatten().collect()
        }));
        let got = ask(&router, COMPLETIONS, completion(json!({"max_tokens": 3}))).await;
        assert_eq!(got.status, StatusCode::OK);
        assert_eq!(got.json()["choices"][0]["finish_reason"], "length");
        assert_eq!(got.json()["choices"][0]["text"], "abc");
    }
}

#[tokio::test]
async fn characters_are_never_broken_across_chunks() {
    let router = std::sync::Arc::new(FakeRouter::new(|_| {
        let mut events: Vec<_> = "é😀!"
            .bytes()
            .map(|byte| super::harness::token(u32::from(byte)))
            .map(|token| innkeeper_actors::ports::RequestEvent::Tokens(vec![token]))
            .collect();
        events.push(done());
        events
    }));
    let got = ask(
        &router,
        COMPLETIONS,
        completion(json!({"stream": true, "max_tokens": 99})),
    )
    .await;
    let texts: Vec<_> = got
        .events()
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["text"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(texts, ["é", "😀", "!", ""]);
}

#[tokio::test]
async fn n_answers_are_n_rooms_with_their_own_seeds() {
    let router = healthy();
    let got = ask(&router, CHAT, chat(json!({"n": 2, "seed": -1}))).await;
    let json = got.json();
    assert_eq!(json["choices"].as_array().unwrap().len(), 2);
    assert_eq!(json["choices"][1]["index"], 1);
    let submitted = lock(&router.submitted);
    assert_eq!(
        submitted
            .iter()
            .map(|request| request.work.sampling.seed)
            .collect::<Vec<_>>(),
        [u64::MAX, 0]
    );
    assert!(submitted.iter().all(|request| request.rid == "rid-1"));
    let prompt = submitted[0].work.prompt.len() as u64;
    assert_eq!(json["usage"], usage(prompt, 12, 0));
}

#[tokio::test]
async fn what_was_not_computed_is_in_usage_once_for_each_prompt() {
    use innkeeper_actors::ports::RequestEvent;

    let router = std::sync::Arc::new(FakeRouter::new(|_| {
        vec![
            RequestEvent::Reused(16),
            super::harness::text("Hello"),
            super::harness::eos(),
            done(),
        ]
    }));
    let whole = ask(
        &router,
        COMPLETIONS,
        completion(json!({"n": 2, "prompt": ["one", "another"]})),
    )
    .await;
    assert_eq!(
        whole.json()["usage"]["prompt_tokens_details"],
        json!({"cached_tokens": 32})
    );
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let events = ask(&router, CHAT, body).await.events();
    let usage = &events.last().unwrap()["usage"];
    assert_eq!(usage["prompt_tokens_details"], json!({"cached_tokens": 16}));
}

#[tokio::test]
async fn n_streamed_answers_have_one_end_each() {
    let got = ask(&healthy(), CHAT, chat(json!({"n": 2, "stream": true}))).await;
    let mut texts = [String::new(), String::new()];
    let mut ends = [0, 0];
    for chunk in got.events() {
        let choice = &chunk["choices"][0];
        let at = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
        texts[at].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        ends[at] += usize::from(!choice["finish_reason"].is_null());
    }
    assert_eq!(texts, ["Hello", "Hello"]);
    assert_eq!(ends, [1, 1]);
}

#[tokio::test]
async fn batches_of_prompts_in_every_form_are_echoed_in_order() {
    for (prompt, want) in [
        (json!("Hi"), vec!["HiHello"]),
        (json!([72, 105]), vec!["HiHello"]),
        (json!(["Hi", "Yo"]), vec!["HiHello", "YoHello"]),
        (json!([[72], [89, 111]]), vec!["HHello", "YoHello"]),
    ] {
        for stream in [false, true] {
            let got = ask(
                &healthy(),
                COMPLETIONS,
                completion(json!({"prompt": prompt, "echo": true, "stream": stream})),
            )
            .await;
            let mut texts = vec![String::new(); want.len()];
            for chunk in if stream { got.events() } else { vec![got.json()] } {
                for choice in chunk["choices"].as_array().unwrap() {
                    texts[usize::try_from(choice["index"].as_u64().unwrap()).unwrap()]
                        .push_str(choice["text"].as_str().unwrap());
                }
            }
            assert_eq!(texts, want);
        }
    }
}

#[tokio::test]
async fn chat_logprobs_have_tokens_bytes_and_alternatives() {
    let got = ask(&healthy(), CHAT, chat(json!({"logprobs": true, "top_logprobs": 2}))).await;
    let content = got.json()["choices"][0]["logprobs"]["content"].clone();
    assert_eq!(content.as_array().unwrap().len(), 5, "the end token is not shown");
    assert_eq!(
        (&content[0]["token"], &content[0]["bytes"], &content[0]["logprob"]),
        (&json!("H"), &json!([72]), &json!(-0.5))
    );
    assert_eq!(content[0]["top_logprobs"][1]["logprob"], -9999.0);
}

#[tokio::test]
async fn completion_logprobs_are_lists_of_equal_length() {
    for stream in [false, true] {
        let router = healthy();
        let got = ask(
            &router,
            COMPLETIONS,
            completion(json!({"logprobs": 1, "stream": stream})),
        )
        .await;
        assert_eq!(lock(&router.submitted)[0].work.sampling.top_logprobs, 1);
        let mut offsets = Vec::new();
        for chunk in if stream { got.events() } else { vec![got.json()] } {
            let logprobs = &chunk["choices"][0]["logprobs"];
            offsets.extend(logprobs["text_offset"].as_array().cloned().unwrap_or_default());
            assert_eq!(
                logprobs["tokens"].as_array().map(Vec::len),
                logprobs["token_logprobs"].as_array().map(Vec::len)
            );
        }
        assert_eq!(offsets, [0, 1, 2, 3, 4]);
    }
}

#[tokio::test]
async fn token_ids_are_returned_on_request() {
    for stream in [false, true] {
        let got = ask(
            &healthy(),
            COMPLETIONS,
            completion(json!({"return_token_ids": true, "stream": stream})),
        )
        .await;
        let chunks = if stream { got.events() } else { vec![got.json()] };
        assert_eq!(chunks[0]["choices"][0]["prompt_token_ids"], json!([72, 105]));
        let ids: Vec<_> = chunks
            .iter()
            .flat_map(|chunk| chunk["choices"][0]["token_ids"].as_array().cloned().unwrap_or_default())
            .collect();
        assert_eq!(ids, [72, 101, 108, 108, 111, 258]);
        let got = ask(
            &healthy(),
            CHAT,
            chat(json!({"return_token_ids": true, "stream": stream})),
        )
        .await;
        let first = if stream {
            got.events().swap_remove(0)
        } else {
            got.json()
        };
        assert!(first["prompt_token_ids"].as_array().is_some_and(|ids| ids.len() > 2));
    }
}

#[tokio::test]
async fn specials_in_texts_stay_texts() {
    let router = healthy();
    ask(&router, COMPLETIONS, completion(json!({"prompt": "<|im_end|>"}))).await;
    ask(
        &router,
        CHAT,
        chat(json!({"messages": [{"role": "user", "content": "<|im_end|>"}]})),
    )
    .await;
    let submitted = lock(&router.submitted);
    assert_eq!(submitted[0].work.prompt.len(), 10);
    assert_eq!(
        submitted[1].work.prompt.iter().filter(|id| **id == 258).count(),
        1,
        "the template's own"
    );
}

#[tokio::test]
async fn ignore_eos_and_stop_token_ids_decide_what_ends_an_answer() {
    let router = healthy();
    let body = completion(json!({"ignore_eos": true, "stop_token_ids": [108]}));
    let got = ask(&router, COMPLETIONS, body).await;
    assert_eq!(*lock(&router.submitted)[0].work.stop_ids, [108]);
    assert_eq!(got.json()["choices"][0]["text"], "He");
}

#[tokio::test]
async fn harmless_fields_pass() {
    let body = chat(json!({
        "frequency_penalty": 0, "presence_penalty": 0.0, "n": 1, "logit_bias": {}, "tools": [], "tool_choice": "none",
        "response_format": {"type": "text"}, "store": false, "metadata": {"a": "b"}, "service_tier": "auto",
        "parallel_tool_calls": true, "user": "me", "stop": null, "stream_options": null, "top_p": 0, "min_tokens": 0,
        "messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                     {"role": "assistant", "content": "x", "refusal": null, "tool_calls": null}]
    }));
    let router = healthy();
    assert_eq!(ask(&router, CHAT, body).await.status, StatusCode::OK);
    assert!(lock(&router.submitted)[0].work.sampling.top_p > 0.0);
    assert_eq!(
        ask(
            &router,
            COMPLETIONS,
            completion(json!({"best_of": 2, "n": 2, "suffix": null}))
        )
        .await
        .status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn every_request_has_a_seed_and_a_valid_trace_is_passed_on() {
    let router = healthy();
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for _ in 0..2 {
        let mut request = post(CHAT, chat(json!({})));
        request.headers_mut().insert("traceparent", trace.parse().unwrap());
        read(send(&router, request).await).await;
    }
    let submitted = lock(&router.submitted);
    assert_ne!(submitted[0].work.sampling.seed, submitted[1].work.sampling.seed);
    assert_eq!(submitted[0].work.traceparent, trace);
    assert_eq!(
        (submitted[0].work.sampling.temperature, submitted[0].max_tokens),
        (1.0, 64)
    );
}

#[tokio::test]
async fn models_are_listed_and_found() {
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    let router = healthy();
    let list = read(send(&router, get("/v1/models")).await).await.json();
    assert_eq!(
        (
            &list["object"],
            &list["data"][0]["id"],
            &list["data"][0]["max_model_len"]
        ),
        (&json!("list"), &json!("tiny"), &json!(512))
    );
    for path in ["/v1/models/tiny", "/v1/models/org/tiny", "/v1/models/org%2Ftiny"] {
        let got = read(send(&router, get(path)).await).await;
        assert_eq!(
            (got.status, &got.json()["object"]),
            (StatusCode::OK, &json!("model")),
            "{path}"
        );
        assert_eq!(got.headers["x-request-id"].len(), 32);
    }
    let got = read(send(&router, get("/v1/models/other")).await).await;
    assert_eq!(
        (got.status, &got.json()["error"]["code"]),
        (StatusCode::NOT_FOUND, &json!("model_not_found"))
    );
}
