//! "OpenAI's API, to the letter", sentence by sentence. Most of it is about one request and is tested where requests are
//! read and answers written; what needs rooms, workers and sockets is here.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::path::Path;
use std::time::Duration;

use innkeeper_integration::{Cluster, Options, oracle, until};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(20);
const UNIT: &str = "services/router/src/front/tests";

/// What is promised, and where it is tested.
const SENTENCES: &[(&str, &str, &str)] = &[
    (
        "multi-byte characters are never broken across chunks",
        "tests/healthy.rs",
        "characters_are_never_broken_across_chunks",
    ),
    (
        "… whatever the batches",
        "answer/assembler.rs",
        "any_split_gives_the_same_answer",
    ),
    (
        "stop strings are found across token seams",
        "answer/assembler.rs",
        "a_stop_string_is_found_at_every_seam",
    ),
    (
        "… and nothing of them is shown before",
        "answer/assembler.rs",
        "nothing_of_a_stop_string_is_ever_shown_before_it_is_found",
    ),
    (
        "special tokens cannot be written in messages",
        "tests/healthy.rs",
        "specials_in_texts_stay_texts",
    ),
    (
        "keep-alive only while the room makes progress",
        "tests/clients.rs",
        "keep_alives_are_sent_only_while_tokens_come",
    ),
    (
        "200 is held until the first token",
        "tests/clients.rs",
        "the_status_is_held_back_until_the_first_token",
    ),
    (
        "failures before it are real statuses",
        "tests/failures.rs",
        "a_failure_before_the_first_token_is_a_real_status",
    ),
    (
        "errors after it are an event, then [DONE]",
        "tests/failures.rs",
        "a_failure_after_the_first_token_is_an_event_and_then_done",
    ),
    (
        "Retry-After with 429 and 503",
        "tests/failures.rs",
        "a_failure_before_the_first_token_is_a_real_status",
    ),
    (
        "errors have OpenAI's shape",
        "tests/refusals.rs",
        "whatever_is_wrong_outside_of_fields_is_said_in_the_same_shape",
    ),
    (
        "unsupported fields are refused by name (chat)",
        "tests/refusals.rs",
        "what_a_chat_may_not_say_is_refused_by_its_name",
    ),
    (
        "unsupported fields are refused by name (plain)",
        "tests/refusals.rs",
        "what_a_completion_may_not_say_is_refused_by_its_name",
    ),
    (
        "x-request-id: unusable ones are refused",
        "tests/refusals.rs",
        "an_unusable_request_id_is_refused_by_name",
    ),
    (
        "traceparent is passed on",
        "tests/healthy.rs",
        "every_request_has_a_seed_and_a_valid_trace_is_passed_on",
    ),
    (
        "usage in a stream only if asked for",
        "tests/healthy.rs",
        "without_include_usage_no_chunk_speaks_of_usage",
    ),
    (
        "n answers are n rooms",
        "tests/healthy.rs",
        "n_answers_are_n_rooms_with_their_own_seeds",
    ),
    (
        "batches, token-id prompts, echo",
        "tests/healthy.rs",
        "batches_of_prompts_in_every_form_are_echoed_in_order",
    ),
    (
        "logprobs of chats",
        "tests/healthy.rs",
        "chat_logprobs_have_tokens_bytes_and_alternatives",
    ),
    (
        "logprobs of completions",
        "tests/healthy.rs",
        "completion_logprobs_are_lists_of_equal_length",
    ),
    (
        "return_token_ids",
        "tests/healthy.rs",
        "token_ids_are_returned_on_request",
    ),
    ("/v1/models", "tests/healthy.rs", "models_are_listed_and_found"),
    (
        "an OpenAPI document of every field",
        "tests/openapi.rs",
        "every_field_that_a_parser_knows_is_in_the_document_and_no_other",
    ),
];

#[test]
fn every_sentence_has_its_test() {
    let front = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(UNIT).join("..");
    for (sentence, file, name) in SENTENCES {
        let source = std::fs::read_to_string(front.join(file)).unwrap();
        assert!(
            source.contains(&format!("fn {name}(")),
            "{sentence}: {file} has no {name}"
        );
    }
}

fn body(extra: Value) -> Value {
    let mut body = json!({"model": "mock", "max_tokens": 40, "temperature": 1.5, "seed": 11, "return_token_ids": true});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

async fn text(cluster: &Cluster, extra: Value) -> String {
    let answer = cluster.client.complete(&body(extra)).await;
    answer.body["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_stop_string_cuts_the_same_text_where_it_first_stands_streamed_and_whole() {
    let cluster = Cluster::start(Options::mock()).await;
    let whole = text(&cluster, json!({"prompt": "to be cut"})).await;
    let letters: Vec<(usize, char)> = whole.char_indices().collect();
    assert!(letters.len() > 12, "too short to cut: {whole:?}");
    // Longer than a token, so every one lies across seams.
    for at in [1, letters.len() / 2, letters.len() - 4] {
        let stop: String = letters[at..at + 3].iter().map(|(_, letter)| letter).collect();
        let expected = &whole[..whole.find(&stop).unwrap()];
        let cut = json!({"prompt": "to be cut", "stop": ["\u{1}never", stop]});
        assert_eq!(text(&cluster, cut.clone()).await, expected, "{stop:?} in {whole:?}");
        let mut stream = cluster
            .client
            .stream("/v1/completions", None, &body(cut))
            .await
            .unwrap();
        let chunks = stream.rest().await.unwrap();
        let streamed: String = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["text"].as_str())
            .collect();
        assert_eq!(streamed, expected, "{stop:?} in {whole:?}");
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    }
    oracle(&cluster).await;
}

#[tokio::test]
async fn n_and_batches_are_rooms_of_their_own_and_the_answers_of_one_alone() {
    let cluster = Cluster::start(Options::mock().workers(1, 2)).await;
    let asked = json!({"prompt": ["one", [116, 119, 111]], "n": 2, "max_tokens": 6});
    let answer = cluster.client.complete(&body(asked)).await;
    let choices = answer.body["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    let router = cluster.router_metrics().await;
    assert_eq!(
        router.sum("innkeeper_rooms_ended_total", &[("reason", "done")]),
        4.0,
        "a room each"
    );
    for (at, choice) in choices.iter().enumerate() {
        // The nth answer has the seed and n.
        let prompt = ["one", "two"][at / 2];
        let alone = json!({"prompt": prompt, "seed": 11 + at % 2, "max_tokens": 6});
        let alone = cluster.client.complete(&body(alone)).await;
        assert_eq!(choice["index"], at);
        assert_eq!(
            choice["token_ids"], alone.body["choices"][0]["token_ids"],
            "choice {at}"
        );
    }
    oracle(&cluster).await;
}

#[tokio::test]
async fn ids_are_on_every_answer_and_who_comes_too_early_is_told_when_to_come_again() {
    let cluster = Cluster::start(
        Options::mock()
            .flag("max-requests", 1)
            .flag("mock-decode-us-per-token", 20_000),
    )
    .await;
    let long = body(json!({"prompt": "x", "max_tokens": 400, "ignore_eos": true}));
    let mut stream = cluster
        .client
        .stream("/v1/completions", Some("first"), &long)
        .await
        .unwrap();
    assert!(stream.next().await.unwrap().is_some());
    let refused = cluster.client.post_as("second", "/v1/completions", &long).await;
    assert_eq!((refused.status, refused.code()), (503, "overloaded"), "{refused:?}");
    assert_eq!(refused.headers["x-request-id"], "second");
    assert!(refused.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    drop(stream);
    let served = until(SOON, "there is a place again", || async {
        let answer = cluster
            .client
            .post_as(
                "third",
                "/v1/completions",
                &body(json!({"prompt": "x", "max_tokens": 1})),
            )
            .await;
        if answer.status == 200 { Ok(answer) } else { Err(answer) }
    })
    .await;
    assert_eq!(served.headers["x-request-id"], "third");
    let wrong = cluster.client.post_as("fourth", "/v1/nothing", &json!({})).await;
    assert_eq!(
        (wrong.status, wrong.headers["x-request-id"].to_str().unwrap()),
        (404, "fourth")
    );
    oracle(&cluster).await;
}
