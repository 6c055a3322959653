//! Reads a `tokenizer.json`. It is changed before it is used: all added tokens are taken out, so that nothing a client
//! writes can become one, and what would cut, pad or vary prompts is switched off.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde_json::{Value, json};
use tokenizers::Tokenizer as Inner;

use super::super::decode::Decode;

/// Ids from here on are no ids of a vocabulary: the file is broken.
const MOST_IDS: u32 = 1 << 22;

/// A token of `added_tokens`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Entry {
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) special: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    #[serde(default)]
    pub(super) single_word: bool,
}

/// What the file says.
pub(super) struct Description {
    root: Value,
    /// Tokens with a spelling of their own.
    pub(super) added: Vec<Entry>,
    /// The subwords by id.
    vocabulary: HashMap<u32, String>,
}

/// What encodes and decodes.
pub(super) struct Codec {
    /// Encodes text without added tokens.
    pub(super) plain: Inner,
    /// By id, what a token is in text.
    pub(super) bytes: Vec<Vec<u8>>,
    /// The token for what the vocabulary lacks.
    pub(super) unknown: Option<u32>,
    /// See `Parts::first_space`.
    pub(super) first_space: Option<char>,
    /// What a prompt of its own begins and ends with.
    pub(super) around: (Vec<u32>, Vec<u32>),
}

impl Description {
    /// # Errors
    /// Which field is not as it should be.
    pub(super) fn new(root: Value) -> Result<Self, String> {
        let listed = match &root["added_tokens"] {
            Value::Null => json!([]),
            listed => listed.clone(),
        };
        let added: Vec<Entry> = serde_json::from_value(listed).map_err(|error| format!("`added_tokens`: {error}"))?;
        let vocabulary: HashMap<u32, String> = match &root["model"]["vocab"] {
            Value::Object(ids) => ids
                .iter()
                .filter_map(|(token, id)| Some((u32::try_from(id.as_u64()?).ok()?, token.clone())))
                .collect(),
            Value::Array(pieces) => (0u32..)
                .zip(pieces)
                .filter_map(|(id, piece)| Some((id, piece[0].as_str()?.to_owned())))
                .collect(),
            _ => return Err("`model.vocab` is missing".to_owned()),
        };
        let largest = added
            .iter()
            .map(|token| token.id)
            .chain(vocabulary.keys().copied())
            .max();
        if largest.is_some_and(|id| id >= MOST_IDS) {
            return Err(format!("an id is {MOST_IDS} or more"));
        }
        Ok(Self {
            root,
            added: added.into_iter().filter(|token| !token.content.is_empty()).collect(),
            vocabulary,
        })
    }

    /// The id of a token by its spelling.
    pub(super) fn id(&self, spelling: &str) -> Option<u32> {
        let added = self.added.iter().find(|token| token.content == spelling);
        added.map(|token| token.id).or_else(|| {
            let known = self.vocabulary.iter().find(|(_, token)| *token == spelling);
            known.map(|(id, _)| *id)
        })
    }

    /// Makes it work. Text will not become one of `controls`, by their spelling.
    ///
    /// # Errors
    /// Which field is not as it should be.
    pub(super) fn codec(mut self, controls: &HashSet<&str>) -> Result<Codec, String> {
        let decode = Decode::from_json(&self.root["decoder"]).map_err(|why| format!("`decoder`: {why}"))?;
        let bytes = self.bytes(&decode);
        let unknown = self.unknown();
        let first_space = take_first_space(&mut self.root["pre_tokenizer"]);
        disarm(&mut self.root["model"], controls);
        self.root["added_tokens"] = json!([]);
        // Tokens are decoded one at a time, by what `bytes` was made of.
        for field in ["truncation", "padding", "decoder"] {
            self.root[field] = Value::Null;
        }
        let text = serde_json::to_vec(&self.root).map_err(|error| error.to_string())?;
        drop(self);
        let plain = Inner::from_bytes(text).map_err(|error| error.to_string())?;
        let around = around(&plain);
        Ok(Codec {
            plain,
            bytes,
            unknown,
            first_space,
            around,
        })
    }

    fn bytes(&self, decode: &Decode) -> Vec<Vec<u8>> {
        let ids = self
            .added
            .iter()
            .map(|token| token.id)
            .chain(self.vocabulary.keys().copied());
        let mut bytes = vec![Vec::new(); ids.max().map_or(0, |id| id as usize + 1)];
        for (id, token) in &self.vocabulary {
            bytes[*id as usize] = decode.bytes(token);
        }
        for token in &self.added {
            bytes[token.id as usize] = decode.added_bytes(&token.content);
        }
        bytes
    }

    fn unknown(&self) -> Option<u32> {
        let model = &self.root["model"];
        let by_id = model["unk_id"].as_u64().and_then(|id| u32::try_from(id).ok());
        by_id.or_else(|| model["unk_token"].as_str().and_then(|token| self.id(token)))
    }
}

/// Takes `prepend_scheme: first` out of a pre-tokenizer, which goes by the start of what it is given: here that is not
/// always the start of the prompt. Returns its stand-in for a space.
fn take_first_space(pre_tokenizer: &mut Value) -> Option<char> {
    if let Some(inner) = pre_tokenizer.get_mut("pretokenizers").and_then(Value::as_array_mut) {
        return inner.iter_mut().filter_map(take_first_space).last();
    }
    if pre_tokenizer["type"] != "Metaspace" || pre_tokenizer["prepend_scheme"] != "first" {
        return None;
    }
    pre_tokenizer["prepend_scheme"] = json!("never");
    // Would contradict it.
    pre_tokenizer.as_object_mut()?.remove("add_prefix_space");
    let stand_in = pre_tokenizer["replacement"].as_str().unwrap_or("▁");
    stand_in.chars().next()
}

/// Takes controls out of a vocabulary, and chance out of its use.
fn disarm(model: &mut Value, controls: &HashSet<&str>) {
    model["dropout"] = Value::Null;
    let unknown = model["unk_token"].as_str().unwrap_or_default().to_owned();
    match &mut model["vocab"] {
        Value::Object(ids) => {
            let gone = |token: &str| controls.contains(token) && token != unknown;
            let before = ids.len();
            ids.retain(|token, _| !gone(token));
            if ids.len() == before {
                return;
            }
            if let Some(merges) = model.get_mut("merges").and_then(Value::as_array_mut) {
                merges.retain(|merge| !parts(merge).is_some_and(|(a, b)| gone(a) || gone(b) || gone(&[a, b].concat())));
            }
        }
        // The place in the list is the id. No text holds an empty piece.
        Value::Array(pieces) => {
            for piece in pieces {
                if piece[0].as_str().is_some_and(|token| controls.contains(token)) {
                    piece[0] = json!("");
                }
            }
        }
        _ => {}
    }
}

fn parts(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(both) => both.split_once(' '),
        both => Some((both[0].as_str()?, both[1].as_str()?)),
    }
}

/// What the post-processor puts before and after a text.
fn around(plain: &Inner) -> (Vec<u32>, Vec<u32>) {
    let ids = |around| {
        plain
            .encode_fast("x", around)
            .map(|encoding| encoding.get_ids().to_vec())
    };
    let (Ok(bare), Ok(full)) = (ids(false), ids(true)) else {
        return (Vec::new(), Vec::new());
    };
    if bare.is_empty() {
        return (full, Vec::new());
    }
    let at = full.windows(bare.len()).position(|run| run == bare).unwrap_or_default();
    (
        full[..at].to_vec(),
        full.get(at + bare.len()..).unwrap_or_default().to_vec(),
    )
}
