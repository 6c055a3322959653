//! Reads a tokenizer out of a GGUF file's metadata.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use candle_core::quantized::gguf_file::{Content, Value};

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{PreTokenizerWrapper, Tokenizer as Inner};

use super::added::Added;
use super::decode::Decode;
use super::subword::{Parts, SubwordTokenizer};
use super::{ChatTemplate, TextError};

/// GGUF's mark of a special ("control") token.
const CONTROL: i64 = 3;

/// What a model file without a template gets.
const CHATML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + \
                      '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}\
                      {% endif %}";

pub(super) fn load(path: &Path) -> Result<SubwordTokenizer, TextError> {
    let read = |error: &dyn std::fmt::Display| TextError::Model(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(|error| read(&error))?;
    let content = Content::read(&mut BufReader::new(file)).map_err(|error| read(&error))?;
    from_metadata(&content.metadata)
}

fn from_metadata(metadata: &HashMap<String, Value>) -> Result<SubwordTokenizer, TextError> {
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
    let specials: HashMap<u32, String> = (0u32..)
        .zip(types.iter().zip(&tokens))
        .filter(|(_, (kind, _))| number(kind) == Some(CONTROL))
        .map(|(id, (_, token))| (id, token.clone()))
        .collect();
    let id = |key: &str| metadata.get(key).and_then(number).and_then(|id| u32::try_from(id).ok());
    let eos = id("tokenizer.ggml.eos_token_id");
    let bos = id("tokenizer.ggml.bos_token_id");
    let spelling = |id: Option<u32>| id.and_then(|id| tokens.get(id as usize)).map_or("", String::as_str);
    let source = text(metadata, "tokenizer.chat_template").unwrap_or(CHATML);
    let names = [("bos_token", spelling(bos)), ("eos_token", spelling(eos))];
    let template = ChatTemplate::new(source, &names)?;
    // A model that was tuned to end turns may still end the text.
    let named = (0u32..)
        .zip(&tokens)
        .filter(|(_, token)| *token == "<|im_end|>" || *token == "<|endoftext|>");
    let mut ends: Vec<u32> = eos.into_iter().chain(named.map(|(id, _)| id)).collect();
    ends.sort_unstable();
    ends.dedup();
    let decode = Decode::byte_level();
    SubwordTokenizer::new(Parts {
        plain: byte_level_bpe(&tokens, &merges, single_digits)?,
        added: specials
            .iter()
            .filter(|(_, spelling)| !spelling.is_empty())
            .map(|(id, spelling)| Added::control(spelling.as_str(), *id))
            .collect(),
        unknown: None,
        bytes: tokens.iter().map(|token| decode.bytes(token)).collect(),
        specials,
        eos: ends,
        template: Some(template),
        first_space: None,
        around: (Vec::new(), Vec::new()),
    })
}

/// Byte-level BPE as in GPT-2, with single digits (`pre = smollm`) where the model wants them.
fn byte_level_bpe(tokens: &[String], merges: &[String], single_digits: bool) -> Result<Inner, TextError> {
    let vocabulary: Vocab = (0u32..).zip(tokens).map(|(id, token)| (token.clone(), id)).collect();
    let merges = merges.iter().filter_map(|merge| merge.split_once(' '));
    let merges = merges
        .map(|(left, right)| (left.to_owned(), right.to_owned()))
        .collect();
    let bpe = BPE::builder().vocab_and_merges(vocabulary, merges);
    let mut plain = Inner::new(bpe.build().map_err(|error| TextError::Model(error.to_string()))?);
    let mut split = Vec::new();
    if single_digits {
        split.push(PreTokenizerWrapper::from(Digits::new(true)));
    }
    split.push(PreTokenizerWrapper::from(ByteLevel::new(false, true, true)));
    plain.with_pre_tokenizer(Some(Sequence::new(split)));
    Ok(plain)
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
