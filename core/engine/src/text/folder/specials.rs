//! Which tokens are special, and which of the others only a template may write.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::super::added::Added;
use super::tokenizer_json::{Description, Entry};

/// The special tokens that have a role. Templates may name them.
const ROLES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
];
/// What the configuration of a tokenizer says about its special tokens.
pub(super) struct Named {
    /// Those with a role, and their spellings.
    roles: Vec<(&'static str, String)>,
    /// Spellings of further ones.
    more: Vec<String>,
    /// Further ones with ids.
    numbered: Vec<(u32, String)>,
}

impl Named {
    /// From `tokenizer_config.json`, and where that does not say from `special_tokens_map.json`.
    pub(super) fn new(config: &Value, map: &Value) -> Self {
        let spelled = |role: &'static str| spelling(&config[role]).or_else(|| spelling(&map[role]));
        let found = |role: &&'static str| Some((*role, spelled(role)?.to_owned()));
        let lists = [config, map].into_iter().flat_map(|file| {
            let lists = [&file["additional_special_tokens"], &file["extra_special_tokens"]];
            lists.into_iter().filter_map(Value::as_array).flatten()
        });
        let numbered = config["added_tokens_decoder"].as_object().into_iter().flatten();
        let special = numbered.filter(|(_, token)| token["special"] == true);
        Self {
            roles: ROLES.iter().filter_map(found).collect(),
            more: lists.filter_map(spelling).map(str::to_owned).collect(),
            numbered: special
                .filter_map(|(id, token)| Some((id.parse().ok()?, spelling(token)?.to_owned())))
                .collect(),
        }
    }

    /// The special tokens that have a role, and their spellings.
    pub(super) fn roles(&self) -> impl Iterator<Item = (&str, &str)> {
        self.roles.iter().map(|(role, spelling)| (*role, spelling.as_str()))
    }

    /// The token with this role.
    pub(super) fn id(&self, role: &str, description: &Description) -> Option<u32> {
        let spelling = self.roles().find(|(known, _)| *known == role)?.1;
        description.id(spelling)
    }

    /// All special tokens by id: those that the tokenizer marks so, and those that are named.
    pub(super) fn specials(&self, description: &Description) -> HashMap<u32, String> {
        let marked = description.added.iter().filter(|token| token.special);
        let mut specials: HashMap<u32, String> = marked.map(|token| (token.id, token.content.clone())).collect();
        let spelled = self
            .roles()
            .map(|(_, spelling)| spelling)
            .chain(self.more.iter().map(String::as_str));
        // A role that is played by a word, such as padding by `!`, makes the word no special token.
        let known = spelled
            .filter(|spelling| bracketed(spelling) || description.added.iter().any(|token| token.content == *spelling))
            .filter_map(|spelling| Some((description.id(spelling)?, spelling.to_owned())));
        for (id, spelling) in known.chain(self.numbered.iter().cloned()) {
            specials.entry(id).or_insert(spelling);
        }
        specials
    }
}

/// The added tokens. Those that steer the model are controls: special ones, and what is marked as text and yet is written by
/// the template, or looks as only controls do.
pub(super) fn added(description: &Description, specials: &HashMap<u32, String>, template: Option<&str>) -> Vec<Added> {
    let written = |spelling: &str| template.is_some_and(|template| template.contains(spelling));
    let steers = |entry: &Entry| {
        let spelling = entry.content.as_str();
        let blank = spelling
            .trim_matches(|letter: char| letter.is_whitespace() || letter == '▁')
            .is_empty();
        specials.contains_key(&entry.id) || !blank && (written(spelling) || looks_like_control(spelling))
    };
    let listed = description.added.iter().map(|entry| Added {
        spelling: entry.content.clone(),
        id: entry.id,
        control: steers(entry),
        strip_before: entry.lstrip,
        strip_after: entry.rstrip,
        single_word: entry.single_word,
    });
    let known: HashSet<u32> = description.added.iter().map(|entry| entry.id).collect();
    let unlisted = specials.iter().filter(|(id, _)| !known.contains(id));
    let unlisted = unlisted.map(|(id, spelling)| Added::control(spelling.as_str(), *id));
    listed.chain(unlisted).collect()
}

fn bracketed(spelling: &str) -> bool {
    [('<', '>'), ('[', ']')]
        .iter()
        .any(|(open, close)| spelling.starts_with(*open) && spelling.ends_with(*close))
}

/// `<|this|>`, or the same with the wide bars of some families.
fn looks_like_control(spelling: &str) -> bool {
    let inner = spelling.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
    inner.is_some_and(|inner| {
        ['|', '｜']
            .iter()
            .any(|bar| inner.starts_with(*bar) && inner.ends_with(*bar))
    })
}

/// Has a prompt begin with the token that texts begin with, or not, where the configuration says so.
pub(super) fn begin(before: &mut Vec<u32>, bos: Option<u32>, wanted: Option<bool>) {
    let Some(bos) = bos else { return };
    match (wanted, before.first() == Some(&bos)) {
        (Some(true), false) => before.insert(0, bos),
        (Some(false), true) => drop(before.remove(0)),
        (Some(true), true) | (Some(false), false) | (None, _) => {}
    }
}

/// A token is written as its spelling alone, or with its properties.
fn spelling(token: &Value) -> Option<&str> {
    let spelling = token.as_str().or_else(|| token["content"].as_str())?;
    (!spelling.is_empty()).then_some(spelling)
}
