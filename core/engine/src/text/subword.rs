//! A tokenizer of subwords: what a GGUF file and a model folder have in common.

use std::borrow::Cow;
use std::collections::HashMap;

use tokenizers::Tokenizer as Inner;

use super::added::{Added, Finder};
use super::{ChatTemplate, Message, Piece, TextError, Tokenizer};

/// A model's own tokenizer.
pub struct SubwordTokenizer {
    /// Knows no added token: whatever goes through it is text.
    plain: Inner,
    /// What only the template may write.
    controls: Finder,
    /// Added tokens that are text like any other, such as long runs of spaces.
    others: Finder,
    /// By id: must not come out of a text.
    forbidden: Vec<bool>,
    bytes: Vec<Vec<u8>>,
    spellings: HashMap<u32, String>,
    eos: Vec<u32>,
    template: Option<ChatTemplate>,
    first_space: Option<char>,
    before: Vec<u32>,
    after: Vec<u32>,
}

/// What a tokenizer is made of.
pub(super) struct Parts {
    /// Splits text into subwords; has no added tokens.
    pub(super) plain: Inner,
    /// The added tokens.
    pub(super) added: Vec<Added>,
    /// The token for what the vocabulary lacks: text may become it.
    pub(super) unknown: Option<u32>,
    /// By id: what each token is in text. Those of special tokens are not used.
    pub(super) bytes: Vec<Vec<u8>>,
    /// Special tokens, which stand for no text, with their spellings.
    pub(super) specials: HashMap<u32, String>,
    /// What ends an answer.
    pub(super) eos: Vec<u32>,
    /// `None`: the model has none, and cannot chat.
    pub(super) template: Option<ChatTemplate>,
    /// A text gets a space before its first word unless it begins with one, or with this stand-in for it.
    pub(super) first_space: Option<char>,
    /// What a prompt of its own begins and ends with.
    pub(super) around: (Vec<u32>, Vec<u32>),
}

impl SubwordTokenizer {
    pub(super) fn new(parts: Parts) -> Result<Self, TextError> {
        let mut bytes = parts.bytes;
        let mut forbidden = vec![false; bytes.len()];
        let mut mark = |id: u32| {
            if let Some(forbidden) = forbidden.get_mut(id as usize) {
                *forbidden = Some(id) != parts.unknown;
            }
        };
        for id in parts.specials.keys() {
            mark(*id);
            if let Some(bytes) = bytes.get_mut(*id as usize) {
                bytes.clear();
            }
        }
        let (controls, others): (Vec<_>, Vec<_>) = parts.added.into_iter().partition(|token| token.control);
        controls.iter().for_each(|token| mark(token.id));
        Ok(Self {
            plain: parts.plain,
            controls: Finder::new(controls)?,
            others: Finder::new(others)?,
            forbidden,
            bytes,
            spellings: parts.specials,
            eos: parts.eos,
            template: parts.template,
            first_space: parts.first_space,
            before: parts.around.0,
            after: parts.around.1,
        })
    }

    /// Encodes pieces as if they were one text, but finds controls only in what the template wrote.
    fn encode_pieces(&self, pieces: &[Piece], ids: &mut Vec<u32>) -> Result<(), TextError> {
        let mut stretch = Stretch::first();
        for piece in pieces {
            let template = match piece {
                Piece::Content(text) => {
                    stretch.push(text);
                    continue;
                }
                Piece::Template(text) => text.as_str(),
            };
            let mut from = 0;
            while let Some((range, token)) = self.controls.find(template, from) {
                stretch.push(&template[from..range.start]);
                self.encode_stretch(&stretch.end(token), ids)?;
                ids.push(token.id);
                stretch = Stretch::after(token);
                from = range.end;
            }
            stretch.push(&template[from..]);
        }
        self.encode_stretch(&stretch, ids)
    }

    /// Encodes what lies between two controls.
    fn encode_stretch(&self, stretch: &Stretch, ids: &mut Vec<u32>) -> Result<(), TextError> {
        let text = stretch.text.as_str();
        let mut from = 0;
        while let Some((range, token)) = self.others.find(text, from) {
            let before = &text[from..range.start];
            let before = if token.strip_before { before.trim_end() } else { before };
            self.encode_section(before, stretch.first && from == 0, ids)?;
            ids.push(token.id);
            from = range.end;
            if token.strip_after {
                from = text.len() - text[from..].trim_start().len();
            }
        }
        self.encode_section(&text[from..], stretch.first && from == 0, ids)
    }

    /// Encodes what has no added token in it.
    fn encode_section(&self, text: &str, first: bool, ids: &mut Vec<u32>) -> Result<(), TextError> {
        if text.is_empty() {
            return Ok(());
        }
        let spaced = match self.first_space {
            Some(stand_in) if first && !text.starts_with([' ', stand_in]) => Cow::Owned(format!(" {text}")),
            Some(_) | None => Cow::Borrowed(text),
        };
        let encoding = self
            .plain
            .encode_fast(spaced.as_ref(), false)
            .map_err(|error| TextError::Encode(error.to_string()))?;
        let new = encoding.get_ids();
        let forbidden = |id: &&u32| self.forbidden.get(**id as usize).copied().unwrap_or_default();
        if let Some(id) = new.iter().find(forbidden) {
            return Err(TextError::Encode(format!(
                "a part of it would be the special token {id}"
            )));
        }
        ids.extend_from_slice(new);
        Ok(())
    }
}

impl Tokenizer for SubwordTokenizer {
    fn encode(&self, text: &str, allow_special: bool) -> Result<Vec<u32>, TextError> {
        let text = text.to_owned();
        let piece = if allow_special {
            Piece::Template(text)
        } else {
            Piece::Content(text)
        };
        let mut ids = self.before.clone();
        self.encode_pieces(&[piece], &mut ids)?;
        ids.extend_from_slice(&self.after);
        Ok(ids)
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
        let Some(template) = &self.template else {
            return Err(TextError::Messages(
                "the model has no chat template; ask for a completion, or put a chat_template.jinja into its folder"
                    .to_owned(),
            ));
        };
        let mut ids = Vec::new();
        self.encode_pieces(&template.render(messages)?, &mut ids)?;
        Ok(ids)
    }
}

/// Text between two controls, or before the first or after the last.
struct Stretch {
    text: String,
    /// Nothing is before it.
    first: bool,
    /// The white space that comes next belongs to the control before.
    stripping: bool,
}

impl Stretch {
    const fn first() -> Self {
        Self {
            text: String::new(),
            first: true,
            stripping: false,
        }
    }

    const fn after(token: &Added) -> Self {
        Self {
            text: String::new(),
            first: false,
            stripping: token.strip_after,
        }
    }

    fn push(&mut self, text: &str) {
        let text = if self.stripping { text.trim_start() } else { text };
        self.stripping &= text.is_empty();
        self.text.push_str(text);
    }

    /// It ends because this token comes.
    fn end(mut self, token: &Added) -> Self {
        if token.strip_before {
            self.text.truncate(self.text.trim_end().len());
        }
        self
    }
}
