//! What chat and completion requests have in common.

use innkeeper_room::Class;
use serde_json::Value;

use super::fields::{Fields, wrong_type};
use super::harmless::{Harmless, Pass};
use crate::front::error::ApiError;
use crate::front::state::Limits;

/// OpenAI allows four.
pub(crate) const MAX_STOPS: usize = 4;
/// Longest stop string in bytes: text that may become one is held back.
pub(crate) const LONGEST_STOP: usize = 1024;
/// Most extra stop ids.
pub(crate) const MAX_STOP_IDS: usize = 64;

/// The fields that both kinds of request have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Common {
    pub(crate) model: String,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) stops: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) seed: Option<i64>,
    pub(crate) temperature: f32,
    pub(crate) top_p: f32,
    pub(crate) n: u32,
    pub(crate) return_token_ids: bool,
    pub(crate) class: Class,
}

/// OpenAI's words for how urgent a request is. `priority` is no field of ours: it is a number of which the smallest is the most
/// urgent for vLLM and the largest for SGLang, so that half of all clients would get the opposite of what they mean.
pub(crate) const TIERS: [(&str, Class); 4] = [
    ("auto", Class::Normal),
    ("default", Class::Normal),
    ("priority", Class::High),
    ("flex", Class::Low),
];

/// Known, not supported, and harmless with these values. `user` and the like are hints that change no answer.
pub(crate) const HARMLESS: &[Harmless] = &[
    ("allowed_token_ids", Pass::Never),
    ("bad_words", Pass::Empty),
    ("cache_salt", Pass::Never),
    ("chat_template", Pass::Never),
    ("frequency_penalty", Pass::Zero),
    ("guided_choice", Pass::Never),
    ("guided_grammar", Pass::Never),
    ("guided_json", Pass::Never),
    ("guided_regex", Pass::Never),
    ("include_stop_str_in_output", Pass::False),
    ("kv_transfer_params", Pass::Never),
    ("length_penalty", Pass::One),
    ("logit_bias", Pass::Empty),
    ("logits_processors", Pass::Empty),
    ("metadata", Pass::Object),
    ("min_p", Pass::Zero),
    ("min_tokens", Pass::Zero),
    ("presence_penalty", Pass::Zero),
    ("priority", Pass::Zero),
    ("prompt_cache_key", Pass::Text),
    ("prompt_cache_retention", Pass::Never),
    ("prompt_logprobs", Pass::Never),
    ("repetition_penalty", Pass::One),
    ("request_id", Pass::Never),
    ("response_format", Pass::TextFormat),
    ("safety_identifier", Pass::Text),
    ("skip_special_tokens", Pass::True),
    ("spaces_between_special_tokens", Pass::True),
    ("store", Pass::False),
    ("structured_outputs", Pass::Never),
    ("top_k", Pass::Numbers(&[-1, 0])),
    ("truncate_prompt_tokens", Pass::Never),
    ("use_beam_search", Pass::False),
    ("user", Pass::Text),
];

/// What `stream_options` may say beside `include_usage`.
pub(crate) const HARMLESS_IN_STREAM_OPTIONS: &[Harmless] = &[
    ("continuous_usage_stats", Pass::False),
    ("include_obfuscation", Pass::False),
];

impl Common {
    /// Takes the common fields.
    pub(super) fn take(fields: &mut Fields, limits: &Limits) -> Result<Self, ApiError> {
        let model = match fields.require("model")? {
            Value::String(model) => model,
            other => return Err(wrong_type("model", "a string", &other)),
        };
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let include_usage = take_stream_options(fields, stream)?;
        let stops = take_stops(fields)?;
        let stop_token_ids = match fields.take("stop_token_ids") {
            None => Vec::new(),
            Some(value) => take_ids("stop_token_ids", value, limits.vocabulary, MAX_STOP_IDS)?,
        };
        let ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(false);
        let seed = fields.integer("seed", i64::MIN..=i64::MAX)?;
        let temperature = narrow(fields.number("temperature", 0.0..=2.0)?.unwrap_or(1.0));
        // The smallest set that reaches 0 is the likeliest token alone; the smallest positive share says the same.
        let top_p = narrow(fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0)).max(f32::MIN_POSITIVE);
        let n = fields.integer("n", 1..=i64::from(limits.max_n))?.unwrap_or(1);
        let n = u32::try_from(n).unwrap_or(1);
        let return_token_ids = fields.boolean("return_token_ids")?.unwrap_or(false);
        let class = take_tier(fields)?;
        fields.harmless(HARMLESS)?;
        Ok(Self {
            model,
            stream,
            include_usage,
            stops,
            stop_token_ids,
            ignore_eos,
            seed,
            temperature,
            top_p,
            n,
            return_token_ids,
            class,
        })
    }
}

/// The engine's own precision is enough.
#[allow(clippy::cast_possible_truncation)]
fn narrow(value: f64) -> f32 {
    value as f32
}

/// `max_tokens` and the like: from 1 up. What is too much for the context is told apart later, with numbers.
pub(super) fn take_max_tokens(fields: &mut Fields, field: &str) -> Result<Option<u32>, ApiError> {
    let most = i64::from(u32::MAX);
    Ok(fields
        .integer(field, 1..=most)?
        .and_then(|tokens| u32::try_from(tokens).ok()))
}

fn take_stream_options(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(value) = fields.take("stream_options") else {
        return Ok(false);
    };
    if !stream {
        return Err(fields.complain(
            "stream_options",
            "invalid_value",
            "is only allowed when `stream` is true",
        ));
    }
    let mut options = Fields::nested("stream_options".to_owned(), value)?;
    let include_usage = options.boolean("include_usage")?.unwrap_or(false);
    options.harmless(HARMLESS_IN_STREAM_OPTIONS)?;
    options.finish()?;
    Ok(include_usage)
}

fn take_tier(fields: &mut Fields) -> Result<Class, ApiError> {
    match fields.take("service_tier") {
        None => Ok(Class::Normal),
        Some(Value::String(word)) => {
            let found = TIERS.iter().find(|(tier, _)| *tier == word);
            found.map(|(_, class)| *class).ok_or_else(|| {
                let message = "must be `auto`, `default`, `priority` or `flex`";
                fields.complain("service_tier", "invalid_value", message)
            })
        }
        Some(other) => Err(wrong_type("service_tier", "a string", &other)),
    }
}

fn take_stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let values = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(values)) => values,
        Some(single) => vec![single],
    };
    if values.len() > MAX_STOPS {
        let message = format_args!("may list at most {MAX_STOPS} strings, not {}", values.len());
        return Err(fields.complain("stop", "array_above_max_length", message));
    }
    let check = |value| match value {
        Value::String(text) if text.is_empty() => {
            Err(fields.complain("stop", "invalid_value", "must not be empty: it would stop everything"))
        }
        Value::String(text) if text.len() > LONGEST_STOP => {
            let message = format_args!("may be at most {LONGEST_STOP} bytes long");
            Err(fields.complain("stop", "string_above_max_length", message))
        }
        Value::String(text) => Ok(text),
        other => Err(wrong_type("stop", "a string or a list of strings", &other)),
    };
    values.into_iter().map(check).collect()
}

/// A list of token ids, each inside of the vocabulary.
pub(super) fn take_ids(name: &str, value: Value, vocabulary: u32, most: usize) -> Result<Vec<u32>, ApiError> {
    let Value::Array(values) = value else {
        return Err(wrong_type(name, "a list of token ids", &value));
    };
    if values.len() > most {
        let message = format!("`{name}` may list at most {most} token ids, not {}", values.len());
        return Err(ApiError::invalid(name, "array_above_max_length", message));
    }
    let check = |(at, value): (usize, Value)| {
        let id = value
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .filter(|id| *id < vocabulary);
        id.ok_or_else(|| {
            let message = format!(
                "`{name}[{at}]` is not a token id: ids are integers from 0 to {}",
                vocabulary.saturating_sub(1)
            );
            ApiError::invalid(format!("{name}[{at}]"), "invalid_value", message)
        })
    };
    values.into_iter().enumerate().map(check).collect()
}
