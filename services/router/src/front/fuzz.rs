//! The body of the fuzz target `http`: the headers and the body of a request → its fields → prompts as token ids. No build
//! that serves has it.
//!
//! What must hold whatever a client writes: no panic; an error is small, in OpenAI's shape, and names a field that is in
//! the body or missing from it; what is accepted is within the limits and can be sent to workers; and nothing that a
//! client writes becomes a special token.

mod seeds;

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue};
use innkeeper_actors::ports::{Answer, NewRequest, OpenRoom, RequestStream, RouterPort};
use innkeeper_engine::text::ByteTokenizer;
use innkeeper_node::config::OnFailureRoutes;
use innkeeper_node::convert::Wire;
use innkeeper_room::ledger::router::AbortAnswer;
use innkeeper_room::{Attempt, Incarnation, Millis, RequestKey, RoomId, RoomSpec, Settings};
use serde_json::Value;

pub use self::seeds::seeds;
use super::api::{AbortRequest, Fields};
use super::error::ApiError;
use super::handlers::{plan_chat, plan_completions};
use super::limits::RateLimits;
use super::plan::{Caller, Plan};
use super::request_id::{X_REQUEST_ID, from_headers, traceparent};
use super::state::{FrontState, Limits, Model, NoMetrics};

/// The model's context, and the size of its vocabulary.
const CONTEXT: u32 = 512;
const VOCABULARY: u32 = 260;
/// The special tokens of the byte tokenizer that its chat template writes.
const IM_START: u32 = 257;
const IM_END: u32 = 258;
/// No error is larger, whatever it is about.
const LARGEST_ERROR: usize = 4096;

/// A router that is never asked: what is fuzzed ends where it begins.
struct NoRouter;

impl RouterPort for NoRouter {
    fn submit(&self, _: NewRequest) -> RequestStream {
        unreachable!("planning submits nothing")
    }

    fn abort(&self, _: String, _: String) -> Answer<'_, Option<AbortAnswer>> {
        unreachable!("planning aborts nothing")
    }
}

thread_local! {
    /// Making one takes longer than using it.
    static STATE: FrontState = FrontState {
        port: Arc::new(NoRouter),
        tokenizer: Arc::new(ByteTokenizer::new()),
        model: Model { id: "tiny".to_owned(), aliases: Vec::new(), created: 1 },
        limits: Limits::new(CONTEXT, VOCABULARY, 64),
        settings: Settings::default(),
        block_tokens: 16,
        on_failure: OnFailureRoutes::default(),
        rates: Arc::new(RateLimits::new(innkeeper_node::config::Limits::default(), 1)),
        keys: None,
        keep_alive: Duration::from_secs(5),
        ready: Arc::new(|| true),
        metrics: Arc::new(NoMetrics),
    };
}

/// Takes the first line for a route and headers (`chat`, `completions` or `abort`, `x-request-id`, `traceparent`), and the
/// rest for the body.
pub fn run(data: &[u8]) {
    let (head, body) = match data.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (&[][..], data),
    };
    let mut words = head.split(|byte| *byte == b' ');
    let route = words.next().unwrap_or_default();
    let Some(caller) = caller(words.next(), words.next()) else {
        return;
    };
    STATE.with(|state| match route.first() {
        Some(b'a') => judge_abort(body),
        Some(b'c') if route.starts_with(b"co") => {
            let planned = Fields::from_body(body).and_then(|fields| plan_completions(state, &caller, fields));
            judge(planned, body, completion_ids);
        }
        _ => {
            let planned = Fields::from_body(body).and_then(|fields| plan_chat(state, &caller, fields));
            judge(planned, body, chat_ids);
        }
    });
}

/// Who asks, if the headers can be used.
fn caller(id: Option<&[u8]>, trace: Option<&[u8]>) -> Option<Caller> {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        (X_REQUEST_ID, id),
        (axum::http::HeaderName::from_static("traceparent"), trace),
    ] {
        if let Some(value) = value.and_then(|value| HeaderValue::from_bytes(value).ok()) {
            headers.insert(name, value);
        }
    }
    let traceparent = traceparent(&headers);
    assert!(
        traceparent
            .as_ref()
            .is_none_or(|trace| trace.len() == 55 && trace.starts_with("00-"))
    );
    match from_headers(&headers) {
        Ok(id) => {
            let rid = id.unwrap_or_else(|| "made".to_owned());
            assert!((1..=256).contains(&rid.len()) && HeaderValue::from_str(&rid).is_ok());
            Some(Caller {
                rid: rid.into(),
                client: "client".to_owned(),
                tenant: 0,
                traceparent,
            })
        }
        Err(error) => {
            check_error(&error, None);
            None
        }
    }
}

fn judge_abort(body: &[u8]) {
    match Fields::from_body(body).and_then(AbortRequest::check) {
        Ok(abort) => assert!((1..=256).contains(&abort.rid.len())),
        Err(error) => check_error(&error, serde_json::from_slice(body).ok().as_ref()),
    }
}

fn judge(planned: Result<Plan, ApiError>, body: &[u8], expected: fn(&Value) -> Vec<Vec<u32>>) {
    match planned {
        Ok(plan) => {
            let written = serde_json::from_slice(body).expect("what was planned is JSON");
            check_plan(&plan, &expected(&written));
        }
        Err(error) => check_error(&error, serde_json::from_slice(body).ok().as_ref()),
    }
}

/// An error of the client's, in the shape of all errors, that names what is wrong.
fn check_error(error: &ApiError, body: Option<&Value>) {
    assert!(error.status().is_client_error(), "{error:?}");
    assert!(!error.code().is_empty() && !error.to_string().is_empty());
    let json = serde_json::to_value(error.body()).expect("an error can be written");
    assert!(
        json.to_string().len() <= LARGEST_ERROR,
        "an error of {} bytes",
        json.to_string().len()
    );
    if error.code() == "invalid_json" {
        assert!(
            !body.is_some_and(Value::is_object),
            "an object is refused as no JSON: {error}"
        );
        return;
    }
    let param = json["error"]["param"].as_str().expect("an error names its field");
    let required = ["model", "messages", "prompt", "rid", "x-request-id"];
    let end = param.find(['.', '[']).unwrap_or(param.len());
    // A long name is shown with its end left out.
    let is_named = |key: &str, name: &str| {
        let begins = name.strip_suffix('…').is_some_and(|begin| key.starts_with(begin));
        key == name || begins
    };
    let is_there = |name: &str| {
        let fields = body.and_then(Value::as_object);
        fields.is_some_and(|fields| fields.keys().any(|key| is_named(key, name)))
    };
    assert!(
        required.contains(&&param[..end]) || is_there(param) || is_there(&param[..end]),
        "`{param}` is not in the body"
    );
}

fn check_plan(plan: &Plan, prompts: &[Vec<u32>]) {
    let of_prompts: Vec<&[u32]> = plan.renderer.prompts.iter().map(|prompt| &**prompt).collect();
    assert_eq!(of_prompts, prompts, "a prompt is not what was written");
    assert!(!plan.choices.is_empty() && plan.choices.len() <= 64);
    for choice in &plan.choices {
        let NewRequest { work, max_tokens, .. } = &choice.request;
        let tokens = u32::try_from(work.prompt.len()).expect("a body is bounded");
        assert!(tokens > 0 && *max_tokens > 0 && tokens + max_tokens <= CONTEXT);
        assert!(
            work.prompt
                .iter()
                .chain(work.stop_ids.iter())
                .all(|id| *id < VOCABULARY)
        );
        let open = OpenRoom {
            spec: RoomSpec {
                room: RoomId::from_random(7),
                request: RequestKey(1),
                attempt: Attempt(1),
                router: Incarnation::new(1),
                prefill: Incarnation::new(2),
                decode: Incarnation::new(3),
                prompt_tokens: tokens,
                max_tokens: *max_tokens,
                queue_left: Millis(1000),
            },
            work: Arc::new(work.clone()),
            decode_addr: String::new(),
            token: 0,
        };
        let came = OpenRoom::from_wire(open.to_wire());
        assert!(
            came.is_ok_and(|came| came.work == open.work),
            "workers refuse what was accepted"
        );
    }
}

/// The ids of a text: its bytes, and nothing else.
fn ids(text: &str) -> impl Iterator<Item = u32> + '_ {
    text.bytes().map(u32::from)
}

/// What a chat's prompt must be: special tokens where the template has them and nowhere else.
fn chat_ids(body: &Value) -> Vec<Vec<u32>> {
    let mut prompt = Vec::new();
    for message in body["messages"].as_array().into_iter().flatten() {
        let role = match message["role"].as_str() {
            Some("developer") => "system",
            role => role.unwrap_or_default(),
        };
        prompt.push(IM_START);
        prompt.extend(ids(role).chain(ids("\n")));
        match &message["content"] {
            Value::Array(parts) => parts
                .iter()
                .for_each(|part| prompt.extend(ids(part["text"].as_str().unwrap_or("")))),
            text => prompt.extend(ids(text.as_str().unwrap_or_default())),
        }
        prompt.push(IM_END);
        prompt.extend(ids("\n"));
    }
    prompt.push(IM_START);
    prompt.extend(ids("assistant\n"));
    vec![prompt]
}

/// What a completion's prompts must be: text as its bytes, and ids as they are.
fn completion_ids(body: &Value) -> Vec<Vec<u32>> {
    let number = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let one = |value: &Value| match value {
        Value::Array(list) => list.iter().filter_map(number).collect(),
        text => ids(text.as_str().unwrap_or_default()).collect(),
    };
    match &body["prompt"] {
        Value::Array(list) if !list.first().is_some_and(Value::is_number) => list.iter().map(one).collect(),
        single => vec![one(single)],
    }
}
