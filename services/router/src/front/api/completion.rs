//! `POST /v1/completions`.

use serde_json::Value;

use super::common::{Common, take_ids, take_max_tokens};
use super::fields::{Fields, wrong_type};
use super::harmless::{Harmless, Pass};
use crate::front::error::ApiError;
use crate::front::state::Limits;

/// A prompt as the client wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    /// Text; what looks like a special token in it is text as well.
    Text(String),
    /// Token ids, inside of the vocabulary.
    Ids(Vec<u32>),
}

/// A checked completion request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CompletionRequest {
    pub(crate) common: Common,
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) echo: bool,
    /// How many alternatives per token; `None`: no logprobs.
    pub(crate) logprobs: Option<u8>,
}

/// Known, not supported, and harmless with these values, beside what both kinds have.
pub(crate) const HARMLESS: &[Harmless] = &[
    ("suffix", Pass::Words(&[""])),
    ("add_special_tokens", Pass::True),
    ("prompt_embeds", Pass::False),
];

impl CompletionRequest {
    /// Checks a request.
    ///
    /// # Errors
    /// Names the first field that is wrong, not supported or unknown.
    pub(crate) fn check(mut fields: Fields, limits: &Limits) -> Result<Self, ApiError> {
        let common = Common::take(&mut fields, limits)?;
        let prompts = take_prompts(&mut fields, limits)?;
        let choices = prompts.len() as u64 * u64::from(common.n);
        if choices > u64::from(limits.max_choices) {
            let message = format_args!(
                "asks for {choices} answers (prompts × n), but at most {} are given at once; send fewer prompts",
                limits.max_choices
            );
            return Err(fields.complain("prompt", "array_above_max_length", message));
        }
        let max_tokens = take_max_tokens(&mut fields, "max_tokens")?;
        let echo = fields.boolean("echo")?.unwrap_or(false);
        let logprobs = fields
            .integer("logprobs", 0..=5)?
            .and_then(|top| u8::try_from(top).ok());
        if echo && logprobs.is_some() {
            let message = "is not supported together with `echo`: the prompt's own tokens have none here";
            return Err(fields.complain("logprobs", "unsupported_parameter", message));
        }
        let n = i64::from(common.n);
        if let Some(best) = fields
            .integer("best_of", 1..=i64::from(limits.max_n))?
            .filter(|best| *best != n)
        {
            let message = format_args!("of {best} is not supported: it must equal `n`, which is {n}");
            return Err(fields.complain("best_of", "unsupported_parameter", message));
        }
        fields.harmless(HARMLESS)?;
        fields.finish()?;
        Ok(Self {
            common,
            prompts,
            max_tokens,
            echo,
            logprobs,
        })
    }
}

fn take_prompts(fields: &mut Fields, limits: &Limits) -> Result<Vec<Prompt>, ApiError> {
    let prompts = match fields.require("prompt")? {
        Value::String(text) => vec![Prompt::Text(text)],
        Value::Array(list) if list.first().is_some_and(Value::is_number) => {
            vec![Prompt::Ids(take_ids(
                "prompt",
                Value::Array(list),
                limits.vocabulary,
                usize::MAX,
            )?)]
        }
        Value::Array(list) => {
            let check = |(at, value)| check_prompt(format!("prompt[{at}]"), value, limits);
            list.into_iter().enumerate().map(check).collect::<Result<_, _>>()?
        }
        other => {
            return Err(wrong_type(
                "prompt",
                "a string, a list of strings, or token ids",
                &other,
            ));
        }
    };
    let is_empty = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.is_empty(),
        Prompt::Ids(ids) => ids.is_empty(),
    };
    if prompts.is_empty() || prompts.iter().any(is_empty) {
        return Err(fields.complain("prompt", "invalid_value", "must not be empty: give at least one token"));
    }
    Ok(prompts)
}

fn check_prompt(name: String, value: Value, limits: &Limits) -> Result<Prompt, ApiError> {
    match value {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(_) => take_ids(&name, value, limits.vocabulary, usize::MAX).map(Prompt::Ids),
        other => Err(wrong_type(&name, "a string or a list of token ids", &other)),
    }
}
