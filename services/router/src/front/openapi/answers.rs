//! What clients read.

use serde_json::{Map, Value, json};

use super::{object, reference};

/// The schemas of answers.
pub(super) fn schemas() -> Map<String, Value> {
    let mut schemas = Map::new();
    let mut add = |name: &str, schema| schemas.insert(name.to_owned(), schema);
    let ids = ids();
    chats(&mut add, &ids);
    completions(&mut add, &ids);
    add(
        "Usage",
        object(
            json!({
                "prompt_tokens": count(), "completion_tokens": count(), "total_tokens": count(),
                "prompt_tokens_details": object(json!({ "cached_tokens": count() }), &["cached_tokens"]),
            }),
            &[
                "prompt_tokens",
                "completion_tokens",
                "total_tokens",
                "prompt_tokens_details",
            ],
        ),
    );
    let card = json!({
        "id": { "type": "string" }, "object": { "const": "model" }, "created": count(), "owned_by": { "type": "string" },
        "root": { "type": "string" }, "parent": { "type": "null" }, "max_model_len": count(),
    });
    add(
        "Model",
        object(
            card,
            &["id", "object", "created", "owned_by", "root", "parent", "max_model_len"],
        ),
    );
    let list = json!({ "object": { "const": "list" }, "data": { "type": "array", "items": reference("Model") } });
    add("ModelList", object(list, &["object", "data"]));
    let aborted =
        json!({ "status": { "enum": ["accepted", "aborted", "already ended"] }, "rid": { "type": "string" } });
    add("Aborted", object(aborted, &["status", "rid"]));
    schemas
}

fn chats(add: &mut impl FnMut(&str, Value) -> Option<Value>, ids: &Value) {
    let message = json!({
        "role": { "const": "assistant" }, "content": { "type": "string" }, "refusal": { "type": "null" },
    });
    let message = object(message, &["role", "content", "refusal"]);
    let choice = |told: (&str, Value), finish: Value| {
        let (name, told) = told;
        let mut fields = json!({
            "index": count(), "logprobs": or_null("ChatLogprobs"), "finish_reason": finish, "token_ids": ids,
        });
        fields[name] = told;
        object(fields, &["index", name, "logprobs", "finish_reason"])
    };
    let whole = choice(("message", message), json!({ "enum": ["stop", "length"] }));
    add(
        "ChatCompletion",
        answer("chat.completion", &whole, &reference("Usage"), ids, &["usage"]),
    );
    let delta = object(
        json!({ "role": { "const": "assistant" }, "content": { "type": "string" } }),
        &[],
    );
    let piece = choice(("delta", delta), json!({ "enum": ["stop", "length", null] }));
    add(
        "ChatCompletionChunk",
        answer("chat.completion.chunk", &piece, &or_null("Usage"), ids, &[]),
    );
    let token = json!({ "token": { "type": "string" }, "logprob": { "type": "number" }, "bytes": bytes() });
    add("TokenLogprob", object(token.clone(), &["token", "logprob", "bytes"]));
    let mut with_top = token;
    with_top["top_logprobs"] = json!({ "type": "array", "items": reference("TokenLogprob") });
    let with_top = object(with_top, &["token", "logprob", "bytes", "top_logprobs"]);
    let logprobs = json!({ "content": { "type": "array", "items": with_top }, "refusal": { "type": "null" } });
    add("ChatLogprobs", object(logprobs, &["content", "refusal"]));
}

fn completions(add: &mut impl FnMut(&str, Value) -> Option<Value>, ids: &Value) {
    let completion = |finish: Value, usage: &Value, required: &[&str]| {
        let choice = json!({
            "index": count(), "text": { "type": "string" }, "logprobs": or_null("CompletionLogprobs"),
            "finish_reason": finish, "prompt_token_ids": ids, "token_ids": ids,
        });
        let choice = object(choice, &["index", "text", "logprobs", "finish_reason"]);
        let mut completion = answer("text_completion", &choice, usage, ids, required);
        if let Some(fields) = completion["properties"].as_object_mut() {
            // Each choice has its own.
            fields.remove("prompt_token_ids");
        }
        completion
    };
    let whole = completion(json!({ "enum": ["stop", "length"] }), &reference("Usage"), &["usage"]);
    add("Completion", whole);
    let chunk = completion(json!({ "enum": ["stop", "length", null] }), &or_null("Usage"), &[]);
    add("CompletionChunk", chunk);
    let numbers = json!({ "type": "array", "items": { "type": "number" } });
    let logprobs = json!({
        "tokens": { "type": "array", "items": { "type": "string" } },
        "token_logprobs": numbers,
        "top_logprobs": { "type": "array", "items": { "type": "object", "additionalProperties": { "type": "number" } } },
        "text_offset": { "type": "array", "items": count() },
    });
    add(
        "CompletionLogprobs",
        object(logprobs, &["tokens", "token_logprobs", "top_logprobs", "text_offset"]),
    );
}

/// What every answer has around its choices.
fn answer(kind: &str, choice: &Value, usage: &Value, ids: &Value, required: &[&str]) -> Value {
    let fields = json!({
        "id": { "type": "string" }, "object": { "const": kind }, "created": count(), "model": { "type": "string" },
        "choices": { "type": "array", "items": choice }, "usage": usage, "prompt_token_ids": ids,
    });
    let always = ["id", "object", "created", "model", "choices"];
    object(fields, &[&always, required].concat())
}

fn or_null(name: &str) -> Value {
    json!({ "anyOf": [reference(name), { "type": "null" }] })
}

fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn ids() -> Value {
    json!({ "type": "array", "items": count(), "description": "Only if `return_token_ids` was asked for" })
}

fn bytes() -> Value {
    json!({ "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 255 } })
}
