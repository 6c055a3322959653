//! Reads a tokenizer out of a GGUF file's metadata.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use candle_core::quantized::gguf_file::{Content, Value};

use super::bpe::{BpeTokenizer, Parts};
use super::{ChatTemplate, TextError};

/// GGUF's mark of a special ("control") token.
const CONTROL: i64 = 3;

/// What a model file without a template gets.
const CHATML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + \
                      '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}\
                      {% endif %}";

pub(super) fn load(path: &Path) -> Result<BpeTokenizer, TextError> {
    let read = |error: &dyn std::fmt::Display| TextError::Model(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(|error| read(&error))?;
    let content = Content::read(&mut BufReader::new(file)).map_err(|error| read(&error))?;
    from_metadata(&content.metadata)
}

fn from_metadata(metadata: &HashMap<String, Value>) -> Result<BpeTokenizer, TextError> {
    let model = text(metadata, "tokenizer.ggml.model").unwrap_or_default();
    if model != "gpt2" {
        return Err(TextError::Model(format!(
            "it is of kind `{model}`; only byte-level BPE (`gpt2`) is supported"
        )));
    }
    let pre = text(metadata, "tokenizer.ggml.pre").unwrap_or_default();
    let single_digits = match pre {
        "smollm" => true,
        "gpt-2" | "default" | "" => false,
        other => {
            return Err(TextError::Model(format!(
                "its splitting rule `{other}` is not supported"
            )));
        }
    };
    let tokens = texts(metadata, "tokenizer.ggml.tokens")?;
    let merges = texts(metadata, "tokenizer.ggml.merges")?;
    let types = list(metadata, "tokenizer.ggml.token_type")?;
    let special = (0u32..)
        .zip(types)
        .filter(|(_, kind)| number(kind) == Some(CONTROL))
        .map(|(id, _)| id)
        .collect();
    let id = |key: &str| metadata.get(key).and_then(number).and_then(|id| u32::try_from(id).ok());
    let eos = id("tokenizer.ggml.eos_token_id");
    let bos = id("tokenizer.ggml.bos_token_id");
    let spelling = |id: Option<u32>| id.and_then(|id| tokens.get(id as usize)).map_or("", String::as_str);
    let source = text(metadata, "tokenizer.chat_template").unwrap_or(CHATML);
    let template = ChatTemplate::new(source, spelling(bos), spelling(eos));
    // A model that was tuned to end turns may still end the text.
    let named = (0u32..)
        .zip(&tokens)
        .filter(|(_, token)| *token == "<|im_end|>" || *token == "<|endoftext|>");
    let mut ends: Vec<u32> = eos.into_iter().chain(named.map(|(id, _)| id)).collect();
    ends.sort_unstable();
    ends.dedup();
    BpeTokenizer::new(Parts {
        tokens,
        merges,
        special,
        single_digits,
        eos: ends,
        template,
    })
}

fn text<'a>(metadata: &'a HashMap<String, Value>, key: &str) -> Option<&'a str> {
    metadata
        .get(key)
        .and_then(|value| value.to_string().ok())
        .map(String::as_str)
}

fn list<'a>(metadata: &'a HashMap<String, Value>, key: &str) -> Result<&'a [Value], TextError> {
    let value = metadata.get(key).and_then(|value| value.to_vec().ok());
    value
        .map(Vec::as_slice)
        .ok_or_else(|| TextError::Model(format!("`{key}` is missing")))
}

fn texts(metadata: &HashMap<String, Value>, key: &str) -> Result<Vec<String>, TextError> {
    let text = |value: &Value| value.to_string().cloned();
    let all: Result<_, _> = list(metadata, key)?.iter().map(text).collect();
    all.map_err(|error| TextError::Model(format!("`{key}`: {error}")))
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::U8(value) => Some(i64::from(*value)),
        Value::I8(value) => Some(i64::from(*value)),
        Value::U16(value) => Some(i64::from(*value)),
        Value::I16(value) => Some(i64::from(*value)),
        Value::U32(value) => Some(i64::from(*value)),
        Value::I32(value) => Some(i64::from(*value)),
        Value::U64(value) => i64::try_from(*value).ok(),
        Value::I64(value) => Some(*value),
        Value::F32(_) | Value::F64(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => None,
    }
}
