//! A model as a Hugging Face folder: what engines such as vLLM and SGLang load, and a router needs the text of.
//!
//! | file | what is read |
//! |---|---|
//! | `tokenizer.json` | the tokenizer; the one file that must be there |
//! | `tokenizer_config.json`, `special_tokens_map.json` | the special tokens and their roles, `add_bos_token`, `chat_template` |
//! | `chat_template.jinja`, `chat_template.json` | the chat template, before that of `tokenizer_config.json` |
//! | `generation_config.json`, `config.json` | `eos_token_id`; the context |

#[cfg(test)]
mod fixtures;
mod specials;
#[cfg(test)]
mod tests;
mod tokenizer_json;

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use specials::Named;
use tokenizer_json::{Codec, Description};

use super::subword::{Parts, SubwordTokenizer};
use super::{ChatTemplate, TextError};

/// The largest tokenizers of today have some 35 MB.
const TOKENIZER_BYTES: u64 = 128 << 20;
/// Of any other file.
const FILE_BYTES: u64 = 8 << 20;

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
const GENERATION: &str = "generation_config.json";
const CONFIG: &str = "config.json";

/// What `config.json` calls the context, by family.
const CONTEXTS: [&str; 5] = [
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
];

const SAVE: &str = "save the tokenizer into the folder with `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)` \
                    of Python's `transformers`";
const KINDS: &str = "only byte-level BPE and SentencePiece's kinds of tokenizer are read; if it is one, copy the file from the model's \
                     repository again";
const AGAIN: &str = "copy it from the model's repository again";

/// A model's folder. What is in it is read when it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFolder {
    path: PathBuf,
}

impl ModelFolder {
    /// The folder at this path; `None` if none is there, or one that has nothing to do with models.
    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        let telling = [TOKENIZER, TOKENIZER_CONFIG, "tokenizer.model", CONFIG];
        let is_one = path.is_dir() && telling.iter().any(|file| path.join(file).is_file());
        is_one.then(|| Self { path: path.to_owned() })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What people call the model: the folder's name, or in Hugging Face's cache the repository's.
    #[must_use]
    pub fn name(&self) -> String {
        let whole = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let names = || whole.iter().rev().map(|name| name.to_string_lossy());
        let repository = names().find_map(|name| Some(name.strip_prefix("models--")?.rsplit("--").next()?.to_owned()));
        let cached = names().nth(1).is_some_and(|parent| parent == "snapshots");
        repository
            .filter(|_| cached)
            .or_else(|| names().next().map(|name| name.into_owned()))
            .unwrap_or_default()
    }

    /// Longest prompt and answer together, in tokens, as `config.json` has it; `None` if it does not say.
    ///
    /// # Errors
    /// [`TextError::Folder`] if it cannot be read.
    pub fn context(&self) -> Result<Option<u32>, TextError> {
        let config = self.json(CONFIG)?.unwrap_or_default();
        // Models of more than text have a part for it.
        let named = [&config, &config["text_config"]]
            .into_iter()
            .find_map(|part| CONTEXTS.iter().find_map(|name| part[*name].as_u64()));
        Ok(named.map(|context| u32::try_from(context).unwrap_or(u32::MAX)))
    }

    pub(super) fn tokenizer(&self) -> Result<SubwordTokenizer, TextError> {
        let wrong = |cause: String| self.wrong(TOKENIZER, cause, KINDS);
        let described = self
            .json(TOKENIZER)?
            .ok_or_else(|| self.wrong(TOKENIZER, "it is missing", SAVE))?;
        let description = Description::new(described).map_err(wrong)?;
        let config = self.json(TOKENIZER_CONFIG)?.unwrap_or_default();
        let map = self.json("special_tokens_map.json")?.unwrap_or_default();
        let named = Named::new(&config, &map);
        let source = self.template_source(&config)?;
        let specials = named.specials(&description);
        let added = specials::added(
            &description,
            &specials,
            source.as_ref().map(|(_, source)| source.as_str()),
        );
        let eos = self.eos(&description, &named)?;
        let template = source.map(|source| self.template(&source, &named)).transpose()?;
        let bos = named.id("bos_token", &description);
        let controls = added.iter().filter(|token| token.control);
        let controls: HashSet<&str> = controls.map(|token| token.spelling.as_str()).collect();
        let Codec {
            plain,
            bytes,
            unknown,
            first_space,
            around: (mut before, after),
        } = description.codec(&controls).map_err(wrong)?;
        specials::begin(&mut before, bos, config["add_bos_token"].as_bool());
        SubwordTokenizer::new(Parts {
            plain,
            added,
            unknown,
            bytes,
            specials,
            eos,
            template,
            first_space,
            around: (before, after),
        })
    }

    /// The ids that end an answer: what generation stops at, and the tokenizer's own end.
    fn eos(&self, description: &Description, named: &Named) -> Result<Vec<u32>, TextError> {
        let mut eos = self.eos_of(GENERATION)?;
        if eos.is_empty() {
            eos = self.eos_of(CONFIG)?;
        }
        eos.extend(named.id("eos_token", description));
        eos.sort_unstable();
        eos.dedup();
        if eos.is_empty() {
            let cause = "no file of the folder says which token ends an answer";
            return Err(self.wrong(GENERATION, cause, "write {\"eos_token_id\": ID} into it"));
        }
        Ok(eos)
    }

    fn eos_of(&self, file: &'static str) -> Result<Vec<u32>, TextError> {
        let content = self.json(file)?.unwrap_or_default();
        let named = match (&content["eos_token_id"], &content["text_config"]["eos_token_id"]) {
            (Value::Null, inner) => inner,
            (named, _) => named,
        };
        let ids: Option<Vec<u32>> = match named {
            Value::Null => Some(Vec::new()),
            Value::Array(ids) => ids.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        };
        ids.ok_or_else(|| {
            let cause = format!("`eos_token_id` is {named}");
            self.wrong(file, cause, "make it the id of a token, or a list of ids")
        })
    }

    /// The template, and the file that it is from.
    fn template_source(&self, config: &Value) -> Result<Option<(&'static str, String)>, TextError> {
        if let Some(bytes) = self.read(TEMPLATE, FILE_BYTES)? {
            let source = String::from_utf8(bytes).map_err(|error| self.wrong(TEMPLATE, error, AGAIN))?;
            return Ok(Some((TEMPLATE, source)));
        }
        let json = self.json("chat_template.json")?.unwrap_or_default();
        for (file, value) in [("chat_template.json", &json), (TOKENIZER_CONFIG, config)] {
            let source = match &value["chat_template"] {
                // Several of them, by name.
                Value::Array(named) => named
                    .iter()
                    .find(|one| one["name"] == "default")
                    .and_then(|one| one["template"].as_str()),
                one => one.as_str(),
            };
            if let Some(source) = source {
                return Ok(Some((file, source.to_owned())));
            }
        }
        Ok(None)
    }

    fn template(&self, source: &(&'static str, String), named: &Named) -> Result<ChatTemplate, TextError> {
        let names: Vec<(&str, &str)> = named.roles().collect();
        ChatTemplate::new(&source.1, &names).map_err(|error| {
            let todo = "correct it, or put one that works into the folder as chat_template.jinja";
            self.wrong(source.0, error, todo)
        })
    }

    /// A file's JSON; `None` if it is not there.
    fn json(&self, file: &'static str) -> Result<Option<Value>, TextError> {
        let limit = if file == TOKENIZER { TOKENIZER_BYTES } else { FILE_BYTES };
        let parse = |bytes: Vec<u8>| serde_json::from_slice(&bytes).map_err(|error| self.wrong(file, error, AGAIN));
        self.read(file, limit)?.map(parse).transpose()
    }

    /// A file's bytes; `None` if it is not there.
    fn read(&self, file: &'static str, limit: u64) -> Result<Option<Vec<u8>>, TextError> {
        let path = self.path.join(file);
        let rights = "see that it is a file that this program may read";
        match path.metadata() {
            Ok(about) if about.is_file() => {}
            Ok(_) => return Err(self.wrong(file, "it is no file", rights)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.wrong(file, error, rights)),
        }
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|open| open.take(limit + 1).read_to_end(&mut bytes))
            .map_err(|error| self.wrong(file, error, rights))?;
        if bytes.len() as u64 > limit {
            return Err(self.wrong(file, format!("it has more than {limit} bytes"), AGAIN));
        }
        Ok(Some(bytes))
    }

    fn wrong(&self, file: &str, cause: impl ToString, todo: &str) -> TextError {
        TextError::Folder {
            file: self.path.join(file),
            cause: cause.to_string(),
            todo: todo.to_owned(),
        }
    }
}

fn id(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}
