//! A call's message → the fields of the HTTP API. So there is one set of checks, limits and words for both.

use innkeeper_proto::inference::generate_request::Input;
use innkeeper_proto::inference::{ChatMessage, GenerateRequest};
use serde_json::{Map, Value, json};

use crate::front::api::Fields;
use crate::front::error::ApiError;
use crate::front::handlers::{plan_chat, plan_completions};
use crate::front::plan::{Caller, Plan};
use crate::front::state::{FrontState, Route};

/// Which kind of request a call is.
pub(super) const fn route(request: &GenerateRequest) -> Route {
    match request.input {
        Some(Input::Chat(_)) => Route::Chat,
        Some(Input::Prompt(_) | Input::PromptTokenIds(_)) | None => Route::Completions,
    }
}

/// About how many bytes its prompt has.
pub(super) fn size(request: &GenerateRequest) -> usize {
    match &request.input {
        None => 0,
        Some(Input::Prompt(text)) => text.len(),
        Some(Input::PromptTokenIds(ids)) => ids.ids.len(),
        Some(Input::Chat(chat)) => chat.messages.iter().map(|message| message.content.len()).sum(),
    }
}

/// Checks and plans a call.
pub(super) fn plan(state: &FrontState, caller: &Caller, request: GenerateRequest) -> Result<Plan, ApiError> {
    let (mut map, input) = split(request);
    // What the HTTP API calls a field, and what it is called here.
    let (planned, names) = match input {
        None => {
            let message = "`input` is required: one of `prompt`, `prompt_token_ids` and `chat`";
            return Err(ApiError::invalid("input", "missing_required_parameter", message));
        }
        Some(Input::Chat(chat)) => {
            if map.contains_key("top_logprobs") {
                map.insert("logprobs".to_owned(), true.into());
            }
            let messages: Vec<Value> = chat.messages.into_iter().map(message).collect();
            map.insert("messages".to_owned(), messages.into());
            (
                plan_chat(state, caller, Fields::new(map)),
                ("messages", "chat.messages"),
            )
        }
        Some(Input::Prompt(text)) => {
            map.insert("prompt".to_owned(), text.into());
            (plan_prompt(state, caller, map), ("prompt", "prompt"))
        }
        Some(Input::PromptTokenIds(ids)) => {
            map.insert("prompt".to_owned(), ids.ids.into());
            (plan_prompt(state, caller, map), ("prompt", "prompt_token_ids"))
        }
    };
    planned.map_err(|error| error.renamed(names.0, names.1).renamed("logprobs", "top_logprobs"))
}

fn plan_prompt(state: &FrontState, caller: &Caller, mut map: Map<String, Value>) -> Result<Plan, ApiError> {
    if let Some(top) = map.remove("top_logprobs") {
        map.insert("logprobs".to_owned(), top);
    }
    plan_completions(state, caller, Fields::new(map))
}

fn message(message: ChatMessage) -> Value {
    json!({ "role": message.role, "content": message.content })
}

/// The fields that both kinds have, and the input.
fn split(request: GenerateRequest) -> (Map<String, Value>, Option<Input>) {
    let GenerateRequest {
        model,
        input,
        max_tokens,
        temperature,
        top_p,
        seed,
        n,
        stop,
        stop_token_ids,
        ignore_eos,
        top_logprobs,
        echo,
        service_tier,
    } = request;
    let mut map = Map::new();
    let mut say = |name: &str, value: Value| {
        // Null is what a field is that was not set.
        map.insert(name.to_owned(), value);
    };
    say("model", if model.is_empty() { Value::Null } else { model.into() });
    say("max_tokens", max_tokens.into());
    say("temperature", number(temperature));
    say("top_p", number(top_p));
    say("seed", seed.into());
    say("n", n.into());
    say("stop", stop.into());
    say("stop_token_ids", stop_token_ids.into());
    say("ignore_eos", ignore_eos.into());
    say("echo", echo.into());
    say("service_tier", service_tier.into());
    if let Some(top) = top_logprobs {
        say("top_logprobs", top.into());
    }
    // An answer over gRPC is a stream, ends with its usage, and always says its ids.
    say("stream", true.into());
    say("stream_options", json!({ "include_usage": true }));
    say("return_token_ids", true.into());
    (map, input)
}

/// JSON has no word for what is no number; a text is none either, and is refused as such.
fn number(value: Option<f64>) -> Value {
    match value {
        Some(value) if !value.is_finite() => value.to_string().into(),
        value => value.into(),
    }
}
