//! One answer, put together from its tokens.

use std::collections::VecDeque;
use std::sync::Arc;

use innkeeper_engine::text::{Detokenizer, Tokenizer};
use innkeeper_room::Token;

use super::stops::Stops;

/// Why an answer is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// An end token or a stop string.
    Stop,
    /// As many tokens as were asked for.
    Length,
}

impl Finish {
    /// As clients read it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// What became final: text to show, and the tokens behind it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Piece {
    /// Whole characters.
    pub(crate) text: String,
    /// The tokens that begin in this text, if logprobs were asked for.
    pub(crate) tokens: Vec<Shown>,
    /// All ids that came since the last piece with ids, if they were asked for.
    pub(crate) ids: Vec<u32>,
}

impl Piece {
    /// Whether there is nothing to show.
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.tokens.is_empty() && self.ids.is_empty()
    }

    /// Adds a later piece.
    pub(crate) fn append(&mut self, mut later: Self) {
        self.text.push_str(&later.text);
        self.tokens.append(&mut later.tokens);
        self.ids.append(&mut later.ids);
    }
}

/// A token that is shown, and where in the answer's text it begins, in characters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shown {
    pub(crate) token: Token,
    pub(crate) offset: u32,
}

/// What an answer asks of its assembly.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) stops: Vec<String>,
    pub(crate) stop_ids: Arc<[u32]>,
    pub(crate) max_tokens: u32,
    pub(crate) logprobs: bool,
    pub(crate) ids: bool,
}

/// A token whose text is not shown yet.
struct Waiting {
    shown: Shown,
    /// Bytes of text before it.
    start: usize,
}

/// Puts an answer together. The same tokens give the same text, however they were cut into batches.
pub(crate) struct Assembler {
    detokenizer: Detokenizer,
    stops: Stops,
    wanted: Wanted,
    produced: u32,
    finish: Option<Finish>,
    by_string: bool,
    waiting: VecDeque<Waiting>,
    /// Bytes and characters of text out of the detokenizer.
    decoded: usize,
    decoded_chars: u32,
    /// Bytes of text shown.
    shown: usize,
}

impl Assembler {
    /// An answer of which nothing has come yet.
    pub(crate) fn new(tokenizer: Arc<dyn Tokenizer>, mut wanted: Wanted) -> Self {
        let stops = Stops::new(std::mem::take(&mut wanted.stops));
        Self {
            detokenizer: Detokenizer::new(tokenizer),
            stops,
            wanted,
            produced: 0,
            finish: None,
            by_string: false,
            waiting: VecDeque::new(),
            decoded: 0,
            decoded_chars: 0,
            shown: 0,
        }
    }

    /// Tokens taken so far; those after the end are not.
    pub(crate) const fn produced(&self) -> u32 {
        self.produced
    }

    /// Why the answer is over, once it is.
    pub(crate) const fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Whether a stop string ended it: the engine does not know that it is over.
    pub(crate) const fn stopped_by_string(&self) -> bool {
        self.by_string
    }

    /// The next tokens. Those after the end change nothing.
    pub(crate) fn push(&mut self, tokens: Vec<Token>) -> Piece {
        let mut piece = Piece::default();
        for token in tokens {
            if self.finish.is_some() {
                break;
            }
            self.take(token, &mut piece);
        }
        piece
    }

    /// No more tokens come, and that is as it should be.
    pub(crate) fn end(&mut self) -> Piece {
        let mut piece = Piece::default();
        if self.finish.is_none() {
            self.close(Finish::Stop, &mut piece);
        }
        piece
    }

    fn take(&mut self, token: Token, piece: &mut Piece) {
        self.produced += 1;
        if self.wanted.ids {
            piece.ids.push(token.id);
        }
        if self.wanted.stop_ids.contains(&token.id) {
            self.close(Finish::Stop, piece);
            return;
        }
        let text = self.detokenizer.push(token.id);
        if self.wanted.logprobs {
            let shown = Shown {
                token,
                offset: self.decoded_chars,
            };
            self.waiting.push_back(Waiting {
                shown,
                start: self.decoded,
            });
        }
        self.show(&text, piece);
        if self.finish.is_none() && self.produced >= self.wanted.max_tokens {
            self.close(Finish::Length, piece);
        }
    }

    /// New text out of the detokenizer: shows what is safe, and ends the answer at a stop string.
    fn show(&mut self, text: &str, piece: &mut Piece) {
        self.decoded += text.len();
        let characters = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
        self.decoded_chars = self.decoded_chars.saturating_add(characters);
        let (safe, found) = self.stops.push(text);
        self.shown += safe.len();
        piece.text.push_str(&safe);
        let ready = self.waiting.iter().take_while(|first| first.start < self.shown).count();
        piece
            .tokens
            .extend(self.waiting.drain(..ready).map(|waiting| waiting.shown));
        if found {
            self.finish = Some(Finish::Stop);
            self.by_string = true;
            self.waiting.clear();
        }
    }

    /// Ends the answer and shows all that was held back.
    fn close(&mut self, finish: Finish, piece: &mut Piece) {
        let rest = self.detokenizer.finish();
        self.show(&rest, piece);
        if self.finish.is_some() {
            return;
        }
        piece.text.push_str(&self.stops.flush());
        self.shown = self.decoded;
        piece.tokens.extend(self.waiting.drain(..).map(|waiting| waiting.shown));
        self.finish = Some(finish);
    }
}

#[cfg(test)]
mod tests {
    use innkeeper_engine::text::ByteTokenizer;
    use proptest::prelude::*;

    use super::*;

    fn wanted(stops: &[&str], max_tokens: u32) -> Wanted {
        let stops = stops.iter().map(|text| (*text).to_owned()).collect();
        Wanted {
            stops,
            stop_ids: Arc::new([256, ByteTokenizer::EOS]),
            max_tokens,
            logprobs: true,
            ids: true,
        }
    }

    fn assembler(wanted: Wanted) -> Assembler {
        Assembler::new(Arc::new(ByteTokenizer::new()), wanted)
    }

    fn tokens(ids: &[u32]) -> Vec<Token> {
        ids.iter()
            .map(|id| Token {
                id: *id,
                ..Token::default()
            })
            .collect()
    }

    fn bytes(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    /// Everything that comes out if the tokens come in batches of these sizes.
    fn run(wanted: &Wanted, ids: &[u32], cuts: &[usize]) -> (Piece, Option<Finish>, u32) {
        let mut assembler = assembler(wanted.clone());
        let mut all = Piece::default();
        let mut rest = ids;
        for cut in cuts {
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            all.append(assembler.push(tokens(now)));
            rest = later;
        }
        all.append(assembler.push(tokens(rest)));
        all.append(assembler.end());
        (all, assembler.finish(), assembler.produced())
    }

    #[test]
    fn an_end_token_ends_and_is_counted_but_not_shown() {
        let ids = [bytes("hé"), vec![ByteTokenizer::EOS], bytes("more")].concat();
        let (piece, finish, produced) = run(&wanted(&[], 100), &ids, &[]);
        assert_eq!(piece.text, "hé");
        assert_eq!(finish, Some(Finish::Stop));
        assert_eq!(produced, 4);
        assert_eq!(piece.ids, ids[..4]);
        assert_eq!(piece.tokens.len(), 3);
    }

    #[test]
    fn as_many_tokens_as_asked_for_end_it() {
        let (piece, finish, produced) = run(&wanted(&["lo"], 4), &bytes("hello"), &[1, 1, 1, 1]);
        assert_eq!(
            (piece.text.as_str(), finish, produced),
            ("hell", Some(Finish::Length), 4)
        );
    }

    #[test]
    fn a_character_cut_by_the_length_is_one_replacement() {
        let (piece, _, _) = run(&wanted(&[], 2), &bytes("a😀"), &[]);
        assert_eq!(piece.text, "a\u{FFFD}");
    }

    #[test]
    fn logprobs_end_at_the_cut_and_offsets_count_characters() {
        let (piece, finish, produced) = run(&wanted(&["STOP"], 100), &bytes("é!xSTOPy"), &[1, 1, 1, 3]);
        assert_eq!((piece.text.as_str(), finish, produced), ("é!x", Some(Finish::Stop), 8));
        let offsets: Vec<_> = piece.tokens.iter().map(|shown| shown.offset).collect();
        assert_eq!(offsets, [0, 0, 1, 2]);
    }

    #[test]
    fn a_stop_string_is_found_at_every_seam() {
        let ids = bytes("one😀two⏹stop");
        for cut in 0..ids.len() {
            for second in 0..ids.len() - cut {
                let (piece, finish, _) = run(&wanted(&["😀two⏹"], 100), &ids, &[cut, second]);
                assert_eq!(
                    (piece.text.as_str(), finish),
                    ("one", Some(Finish::Stop)),
                    "cut at {cut}, {second}"
                );
            }
        }
    }

    #[test]
    fn nothing_of_a_stop_string_is_ever_shown_before_it_is_found() {
        let mut assembler = assembler(wanted(&["###"], 100));
        let shown: Vec<_> = bytes("a#b##c###")
            .into_iter()
            .map(|id| assembler.push(tokens(&[id])).text)
            .collect();
        assert_eq!(shown, ["a", "", "#b", "", "", "##c", "", "", ""]);
        assert!(assembler.stopped_by_string());
    }

    /// What the whole text is, cut at the stop string that is complete first.
    fn reference(ids: &[u32], stops: &[&str], max: usize) -> String {
        let end = ids.iter().position(|id| *id >= 256).unwrap_or(ids.len()).min(max);
        let raw: Vec<u8> = ids[..end].iter().map(|id| u8::try_from(*id).unwrap_or(0)).collect();
        let text = String::from_utf8_lossy(&raw).into_owned();
        let cut = stops
            .iter()
            .filter_map(|stop| text.find(stop).map(|at| (at + stop.len(), at)))
            .min();
        cut.map_or(text.clone(), |(_, at)| text[..at].to_owned())
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_answer(
            ids in prop::collection::vec(prop_oneof![6 => 97u32..100, 3 => Just(0xC3u32), 3 => Just(0xA9u32),
                2 => prop::sample::select(vec![0xF0u32, 0x9F, 0x98, 0x80]), 1 => Just(258u32)], 0..40),
            cuts in prop::collection::vec(0usize..6, 0..20),
            stops in prop::collection::vec("[a-cé]{1,4}", 0..4),
            max in 1u32..40,
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let wanted = wanted(&stops, max);
            let whole = run(&wanted, &ids, &[]);
            let split = run(&wanted, &ids, &cuts);
            prop_assert_eq!(&whole, &split);
            prop_assert_eq!(&whole.0.text, &reference(&ids, &stops, max as usize));
            prop_assert_eq!(whole.0.ids.len(), whole.2 as usize);
        }
    }
}
