//! What clients may write.

use serde_json::{Map, Value, json};

use super::{object, reference};
use crate::front::api::{Harmless, abort, chat, common, completion};
use crate::front::state::{FrontState, Limits};

/// The schemas of bodies.
pub(super) fn schemas(state: &FrontState) -> Map<String, Value> {
    let mut schemas = Map::new();
    let mut add = |name: &str, schema| schemas.insert(name.to_owned(), schema);
    add("ChatCompletionRequest", chat_request(state));
    add("CompletionRequest", completion_request(state));
    add("ChatMessage", message());
    add("StreamOptions", stream_options());
    let rid =
        json!({ "rid": { "type": "string", "minLength": 1, "maxLength": 256, "description": "Its `x-request-id`" } });
    add("AbortRequest", object(with(rid, &[abort::HARMLESS]), &["rid"]));
    schemas
}

/// These fields, and those that are harmless with some values.
fn with(own: Value, tables: &[&[Harmless]]) -> Value {
    let harmless = tables.iter().copied().flatten();
    let harmless = harmless.map(|(field, pass)| {
        let mut schema = pass.schema();
        schema["description"] = "Not supported; with these values it changes nothing".into();
        ((*field).to_owned(), schema)
    });
    let mut all: Map<String, Value> = harmless.collect();
    if let Value::Object(own) = own {
        all.extend(own);
    }
    all.into()
}

fn chat_request(state: &FrontState) -> Value {
    let most = i64::from(u32::MAX);
    let mut own = common_fields(state);
    own.extend(fields(json!({
        "messages": { "type": "array", "minItems": 1, "items": reference("ChatMessage") },
        "max_tokens": integer(1, most, "The older name of `max_completion_tokens`"),
        "max_completion_tokens": integer(1, most, "Most tokens of an answer. Prompt and answer must fit the model's context"),
        "logprobs": flag("Whether the logprobs of the answer's tokens are told"),
        "top_logprobs": integer(0, 20, "Alternatives that are told for each token; only with `logprobs`"),
    })));
    object(
        with(own.into(), &[common::HARMLESS, chat::HARMLESS]),
        &["model", "messages"],
    )
}

fn completion_request(state: &FrontState) -> Value {
    let Limits { max_n, max_choices, .. } = state.limits;
    let most = i64::from(u32::MAX);
    let text = json!({ "type": "string", "minLength": 1 });
    let ids = json!({ "type": "array", "minItems": 1, "items": token_id(&state.limits) });
    let batch = json!({ "type": "array", "minItems": 1, "maxItems": max_choices, "items": { "anyOf": [text, ids] } });
    let mut own = common_fields(state);
    own.extend(fields(json!({
        "prompt": {
            "anyOf": [text, ids, batch],
            "description": "A text, token ids, or several of them. What looks like a special token in a text is text",
        },
        "max_tokens": integer(1, most, "Most tokens of an answer; 16 if it is not said. Prompt and answer must fit the model's context"),
        "echo": flag("Whether each answer begins with its prompt; not together with `logprobs`"),
        "logprobs": integer(0, 5, "Alternatives that are told for each token; absent: no logprobs at all"),
        "best_of": integer(1, i64::from(max_n), "Only as many as `n`"),
    })));
    object(
        with(own.into(), &[common::HARMLESS, completion::HARMLESS]),
        &["model", "prompt"],
    )
}

/// What both kinds have.
fn common_fields(state: &FrontState) -> Map<String, Value> {
    let limits = &state.limits;
    let names: Vec<&String> = std::iter::once(&state.model.id).chain(&state.model.aliases).collect();
    let tiers: Vec<Option<&str>> = common::TIERS
        .iter()
        .map(|(tier, _)| Some(*tier))
        .chain([None])
        .collect();
    let stop = json!({ "type": "string", "minLength": 1, "maxLength": common::LONGEST_STOP });
    fields(json!({
        "model": { "enum": names },
        "stream": flag("Whether the answer comes as server-sent events"),
        "stream_options": { "anyOf": [reference("StreamOptions"), { "type": "null" }], "description": "Only with `stream`" },
        "stop": {
            "anyOf": [stop, { "type": "array", "maxItems": common::MAX_STOPS, "items": stop }, { "type": "null" }],
            "description": "Texts that end an answer, and are not shown",
        },
        "stop_token_ids": {
            "type": ["array", "null"], "maxItems": common::MAX_STOP_IDS, "items": token_id(limits),
        },
        "ignore_eos": flag("Whether the model's end tokens are tokens as others"),
        "seed": integer(i64::MIN, i64::MAX, "The same seed, the same answer; the nth answer has this and n - 1"),
        "temperature": number(0, 2, "0: the likeliest token alone; 1 if it is not said"),
        "top_p": number(0, 1, "Only the likeliest tokens with this share of probability; 1 if it is not said"),
        "n": integer(1, i64::from(limits.max_n), "Answers to a prompt, each a room of its own"),
        "return_token_ids": flag("Whether the ids of prompt and answer are told"),
        "service_tier": {
            "enum": tiers,
            "description": "How urgent it is while more comes than fits: `priority` before `default` (as `auto`) before `flex`; all get their share",
        },
    }))
}

fn message() -> Value {
    let part = object(
        json!({ "type": { "const": "text" }, "text": { "type": "string" } }),
        &["type", "text"],
    );
    let own = json!({
        "role": { "enum": ["system", "developer", "user", "assistant"] },
        "content": { "anyOf": [{ "type": "string" }, { "type": "array", "items": part }] },
    });
    object(with(own, &[chat::HARMLESS_IN_MESSAGE]), &["role", "content"])
}

fn stream_options() -> Value {
    let own = json!({ "include_usage": flag("Whether the last chunk of the stream is its usage") });
    object(with(own, &[common::HARMLESS_IN_STREAM_OPTIONS]), &[])
}

fn token_id(limits: &Limits) -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": limits.vocabulary.saturating_sub(1) })
}

fn flag(description: &str) -> Value {
    json!({ "type": ["boolean", "null"], "description": description })
}

fn integer(least: i64, most: i64, description: &str) -> Value {
    json!({ "type": ["integer", "null"], "minimum": least, "maximum": most, "description": description })
}

fn number(least: i64, most: i64, description: &str) -> Value {
    json!({ "type": ["number", "null"], "minimum": least, "maximum": most, "description": description })
}

/// The fields of an object.
fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
