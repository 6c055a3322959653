//! Byte-level BPE as in GPT-2, with single digits (`pre = smollm`) where the model wants them.

use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{PreTokenizerWrapper, Tokenizer as Inner};

use super::{ChatTemplate, Message, Piece, TextError, Tokenizer};

/// A byte-level BPE tokenizer, as found in a model file.
pub struct BpeTokenizer {
    /// Knows no special token: whatever goes through it is text.
    plain: Inner,
    /// Spellings of special tokens, longest first, with their ids.
    specials: Vec<(String, u32)>,
    bytes: Vec<Vec<u8>>,
    spellings: HashMap<u32, String>,
    eos: Vec<u32>,
    template: ChatTemplate,
}

/// What a tokenizer is made of.
pub(super) struct Parts {
    pub(super) tokens: Vec<String>,
    pub(super) merges: Vec<String>,
    /// Ids of special tokens.
    pub(super) special: Vec<u32>,
    pub(super) single_digits: bool,
    pub(super) eos: Vec<u32>,
    pub(super) template: ChatTemplate,
}

impl BpeTokenizer {
    pub(super) fn new(parts: Parts) -> Result<Self, TextError> {
        let model = |error: tokenizers::Error| TextError::Model(error.to_string());
        let vocabulary: Vocab = (0u32..)
            .zip(&parts.tokens)
            .map(|(id, token)| (token.clone(), id))
            .collect();
        let merges = parts.merges.iter().filter_map(|merge| merge.split_once(' '));
        let merges = merges
            .map(|(left, right)| (left.to_owned(), right.to_owned()))
            .collect();
        let bpe = BPE::builder().vocab_and_merges(vocabulary, merges);
        let mut plain = Inner::new(bpe.build().map_err(model)?);
        let mut split = Vec::new();
        if parts.single_digits {
            split.push(PreTokenizerWrapper::from(Digits::new(true)));
        }
        split.push(PreTokenizerWrapper::from(ByteLevel::new(false, true, true)));
        plain.with_pre_tokenizer(Some(Sequence::new(split)));
        let spelling = |id: &u32| parts.tokens.get(*id as usize).map(|token| (token.clone(), *id));
        let mut specials: Vec<_> = parts.special.iter().filter_map(spelling).collect();
        specials.sort_by_key(|(text, id)| (std::cmp::Reverse(text.len()), *id));
        let spellings: HashMap<_, _> = specials.iter().map(|(text, id)| (*id, text.clone())).collect();
        let table = byte_table();
        let decode = |(id, token): (u32, &String)| {
            if spellings.contains_key(&id) {
                Vec::new()
            } else {
                token_bytes(&table, token)
            }
        };
        let bytes = (0u32..).zip(&parts.tokens).map(decode).collect();
        Ok(Self {
            plain,
            specials,
            bytes,
            spellings,
            eos: parts.eos,
            template: parts.template,
        })
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        if !text.is_empty() {
            let encoding = self
                .plain
                .encode_fast(text, false)
                .map_err(|error| TextError::Encode(error.to_string()))?;
            ids.extend_from_slice(encoding.get_ids());
        }
        Ok(())
    }

    /// The first special token in a text: where, how long, and which.
    fn find_special(&self, text: &str) -> Option<(usize, usize, u32)> {
        let found = self
            .specials
            .iter()
            .filter_map(|(spelling, id)| Some((text.find(spelling)?, spelling.len(), *id)));
        // At the same place the longest wins; `specials` has it first and `min_by_key` keeps the first.
        found.min_by_key(|(at, _, _)| *at)
    }

    /// Encodes pieces as if they were one text, but finds special tokens only in what the template wrote.
    fn encode_pieces(&self, pieces: Vec<Piece>) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        let mut pending = String::new();
        for piece in pieces {
            let template = match piece {
                Piece::Content(text) => {
                    pending.push_str(&text);
                    continue;
                }
                Piece::Template(text) => text,
            };
            let mut rest = template.as_str();
            while let Some((at, len, id)) = self.find_special(rest) {
                pending.push_str(&rest[..at]);
                self.encode_plain(&pending, &mut ids)?;
                pending.clear();
                ids.push(id);
                rest = &rest[at + len..];
            }
            pending.push_str(rest);
        }
        self.encode_plain(&pending, &mut ids)?;
        Ok(ids)
    }
}

impl Tokenizer for BpeTokenizer {
    fn encode(&self, text: &str, allow_special: bool) -> Result<Vec<u32>, TextError> {
        let text = text.to_owned();
        self.encode_pieces(vec![if allow_special {
            Piece::Template(text)
        } else {
            Piece::Content(text)
        }])
    }

    fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map(Vec::as_slice).unwrap_or_default()
    }

    fn special(&self, id: u32) -> Option<&str> {
        self.spellings.get(&id).map(String::as_str)
    }

    fn eos_ids(&self) -> &[u32] {
        &self.eos
    }

    fn vocabulary(&self) -> u32 {
        u32::try_from(self.bytes.len()).unwrap_or(u32::MAX)
    }

    fn chat(&self, messages: &[Message]) -> Result<Vec<u32>, TextError> {
        self.encode_pieces(self.template.render(messages)?)
    }
}

/// GPT-2's printable stand-ins for bytes: the printable Latin-1 characters are themselves, the others follow from 256.
fn byte_table() -> HashMap<char, u8> {
    let mut next = 256u32;
    let mut table = HashMap::new();
    for byte in 0..=255u8 {
        let stand_in = if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            char::from(byte)
        } else {
            next += 1;
            char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
        };
        table.insert(stand_in, byte);
    }
    table
}

fn token_bytes(table: &HashMap<char, u8>, token: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(token.len());
    for stand_in in token.chars() {
        match table.get(&stand_in) {
            Some(byte) => bytes.push(*byte),
            // Not from the table: the model file spelled it out.
            None => bytes.extend_from_slice(stand_in.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}
