//! Tokens that are found in a text by their spelling, before the rest of it is split into subwords.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};

use super::TextError;

/// A token with a spelling of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Added {
    /// How it is written; not empty.
    pub(super) spelling: String,
    /// Its id.
    pub(super) id: u32,
    /// Only a template may write it: whoever else writes its spelling means text.
    pub(super) control: bool,
    /// White space before it belongs to it.
    pub(super) strip_before: bool,
    /// White space after it belongs to it.
    pub(super) strip_after: bool,
    /// In the middle of a word it is none.
    pub(super) single_word: bool,
}

impl Added {
    /// A token that only templates may write and that takes nothing with it.
    pub(super) fn control(spelling: impl Into<String>, id: u32) -> Self {
        Self {
            spelling: spelling.into(),
            id,
            control: true,
            strip_before: false,
            strip_after: false,
            single_word: false,
        }
    }
}

/// Finds some tokens in texts: the leftmost, and of those the longest. Takes time that grows with the text alone.
pub(super) struct Finder {
    tokens: Vec<Added>,
    /// `None`: there is nothing to find.
    automaton: Option<AhoCorasick>,
}

impl Finder {
    /// # Errors
    /// [`TextError::Model`] if there are more spellings than can be searched for.
    pub(super) fn new(tokens: Vec<Added>) -> Result<Self, TextError> {
        let automaton = if tokens.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(tokens.iter().map(|token| token.spelling.as_str()));
            Some(built.map_err(|error| TextError::Model(format!("its added tokens: {error}")))?)
        };
        Ok(Self { tokens, automaton })
    }

    /// The first token at or after byte `from`, and where it is.
    pub(super) fn find(&self, text: &str, mut from: usize) -> Option<(Range<usize>, &Added)> {
        let automaton = self.automaton.as_ref()?;
        loop {
            let found = automaton.find(Input::new(text).range(from..))?;
            let token = self.tokens.get(found.pattern().as_usize())?;
            if !token.single_word || stands_alone(text, &found.range()) {
                return Some((found.range(), token));
            }
            from = found.end();
        }
    }
}

fn stands_alone(text: &str, range: &Range<usize>) -> bool {
    let word = |letter: char| letter.is_alphanumeric() || letter == '_';
    !text[..range.start].ends_with(word) && !text[range.end..].starts_with(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finder(tokens: &[(&str, bool)]) -> Finder {
        let tokens = (0..).zip(tokens).map(|(id, (spelling, single_word))| Added {
            single_word: *single_word,
            ..Added::control(*spelling, id)
        });
        Finder::new(tokens.collect()).expect("a finder")
    }

    #[test]
    fn of_two_at_the_same_place_the_longer_is_found() {
        let finder = finder(&[("<a>", false), ("<a><b>", false)]);
        let found = finder.find("x<a><b>", 0).map(|(range, token)| (range, token.id));
        assert_eq!(found, Some((1..7, 1)));
        assert!(
            finder.find("x<a><b>", 2).is_none(),
            "the search begins where it is told to"
        );
    }

    #[test]
    fn a_single_word_is_not_found_within_another() {
        let finder = finder(&[("cat", true)]);
        let found = finder.find("concat cats 猫cat cat", 0).map(|(range, _)| range.start);
        assert_eq!(found, Some("concat cats 猫cat ".len()));
    }
}
