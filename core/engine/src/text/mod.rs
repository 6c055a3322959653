//! Text to token ids and back: tokenizer, incremental detokenizer, chat template.

mod added;
mod bytes;
mod calendar;
mod chat;
mod decode;
mod detokenizer;
mod folder;
mod gguf;
mod jinja;
mod subword;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use bytes::ByteTokenizer;
pub use chat::{ChatTemplate, Piece};
pub use detokenizer::Detokenizer;
pub use folder::ModelFolder;
pub use subword::SubwordTokenizer;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// What was said. Never taken for a special token, whatever it looks like.
    pub content: String,
}

impl Message {
    /// A message of `role` that says `content`.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
        }
    }
}

/// What text cannot be encoded, or which tokenizer cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The model file lacks something or holds something unexpected.
    #[error("the model file has no usable tokenizer: {0}")]
    Model(String),
    /// A file of the model's folder lacks something or holds something unexpected.
    #[error("{file} cannot be used: {cause}; {todo}")]
    Folder {
        /// Which file, whether it is there or not.
        file: PathBuf,
        /// What is wrong, and with which field.
        cause: String,
        /// What to do.
        todo: String,
    },
    /// The model's chat template is none, or comes to no end.
    #[error("the chat template is broken: {0}")]
    Template(String),
    /// The client's messages do not fit the chat template.
    #[error("the messages do not fit the chat template: {0}")]
    Messages(String),
    /// The tokenizer failed on a text.
    #[error("the text could not be encoded: {0}")]
    Encode(String),
}

/// A tokenizer and its model's chat template.
pub trait Tokenizer: Send + Sync + 'static {
    /// The ids of a text that is a prompt of its own: where the model wants prompts to begin with a token, they have it. With `allow_special`, spellings of special tokens become those tokens; without, they are
    /// text like any other: the right choice for everything that comes from a client.
    ///
    /// # Errors
    /// [`TextError::Encode`].
    fn encode(&self, text: &str, allow_special: bool) -> Result<Vec<u32>, TextError>;

    /// The bytes that a token stands for in text. Not necessarily UTF-8 by themselves. Special tokens and ids outside
    /// the vocabulary stand for nothing.
    fn token_bytes(&self, id: u32) -> &[u8];

    /// How a special token is spelled; `None` for all others.
    fn special(&self, id: u32) -> Option<&str>;

    /// The ids that end an answer.
    fn eos_ids(&self) -> &[u32];

    /// Ids are below this.
    fn vocabulary(&self) -> u32;

    /// The ids of a conversation, up to where the assistant is to speak. Contents are encoded as plain text.
    ///
    /// # Errors
    /// [`TextError::Messages`] for roles the template does not know, or without a template; [`TextError::Template`],
    /// [`TextError::Encode`].
    fn chat(&self, messages: &[Message]) -> Result<Vec<u32>, TextError>;

    /// A token for people to look at (logprobs): readable text, with U+FFFD for broken UTF-8, and its exact bytes.
    fn token_text(&self, id: u32) -> (String, Vec<u8>) {
        let bytes = self.special(id).map_or_else(|| self.token_bytes(id), str::as_bytes);
        (String::from_utf8_lossy(bytes).into_owned(), bytes.to_vec())
    }
}

/// Loads tokenizer and chat template from a GGUF model file, or from a model's folder ([`ModelFolder`]).
///
/// # Errors
/// [`TextError::Model`] or [`TextError::Folder`] if what is there cannot be read or its tokenizer is of a kind that is not
/// supported.
pub fn load_tokenizer(path: &Path) -> Result<Arc<dyn Tokenizer>, TextError> {
    match ModelFolder::at(path) {
        Some(folder) => Ok(Arc::new(folder.tokenizer()?)),
        None => Ok(Arc::new(gguf::load(path)?)),
    }
}
