//! `POST /v1/chat/completions`.

use innkeeper_engine::text::Message;
use serde_json::Value;

use super::common::{Common, take_max_tokens};
use super::fields::{Fields, wrong_type};
use super::harmless::{Harmless, Pass};
use crate::front::error::ApiError;
use crate::front::state::Limits;

/// A checked chat request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChatRequest {
    pub(crate) common: Common,
    pub(crate) messages: Vec<Message>,
    pub(crate) max_tokens: Option<u32>,
    /// How many alternatives per token; `None`: no logprobs.
    pub(crate) logprobs: Option<u8>,
}

/// Without tools there is nothing to choose from, so every plain way not to use them is harmless.
pub(crate) const HARMLESS: &[Harmless] = &[
    ("add_generation_prompt", Pass::True),
    ("audio", Pass::Never),
    ("chat_template_kwargs", Pass::Empty),
    ("continue_final_message", Pass::False),
    ("documents", Pass::Empty),
    ("echo", Pass::False),
    ("function_call", Pass::Words(&["none", "auto"])),
    ("functions", Pass::Empty),
    ("modalities", Pass::TextOnly),
    ("parallel_tool_calls", Pass::Boolean),
    ("prediction", Pass::Never),
    ("reasoning_effort", Pass::Words(&["none"])),
    ("tool_choice", Pass::Words(&["none", "auto"])),
    ("tools", Pass::Empty),
    ("verbosity", Pass::Words(&["medium"])),
    ("web_search_options", Pass::Never),
];

/// What a message that came out of an SDK may carry without saying anything.
pub(crate) const HARMLESS_IN_MESSAGE: &[Harmless] = &[
    ("annotations", Pass::Empty),
    ("audio", Pass::Never),
    ("function_call", Pass::Never),
    ("name", Pass::Never),
    ("reasoning_content", Pass::Never),
    ("refusal", Pass::Never),
    ("tool_call_id", Pass::Never),
    ("tool_calls", Pass::Empty),
];

impl ChatRequest {
    /// Checks a request.
    ///
    /// # Errors
    /// Names the first field that is wrong, not supported or unknown.
    pub(crate) fn check(mut fields: Fields, limits: &Limits) -> Result<Self, ApiError> {
        let common = Common::take(&mut fields, limits)?;
        let messages = take_messages(&mut fields)?;
        let older = take_max_tokens(&mut fields, "max_tokens")?;
        let max_tokens = take_max_tokens(&mut fields, "max_completion_tokens")?.or(older);
        let wanted = fields.boolean("logprobs")?.unwrap_or(false);
        let top = fields.integer("top_logprobs", 0..=20)?;
        if top.is_some_and(|top| top > 0) && !wanted {
            return Err(fields.complain(
                "top_logprobs",
                "invalid_value",
                "is only allowed when `logprobs` is true",
            ));
        }
        let logprobs = wanted.then(|| top.and_then(|top| u8::try_from(top).ok()).unwrap_or(0));
        fields.harmless(HARMLESS)?;
        fields.finish()?;
        Ok(Self {
            common,
            messages,
            max_tokens,
            logprobs,
        })
    }
}

fn take_messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    match fields.require("messages")? {
        Value::Array(list) if list.is_empty() => {
            Err(fields.complain("messages", "empty_array", "must have at least one message"))
        }
        Value::Array(list) => list
            .into_iter()
            .enumerate()
            .map(|(at, value)| check_message(at, value))
            .collect(),
        other => Err(wrong_type("messages", "a list of messages", &other)),
    }
}

fn check_message(at: usize, value: Value) -> Result<Message, ApiError> {
    let mut fields = Fields::nested(format!("messages[{at}]"), value)?;
    let role = match fields.require("role")? {
        // The newer name of the same role.
        Value::String(role) if role == "developer" => "system".to_owned(),
        Value::String(role) if matches!(role.as_str(), "system" | "user" | "assistant") => role,
        Value::String(_) => {
            return Err(fields.complain("role", "invalid_value", "must be system, developer, user or assistant"));
        }
        other => return Err(wrong_type(&fields.name("role"), "a string", &other)),
    };
    let content = match fields.require("content")? {
        Value::String(text) => text,
        Value::Array(parts) => join_parts(&fields.name("content"), parts)?,
        other => {
            return Err(wrong_type(
                &fields.name("content"),
                "a string or a list of text parts",
                &other,
            ));
        }
    };
    fields.harmless(HARMLESS_IN_MESSAGE)?;
    fields.finish()?;
    Ok(Message::new(role, content))
}

/// Text parts, one after the other.
fn join_parts(name: &str, parts: Vec<Value>) -> Result<String, ApiError> {
    let mut content = String::new();
    for (at, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::nested(format!("{name}[{at}]"), part)?;
        match fields.require("type")? {
            Value::String(kind) if kind == "text" => {}
            _ => {
                return Err(fields.complain(
                    "type",
                    "unsupported_parameter",
                    "must be `text`: this model reads text only",
                ));
            }
        }
        match fields.require("text")? {
            Value::String(text) => content.push_str(&text),
            other => return Err(wrong_type(&fields.name("text"), "a string", &other)),
        }
        fields.finish()?;
    }
    Ok(content)
}
